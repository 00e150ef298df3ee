"""Workspaces of cuDNN's 3D convolutions, as PyTorch's heuristic mode chooses them.

The first cause is layout. Tensor-core kernels want channels last: for contiguous (B, C, H, W, D)
tensors cuDNN copies input, output and weights into its workspace, channels padded to 16 bytes (8
of half precision, 4 of float32), unless there is nothing to turn around (one channel) or the
layout already is channels last. Products of one voxel (1 x 1 x 1 kernels without strides) run as
plain matrix products on the contiguous layout, except for the weight gradient of several samples.
In full float32 only the weight gradient uses such kernels.

The second is that the weight gradient sums over all voxels, and few weights make few blocks of
threads: the sum is split, and every part has a float32 buffer of its own (`_partial_sums`). A few
MiB, but they decide which cached block serves the workspace: without them it would fit exactly
into what input and output have just left.

Read off the allocations of every convolution of seven networks on an H200 (torch 2.11.0+cu130,
cuDNN 9.19), `benchmarks/record_allocations.py`. Limitations: cuDNN's heuristics pick other
plans for small volumes, and how a sum is split is met within a few MiB; other generations are
assumed to follow the same rule from compute capability 7.0 on (8.0 for TF32), and to use no such
kernels before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from segplan.memory.plans import Plan, nearest
from segplan.trace.tape import Op, TensorMeta

_MIB = 2**20
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_VECTOR_BYTES = 16
_PLAIN_PRODUCT_VOXELS = 2**17
"""Below so many voxels in all, a product of one voxel runs on the contiguous layout."""

_LARGE_PRODUCT_VOXELS = 2**19
"""Above so many voxels in one sample, it does so too, and always with fewer than 64 channels."""

_WIDE_KERNEL = 5**3
"""Kernels of more taps have no variant of their own for one channel: it is padded too."""


def workspaces(op: Op, *, tf32: bool, capability: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """(outputs allocated before it, bytes) of each workspace of a convolution operator.

    `op` is "convolution.default" or "convolution_backward.default"; each workspace is freed
    before the next output is allocated.
    """
    if op.name == "convolution.default":
        image, weight = op.inputs[0], op.inputs[1]
        result = op.outputs[0]
        conv = Convolution(
            image, result, weight, _strides(op.args[3]), bool(op.args[6]), int(op.args[8]),
            _strides(op.args[5]),
        )  # fmt: skip
        task = "dgrad" if conv.transposed else "fprop"
        size = _one(task, conv, tf32, capability)
        return ((1, size),) if size else ()
    result, image, weight = op.inputs[0], op.inputs[1], op.inputs[2]
    conv = Convolution(
        image, result, weight, _strides(op.args[4]), bool(op.args[7]), int(op.args[9]),
        _strides(op.args[6]),
    )  # fmt: skip
    mask = op.args[10]
    found = []
    made = 0
    if mask[0]:
        made += 1
        size = _one("fprop" if conv.transposed else "dgrad", conv, tf32, capability)
        if size:
            found.append((made, size))
    if mask[1]:
        made += 1
        size = _one("wgrad", conv, tf32, capability)
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


@dataclass(frozen=True)
class Convolution:
    """A convolution's tensors (result: what it makes) and how it goes over them."""

    image: TensorMeta
    result: TensorMeta
    weight: TensorMeta
    strides: tuple[int, ...]
    transposed: bool
    groups: int
    dilation: tuple[int, ...] = (1, 1, 1)


