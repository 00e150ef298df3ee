"""Workspaces of cuDNN's 3D convolutions, as PyTorch's heuristic mode chooses them.

The cause is layout. Tensor-core kernels want channels last: for contiguous (B, C, H, W, D)
tensors cuDNN copies input, output and weights into its workspace, channels padded to a multiple
of 8, unless there is nothing to turn around (one channel) or the layout already is
channels last. Products of one voxel (1 x 1 x 1 kernels) run as plain matrix products on the
contiguous layout, except for the weight gradient of several samples. In full float32 only the
weight gradient uses such kernels.

Read off the allocations of every convolution of seven networks on an H200 (torch 2.11.0+cu130,
cuDNN 9.19), `benchmarks/record_allocations.py`. Limitations: cuDNN's heuristics pick other
plans for small volumes; other generations are assumed to follow the same rule from compute
capability 7.0 on (8.0 for TF32), and to use no such kernels before.
"""

from __future__ import annotations

from math import prod

from segplan.trace.tape import Op, TensorMeta

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_CHANNEL_MULTIPLE = 8


def workspaces(op: Op, *, tf32: bool, capability: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """(outputs allocated before it, bytes) of each workspace of a convolution operator.

    `op` is "convolution.default" or "convolution_backward.default"; each workspace is freed
    before the next output is allocated.
    """
    if op.name == "convolution.default":
        image, weight = op.inputs[0], op.inputs[1]
        result = op.outputs[0]
        transposed, groups = bool(op.args[6]), int(op.args[8])
        task = "dgrad" if transposed else "fprop"
        size = _one(task, image, result, weight, transposed, groups, tf32, capability)
        return ((1, size),) if size else ()
    result, image, weight = op.inputs[0], op.inputs[1], op.inputs[2]
    transposed, groups, mask = bool(op.args[7]), int(op.args[9]), op.args[10]
    found = []
    made = 0
    if mask[0]:
        made += 1
        task = "fprop" if transposed else "dgrad"
        size = _one(task, image, result, weight, transposed, groups, tf32, capability)
        if size:
            found.append((made, size))
    if mask[1]:
        made += 1
        size = _one("wgrad", image, result, weight, transposed, groups, tf32, capability)
        if size:
            found.append((made, size))
    return tuple(found)


def copies(op: Op) -> tuple[int, ...]:
    """Bytes of the arguments that are first copied into the layout of the convolution.

    Convolution.cpp: `input.contiguous(backend_memory_format)`, the same for the weight, and in
    the backward pass for the incoming gradient.
    """
    if op.name == "convolution.default":
        tensors, layout_of = op.inputs[:2], op.inputs[:2]
    else:
        tensors, layout_of = op.inputs[:3], op.inputs[1:3]
    if len(tensors[0].shape) != 5:
        return ()
    last = any(t.suggests_channels_last for t in layout_of)
    return tuple(
        t.numel * _BYTES[t.dtype]
        for t in tensors
        if not (t.channels_last if last else t.contiguous)
    )


def _one(
    task: str,
    image: TensorMeta,
    result: TensorMeta,
    weight: TensorMeta,
    transposed: bool,
    groups: int,
    tf32: bool,
    capability: tuple[int, int],
) -> int:
    if len(image.shape) != 5 or groups != 1:
        return 0
    half = image.dtype in ("float16", "bfloat16")
    first = (7, 0) if image.dtype == "float16" else (8, 0)
    tensor_cores = capability >= first and (half or tf32)
    if not tensor_cores and (half or task != "wgrad"):
        return 0
    if image.suggests_channels_last or weight.suggests_channels_last:
        return 0
    c_in, c_out = image.shape[1], result.shape[1]
    one_voxel = prod(weight.shape[2:]) == 1
    samples = image.shape[0]
    if one_voxel:
        if task != "wgrad" or (samples == 1 and half):
            return 0
        if not tensor_cores and c_in < 48:
            return 0
    elif not tensor_cores and min(c_in, c_out) < 8:
        return 0
    size = _BYTES[image.dtype]
    reduced = {"fprop": c_in, "dgrad": c_out, "wgrad": c_in}[task]
    if transposed and task != "wgrad":
        reduced = c_in + c_out - reduced
    pad = reduced % _CHANNEL_MULTIPLE != 0 and reduced != 1
    total = 0
    for tensor, channels in ((image, c_in), (result, c_out)):
        if channels == 1 and not (one_voxel and tensor_cores):
            continue
        wide = -(-channels // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE
        kept = wide if pad or one_voxel or task == "wgrad" else channels
        total += tensor.numel // channels * kept * size
    if c_in > 1:
        total += weight.numel * size
    return total
