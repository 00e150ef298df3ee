"""What operators allocate and free inside themselves on CUDA, which no dispatcher shows.

Each rule names the function of PyTorch it follows (sources of release 2.11), or the run it was
read off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from segplan.memory import convolution
from segplan.memory.reduction import staging_bytes
from segplan.trace.tape import Op, TensorMeta

ITEM_BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """What of a card decides the temporaries of its kernels.

    Attributes:
        capability: compute capability.
        sm_count: streaming multiprocessors.
        tf32: whether TF32 is allowed in this step.
    """

    capability: tuple[int, int] = (9, 0)
    sm_count: int = 132
    tf32: bool = True


class Temporary(NamedTuple):
    """Bytes that an operator allocates after `after` of its outputs and frees again.

    `until_end`: freed when the operator returns, else before its next output.
    `workspace`: cuDNN's, which falls back to a smaller one when memory is short.
    """

    after: int
    size: int
    until_end: bool = True
    workspace: bool = False


def temporaries(op: Op, on: Architecture) -> tuple[Temporary, ...]:
    """The temporaries of one operator on a card, in order of allocation."""
    if op.name in ("convolution.default", "convolution_backward.default"):
        found = [Temporary(0, size) for size in convolution.copies(op)]
        found += [
            Temporary(after, size, until_end=False, workspace=True)
            for after, size in convolution.workspaces(op, tf32=on.tf32, capability=on.capability)
        ]
        if op.name == "convolution_backward.default" and op.args[10][2]:
            found += _sum_over(op.inputs[0], (0, 2, 3, 4), on, after=sum(op.args[10]))
        return tuple(found)
    rule = _RULES.get(op.name)
    return tuple(rule(op, on)) if rule else ()


def uses_cublas(op: Op) -> bool:
    """Whether the operator calls cuBLAS, whose workspace is allocated at the first call."""
    return op.name in _CUBLAS


_CUBLAS = frozenset(
    ("mm.default", "addmm.default", "bmm.default", "baddbmm.default", "mv.default",
     "addmv.default", "dot.default", "_addmm_activation.default")
)  # fmt: skip


def _bytes(t: TensorMeta) -> int:
    return t.numel * ITEM_BYTES.get(t.dtype, 4)


def _dense(t: TensorMeta) -> bool:
    """Whether the tensor is contiguous (what `expect_contiguous` asks)."""
    return t.contiguous


def _layer_norm(op: Op, _on: Architecture) -> list[Temporary]:
    """layer_norm_kernel.cu: `input.expect_contiguous()` copies before the outputs."""
    return [] if _dense(op.inputs[0]) else [Temporary(0, _bytes(op.inputs[0]))]


def _layer_norm_backward(op: Op, _on: Architecture) -> list[Temporary]:
    """layer_norm_kernel.cu: contiguous copies of the gradient and the input."""
    return [Temporary(0, _bytes(t)) for t in op.inputs[:2] if not _dense(t)]


def _softmax_backward(op: Op, _on: Architecture) -> list[Temporary]:
    """SoftMax.cu, `softmax_backward_cuda_out`: `Tensor tmp = grad * output`."""
    return [Temporary(1, _bytes(op.inputs[0]))]


def _softmax_forward(op: Op, _on: Architecture) -> list[Temporary]:
    """SoftMax.cu, `host_softmax`: `input.contiguous()`."""
    return [] if _dense(op.inputs[0]) else [Temporary(1, _bytes(op.inputs[0]))]


def _roll(op: Op, _on: Architecture) -> list[Temporary]:
    """TensorTransformations.h, `roll_common`: one dimension after the other."""
    shifts = op.args[1] if len(op.args) > 1 else ()
    count = len(shifts) if isinstance(shifts, tuple) else 1
    size = _bytes(op.inputs[0])
    return [Temporary(0, size) for _ in range(count - 1)]


def _index_put(op: Op, _on: Architecture) -> list[Temporary]:
    """Indexing.cu, `index_put_with_sort_kernel`: linear and sorted indices, values."""
    if not (len(op.args) > 3 and op.args[3]):
        return []
    values, indices = op.inputs[-1], op.inputs[1]
    index = indices.numel * 8
    sort = index * 2 + index // 32
    found = [Temporary(1, index), Temporary(1, sort), Temporary(1, index), Temporary(1, index)]
    return [*found, Temporary(1, _bytes(values)), Temporary(1, index)]


def _sum(op: Op, on: Architecture) -> list[Temporary]:
    dims = op.args[1] if len(op.args) > 1 else None
    if not isinstance(dims, tuple) or not dims:
        dims = tuple(range(len(op.inputs[0].shape)))
    return _sum_over(op.inputs[0], dims, on, after=1)


def _sum_over(
    t: TensorMeta, dims: tuple[int, ...], on: Architecture, after: int
) -> list[Temporary]:
    size = staging_bytes(t, dims, on.sm_count)
    return [Temporary(after, size)] if size else []


def _batch_norm_backward(op: Op, _on: Architecture) -> list[Temporary]:
    """Normalization.cu and BatchNorm.cpp of cuDNN: a contiguous copy of the gradient."""
    return [] if _dense(op.inputs[0]) else [Temporary(0, _bytes(op.inputs[0]))]


def _upsample_backward(op: Op, _on: Architecture) -> list[Temporary]:
    """UpSampleTrilinear3d.cu: a contiguous copy of the gradient."""
    return [] if _dense(op.inputs[0]) else [Temporary(1, _bytes(op.inputs[0]))]


def _group_norm(op: Op, _on: Architecture) -> list[Temporary]:
    """group_norm_kernel.cu: per-channel scale and shift, float32, B x C each."""
    t = op.inputs[0]
    n = prod(t.shape[:2]) * 4
    return [Temporary(3, n), Temporary(3, n)]


_RULES: dict[str, Callable[[Op, Architecture], list[Temporary]]] = {
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "_softmax_backward_data.default": _softmax_backward,
    "_softmax.default": _softmax_forward,
    "_log_softmax.default": _softmax_forward,
    "roll.default": _roll,
    "index_put.default": _index_put,
    "sum.dim_IntList": _sum,
    "sum.default": _sum,
    "native_batch_norm_backward.default": _batch_norm_backward,
    "cudnn_batch_norm_backward.default": _batch_norm_backward,
    "upsample_trilinear3d_backward.default": _upsample_backward,
    "upsample_nearest3d_backward.default": _upsample_backward,
    "native_group_norm.default": _group_norm,
}
