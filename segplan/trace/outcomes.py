"""What operators return on fake tensors: found without detours, and remembered.

`FakeTensorMode` answers everything, at half a millisecond a call, and it imports the compiler
(1.5 s). A step makes some thousand calls, of some hundred kinds, so each kind is asked for once;
its own cache takes most of the time to look something up that it saves. And for the operators
that networks are made of it ends at the operator's kernel for the meta device, which is called
here at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)

PLAIN = frozenset(
    """
    _amp_foreach_non_finite_check_and_unscale_.default _amp_update_scale_.default _foreach_add_.List
    _foreach_add_.Scalar _foreach_addcdiv_.ScalarList _foreach_addcmul_.Scalar
    _foreach_div_.ScalarList _foreach_lerp_.Scalar _foreach_mul_.Scalar _foreach_sqrt.default
    _log_softmax.default _log_softmax_backward_data.default _prelu_kernel.default
    _prelu_kernel_backward.default _softmax.default _softmax_backward_data.default _to_copy.default
    _unsafe_view.default add.Tensor add_.Tensor addmm.default alias.default avg_pool3d.default
    bernoulli_.float bmm.default cat.default clamp.default clone.default constant_pad_nd.default
    convolution.default convolution_backward.default copy_.default detach.default div.Scalar
    div.Tensor div_.Scalar elu_.default elu_backward.default empty.memory_format eq.Scalar
    exp.default expand.default full.default gelu.default gelu_backward.default index.Tensor
    index_put.default leaky_relu_.default leaky_relu_backward.default linalg_vector_norm.default
    log_sigmoid_backward.default log_sigmoid_forward.default masked_fill.Scalar
    max_pool3d_with_indices.default max_pool3d_with_indices_backward.default mean.default mm.default
    mse_loss.default mse_loss_backward.default mul.Scalar mul.Tensor mul_.Tensor
    native_batch_norm.default native_batch_norm_backward.default native_group_norm.default
    native_group_norm_backward.default native_layer_norm.default native_layer_norm_backward.default
    ne.Scalar neg.default new_empty.default new_empty_strided.default new_zeros.default
    nll_loss2d_backward.default nll_loss2d_forward.default ones_like.default permute.default
    pow.Tensor_Scalar randn_like.default reciprocal.default relu.default relu_.default
    repeat.default replication_pad3d.default replication_pad3d_backward.default roll.default
    rsub.Scalar scatter_.value select.int select_backward.default sigmoid.default
    sigmoid_backward.default slice.Tensor slice_backward.default squeeze.dim stack.default
    sub.Tensor sum.dim_IntList t.default threshold_backward.default transpose.int unsqueeze.default
    upsample_nearest3d.default upsample_nearest3d_backward.default upsample_trilinear3d.default
    upsample_trilinear3d_backward.default view.default zeros.default zeros_like.default
    """.split()
)
"""Operators whose kernel for the meta device says what `FakeTensorMode` says of CPU tensors
(compared call by call in the steps of every registered network, torch 2.13), strides of
dimensions of size one aside."""

_MASKS = (torch.bool, torch.uint8, torch.int8)
"""Indices that select: what they return depends on how many are set."""

CPU = torch.device("cpu")
_META = torch.device("meta")

_UNPREDICTABLE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
"""What such operators return does not follow from their arguments' sizes alone (or they change
an argument's sizes)."""


class _Output(NamedTuple):
    """One output: the argument `of` itself (`same`), a view of it, or new (`of` None)."""

    of: int | None
    same: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class Outcome(NamedTuple):
    """What a call returned.

    Attributes:
        kind: `Tensor` for one tensor, `tuple` or `list` of tensors (and None), or NoneType.
        outputs: of each.
        note: whatever the caller wants to find again with it.
    """

    kind: type
    outputs: tuple[_Output | None, ...]
    note: Any


