"""What each operator of a step has to do: floating-point operations, bytes, kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from segplan.trace.tape import Op, TensorMeta

ITEM_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

KINDS = (
    "conv_forward",
    "conv_input_gradient",
    "conv_weight_gradient",
    "pointwise_conv",
    "grouped_conv",
    "matmul",
    "attention",
    "elementwise",
    "cast",
    "broadcast",
    "broadcast_cast",
    "copy",
    "strided",
    "moments",
    "norm_apply",
    "channel_norm_backward",
    "cudnn_norm",
    "cudnn_norm_backward",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "softmax",
    "channel_softmax",
    "reduction",
    "index",
    "resample",
    "optimizer",
)
"""Classes of work with an efficiency of their own."""

INDEX = {kind: i for i, kind in enumerate(KINDS)}
DTYPES = ("float16", "bfloat16", "float32")
PHASES = ("forward", "backward", "optimizer")

TILE_ROWS, TILE_COLUMNS = 128, 64
"""Output tile of a matrix-product kernel; a product with fewer tiles than the card has
multiprocessors leaves some idle."""

ALIGNED_BYTES = 16
"""What a thread loads at once: rows of matrices that do not begin on such a boundary need other
kernels, which load single elements (CUTLASS, efficient GEMM: alignment)."""

CHANNEL_MULTIPLE = 8
"""Tensor-core kernels pad channels to a multiple of 8 (cuDNN developer guide, NHWC layouts)."""


@dataclass(frozen=True)
class Work:
    """One thing a kernel, or a few, do.

    Attributes:
        kind: one of `KINDS`.
        phase: of the step.
        dtype: the tensors' data type.
        flops: multiplications and additions, channels padded as the kernels pad them.
        moved: bytes read and written at least once.
        turned: bytes of tensors whose layout must be turned around before or after (cuDNN's
            3D kernels want channels last): read and written once more.
        tiles: pieces that blocks of threads work on side by side (output tiles of a matrix
            product; channels, groups or rows of a norm); 0 where there are always enough.
        inner: length of a matrix product's sums; 0 where there is none.
        variant: which operator of its kind it is, in what data types: kernels differ.
        run: bytes that lie together both where a strided operator reads and where it writes;
            0 for others.
        unaligned: 1 for a matrix product whose rows do not begin on `ALIGNED_BYTES`, else 0.
    """

    kind: str
    phase: str
    dtype: str
    flops: float
    moved: float
    turned: float = 0.0
    tiles: float = 0.0
    inner: float = 0.0
    variant: str = ""
    run: float = 0.0
    unaligned: float = 0.0


@dataclass(frozen=True)
class WorkTable:
    """A step's work as arrays, one entry for each `Work`.

    Attributes:
        kind: index into `KINDS`.
        dtype: index into `DTYPES`.
        phase: index into `PHASES`.
        flops, moved, turned, tiles, inner, run, unaligned: as in `Work`.
        variant: a number for each different `variant`.
        count: how often it is done.
        launches: operators dispatched, by phase (forward, backward, optimizer).
    """

    kind: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    flops: NDArray[np.float64]
    moved: NDArray[np.float64]
    turned: NDArray[np.float64]
    tiles: NDArray[np.float64]
    inner: NDArray[np.float64]
    variant: NDArray[np.int64]
    run: NDArray[np.float64]
    unaligned: NDArray[np.float64]
    count: NDArray[np.float64]
    launches: tuple[int, int, int]


ENTRIES = tuple(f.name for f in fields(WorkTable) if f.name != "launches")
"""Fields of a table with a value for each entry."""


def work_table(ops: Sequence[Op]) -> WorkTable:
    """The work of a sequence of operators (those of one step)."""
    launches = dict.fromkeys(PHASES, 0)
    found: list[Work] = []
    for op in ops:
        phase = op.phase if op.phase in launches else "forward"
        launches[phase] += 1
        found.extend(work_of(op, phase))
    numbers = {
        "kind": [INDEX[w.kind] for w in found],
        "dtype": [DTYPES.index(w.dtype) for w in found],
        "phase": [PHASES.index(w.phase) for w in found],
        "variant": [crc32(w.variant.encode()) for w in found],
    }
    whole: dict[str, NDArray[Any]] = {
        name: np.array(values, dtype=np.int64) for name, values in numbers.items()
    }
    whole["count"] = np.ones(len(found))
    for name in ENTRIES:
        if name not in whole:
            whole[name] = np.array([getattr(w, name) for w in found], dtype=np.float64)
    return WorkTable(
        **whole, launches=(launches["forward"], launches["backward"], launches["optimizer"])
    )


def entries(table: WorkTable, index: Any) -> WorkTable:
    """Some of a table's entries, by a mask or their numbers."""
    return WorkTable(**{n: getattr(table, n)[index] for n in ENTRIES}, launches=table.launches)


