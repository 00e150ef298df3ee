"""Limits of kernels rather than of cards: tensors of 2³¹ elements or more."""

from __future__ import annotations

from segplan.trace.tape import Trace

INT_MAX = 2**31 - 1

_INDEXED_32_BIT = {
    "upsample_trilinear3d_backward.default": "the gradient of trilinear upsampling",
    "upsample_nearest3d_backward.default": "the gradient of nearest upsampling",
    "conv_depthwise3d.default": "a depthwise convolution",
    "max_unpool3d.default": "max unpooling",
}
"""Operators whose CUDA kernels index with 32 bits and refuse larger tensors.

From the checks in aten/src/ATen/native/cuda of releases before 2.11; not tried since. On an H200
(torch 2.11.0+cu130, cuDNN 9.19) convolutions, normalisations, softmax, pooling, upsampling,
padding and their like all took more than 2³¹ elements (`benchmarks/kernel_limits.py`).
"""


def kernel_limit(trace: Trace) -> str | None:
    """The first operator that cannot work on tensors this large, in words; None if all can."""
    for op in trace.ops:
        if op.name in _INDEXED_32_BIT and any(t.numel > INT_MAX for t in (*op.inputs, *op.outputs)):
            return _INDEXED_32_BIT[op.name]
    return None
