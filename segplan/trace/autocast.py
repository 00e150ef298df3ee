"""CUDA's autocast on CPU tensors.

`torch.autocast("cuda")` turns itself off when no GPU is present, and CPU autocast casts a
different list of operators. So a trace enables CPU autocast and replaces its kernels by these,
which carry CUDA's list (`aten/src/ATen/autocast_mode.h`, the `AT_FORALL_*` macros). Operators
that only the CPU list names fall through.

The replacement changes the whole process: it belongs in a child process that only traces.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOWER_PRECISION = frozenset(
    """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
    cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
    """.split()
)
"""Operators whose floating-point arguments are cast to the autocast dtype."""

FLOAT32 = frozenset(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
    l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
    pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
    """.split()
)
"""Operators whose floating-point arguments are cast to float32."""

FLOAT32_OUTPUT = frozenset(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
    """.split()
)
"""Operators that get `dtype=float32` unless the caller gave one."""

FLOAT32_NORM = frozenset(("norm.Scalar", "norm.ScalarOpt_dim"))
"""Norms that are sent to their overload with a dtype."""

PROMOTE = frozenset(
    """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """.split()
)
"""Operators whose arguments are cast to the widest dtype among them."""

BANNED = frozenset(("binary_cross_entropy",))
"""Operators that raise under autocast."""

ALL = LOWER_PRECISION | FLOAT32 | FLOAT32_OUTPUT | FLOAT32_NORM | PROMOTE | BANNED

_installed: list[torch.library.Library] = []
_cache: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}


def registered(key: str) -> frozenset[str]:
    """Names (without "aten::") of the operators that have a kernel under a dispatch key."""
    return frozenset(
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    )


def install() -> None:
    """Replace CPU autocast's kernels by CUDA's list, once for this process."""
    if _installed:
        return
    lib = torch.library.Library("aten", "IMPL")
    _installed.append(lib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(registered("AutocastCPU") - ALL):
            lib.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
        for name in sorted(ALL & registered("AutocastCUDA")):
            lib.impl(name, _kernel(name), "AutocastCPU")
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        _cache.clear()
        clear()

    torch.clear_autocast_cache = clear_both


def _kernel(name: str) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")

    def low() -> torch.dtype:
        return torch.get_autocast_dtype("cpu")

    if name in LOWER_PRECISION:

        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = low()
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    elif name in FLOAT32:

        def run(*args: Any, **kwargs: Any) -> Any:
            return op(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    elif name in FLOAT32_OUTPUT:
        position = [a.name for a in op._schema.arguments].index("dtype")

        def run(*args: Any, **kwargs: Any) -> Any:
            given = args[position] if len(args) > position else kwargs.get("dtype")
            if _eligible(args[0]) and given is None:
                return op(*args[:position], **{**kwargs, "dtype": torch.float32})
            return op(*args, **kwargs)

    elif name in FLOAT32_NORM:

        def run(*args: Any, **kwargs: Any) -> Any:
            if _eligible(args[0]):
                if name == "norm.Scalar":
                    p = args[1] if len(args) > 1 else kwargs.get("p", 2)
                    return torch.ops.aten.norm.ScalarOpt_dtype(args[0], p, dtype=torch.float32)
                return torch.ops.aten.norm.ScalarOpt_dim_dtype(*args, **kwargs, dtype=torch.float32)
            return op(*args, **kwargs)

    elif name in PROMOTE:

        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = low()
            for tensor in _tensors((args, kwargs)):
                if _eligible(tensor) and tensor.dtype == torch.float32:
                    dtype = torch.float32
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    else:

        def run(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(
                f"{base} is unsafe to autocast: use binary_cross_entropy_with_logits instead"
            )

    autocast_key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast_key):
            return run(*args, **kwargs)

    return kernel


def _eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast what is eligible; arguments from last to first, as the compiled wrappers do."""
    if isinstance(value, Tensor):
        return _cached_cast(value, dtype) if _eligible(value) else value
    if isinstance(value, tuple):
        return tuple(reversed([_cast(v, dtype) for v in reversed(value)]))
    if isinstance(value, list):
        return [_cast(v, dtype) for v in value]
    if isinstance(value, dict):
        return {k: _cast(v, dtype) for k, v in value.items()}
    return value


def _cached_cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """As `cached_cast` of autocast_mode.cpp: float32 leaf weights are cast once a forward."""
    if value.dtype == dtype:
        return value
    cacheable = (
        dtype == torch.get_autocast_dtype("cpu")
        and value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not cacheable:
        return value.to(dtype)
    held = _cache.get(id(value))
    if held is not None and held[0]() is value:
        return held[1]
    cast = value.to(dtype)
    _cache[id(value)] = (weakref.ref(value), cast)
    return cast


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return []
