import pytest

from segplan.probe.outcomes import classify, first_line, settled, spilled
from segplan.results import Outcome
from segplan.units import GIB

OOM, KERNEL, FAILED = Outcome.OUT_OF_MEMORY, Outcome.KERNEL_LIMIT, Outcome.FAILED
LARGE = 2**31

# Messages as people posted them; the issue each is from stands beside it.
MESSAGES = [
    # pytorch#16417
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total "
     "capacity of 23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory, this process "
     "has 23.60 GiB memory in use.", OOM),
    # nnUNet#122, before torch had a class for it
    ("RuntimeError", "CUDA out of memory. Tried to allocate 450.00 MiB (GPU 0; 10.73 GiB total "
     "capacity; 9.23 GiB already allocated; 7.75 MiB free; 542.02 MiB cached)", OOM),
    ("OutOfMemoryError", "Allocation on device 0 would exceed it. (out of memory)", OOM),
    # taohan10200/IIM#28
    ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously "
     "reported at some other API call,so the stacktrace below might be incorrect.", OOM),
    # ComfyUI#12366
    ("AcceleratorError", "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in "
     "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html", OOM),
    ("RuntimeError", "CUDA driver error: out of memory", OOM),
    # pytorch#20123
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OOM),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", OOM),
    # Qwen3#873
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     OOM),
    # openvla#238, OneTrainer#274
    ("RuntimeError", "GET was unable to find an engine to execute this computation", OOM),
    ("RuntimeError", "FIND was unable to find an engine to execute this computation", OOM),
    # pytorch#44473
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed "
     "in a non-contiguous input.", OOM),
    # RRT-MIL#10
    ("RuntimeError", "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be "
     "true, but got false.  (Could this error message be improved?  If so, please report an "
     "enhancement request to PyTorch.)", KERNEL),
    # pytorch#144855
    ("RuntimeError", "upsample_nearest3d only supports output tensors with less than INT_MAX "
     "elements, but got [1, 1, 1178, 1367, 1367]", KERNEL),
    # MDA_GAN#2, BoxTeacher#11
    ("RuntimeError", "input tensor must fit into 32-bit index math", KERNEL),
    # torch-xpu-ops#2510
    ("RuntimeError", "Expected output.numel() <= std::numeric_limits<int32_t>::max() to be true, "
     "but got false.", KERNEL),
    # pytorch#43476
    ("RuntimeError", "N > 0 INTERNAL ASSERT FAILED at KernelUtils.h:27"
     ", please report a bug to PyTorch. CUDA kernel launch blocks must be positive, but got "
     "N=-2147483648", KERNEL),
    ("RuntimeError", "cub sort does not support sorting more than INT_MAX elements", KERNEL),
    ("RuntimeError", "integer out of range", KERNEL),
    ("RuntimeError", "Too many elements", KERNEL),
    # Not about memory
    ("ValueError", "Expected more than 1 spatial element when training, got input size "
     "torch.Size([2, 768, 1, 1, 1])", FAILED),
    ("RuntimeError", "The size of tensor a (6) must match the size of tensor b (7) at "
     "non-singleton dimension 4", FAILED),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered", FAILED),
    ("RuntimeError", "CUDA error: invalid configuration argument", FAILED),
    ("RuntimeError", "CUDA error: device-side assert triggered", FAILED),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", FAILED),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", FAILED),
    ("RuntimeError", "CUDA error: no kernel image is available for execution", FAILED),
    # The host's memory, not the card's
    ("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
     "allocate memory: you tried to allocate 34359738368 bytes. Error code 12 (Cannot allocate "
     "memory)", FAILED),
    ("MemoryError", "", FAILED),
]  # fmt: skip


@pytest.mark.parametrize(("error_type", "message", "outcome"), MESSAGES)
def test_real_messages(error_type, message, outcome):
    assert classify(error_type, message, largest_elements=10**6, free_bytes=9 * GIB) is outcome
    assert classify(error_type, message) is outcome


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: invalid configuration argument",  # BasicUNet upsampling, seen beside #144855
        "CUDA error: an illegal memory access was encountered",
    ],
)
def test_the_same_words_on_a_tensor_too_large_to_index(message):
    assert classify("RuntimeError", message, largest_elements=LARGE) is KERNEL
    assert classify("RuntimeError", message, largest_elements=LARGE - 1) is not KERNEL


def test_out_of_memory_stays_so_on_a_large_tensor():
    message = "CUDA out of memory. Tried to allocate 161.37 GiB."
    assert classify("OutOfMemoryError", message, largest_elements=LARGE) is OOM


@pytest.mark.parametrize(
    "message",
    [  # pytorch#81620: cuDNN had no memory left to load its kernels
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
def test_a_library_that_starves_on_a_full_card(message):
    assert classify("RuntimeError", message, free_bytes=100 * 2**20) is OOM
    assert classify("RuntimeError", message, free_bytes=4 * GIB) is FAILED


def test_one_line():
    assert first_line("RuntimeError", "\n CUDA error: x\nmore") == "RuntimeError: CUDA error: x"
    assert first_line("MemoryError", "") == "MemoryError"


def test_spilled_by_size():
    sizes = {"peak_reserved": 11 * GIB, "context_bytes": GIB}
    assert spilled(**sizes, capacity_bytes=12 * GIB - 1)
    assert not spilled(**sizes, capacity_bytes=12 * GIB)
    assert not spilled(**sizes, capacity_bytes=None)
    assert not spilled(peak_reserved=None, context_bytes=None, capacity_bytes=12 * GIB)


@pytest.mark.parametrize(
    ("pace", "reference", "answer"),
    [(0.31, 0.1, True), (0.29, 0.1, False), (0.31, None, False), (None, 0.1, False)],
)
def test_spilled_by_time(pace, reference, answer):
    assert answer is spilled(
        peak_reserved=GIB,
        context_bytes=GIB,
        capacity_bytes=12 * GIB,
        seconds_per_patch=pace,
        reference_seconds_per_patch=reference,
    )


@pytest.mark.parametrize(
    ("samples", "answer"),
    [([], False), ([1.0], False), ([9.0, 1.0], False), ([9.0, 1.0, 1.029], True),
     ([1.0, 1.0, 2.0], False), ([2.0, 1.04, 1.0], False)],
)  # fmt: skip
def test_settled(samples, answer):
    assert settled(samples) is answer
