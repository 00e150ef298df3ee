"""Run one operator of a tape by itself, and time it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from segplan.trace.tape import Op, TensorMeta

Call = Callable[[], object]

SAMPLES = 3
SAMPLE_S = 0.002
"""Seconds of a sample: as many calls as fill them, one after the other."""
MOST_CALLS = 20
SMALL_BYTES = 2 * 2**20
"""Operators on less find all of it in the card's cache, in a step as well."""
LARGE_BYTES = 2**30
"""Operators on more find next to nothing there."""

_COPIES = frozenset(("_to_copy.default", "clone.default", "copy_.default"))
_FILLS = frozenset(
    ("zeros.default", "ones.default", "full.default", "new_zeros.default", "new_full.default",
     "zeros_like.default", "ones_like.default", "full_like.default", "scalar_tensor.default")
)  # fmt: skip
_NORMS = frozenset(("native_batch_norm.default", "cudnn_batch_norm.default"))
_NORMS_BACKWARD = frozenset(
    ("native_batch_norm_backward.default", "cudnn_batch_norm_backward.default")
)


class NotReplayable(ValueError):
    """The operator cannot be run from what the tape says of it."""


def bytes_of(op: Op) -> int:
    """Bytes of an operator's inputs and outputs."""
    return sum(
        t.numel * torch.empty((), dtype=_dtype(t.dtype)).element_size()
        for t in (*op.inputs, *op.outputs)
    )


@dataclass(frozen=True)
class Prepared:
    """An operator on inputs made for it.

    Attributes:
        call: runs it.
        fresh: the input that in a step the operator before has just made, or None.
    """

    call: Call
    fresh: Tensor | None


def prepare(op: Op, device: str) -> Prepared:
    """An operator with inputs made for it.

    Floating-point inputs are random, since zeros draw less power than data do. What the tape
    records of the CPU's path is run as CUDA runs it: normalisation and attention choose their
    kernels themselves.

    Raises:
        NotReplayable: the tape does not tell enough.
    """
    inputs = [_made(t, device, _bound(op)) for t in op.inputs]
    made_last = next(iter(inputs[-1:] if op.name in _COPIES else inputs), None)
    expanded = made_last is None or 0 in made_last.stride()
    return Prepared(_call(op, inputs, device), None if expanded else made_last)


def _call(op: Op, inputs: list[Tensor], device: str) -> Call:
    if op.name in _COPIES:
        target, source = _empty(op.outputs[0], device), inputs[-1]
        return lambda: target.copy_(source)
    if op.name in _FILLS:
        target = _empty(op.outputs[0], device)
        return target.zero_
    if op.name in _NORMS:
        return _batch_norm(op, inputs)
    if op.name in _NORMS_BACKWARD:
        return _batch_norm_backward(op, inputs, device)
    if op.name.startswith("_scaled_dot_product"):
        return _attention(op, inputs, backward="backward" in op.name)
    if op.name == "max_pool3d_with_indices_backward.default":
        # Made-up positions would all fall on a few voxels, whose sums wait for each other.
        inputs[2] = torch.ops.aten.max_pool3d_with_indices(inputs[1], *op.args[2:7])[1]
    overload = _overload(op.name)
    arguments = _arguments(overload._schema.arguments, op, inputs)
    return lambda: overload(*arguments)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if found is None:
        raise NotReplayable(f"torch has no operator {name}")
    return found


def _arguments(schema: Sequence[Any], op: Op, inputs: Sequence[Tensor]) -> list[Any]:
    """The operator's positional arguments: the tape's, with the tensors where they belong.

    An optional tensor is there if more are left than the required ones after it need.
    """
    positional = [a for a in schema if not a.kwarg_only][: len(op.args)]
    kinds = [str(a.type) for a in positional]
    needed = [
        int(value is None) if kind == "Tensor" else (int(value) if kind == "List[Tensor]" else 0)
        for kind, value in zip(kinds, op.args, strict=True)
    ]
    left, found = list(inputs), []
    for i, (kind, value) in enumerate(zip(kinds, op.args, strict=True)):
        if kind == "Tensor" and value is None:
            take = 1
        elif kind == "Optional[Tensor]":
            take = int(len(left) > sum(needed[i + 1 :]))
        elif kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            take = int(value)
        else:
            found.append(_value(kind, value))
            continue
        if take > len(left):
            raise NotReplayable(f"{op.name} has fewer tensors than arguments")
        taken, left = left[:take], left[take:]
        found.append(taken if "List" in kind else taken[0] if taken else None)
    if left:
        raise NotReplayable(f"{op.name} has more tensors than arguments")
    return found