def _strides(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * 3


def _one(task: str, conv: Convolution, tf32: bool, capability: tuple[int, int]) -> int:
    """Bytes of the workspace of one task: "fprop", "dgrad" or "wgrad"."""
    image, weight = conv.image, conv.weight
    if len(image.shape) != 5 or conv.groups != 1:
        return 0
    half = image.dtype in ("float16", "bfloat16")
    first = (7, 0) if image.dtype == "float16" else (8, 0)
    tensor_cores = capability >= first and (half or tf32)
    if not tensor_cores and (half or task != "wgrad"):
        return 0
    if image.suggests_channels_last or weight.suggests_channels_last:
        return 0
    by_layout = layout_copies(task, conv, tensor_cores)
    precision = "tf32" if tensor_cores and not half else image.dtype
    plan = Plan(
        precision, task, weight.shape, conv.strides, conv.transposed, image.shape[0], conv.dilation
    )
    seen = nearest(plan, image.numel // image.shape[1])
    if seen is not None:
        return seen.workspace(by_layout)
    if by_layout and task == "wgrad" and tensor_cores:
        return by_layout + _partial_sums(weight, image.shape[0])
    return by_layout


def layout_copies(task: str, conv: Convolution, tensor_cores: bool) -> int:
    """Bytes of the copies that turn tensors around, for "fprop", "dgrad" or "wgrad"."""
    image, result, weight = conv.image, conv.result, conv.weight
    c_in, c_out = image.shape[1], result.shape[1]
    taps = prod(weight.shape[2:])
    size = _BYTES[image.dtype]
    multiple = _VECTOR_BYTES // size
    if taps == 1 and (max(conv.strides) == 1 or not tensor_cores):
        special = _product(task, image, result, tensor_cores)
        if special is not None:
            return special
    else:
        few = min(c_in, c_out) < 8 and not tensor_cores and taps < _WIDE_KERNEL
        if few or (c_in == 1 and task == "fprop" and image.dtype != "float16"):
            return 0
    kept_one = task == "wgrad" and (
        taps == 1
        or taps > _WIDE_KERNEL
        or image.dtype == "bfloat16"
        or (not tensor_cores and taps >= _WIDE_KERNEL)
    )
    reduced = {"fprop": c_in, "dgrad": c_out, "wgrad": c_in}[task]
    made = 0  # channels of what a transposed convolution makes
    if conv.transposed and task != "wgrad":
        reduced = c_in + c_out - reduced
        made = c_out if task == "dgrad" else 0
    pad = taps == 1 or task == "wgrad" or any(c % multiple and c != 1 for c in (reduced, made))
    total = 0
    for tensor, channels in ((image, c_in), (result, c_out)):
        if channels == 1 and not kept_one:
            continue
        wide = -(-channels // multiple) * multiple
        total += tensor.numel // channels * (wide if pad else channels) * size
    if c_in > 1:
        total += weight.numel * size
    elif kept_one:
        total += weight.numel * multiple * size
    return total


def _product(task: str, image: TensorMeta, result: TensorMeta, tensor_cores: bool) -> int | None:
    """Bytes for a kernel of one voxel, or None where the rule of layout holds."""
    c_in, c_out = image.shape[1], result.shape[1]
    size = _BYTES[image.dtype]
    half = size == 2
    if image.dtype == "float16" and c_out == 1 and task == "fprop" and c_in >= 32:
        return image.numel * size
    if task != "wgrad" or c_out == 1:
        return 0
    if not half:
        return 0 if not tensor_cores and c_in < 48 else None
    voxels = image.numel // c_in
    if voxels < _PLAIN_PRODUCT_VOXELS:
        return 0
    if min(c_in, c_out) > 1 and max(c_in, c_out) <= 16 and (c_in % 8 or c_out % 8):
        return 2 * (image.numel + result.numel) * size  # in float32, on copies
    if image.shape[0] == 1 and c_in > 1 and (c_in < 64 or voxels > _LARGE_PRODUCT_VOXELS):
        return 0
    return None


def _partial_sums(weight: TensorMeta, samples: int) -> int:
    """Bytes of the parts of a split weight gradient, about.

    As recorded: none for large weights, whose own blocks fill the card (256 x 128 x 3³), 3.4 MiB
    for 128 x 64 x 3³, 1.7 MiB for 64 x 64 x 3³, 3.8 MiB for 32 x 32 x 3³ (0.1 to 6 by volume),
    7.5 MiB for 16 x 16 x 3³ (half of it for one sample), 1.9 MiB for 2³ kernels, 15 to 20 MiB
    for 5³.
    """
    whole = weight.numel * 4
    taps = prod(weight.shape[2:])
    if taps == 1:
        return 17 * _MIB // 10
    if taps <= 8:
        return 0 if whole >= _MIB else 19 * _MIB // 10
    if taps > _WIDE_KERNEL:
        return 0
    if taps > 27:
        return 16 * _MIB
    if whole >= 3 * _MIB:
        return 0
    if whole >= 6 * _MIB // 10:
        return 34 * _MIB // 10
    if whole >= 15 * _MIB // 100:
        return 17 * _MIB // 10
    if whole >= 4 * _MIB // 100:
        return 38 * _MIB // 10
    return min(samples, 2) * 375 * _MIB // 100