def merged(table: WorkTable) -> WorkTable:
    """The same work, equal entries counted together: a step does most things several times."""
    names = [name for name in ENTRIES if name != "count"]
    rows = np.stack([getattr(table, name) for name in names], axis=1)
    _, first, back = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(back.reshape(-1), weights=table.count)
    return replace(entries(table, first), count=counts.astype(np.float64))


def work_of(op: Op, phase: str) -> list[Work]:
    """What one operator does; nothing for those that only allocate."""
    works = _work_of(op, phase)
    if all(work.variant for work in works):
        return works
    variant = f"{op.name} {_types(op.inputs)} {_types(op.outputs)}"
    return [work if work.variant else replace(work, variant=variant) for work in works]


def _types(tensors: Sequence[TensorMeta]) -> str:
    """The data types of the tensors that matter, the largest first."""
    most = max((t.numel for t in tensors), default=0)
    return ",".join(dict.fromkeys(t.dtype for t in tensors if 2 * t.numel >= most))


def _work_of(op: Op, phase: str) -> list[Work]:
    if op.name in _NOTHING:
        return []
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(op, phase)
    if op.name.startswith("_scaled_dot_product"):
        return _attention(op, phase)
    if op.name.startswith("_foreach") or op.name.startswith(("_fused", "_amp_foreach")):
        return _foreach(op, phase)
    return [_stream(op, phase, _KIND_OF.get(op.name, "elementwise"))]


def _bytes(t: TensorMeta) -> int:
    return t.numel * ITEM_BYTES.get(t.dtype, 4)


def _distinct(t: TensorMeta) -> int:
    """Bytes a tensor really holds: expanded axes count once."""
    return _held(t) * ITEM_BYTES.get(t.dtype, 4)


def _dtype(op: Op) -> str:
    for t in (*op.inputs, *op.outputs):
        if t.dtype in DTYPES:
            return t.dtype
    return "float32"


def _stream(op: Op, phase: str, kind: str) -> Work:
    moved, run = _moved(op), 0.0
    if kind == "elementwise" and not _same_order(op):
        kind, run = "strided", _run(op)
    elif kind == "elementwise":
        kind = _LOADS[_broadcasts(op), _casts(op)]
    return Work(kind, phase, _dtype(op), 0.0, moved, run=run)


_LOADS = {
    (False, False): "elementwise",
    (False, True): "cast",
    (True, False): "broadcast",
    (True, True): "broadcast_cast",
}
"""Kinds of elementwise operators, by whether they broadcast and whether they cast: each has a
loop of its own (`gpu_kernel_impl` in CUDALoops.cuh)."""


def _moved(op: Op) -> float:
    """Bytes read and written once."""
    return float(sum(map(_distinct, op.inputs)) + sum(map(_distinct, op.outputs)))


def _casts(op: Op) -> bool:
    """Whether floating-point types meet: such loops convert each element by a switch over the
    types. Copies to 16-bit types have kernels of their own (Copy.cu)."""
    kinds = {t.dtype for t in (*op.inputs, *op.outputs) if t.shape and t.dtype in DTYPES}
    to_16_bit = op.name in _TYPE_COPIES and op.outputs[0].dtype in ("float16", "bfloat16")
    return len(kinds) > 1 and not to_16_bit


_TYPE_COPIES = ("_to_copy.default", "copy_.default")


def _broadcasts(op: Op) -> bool:
    """Whether a smaller tensor, be it one number, is spread over a larger one: such loops compute
    the place of each element and load one at a time, where contiguous ones load vectors."""
    most = max((t.numel for t in op.outputs), default=0)
    return any(0 < _held(t) < most for t in op.inputs)


def _held(t: TensorMeta) -> int:
    """Elements a tensor really holds: expanded axes count once."""
    return prod(s for s, d in zip(t.shape, t.strides, strict=True) if d != 0)


def _run(op: Op) -> float:
    """Bytes that lie together in the largest tensor read and in the largest written."""
    if not op.inputs or not op.outputs:
        return 0.0
    read, written = (max(t, key=lambda t: t.numel) for t in (op.inputs, op.outputs))
    if len(read.shape) != len(written.shape):
        return 0.0
    length = 1
    for i in sorted(range(len(written.shape)), key=lambda i: written.strides[i]):
        if written.shape[i] == 1:
            continue
        if read.shape[i] != written.shape[i] or not (
            read.strides[i] == written.strides[i] == length
        ):
            break
        length *= written.shape[i]
    return float(length * ITEM_BYTES.get(written.dtype, 4))