def _value(kind: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return _dtype(value.removeprefix("torch."))
    return list(value) if isinstance(value, tuple) else value


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise NotReplayable(f"torch has no data type {name[:40]}")
    return found


def _bound(op: Op) -> int:
    """Below which integers among the inputs are valid positions."""
    first = op.inputs[0].shape if op.inputs else ()
    if op.name.startswith(("scatter", "gather")):
        return first[int(op.args[1])]
    if op.name.startswith("index") and first:
        return first[0]
    if op.name.startswith("nll_loss"):
        return op.inputs["backward" in op.name].shape[1]
    return 2


def _empty(t: TensorMeta, device: str) -> Tensor:
    return torch.empty_strided(t.shape, t.strides, dtype=_dtype(t.dtype), device=device)


def _made(t: TensorMeta, device: str, bound: int) -> Tensor:
    made = _empty(t, device)
    whole = made
    if 0 in t.strides:  # an expanded tensor: fill what is there of it
        whole = made[tuple(slice(0, 1) if s == 0 else slice(None) for s in t.strides)]
    if made.dtype == torch.bool:
        whole.random_(0, 2)
    elif made.dtype.is_floating_point:
        whole.normal_()
    else:
        whole.random_(0, max(bound, 1))
    return made


def _batch_norm(op: Op, inputs: Sequence[Tensor]) -> Call:
    if len(inputs) not in (1, 3, 5):
        raise NotReplayable(f"a batch norm of {len(inputs)} tensors")
    there: list[Tensor | None] = [*inputs[1:], *[None] * (5 - len(inputs))]
    images, (weight, bias, mean, variance) = inputs[0], there
    training, momentum, eps = op.args[5], op.args[6], op.args[7]
    if variance is not None:
        variance.abs_()
    return lambda: torch.batch_norm(
        images, weight, bias, mean, variance, training, momentum, eps, True
    )


def _batch_norm_backward(op: Op, inputs: Sequence[Tensor], device: str) -> Call:
    gradient, images = inputs[0], inputs[1].requires_grad_()
    affine = op.args[9][1]
    width = images.shape[1]
    scale = torch.ones(width, device=device, requires_grad=True) if affine else None
    shift = torch.zeros(width, device=device, requires_grad=True) if affine else None
    out = torch.batch_norm(images, scale, shift, None, None, True, 0.1, op.args[8], True)
    return _gradients(out, [t for t in (images, scale, shift) if t is not None], gradient)


def _attention(op: Op, inputs: Sequence[Tensor], backward: bool) -> Call:
    query, key, value = inputs[backward : 3 + backward]

    def attend() -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    if not backward:
        return attend
    wanted = [t.requires_grad_() for t in (query, key, value)]
    out = attend()
    return _gradients(out, wanted, inputs[0].reshape(out.shape))


def _gradients(out: Tensor, wanted: Sequence[Tensor], gradient: Tensor) -> Call:
    return lambda: torch.autograd.grad(out, wanted, gradient, retain_graph=True)


class Timer(Protocol):
    """Times calls on a device."""

    def together(self, call: Call, count: int, hold_s: float) -> tuple[float, float]:
        """Seconds of the device for so many calls, and of the host to enqueue them.

        With `hold_s` the device is kept busy so long before, so that it need not wait for
        the host.
        """

    def apart(
        self, call: Call, before: Call, count: int, hold_s: float
    ) -> tuple[Sequence[float], float]:
        """Seconds of the device for each of so many calls, `before` run before each; likewise."""

    def forget(self) -> None:
        """Fill the device's cache with something else."""


class CudaTimer:
    """CUDA events on the current stream."""

    _HIGHEST_CLOCK_HZ = 2e9
    _LEAST_CACHE = 32 * 2**20

    def __init__(self) -> None:
        cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        self._other = torch.zeros(2 * max(cache, self._LEAST_CACHE), dtype=torch.int8).cuda()
        self._other = self._other.view(torch.float32)
        self._pair_s = 0.0
        self._pair_s = self._pair()

    def together(self, call: Call, count: int, hold_s: float) -> tuple[float, float]:
        """As `Timer.together`."""
        start, end = self._events()
        self._hold(hold_s)
        start.record()
        began = time.perf_counter()
        for _ in range(count):
            call()
        host = time.perf_counter() - began
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3, host

    def apart(
        self, call: Call, before: Call, count: int, hold_s: float
    ) -> tuple[Sequence[float], float]:
        """As `Timer.apart`; what a pair of events costs is taken off."""
        pairs = [self._events() for _ in range(count)]
        self._hold(hold_s)
        began = time.perf_counter()
        for start, end in pairs:
            before()
            start.record()
            call()
            end.record()
        host = time.perf_counter() - began
        pairs[-1][1].synchronize()
        least = 1e-6
        return [max(a.elapsed_time(b) / 1e3 - self._pair_s, least) for a, b in pairs], host

    def forget(self) -> None:
        """As `Timer.forget`; reading leaves nothing to be written back."""
        self._other.sum()

    def _pair(self) -> float:
        """Seconds by which a small kernel between two events seems longer than one of many."""
        small = torch.zeros(256, device="cuda")
        self.together(small.neg, 100, 0.0)
        many, _ = self.together(small.neg, 100, 5e-3)
        alone, _ = self.apart(small.neg, small.neg, 21, 5e-3)
        return max(statistics.median(alone) - many / 100, 0.0)

    def _hold(self, seconds: float) -> None:
        if seconds > 0:
            torch.cuda._sleep(int(seconds * self._HIGHEST_CLOCK_HZ))

    @staticmethod
    def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


class HostTimer:
    """The wall clock, for calls that end before they return (on a CPU)."""

    def together(self, call: Call, count: int, hold_s: float) -> tuple[float, float]:
        """As `Timer.together`."""
        began = time.perf_counter()
        for _ in range(count):
            call()
        took = time.perf_counter() - began
        return took, took

    def apart(
        self, call: Call, before: Call, count: int, hold_s: float
    ) -> tuple[Sequence[float], float]:
        """As `Timer.apart`."""
        took = []
        for _ in range(count):
            before()
            began = time.perf_counter()
            call()
            took.append(time.perf_counter() - began)
        return took, sum(took)

    def forget(self) -> None:
        """A processor's caches are left as they are."""


@dataclass(frozen=True)
class Timing:
    """What came of an operator: samples in seconds, or why there are none."""

    seconds: tuple[float, ...] = ()
    why_not: str = ""


def measure(prepared: Prepared, timer: Timer, size: int) -> tuple[float, ...]:
    """Samples of the seconds of one call.

    The first call loads kernels and lets libraries choose their algorithm; the second tells how
    long one takes, the device's own waiting for the host included. Then small and very large
    operators are called one after the other. Between, the cache decides: each call finds it as
    in a step, where the operator before has just made one of the inputs and the others were
    made long ago.

    Args:
        prepared: the operator.
        timer: of its device.
        size: bytes of its inputs and outputs.
    """
    call, fresh = prepared.call, prepared.fresh
    timer.together(call, 1, 0.0)
    once, host = timer.together(call, 1, 0.0)
    if SMALL_BYTES < size < LARGE_BYTES:
        source = None if fresh is None else fresh.detach().clone()

        def before() -> None:
            timer.forget()
            if fresh is not None and source is not None:
                fresh.detach().copy_(source)

        _, host = timer.apart(call, before, 1, 0.0)
        count = 2 * SAMPLES - 1 if once < 5 * SAMPLE_S else SAMPLES
        taken, _ = timer.apart(call, before, count, 2 * host * count + 50e-6)
        return tuple(taken)
    count = max(1, min(MOST_CALLS, round(SAMPLE_S / max(once, 1e-7))))
    samples = []
    for _ in range(SAMPLES):
        # A long call hides the host's part of the next by itself.
        hold = 2 * host * count + 50e-6 if once < SAMPLE_S else 0.0
        took, spent = timer.together(call, count, hold)
        host = max(spent / count, 1e-6)
        samples.append(took / count)
    return tuple(samples)


def time_operator(op: Op, precision: str, timer: Timer, device: str, most_bytes: int) -> Timing:
    """Time one operator, unless it is too large or cannot be run."""
    size = bytes_of(op)
    if size > most_bytes:
        return Timing(why_not="too large")
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        return Timing(seconds=measure(prepare(op, device), timer, size))
    except (NotReplayable, RuntimeError, TypeError) as error:  # torch.OutOfMemoryError is one
        if "CUDA error" in str(error):  # nothing runs in this process any more
            raise
        return Timing(why_not=(str(error).splitlines() or [type(error).__name__])[0][:200])
