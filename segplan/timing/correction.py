"""What operators timed one by one on a card say of the model: how far it is off, and where.

For each timed operator log(measured / modelled) is known. Between them it is taken to be a
Gaussian process (Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, eq. 2.25):
near a timed operator of the same kind its error is taken over, far from any it falls back to the
kind's mean error, and without any of that kind to none. Distance is in the logarithms of what
decides: bytes, operations and tiles for a byte, length of sums; other operators of the kind (a
strided convolution among plain ones) count for less. What is left over is the
operator's, more than the card's, so it is carried over to other cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from segplan.timing.model import CONVOLUTIONS, PRODUCTS, Calibration, Rates, kernel_seconds
from segplan.timing.operators import OperatorTime
from segplan.timing.work import (
    DTYPES,
    INDEX,
    KINDS,
    WorkTable,
    entries,
    work_of,
    work_table,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Smoothness:
    """How alike the errors of two operators are (`benchmarks/operator_correction.py` scores it).

    Attributes:
        length: distance, in factors of two, over which their likeness falls to 1/e.
        local: standard deviation of the error of one operator about its kind's.
        across: how much of it operators of different variants share.
        kind: standard deviation of a kind's error about none.
        noise: of a measurement, and of what the distance does not see.
    """

    length: float = 2.0
    local: float = 0.4
    across: float = 0.3
    kind: float = 0.3
    noise: float = 0.1


BY_PRECISION = frozenset(INDEX[kind] for kind in PRODUCTS)
"""Kinds whose kernels are others with TF32 on, with it off, and in 16 bits."""

_APART = np.array([0.0, 0.5, 1.5])
"""Where data types lie on an axis of their own, in factors of two, for the other kinds."""


@dataclass(frozen=True)
class _Group:
    """Timed operators of one kind (and arithmetic): where they lie, and their solved errors."""

    places: Array
    weights: Array
    largest: float
    mean: float


class Correction:
    """Factors on the model's seconds, from operators timed on a card.

    Args:
        times: the operators' times.
        rates: of the card they were timed on, by precision "fp16", "bf16", "tf32" and "fp32".
        calibration: of the model.
        smoothness: of the errors.
    """

    def __init__(
        self,
        times: Sequence[OperatorTime],
        rates: dict[str, Rates],
        calibration: Calibration,
        smoothness: Smoothness | None = None,
    ) -> None:
        self.smoothness = smoothness or Smoothness()
        self._groups: dict[int, _Group] = {}
        table, errors, single = residuals(times, rates, calibration)
        groups, places = group_of(table, single), places_of(table)
        for group in np.unique(groups):
            among = groups == group
            self._groups[int(group)] = self._solved(places[among], errors[among])

    def factors(self, table: WorkTable, precision: str) -> Array:
        """What to multiply the model's seconds of each entry by.

        Args:
            table: the work.
            precision: of the workload: decides what float32 products run on.
        """
        groups = group_of(table, np.full(len(table.kind), precision == "fp32"))
        # A step runs most of its operators several times.
        rows = np.column_stack([groups, places_of(table)])
        rows, back = np.unique(rows, axis=0, return_inverse=True)
        groups, places = rows[:, 0].astype(np.int64), rows[:, 1:]
        found = np.zeros(len(rows))
        for number in np.unique(groups):
            group = self._groups.get(int(number))
            if group is None:
                continue
            among = groups == number
            asked = places[among]
            # What is larger than all that was timed is as far off as the largest: kernels that
            # fill the card do so at any size.
            asked[:, 0] = np.minimum(asked[:, 0], group.largest)
            found[among] = group.mean + self._alike(asked, group.places) @ group.weights
        return np.asarray(np.exp(found)[back.reshape(-1)])

    def _solved(self, places: Array, errors: Array) -> _Group:
        s = self.smoothness
        among = self._alike(places, places) + s.noise**2 * np.eye(len(places))
        # The kind's mean error is another unknown, normal about none (eq. 2.41 to 2.43).
        ones = np.ones(len(places))
        solved = np.linalg.solve(among, np.stack([errors, ones], axis=1))
        mean = float(ones @ solved[:, 0] / (ones @ solved[:, 1] + 1 / s.kind**2))
        return _Group(places, solved[:, 0] - mean * solved[:, 1], float(places[:, 0].max()), mean)

    def _alike(self, a: Array, b: Array) -> Array:
        """Covariance of the errors at places a and b (Matérn, ν = 1/2)."""
        s = self.smoothness
        same = a[:, -1:] == b[None, :, -1]
        a, b = a[:, :-1], b[:, :-1]
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
        distance = np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(s.local**2 * np.where(same, 1.0, s.across) * np.exp(-distance / s.length))


def residuals(
    times: Sequence[OperatorTime], rates: dict[str, Rates], calibration: Calibration
) -> tuple[WorkTable, Array, NDArray[np.bool_]]:
    """What the timed operators do, log(measured / modelled) of each, and whether TF32 was off.

    Of several pieces of work that one operator does, the longest by the model stands for it.
    Operators that the model takes for none are left out.
    """
    found = [t for t in times if work_of(t.operator.op, t.operator.op.phase)]
    pieces = [len(work_of(t.operator.op, t.operator.op.phase)) for t in found]
    firsts = np.cumsum([0, *pieces])
    table = work_table([t.operator.op for t in found])
    precisions = np.repeat([t.operator.precision for t in found], pieces)
    last = np.repeat(
        [any(m.suggests_channels_last for m in t.operator.op.inputs[:3]) for t in found], pieces
    ).astype(bool)
    seconds = np.ones(len(table.kind))
    for precision in set(precisions.tolist()):
        for channels_last in (False, True):
            among = (precisions == precision) & (last == channels_last)
            whole = kernel_seconds(
                table, rates[precision], calibration, channels_last=channels_last
            )
            seconds = np.where(among, whole, seconds)
    each = [seconds[a:b] for a, b in pairwise(firsts)]
    longest = firsts[:-1] + [int(np.argmax(parts)) for parts in each]
    modelled = np.array([parts.sum() for parts in each])
    measured = np.array([t.median for t in found])
    return entries(table, longest), np.log(measured / modelled), (precisions == "fp32")[longest]


def group_of(table: WorkTable, fp32: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A number for what shares its errors: the kind and, for products, the arithmetic."""
    arithmetic = np.where(table.dtype < DTYPES.index("float32"), 0, np.where(fp32, 2, 1))
    matters = np.isin(table.kind, list(BY_PRECISION))
    return np.asarray(table.kind * 3 + np.where(matters, arithmetic, 0), dtype=np.int64)


