"""Limits of kernels rather than of cards: tensors of 2³¹ elements or more."""

from __future__ import annotations

from segplan.trace.tape import Op, Trace

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
    """The first operator that cannot work on tensors this large, in words; None if all can.

    Names the operator and, where it is known, the network's module that calls it: "the gradient
    of trilinear upsampling (upsample_trilinear3d_backward in decoder1)".
    """
    for op in trace.ops:
        if op.name in _INDEXED_32_BIT and any(t.numel > INT_MAX for t in (*op.inputs, *op.outputs)):
            module = _module_of(trace, op)
            within = f" in {module}" if module else ""
            return f"{_INDEXED_32_BIT[op.name]} ({op.name.partition('.')[0]}{within})"
    return None


def most_elements(trace: Trace) -> int:
    """Elements of the largest tensor that an operator takes or returns."""
    return max((t.numel for op in trace.ops for t in (*op.inputs, *op.outputs)), default=0)


def _module_of(trace: Trace, op: Op) -> str:
    """The top-level module in which the operator, or its forward operator, ran; "" if unknown."""
    made = _made_in(trace, op)
    base = op.name.partition(".")[0]
    if made or not base.endswith("_backward"):
        return made
    shape = op.inputs[0].shape if op.inputs else None
    for forward in trace.ops:
        if (
            forward.name.partition(".")[0] == base.removesuffix("_backward")
            and forward.outputs
            and forward.outputs[0].shape == shape
        ):
            return _made_in(trace, forward)
    return ""


def _made_in(trace: Trace, op: Op) -> str:
    made = [e for e in trace.events[op.at : op.end] if e > 0]
    return trace.modules[made[0]] if made else ""
