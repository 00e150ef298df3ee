"""Where CPU and CUDA take different paths above the dispatcher: CUDA's, for a trace.

Each entry names the function of PyTorch it follows (sources of release 2.11).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

FREE_OF_COST = frozenset(
    """
    detach.default view.default _unsafe_view.default permute.default transpose.int t.default
    expand.default alias.default slice.Tensor select.int unsqueeze.default squeeze.dim
    squeeze.default as_strided.default unbind.int split.Tensor split_with_sizes.default
    chunk.default lift_fresh.default narrow.default squeeze.dims
    """.split()
)
"""Operators that only make views: they compute nothing and are left off the tape."""


EMPTY_ON_CUDA = {"log_sigmoid_forward.default": (1,)}
"""Outputs that only the CPU kernel fills (LogSigmoid's buffer, Activation.cpp): no bytes."""


def with_cudnn_layout(name: str, args: tuple[Any, ...], out: Any) -> Any:
    """A convolution's outputs in the layout cuDNN gives them.

    ConvUtils.h, `cudnn_conv_suggest_memory_format`: channels last if the input or the weight
    is laid out so, whatever the CPU's backend would choose.
    """
    if name == "convolution.default":
        if _suggests_channels_last(args[0]) or _suggests_channels_last(args[1]):
            return out.to(memory_format=torch.channels_last_3d)
    elif name == "convolution_backward.default" and (
        _suggests_channels_last(args[1]) or _suggests_channels_last(args[2])
    ):
        return tuple(
            t.to(memory_format=torch.channels_last_3d) if t is not None and t.dim() == 5 else t
            for t in out
        )
    return out


def _suggests_channels_last(t: Tensor) -> bool:
    return t.dim() == 5 and suggest_memory_format(t) == torch.channels_last_3d


@contextmanager
def behaviour() -> Iterator[None]:
    """Give CPU tensors CUDA's choices of operators while the context is open.

    Limitation: `scaled_dot_product_attention` is recorded as its flash kernel, which keeps no
    attention matrix; cards and dtypes without one need more.
    """
    lib = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lib.impl("dropout", _dropout, "CompositeImplicitAutograd")
        lib.impl("softmax.int", _softmax, "CompositeImplicitAutograd")
        lib.impl("log_softmax.int", _log_softmax, "CompositeImplicitAutograd")
    try:
        yield
    finally:
        lib._destroy()


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """aten/src/ATen/native/Dropout.cpp, `is_fused_kernel_acceptable`: a mask of bool."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p >= 1:
        return x.mul(torch.zeros((), dtype=x.dtype))
    return torch.native_dropout(x, p, True)[0]


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """aten/src/ATen/native/SoftMax.cpp: half input is converted inside the kernel."""
    return _softmax_with(torch._softmax, x, dim, dtype)


def _log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax_with(torch._log_softmax, x, dim, dtype)


def _softmax_with(op: Any, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    inside = x.dtype == torch.float16 and dtype == torch.float32
    result: Tensor = op(x if inside or dtype is None else x.to(dtype), dim, inside)
    return result


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The most that `masked_select` can return and need: every element is selected.

    aten/src/ATen/native/cuda/IndexKernel.cpp, `masked_select_out_cuda_impl`: indexing with the
    mask, whose non-zero positions are found first (Nonzero.cu: int64, dimensions x elements).
    How many there are depends on the data; a label that is mostly background comes close.
    """
    count = x.numel()
    positions = torch.empty((mask.dim(), count), dtype=torch.int64, device=x.device)
    selected = torch.empty((count,), dtype=x.dtype, device=x.device)
    del positions
    return selected