def _same_order(op: Op) -> bool:
    """Whether the large tensors of an operator lie in one order, so that it streams."""
    large = [t for t in (*op.inputs, *op.outputs) if t.numel > 1]
    most = max((t.numel for t in large), default=0)
    orders = {
        tuple(d for s, d in zip(t.shape, t.strides, strict=True) if s > 1)
        for t in large
        if t.numel == most == _held(t)
    }
    return len(orders) <= 1


def _convolution(op: Op, phase: str) -> list[Work]:
    image, weight, result = op.inputs[0], op.inputs[1], op.outputs[0]
    return _conv_works(
        phase, image, weight, result, ("forward",), bool(op.args[6]), int(op.args[8]),
        max(op.args[3]) > 1,
    )  # fmt: skip


def _convolution_backward(op: Op, phase: str) -> list[Work]:
    result, image, weight = op.inputs[0], op.inputs[1], op.inputs[2]
    mask = op.args[10]
    tasks = [name for name, wanted in zip(("input", "weight"), mask[:2], strict=True) if wanted]
    found = _conv_works(
        phase, image, weight, result, tasks, bool(op.args[7]), int(op.args[9]),
        max(op.args[4]) > 1,
    )  # fmt: skip
    if mask[2]:
        found.append(Work("reduction", phase, _dtype(op), 0.0, float(_bytes(result))))
    return found


