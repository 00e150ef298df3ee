"""The child process's side of a probe: a workload in, raw numbers out.

Heavy modules are imported by `preload`, in a process that has not touched a card yet.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from segplan.errors import SegplanError
from segplan.probe.messages import ProbeReply, ProbeRequest
from segplan.probe.outcomes import classify, first_line, settled
from segplan.results import Outcome
from segplan.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from segplan.probe.device import CudaDevice, Device

TARGET = "segplan.probe.job:handle"
STARTUP = "segplan.probe.job:preload"
MOST_WARMUP = 10
FULL_STEPS = 3
"""Steps until the optimizer's state exists and the pool has fragmented: what "fits" means."""

_device: CudaDevice | None = None


def preload() -> None:
    """Import what is slow to import; creates no CUDA context."""
    import monai.losses
    import monai.networks.nets  # noqa: F401

    import segplan.networks
    import segplan.probe.device
    import segplan.step.train  # noqa: F401


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run one probe on the card that CUDA_VISIBLE_DEVICES leaves.

    Args:
        request: a `ProbeRequest`.
        progress: told {"environment": ...} before anything can fail for want of memory.

    Returns:
        A `ProbeReply`.

    Raises:
        NetworkError: the network cannot be built.
        CardError: torch cannot use the card.
    """
    global _device
    from segplan.probe.device import CudaDevice

    asked = cast(ProbeRequest, request)
    try:
        if _device is None:
            _device = CudaDevice(asked["free_before"])
    except RuntimeError as error:  # not even a context fits
        return dict(_failure(error, Outcome.OUT_OF_MEMORY))
    progress({"environment": _device.environment()})
    return dict(run(asked, _device, progress))


def run(
    request: ProbeRequest, device: Device, progress: Callable[[dict[str, Any]], None]
) -> ProbeReply:
    """Build, warm up, time, clean up; every error of the step becomes an outcome.

    Raises:
        SegplanError: the network cannot be built as asked.
    """
    workload = Workload.from_dict(request["workload"])
    reply = _empty()
    largest = _Largest(workload)
    failed = False
    try:
        device.open(request["allocator_limit"])
        _steps(workload, request, device, largest, reply, progress)
    except SegplanError:
        device.clean_up()
        raise
    except Exception as error:
        failed = True
        outcome = classify(
            type(error).__name__,
            str(error),
            largest_elements=largest.elements,
            free_bytes=device.free_bytes(),
        )
        reply = {**reply, **_failure(error, outcome)}
        traceback.clear_frames(error.__traceback__)
    with contextlib.suppress(RuntimeError):  # a broken context knows no numbers
        for key, value in device.peaks().items():
            reply[key] = value  # type: ignore[literal-required]
    clean = device.clean_up()
    reply["clean"] = clean and not failed
    with contextlib.suppress(RuntimeError):
        reply["held_bytes"] = device.held_bytes()
    return reply


def _steps(
    workload: Workload,
    request: ProbeRequest,
    device: Device,
    largest: _Largest,
    reply: ProbeReply,
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """Everything that holds the card's memory, so that returning releases it."""
    from segplan.networks import build
    from segplan.step.train import backend_flags, make_batch, make_step

    began = time.monotonic()
    with warnings.catch_warnings(), backend_flags(workload):
        warnings.simplefilter("ignore")
        network = _placed(build(workload), workload, device.name)
        step = make_step(workload, network, device_type=device.name)
        images, labels = make_batch(workload, device.name)
        timed = request["steps"]
        at_least = max(request["warmup"], 1, FULL_STEPS - timed)
        samples: list[float] = reply["warmup_seconds"]
        while True:
            with largest.watching(network) if not samples else contextlib.nullcontext():
                start = device.mark()
                step.run(images, labels)
                end = device.mark()
                device.synchronize()
            samples.append(device.seconds(start, end))
            progress({"step": len(samples)})
            if len(samples) < at_least:
                continue
            late = time.monotonic() - began > request["budget_s"]
            if timed == 0 or settled(samples) or late or len(samples) >= MOST_WARMUP:
                break
        left = request["budget_s"] - (time.monotonic() - began)
        needed = max(1, FULL_STEPS - len(samples))
        if timed:
            timed = max(needed, min(timed, int(left / max(samples[-1], 1e-6))))
        # No synchronisation between timed steps: the host runs ahead, as it does in training.
        marks = [device.mark()]
        for _ in range(timed):
            step.run(images, labels)
            marks.append(device.mark())
        device.synchronize()
        reply["step_seconds"] = [device.seconds(a, b) for a, b in itertools.pairwise(marks)]


def _placed(network: nn.Module, workload: Workload, device: str) -> nn.Module:
    """The network on the card, its 5-D weights in the workload's memory format."""
    from segplan.step.train import MEMORY_FORMAT

    memory_format = MEMORY_FORMAT[workload.memory_format]
    for parameter in network.parameters():
        if parameter.dim() == 5:  # only these have a channels_last_3d format
            parameter.data = parameter.data.contiguous(memory_format=memory_format)
    return network.to(device)


class _Largest:
    """Elements of the largest tensor that modules were given, returned, or were about to make."""

    def __init__(self, workload: Workload) -> None:
        h, w, d = workload.patch
        channels = max(workload.in_channels, workload.out_channels)
        self.elements = workload.batch * channels * h * w * d

    @contextlib.contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Look at every module's tensors while inside."""
        handles = [m.register_forward_pre_hook(self._before) for m in network.modules()]
        handles += [m.register_forward_hook(self._after) for m in network.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        import torch

        for tensor in inputs:
            if not isinstance(tensor, torch.Tensor):
                continue
            self._see(tensor.numel())
            channels = getattr(module, "out_channels", None)
            if isinstance(channels, int) and tensor.dim() == 5 and hasattr(module, "weight"):
                self._see(_convolved(module, tensor.shape, channels))

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        if isinstance(output, torch.Tensor):
            self._see(output.numel())

    def _see(self, elements: int) -> None:
        self.elements = max(self.elements, elements)


def _convolved(module: nn.Module, shape: Any, channels: int) -> int:
    """Elements a 3D convolution is about to make, borders left out."""
    elements: int = shape[0] * channels
    strides = getattr(module, "stride", (1, 1, 1))
    up = bool(getattr(module, "transposed", False))
    for size, stride in zip(shape[2:], strides, strict=False):
        elements *= size * stride if up else -(-size // stride)
    return elements


def _empty() -> ProbeReply:
    return {
        "outcome": Outcome.FITS.value,
        "message": None,
        "step_seconds": [],
        "warmup_seconds": [],
        "peak_allocated": None,
        "peak_reserved": None,
        "process_bytes": None,
        "context_bytes": None,
        "held_bytes": None,
        "allocator_retries": None,
        "clean": False,
    }


def _failure(error: BaseException, outcome: Outcome) -> ProbeReply:
    message = first_line(type(error).__name__, str(error))
    return {**_empty(), "outcome": outcome.value, "message": message}