def places_of(table: WorkTable) -> Array:
    """Where each entry lies: (entries, axes), in factors of two; the first axis is its size.

    The others hold still as patch or batch grow: operations and tiles for a byte, length of
    sums, bytes that lie together, layout and data type. The last is no axis but the variant.
    """

    def log(values: Array) -> Array:
        return np.asarray(np.log2(np.maximum(values, 1.0)))

    convolution = np.isin(table.kind, [INDEX[k] for k in CONVOLUTIONS])
    matters = np.isin(table.kind, list(BY_PRECISION))
    dtype = np.where(matters, np.where(table.dtype == 1, _APART[1], 0.0), _APART[table.dtype])
    return np.stack(
        [
            log(table.moved),
            np.where(table.flops > 0, log(table.flops) - log(table.moved), 0.0),
            np.where(table.tiles > 0, log(table.tiles) - log(table.moved), 0.0),
            log(table.inner),
            np.where(convolution & (table.turned == 0), _TURNED_APART, 0.0),
            dtype,
            np.minimum(log(table.run), _LONGEST_RUN),
            table.variant,
        ],
        axis=1,
    )


_LONGEST_RUN = 7.0
"""A memory transaction and more (128 bytes): longer runs are no faster."""

_TURNED_APART = 2.0
"""Channels-last convolutions are other kernels than those whose tensors are turned around."""

GROUP_NAMES = tuple(
    f"{kind} {arithmetic}" for kind in KINDS for arithmetic in ("16 bit", "tf32", "fp32")
)
"""By `group_of`'s number; of other kinds only the first is used."""
