"""Tape: what one training step allocates, frees and computes, in order, affine in the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PARAMETER, BUFFER, INPUT, GRADIENT, OPTIMIZER, ACTIVATION, TEMPORARY = range(7)
"""What a buffer holds. ACTIVATION: made in the forward pass; TEMPORARY: made elsewhere and
neither a gradient nor optimizer state."""

KIND_NAMES = (
    "parameter", "buffer", "input", "gradient", "optimizer", "activation", "temporary"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, dtype and layout of an operator's argument.

    `shape` and `strides` are in elements; `dtype` is torch's name without "torch.".
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def channels_last(self) -> bool:
        """Whether a 5-D tensor lies in channels-last order without gaps."""
        if len(self.shape) != 5:
            return False
        expected = 1
        for axis in (1, 4, 3, 2, 0):
            if self.shape[axis] != 1 and self.strides[axis] != expected:
                return False
            expected *= self.shape[axis]
        return True

    @property
    def suggests_channels_last(self) -> bool:
        """Whether the strides are in channels-last order (`Tensor.suggest_memory_format`)."""
        if len(self.shape) != 5 or self.strides[1] == 0:
            return False
        least = 0
        for axis in (1, 4, 3, 2, 0):
            size, stride = self.shape[axis], self.strides[axis]
            if size == 0 or stride < least or (axis == 0 and least == self.strides[1]):
                return False
            least = stride * size if size > 1 else stride
        return True


@dataclass(frozen=True, slots=True)
class Op:
    """One operator that ran.

    Attributes:
        name: aten name with overload, e.g. "convolution.default".
        phase: "forward", "backward" or "optimizer".
        step: 0 for the first step, 1 for the second ...
        at: index into `events` just before the operator's outputs are allocated.
        end: index just after.
        inputs: the tensors among its arguments, in order (lists are flattened).
        outputs: the tensors it returned (views included).
        args: the arguments with tensors as None; lists of tensors as their count.
    """

    name: str
    phase: str
    step: int
    at: int
    end: int
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    args: tuple[Any, ...]


@dataclass
class Trace:
    """The allocations of a few training steps at one batch size.

    Attributes:
        batch: patches in a forward pass.
        events: buffer ids (from 1): +id when allocated, -id when freed, in order.
        sizes: bytes by buffer id (index 0 unused), not rounded.
        kinds: what each buffer holds (PARAMETER ...).
        modules: top-level module each buffer was made in ("" outside the network).
        ops: operators in order.
        step_starts: index into `events` where each step begins; before it, the set-up.
    """

    batch: int
    events: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [0])
    modules: list[str] = field(default_factory=lambda: [""])
    ops: list[Op] = field(default_factory=list)
    step_starts: list[int] = field(default_factory=list)


AFFINE_BATCHES = (2, 3)
"""Batches whose two traces give all larger ones. Batch 1 is traced by itself: with one sample
some tensors are contiguous that otherwise are not, and copies fall away."""


@dataclass
class Tape:
    """Traces of one patch by batch: those of batches 2 and 3 give all larger ones.

    Attributes:
        traces: by batch.
    """

    traces: dict[int, Trace] = field(default_factory=dict)

    @property
    def affine(self) -> bool:
        """Whether larger batches can be derived: both traces made the same sequence."""
        low, high = (self.traces.get(b) for b in AFFINE_BATCHES)
        return (
            low is not None
            and high is not None
            and low.events == high.events
            and [o.name for o in low.ops] == [o.name for o in high.ops]
        )

    def missing(self, batch: int) -> tuple[int, ...]:
        """Batches that must still be traced before `at(batch)` can answer."""
        if batch in self.traces or (batch > 1 and self.affine):
            return ()
        if batch in AFFINE_BATCHES:
            return (batch,)
        wanted = [b for b in AFFINE_BATCHES if b not in self.traces]
        return tuple(wanted) if batch > 1 and wanted else (batch,)

    def at(self, batch: int) -> Trace:
        """The trace at any batch: sizes, shapes and strides interpolated.

        Raises:
            ValueError: a trace is missing (see `missing`).
        """
        if batch in self.traces:
            return self.traces[batch]
        if batch < 2 or not self.affine:
            raise ValueError(f"batch {batch} must be traced first")
        lo, hi = (self.traces[b] for b in AFFINE_BATCHES)
        scale = _Affine(lo.batch, hi.batch, batch)
        return Trace(
            batch=batch,
            events=lo.events,
            sizes=[scale(a, b) for a, b in zip(lo.sizes, hi.sizes, strict=True)],
            kinds=lo.kinds,
            modules=lo.modules,
            ops=[
                Op(
                    a.name, a.phase, a.step, a.at, a.end,
                    scale.tensors(a.inputs, b.inputs),
                    scale.tensors(a.outputs, b.outputs),
                    a.args if a.args == b.args else tuple(map(scale.value, a.args, b.args)),
                )
                for a, b in zip(lo.ops, hi.ops, strict=True)
            ],
            step_starts=lo.step_starts,
        )  # fmt: skip


class _Affine:
    """Values at `batch` from values at two others."""

    def __init__(self, low: int, high: int, batch: int) -> None:
        self.low, self.span, self.offset = low, high - low, batch - low
        # Tensors, and lists of them, are shared between operators.
        self._made: dict[tuple[int, int], TensorMeta] = {}
        self._lists: dict[tuple[int, int], tuple[TensorMeta, ...]] = {}

    def __call__(self, a: int, b: int) -> int:
        if a == b:
            return a
        return a + (b - a) * self.offset // self.span

    def tensors(
        self, a: tuple[TensorMeta, ...], b: tuple[TensorMeta, ...]
    ) -> tuple[TensorMeta, ...]:
        key = (id(a), id(b))
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = tuple(map(self._tensor, a, b))
        return found

    def _tensor(self, a: TensorMeta, b: TensorMeta) -> TensorMeta:
        key = (id(a), id(b))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = TensorMeta(
                tuple(map(self, a.shape, b.shape)), a.dtype, tuple(map(self, a.strides, b.strides))
            )
        return found

    def value(self, a: Any, b: Any) -> Any:
        if isinstance(a, bool) or a is None or isinstance(a, (str, float)):
            return a
        if isinstance(a, int) and isinstance(b, int):
            return self(a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(map(self.value, a, b))
        return a


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """A trace as plain JSON values; tensor descriptions are stored once each."""
    table: dict[TensorMeta, int] = {}

    def index(meta: TensorMeta) -> int:
        return table.setdefault(meta, len(table))

    ops = [
        [o.name, o.phase, o.step, o.at, o.end,
         [index(t) for t in o.inputs], [index(t) for t in o.outputs], o.args]
        for o in trace.ops
    ]  # fmt: skip
    return {
        "batch": trace.batch,
        "events": trace.events,
        "sizes": trace.sizes,
        "kinds": trace.kinds,
        "modules": trace.modules,
        "ops": ops,
        "tensors": [[t.shape, t.dtype, t.strides] for t in table],
        "step_starts": trace.step_starts,
    }


def trace_from_json(data: Mapping[str, Any]) -> Trace:
    """The trace of `trace_to_json`."""
    tensors = [TensorMeta(tuple(s), d, tuple(t)) for s, d, t in data["tensors"]]
    lists: dict[tuple[int, ...], tuple[TensorMeta, ...]] = {}

    def pick(indices: Sequence[int]) -> tuple[TensorMeta, ...]:
        key = tuple(indices)
        found = lists.get(key)
        if found is None:
            found = lists[key] = tuple(tensors[i] for i in indices)
        return found

    return Trace(
        batch=data["batch"],
        events=list(data["events"]),
        sizes=list(data["sizes"]),
        kinds=list(data["kinds"]),
        modules=list(data["modules"]),
        ops=[
            Op(n, p, s, a, e, pick(i), pick(o), _tuples(args))
            for n, p, s, a, e, i, o, args in data["ops"]
        ],
        step_starts=list(data["step_starts"]),
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
