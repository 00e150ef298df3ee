"""Limits of kernels rather than of cards: tensors of 2³¹ elements or more."""

from __future__ import annotations

from segplan.trace.tape import Trace

INT_MAX = 2**31 - 1

_INDEXED_32_BIT = {
    "upsample_trilinear3d.default": "trilinear upsampling",
    "upsample_trilinear3d_backward.default": "trilinear upsampling",
    "upsample_nearest3d.default": "nearest upsampling",
    "upsample_nearest3d_backward.default": "nearest upsampling",
    "max_pool3d_with_indices.default": "max pooling",
    "avg_pool3d.default": "average pooling",
    "grid_sampler_3d.default": "grid sampling",
    "replication_pad3d.default": "replication padding",
}
"""Operators whose CUDA kernels index with 32 bits and refuse larger tensors."""


def kernel_limit(trace: Trace) -> str | None:
    """The first operator that cannot work on tensors this large, in words; None if all can.

    cuDNN convolutions are split along the batch by PyTorch (ConvShared.cpp,
    `split_batch_dim_to_32bit_out`), so one sample alone must stay below 2³¹ elements.
    """
    for op in trace.ops:
        tensors = (*op.inputs, *op.outputs)
        if op.name in _INDEXED_32_BIT and any(t.numel > INT_MAX for t in tensors):
            return _INDEXED_32_BIT[op.name]
        if op.name.startswith("convolution") and any(
            t.shape and t.numel // max(t.shape[0], 1) > INT_MAX for t in tensors
        ):
            return "a convolution over one sample"
    return None