class Outcomes:
    """The outcomes of calls, by operator and arguments."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[tuple[Any, ...], Outcome] = {}
        self._predictable: dict[Any, bool] = {}

    def key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What tells this call from others; None where its outcome cannot be remembered."""
        known = self._predictable.get(func)
        if known is None:
            known = self._predictable[func] = (
                isinstance(func, torch._ops.OpOverload)
                and func.namespace == "aten"
                and not any(tag in func.tags for tag in _UNPREDICTABLE)
                and not func.name().startswith("aten::lift")
            )
        if not known:
            return None
        parts: list[Any] = [func]
        if not _add(args, parts) or (kwargs and not _add(kwargs.items(), parts)):
            return None
        return tuple(parts)

    def run(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:  # fmt: skip
        """Call an operator, `tensors` being all tensors among its arguments."""
        if func.namespace == "profiler":
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if name == "fill_.Tensor":  # with a number of the host's, as a rule
            return args[0]
        if (
            name in PLAIN
            and not (name == "index.Tensor" and any(t.dtype in _MASKS for t in tensors[1:]))
            and kwargs.get("device", CPU) == CPU
            and all(isinstance(t, FakeTensor) and t.fake_device == CPU for t in tensors)
        ):
            return self._run_plain(func, name, args, kwargs, tensors)
        return func(*args, **kwargs)

    def _run_plain(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
    ) -> Any:  # fmt: skip
        """Run the kernel for the meta device on meta tensors in the same storages."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _META}
        with torch._C._DisableTorchDispatch():
            bare = {id(t): _bare(t) for t in tensors}
            out = func(*_with(bare, args), **{k: _with(bare, v) for k, v in kwargs.items()})
            if name == "native_batch_norm.default":
                out = _with_statistics_of(args[0].dtype, out)
        back = {id(bare[id(t)]): t for t in reversed(tensors)}
        return self._wrapped(out, back)

    def _wrapped(self, out: Any, back: dict[int, Tensor]) -> Any:
        """What came out as fake tensors, those that went in as themselves (`back`, by id)."""
        if isinstance(out, (tuple, list)):
            return type(out)(self._wrapped(value, back) for value in out)
        if not isinstance(out, Tensor):
            return out
        same = back.get(id(out))
        return same if same is not None else FakeTensor(self.mode, out, CPU)

    def find(self, key: Any) -> Outcome | None:
        """What was remembered of a call."""
        return self._known.get(key)

    def remember(self, key: Any, tensors: Sequence[Tensor], out: Any, note: Any) -> None:
        """Keep what a call with these tensors returned, if others can be answered from it."""
        kind = type(out)
        if kind is FakeTensor:
            kind, made = Tensor, [out]
        elif out is None:
            made = []
        elif kind in (tuple, list):
            made = list(out)
        else:
            return
        homes = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(tensors)))}
        outputs: list[_Output | None] = []
        new = set()
        for value in made:
            if value is None:
                outputs.append(None)
                continue
            if type(value) is not FakeTensor or value.constant is not None:
                return
            if value.dtype.is_complex:
                return
            same = next((i for i, t in enumerate(tensors) if t is value), None)
            storage = value.untyped_storage()
            of = homes.get(storage._cdata) if same is None else same
            if of is None:
                if storage._cdata in new or storage.nbytes() != _bytes(value):
                    return
                new.add(storage._cdata)
            outputs.append(
                _Output(
                    of, same is not None, tuple(value.shape), value.stride(),
                    int(value.storage_offset()), value.dtype, value.fake_device,
                )
            )  # fmt: skip
        self._known[key] = Outcome(kind, tuple(outputs), note)

    def again(self, outcome: Outcome, tensors: Sequence[Tensor]) -> Any:
        """The same outcome for other tensors of the same sizes."""
        if not outcome.outputs:
            return None if outcome.kind is type(None) else outcome.kind()
        made = [None if o is None else self._make(o, tensors) for o in outcome.outputs]
        return made[0] if outcome.kind is Tensor else outcome.kind(made)

    def _make(self, output: _Output, tensors: Sequence[Tensor]) -> Tensor:
        if output.same:
            return tensors[output.of]  # type: ignore[index]
        with torch._C._DisableTorchDispatch():
            if output.of is None:
                bare = torch.empty_strided(
                    output.shape, output.strides, dtype=output.dtype, device=_META
                )
            else:
                bare = torch.empty(0, dtype=output.dtype, device=_META)
                bare.set_(
                    tensors[output.of].untyped_storage(),
                    output.offset,
                    output.shape,
                    output.strides,
                )
        return FakeTensor(self.mode, bare, output.device)


def _bare(fake: Tensor) -> Tensor:
    """A meta tensor of the same sizes in the same storage; to be called without dispatch."""
    bare = torch.empty(0, dtype=fake.dtype, device=_META)
    bare.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
    return bare


def _with(bare: dict[int, Tensor], value: Any) -> Any:
    """The value with its tensors, those in lists too, replaced (by id)."""
    if isinstance(value, Tensor):
        return bare[id(value)]
    if isinstance(value, (tuple, list)):
        return type(value)(_with(bare, v) for v in value)
    return value


def _with_statistics_of(dtype: torch.dtype, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A batch norm's outputs with mean and deviation in the input's dtype, as on a CPU."""
    return out[0], *(t if t.dtype == dtype else torch.empty_like(t, dtype=dtype) for t in out[1:])


def fake_like(real: Tensor, mode: FakeTensorMode, trained: bool | None = None) -> Tensor:
    """A fake tensor on the CPU of a real one's sizes.

    Args:
        real: a plain tensor, without gradient.
        mode: makes it.
        trained: make it a parameter that needs a gradient, or one that does not; None: none.
    """
    if real.layout != torch.strided or real.untyped_storage().nbytes() != _bytes(real):
        made: Tensor = mode.from_tensor(real)
        return made if trained is None else nn.Parameter(made, requires_grad=trained)
    with torch._C._DisableTorchDispatch():
        bare = torch.empty_strided(
            real.shape, real.stride(), dtype=real.dtype, device=_META, requires_grad=trained is True
        )
    made = FakeTensor(mode, bare, CPU)
    if trained is not None:
        made._is_param = True  # type: ignore[attr-defined]
    return made


def _bytes(t: Tensor) -> int:
    """Bytes that `empty_strided` allocates for a tensor of these sizes."""
    if t.storage_offset() or not t.numel():
        return 0 if not t.numel() else -1
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def _add(values: Any, parts: list[Any]) -> bool:
    """Append what matters of some arguments; False where one of them cannot be told by sizes."""
    for value in values:
        if type(value) is FakeTensor:
            if value.constant is not None:
                return False
            parts += (
                value.shape, value.stride(), value.storage_offset(), value.dtype,
                value.fake_device,
            )  # fmt: skip
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            if not _add(value, parts):
                return False
        elif isinstance(value, Tensor) or not isinstance(value, _PLAIN):
            return False
        else:
            parts += (type(value), value)
    return True


_PLAIN = (
    int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format
)  # fmt: skip