def _padded(channels: int) -> int:
    return -(-channels // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE


def _conv_works(
    phase: str,
    image: TensorMeta,
    weight: TensorMeta,
    result: TensorMeta,
    tasks: Sequence[str],
    transposed: bool,
    groups: int,
    strided: bool,
) -> list[Work]:
    """Work of a convolution and of its gradients: each is one matrix product.

    FLOPs: 2 x output voxels x input channels x kernel voxels x output channels; a transposed
    convolution's are those of the convolution it is the gradient of.
    """
    c_in, c_out = image.shape[1], result.shape[1]
    kernel = prod(weight.shape[2:])
    samples = image.shape[0]
    voxels = prod((image if transposed else result).shape[2:])
    moved = float(_bytes(image) + _bytes(weight) + _bytes(result))
    dtype = image.dtype if image.dtype in DTYPES else "float32"
    last = image.suggests_channels_last or weight.suggests_channels_last
    flat = kernel == 1 and not transposed
    turned = 0.0
    turns = not flat or len(image.shape) == 4  # a 3D pointwise one is a plain matrix product
    if len(image.shape) >= 4 and not last and turns and groups == 1:
        turned = float(sum(_bytes(t) for t in (image, result) if t.shape[1] > 1))
    works = []
    for task in tasks:
        variant = f"{task}{' transposed' * transposed}{' strided' * strided}"
        if groups > 1:
            flops = 2.0 * samples * voxels * (c_in // groups) * kernel * c_out
            works.append(Work("grouped_conv", phase, dtype, flops, moved, variant=variant))
            continue
        # As matrix products (rows, columns, inner); a transposed convolution is a gradient.
        if task == "weight":
            product = (_padded(c_in) * kernel, c_out, samples * voxels)
        elif (task == "forward") != transposed:
            product = (samples * voxels, c_out, _padded(c_in) * kernel)
            if task == "input":
                product = (samples * voxels, c_in, _padded(c_out) * kernel)
        else:
            wide, narrow = (c_in, c_out) if task == "input" else (c_out, c_in)
            product = (samples * voxels, wide * kernel, _padded(narrow))
            if not transposed and voxels == prod(image.shape[2:]):  # stride 1: a plain convolution
                product = (samples * voxels, wide, _padded(narrow) * kernel)
        kind = "pointwise_conv" if flat else _CONVOLUTIONS[task]
        works.append(
            replace(_product(kind, phase, dtype, 1, product, moved, turned), variant=variant)
        )
    return works


_CONVOLUTIONS = {
    "forward": "conv_forward",
    "input": "conv_input_gradient",
    "weight": "conv_weight_gradient",
}


def _product(
    kind: str,
    phase: str,
    dtype: str,
    count: int,
    product: tuple[int, int, int],
    moved: float,
    turned: float = 0.0,
) -> Work:
    """A matrix product of (rows, columns, inner), `count` times, padded to whole tiles."""
    rows, columns, inner = product
    tiles = count * -(-rows // TILE_ROWS) * -(-columns // TILE_COLUMNS)
    flops = 2.0 * tiles * TILE_ROWS * TILE_COLUMNS * inner
    return Work(kind, phase, dtype, flops, moved, turned, float(tiles), float(inner))


def _matmul(op: Op, phase: str) -> list[Work]:
    a, b = op.inputs[-2], op.inputs[-1]
    *batch, rows, inner = a.shape
    columns = b.shape[-1]
    if columns > rows:  # the library swaps the sides
        rows, columns = columns, rows
    moved = float(_bytes(a) + _bytes(b) + sum(map(_bytes, op.outputs)))
    dtype = a.dtype if a.dtype in DTYPES else "float32"
    work = _product("matmul", phase, dtype, prod(batch), (rows, columns, inner), moved)
    aligned = all(map(_aligned, (a, b, *op.outputs)))
    return [work if aligned else replace(work, unaligned=1.0)]


def _aligned(t: TensorMeta) -> bool:
    """Whether every row (or column, whichever lies together) begins on `ALIGNED_BYTES`."""
    apart = max(t.strides[-2:])
    return apart * ITEM_BYTES.get(t.dtype, 4) % ALIGNED_BYTES == 0


def _attention(op: Op, phase: str) -> list[Work]:
    """Scaled dot-product attention without its matrix in memory: 4 x B x H x L x S x E FLOPs
    forward and 2.5 times that backward (which recomputes the scores)."""
    tensors = [t for t in op.inputs if len(t.shape) == 4]
    query, key = (tensors[0], tensors[1]) if "backward" not in op.name else (tensors[1], tensors[2])
    batch, heads, length, width = query.shape
    flops = 4.0 * batch * heads * length * key.shape[2] * width
    if "backward" in op.name:
        flops *= 2.5
    moved = float(sum(map(_bytes, op.inputs)) + sum(map(_bytes, op.outputs)))
    return [Work("attention", phase, _dtype(op), flops, moved)]


def _foreach(op: Op, phase: str) -> list[Work]:
    moved = float(sum(map(_bytes, op.inputs)) + sum(map(_bytes, op.outputs)))
    if op.name.endswith(("_.Scalar", "_.List", "_.ScalarList", "_.Tensor")) and op.args:
        count = op.args[0] if isinstance(op.args[0], int) else 0
        moved += float(sum(_bytes(t) for t in op.inputs[:count])) * (not op.outputs)
    return [Work("optimizer", phase, "float32", 0.0, moved)]


def _channel_norm(op: Op, phase: str) -> list[Work]:
    """Batch and instance norm reduce each channel in one block, in PyTorch's own kernels
    (Normalization.cuh) and in cuDNN's, which keep another pace. PyTorch's gradient of a
    contiguous image is one kernel; its forward pass takes the moments, then scales and shifts."""
    backward = "backward" in op.name
    if op.args[7 if backward else 5] is False:  # in evaluation: a scale and a shift
        return [Work("elementwise", phase, _dtype(op), 0.0, _moved(op))]
    by_cudnn = _norm_by_cudnn(op)
    blocks = float((op.inputs[1] if backward else op.inputs[0]).shape[1])
    if not backward and not by_cudnn:
        return _moments_and_apply(op, phase, blocks)
    kind = ("cudnn_norm" if by_cudnn else "channel_norm") + "_backward" * backward
    return [replace(_stream(op, phase, kind), tiles=blocks)]


def _moments_and_apply(op: Op, phase: str, blocks: float) -> list[Work]:
    """Mean and variance, a channel or a group in one block (Welford's sums), then the scaled and
    shifted image."""
    image = op.inputs[0]
    return [
        Work("moments", phase, _dtype(op), 0.0, float(_bytes(image)), tiles=blocks),
        Work("norm_apply", phase, _dtype(op), 0.0, _moved(op)),
    ]


def _norm_by_cudnn(op: Op) -> bool:
    """Whether CUDA takes cuDNN for this norm in training: it has a weight, and the image is not
    bfloat16 (`_batch_norm_impl_index` in Normalization.cpp)."""
    image, others = (1, 4) if "backward" in op.name else (0, 1)
    affine = len(op.inputs) > others  # beside gradient, image, saved mean and deviation
    return affine and op.inputs[image].dtype != "bfloat16"


def _group_norm(op: Op, phase: str) -> list[Work]:
    """Group norm takes the moments of each group of each sample in one block; its gradient sums
    each channel of each sample in one, then computes element by element
    (group_norm_kernel.cu)."""
    backward = "backward" in op.name
    image = op.inputs[1] if backward else op.inputs[0]
    samples, channels = image.shape[:2]
    if not backward:
        numbers = [a for a in op.args if isinstance(a, int) and not isinstance(a, bool)]
        groups = numbers[3]  # N, C, HxW, group
        return _moments_and_apply(op, phase, float(samples * groups))
    read = float(_bytes(op.inputs[0]) + _bytes(image))
    blocks = float(samples * channels)
    return [
        Work("group_norm_backward", phase, _dtype(op), 0.0, read, tiles=blocks),
        Work("norm_apply", phase, _dtype(op), 0.0, _moved(op)),
    ]


def _layer_norm(op: Op, phase: str) -> list[Work]:
    """Layer norm gives each row to one block (layer_norm_kernel.cu), however short it is."""
    backward = "backward" in op.name
    image = op.inputs[1] if backward else op.inputs[0]
    rows = prod(image.shape[: -len(op.args[2 if backward else 1])])  # but the normalized shape
    work = _stream(op, phase, "layer_norm_backward" if backward else "layer_norm")
    return [replace(work, tiles=float(rows))]


def _softmax(op: Op, phase: str) -> list[Work]:
    """Over the last axis a row is one block's (or one warp's); over channels each thread walks
    through memory with a stride (SoftMax.cu, `cunn_SpatialSoftMaxForward`). The gradient of
    softmax first multiplies its two arguments into a third tensor (`softmax_backward_cuda_out`);
    that of its logarithm does not."""
    backward = "backward" in op.name
    at = 2 if backward else 1
    axis = op.args[at] if len(op.args) > at and isinstance(op.args[at], int) else -1
    last = axis in (-1, len(op.inputs[0].shape) - 1)
    found = [_stream(op, phase, "softmax" if last else "channel_softmax")]
    if op.name == "_softmax_backward_data.default":
        found.append(Work("elementwise", phase, _dtype(op), 0.0, _moved(op)))
    return found


def _roll(op: Op, phase: str) -> list[Work]:
    """Rolled along one axis after another, each a copy (`roll_common` in TensorTransformations)."""
    axes = op.args[2] if len(op.args) > 2 and isinstance(op.args[2], list | tuple) else ()
    return [_stream(op, phase, "strided")] * max(1, len(axes))


_RULES: dict[str, Callable[[Op, str], list[Work]]] = {
    "_softmax.default": _softmax,
    "_softmax_backward_data.default": _softmax,
    "_log_softmax.default": _softmax,
    "_log_softmax_backward_data.default": _softmax,
    "native_batch_norm.default": _channel_norm,
    "cudnn_batch_norm.default": _channel_norm,
    "native_batch_norm_backward.default": _channel_norm,
    "cudnn_batch_norm_backward.default": _channel_norm,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm,
    "roll.default": _roll,
    "native_group_norm.default": _group_norm,
    "native_group_norm_backward.default": _group_norm,
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "addmm.default": _matmul,
    "baddbmm.default": _matmul,
}

_NOTHING = frozenset(
    """
    empty.memory_format empty_like.default empty_strided.default new_empty.default
    new_empty_strided.default profiler._record_function_enter_new.default
    profiler._record_function_exit._RecordFunction
    """.split()
)

_KIND_OF = {
    "cat.default": "copy",
    "stack.default": "copy",
    "slice_backward.default": "copy",
    "select_backward.default": "copy",
    "constant_pad_nd.default": "copy",
    "fill_.Tensor": "copy",
    "sum.dim_IntList": "reduction",
    "sum.default": "reduction",
    "mean.default": "reduction",
    "mean.dim": "reduction",
    "var_mean.correction": "reduction",
    "argmax.default": "reduction",
    "amax.default": "reduction",
    "max.dim": "reduction",
    "index.Tensor": "index",
    "index_put.default": "index",
    "index_put_.default": "index",
    "scatter_.value": "index",
    "scatter.value": "index",
    "scatter.src": "index",
    "gather.default": "index",
    "upsample_trilinear3d.default": "resample",
    "upsample_trilinear3d_backward.default": "resample",
    "upsample_trilinear3d.vec": "resample",
    "upsample_nearest3d.default": "resample",
    "upsample_nearest3d.vec": "resample",
    "upsample_nearest3d_backward.default": "resample",
    "max_pool3d_with_indices.default": "resample",
    "max_pool3d_with_indices_backward.default": "resample",
    "avg_pool3d.default": "resample",
    "avg_pool3d_backward.default": "resample",
    "nll_loss2d_forward.default": "index",
    "nll_loss2d_backward.default": "index",
    "nll_loss_nd.default": "index",
}
"""Kinds of operators that are not elementwise; those that are not listed are."""
