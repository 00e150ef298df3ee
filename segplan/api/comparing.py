"""`compare`: one workload on many cards, at equal work and at each card's best."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from segplan.api.choosing import named_cards
from segplan.api.fitting import DEFAULT_MAX_BATCH, DEFAULT_RESERVE, voxels
from segplan.api.predicting import Predictor, Progress, silent
from segplan.errors import SegplanError
from segplan.gpus import Card
from segplan.memory.context import context_bytes
from segplan.networks import next_valid, resolve
from segplan.results import Duration, LimitedBy, MemoryEstimate, StepTime
from segplan.schedule import scale
from segplan.search import Verdict, default_patches, largest_batch
from segplan.timing.model import BLOCKED, PRODUCTS, ROWED, rates_of
from segplan.timing.prediction import warnings_of
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import MIB, Patch
from segplan.workload import Workload

MILLION = 1_000_000


@dataclass(frozen=True)
class CardComparison:
    """A workload on one card.

    Attributes:
        card: slug.
        name: as the vendor writes it.
        fits: whether the asked patch and batch train.
        memory: of the asked step.
        step: of the asked step, on this card whether it fits or not (equal work); None where
            too little is known of the card.
        max_batch: largest batch of the asked patch; 0 when none fits.
        limited_by: what stops a larger one.
        best_batch: of the largest batch and the powers of two up to it (and to 64), the one with
            the most patches a second; 0 when nothing fits.
        best_step: of the best batch; None when nothing fits or too little is known of the card.
        largest_patch: of the tried cubes, the largest that trains the asked batch; None if none.
        million: a million patches at `best_batch`; None as `best_step`.
        waits: share of the asked step by what it waits for: "arithmetic", "bandwidth",
            "blocks", "launches"; "host" where Python is slower than the card.
        notes: sentences a reader should know.
    """

    card: str
    name: str
    fits: bool
    memory: MemoryEstimate | None
    step: StepTime | None
    max_batch: int
    limited_by: LimitedBy | None
    best_batch: int = 0
    best_step: StepTime | None = None
    largest_patch: Patch | None = None
    million: Duration | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def patches_per_second(self) -> float | None:
        """At the best batch."""
        if self.best_step is None or not self.best_batch:
            return None
        return self.best_batch / self.best_step.seconds


@dataclass(frozen=True)
class Comparison:
    """A workload on many cards, the quickest for a million patches first.

    Attributes:
        workload: as asked; its patch and batch are the equal work.
        cards: ranked; cards on which nothing fits come last.
        reasons: why neighbours in the ranking differ, a sentence each.
        warnings: sentences a reader should know.
    """

    workload: Workload
    cards: tuple[CardComparison, ...]
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def compare(
    workload: Workload,
    gpus: Sequence[str],
    *,
    reserve: int = DEFAULT_RESERVE,
    max_batch: int = DEFAULT_MAX_BATCH,
    progress: Progress = silent,
) -> Comparison:
    """Compare cards on one workload.

    Args:
        workload: its patch and batch are the equal work.
        gpus: names, YAML files, "catalog", or cards that are here ("0").
        reserve: bytes of each card left free on purpose.
        max_batch: look for no larger batch.
        progress: called as traces finish.

    Raises:
        RequestError: the network, the patch or a card cannot be used as asked.
        WorkerError: a trace died.
    """
    resolved = resolve(workload)
    cards = [card for _, card in named_cards(gpus, "a comparison predicts").values()]
    patches = default_patches(lambda patch: next_valid(resolved, patch))
    with Predictor(resolved, None, progress) as predictor:
        wanted = [(resolved.patch, b) for b in (*AFFINE_BATCHES, 1, resolved.batch)]
        predictor.trace([*wanted, *((patch, resolved.batch) for patch in patches)])
        memory = _Memory(predictor, resolved)
        found = []
        parts: dict[str, Mapping[str, float]] = {}
        for done, card in enumerate(cards):
            progress(done, len(cards), f"comparing {card.slug}")
            predictor.aim(card)
            row, seconds = _on_card(memory, card, resolved, patches, reserve, max_batch)
            found.append(row)
            parts[card.slug] = seconds
    found.sort(key=_rank)
    return Comparison(
        workload=workload,
        cards=tuple(found),
        reasons=tuple(_reasons(found, parts)),
        warnings=_warnings(cards),
    )


def _warnings(cards: Sequence[Card]) -> tuple[str, ...]:
    """That contexts were assumed, where they were."""
    contexts = {c.slug: context_bytes(c.compute_capability) for c in cards}
    assumed = [slug for slug, (_bytes, measured) in contexts.items() if not measured]
    if not assumed:
        return ()
    size = contexts[assumed[0]][0] // MIB
    which = f"of {', '.join(assumed)}" if len(assumed) <= 4 else f"of {len(assumed)} cards"
    return (f"The CUDA context {which} was not measured: {size} MiB assumed.",)


class _Memory:
    """Least memory on every card of a comparison, from few exact predictions.

    Whether a card has tensor cores decides what its kernels allocate; its number of
    multiprocessors hardly does. So cards of one kind share their predictions: a line through three
    batches of the asked patch, and for other patches the asked step's ratio of least memory to
    peak allocated. The exact prediction is asked for where the answer hangs on less than `DOUBT`
    of the budget.
    """

    def __init__(self, predictor: Predictor, workload: Workload) -> None:
        self.predictor, self.workload = predictor, workload
        self._estimates: dict[bool, MemoryEstimate] = {}
        self._peaks: dict[tuple[bool, Patch, int], int] = {}
        self._least: dict[tuple[bool, int], int] = {}

    def estimate(self, card: Card) -> MemoryEstimate:
        """Of the asked step; the predictor is aimed at the card (errors as for it)."""
        kind = self._kind(card)
        if kind not in self._estimates:
            w = self.workload
            self._estimates[kind] = self.predictor.estimate(w.patch, w.batch)
        context, _measured = context_bytes(card.compute_capability)
        return replace(self._estimates[kind], context=context)

    def fits(self, card: Card, patch: Patch, batch: int, budget: int) -> bool:
        """Whether a step trains in the budget (errors as for the predictor)."""
        least = self.least(card, patch, batch)
        if abs(least / budget - 1) < DOUBT and batch <= EXACT_UP_TO:
            return self.predictor.fits(patch, batch, budget)
        return least <= budget

    def least(self, card: Card, patch: Patch, batch: int) -> float:
        """Bytes, approximately (errors as for the predictor)."""
        if patch == self.workload.patch and batch > 1:
            near, far = LINE[:2] if batch <= LINE[1] else LINE[1:]
            low, high = self._exact(card, near), self._exact(card, far)
            return low + (batch - near) * (high - low) / (far - near)
        asked = self.estimate(card)
        return self._peak(card, patch, batch) * asked.least_memory / asked.peak_allocated

    def guess(self, card: Card, patch: Patch, budget: int) -> int:
        """The batch at which a line through two batches meets the budget."""
        low, high = (self.least(card, patch, b) for b in AFFINE_BATCHES)
        slope = max((high - low) / (AFFINE_BATCHES[1] - AFFINE_BATCHES[0]), 1.0)
        return max(0, int(AFFINE_BATCHES[0] + (budget - low) / slope))

    def _exact(self, card: Card, batch: int) -> int:
        key = (self._kind(card), batch)
        if key not in self._least:
            self._least[key] = self.predictor.estimate(self.workload.patch, batch).least_memory
        return self._least[key]

    def _peak(self, card: Card, patch: Patch, batch: int) -> int:
        key = (self._kind(card), patch, batch)
        if key not in self._peaks:
            self._peaks[key] = self.predictor.peak_allocated(patch, batch)
        return self._peaks[key]

    def _kind(self, card: Card) -> bool:
        needed = (7, 0) if self.workload.precision == "fp16" else (8, 0)
        return (card.compute_capability or needed) >= needed


LINE = (2, 8, 24)
"""Batches through which the line goes, with a bend: fragmentation grows with the batch."""

DOUBT = 0.04
"""Share of the budget within which what is shared does not decide."""

EXACT_UP_TO = 16
"""Batches above differ by less than the prediction's interval anyway."""


def _on_card(
    memory: _Memory,
    card: Card,
    workload: Workload,
    patches: Sequence[Patch],
    reserve: int,
    max_batch: int,
) -> tuple[CardComparison, Mapping[str, float]]:
    """A row of the comparison, and the asked step's seconds by group of work."""
    predictor, patch, batch = memory.predictor, workload.patch, workload.batch
    context, _measured = context_bytes(card.compute_capability)
    budget = max(card.memory_visible - context - reserve, 1)
    parts = predictor.step_parts(patch, batch)
    step, seconds = parts if parts is not None else (None, None)
    notes: list[str] = []
    if parts is None:
        notes.append(f"too little is known of the {card.name} to predict its time")
    else:
        notes += warnings_of(
            card, workload, rates_of(card, workload.precision), predictor.calibration
        )

    def verdict(size: Patch, count: int) -> Verdict:
        if predictor.kernel_limit(size, count) is not None:
            return Verdict.KERNEL
        return Verdict.FITS if memory.fits(card, size, count, budget) else Verdict.TOO_BIG

    answer = largest_batch(
        lambda count: verdict(patch, count),
        cap=max_batch,
        guess=min(memory.guess(card, patch, budget), max_batch),
    )
    times = {
        count: predictor.step_time(patch, count)
        for count in {answer.max_batch, *(2**i for i in range(7))}
        if 0 < count <= answer.max_batch
    }
    rates = {count: count / time.seconds for count, time in times.items() if time is not None}
    best = max(rates, key=lambda count: rates[count], default=answer.max_batch)
    best_step = times.get(best)
    row = CardComparison(
        card=card.slug,
        name=card.name,
        fits=answer.max_batch >= batch,
        memory=memory.estimate(card),
        step=step,
        max_batch=answer.max_batch,
        limited_by=answer.limited_by,
        best_batch=best,
        best_step=best_step,
        largest_patch=_largest_patch(verdict, patches, batch),
        million=scale(best_step, MILLION / best) if best_step is not None else None,
        waits=_shares(seconds.by_bound, sum(seconds.host)) if seconds is not None else {},
        notes=tuple(notes),
    )
    return row, _grouped(seconds.by_kind) if seconds is not None else {}


def _largest_patch(
    verdict: Callable[[Patch, int], Verdict], patches: Sequence[Patch], batch: int
) -> Patch | None:
    """The largest patch that trains the batch; one whose trace died is passed over."""
    for patch in sorted(patches, key=voxels, reverse=True):
        with contextlib.suppress(SegplanError):
            if verdict(patch, batch) is Verdict.FITS:
                return patch
    return None


def _shares(bounds: Mapping[str, float], host: float) -> dict[str, float]:
    """Shares of a step by what it waits for; the host where it is the slower."""
    gpu = sum(bounds.values())
    if host > gpu:
        return {"host": 1.0}
    return {name: seconds / gpu for name, seconds in bounds.items()} if gpu else {}


def _rank(row: CardComparison) -> tuple[bool, float, str]:
    return (row.million is None, row.million.seconds if row.million else 0.0, row.card)


_GROUPS = {
    "convolutions and matrix products": (*PRODUCTS, "grouped_conv"),
    "norm layers": (*BLOCKED, *ROWED, "norm_apply"),
}
_REST = "other memory traffic"


def _grouped(by_kind: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step by group of work, the same kernels in each on every card."""
    group_of = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}
    found = dict.fromkeys((*_GROUPS, _REST), 0.0)
    for kind, seconds in by_kind.items():
        found[group_of.get(kind, _REST)] += seconds
    return found


MOST_REASONS = 6


def _reasons(rows: Sequence[CardComparison], parts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Why each card's equal work takes another time than the next one's in the ranking."""
    timed = [row for row in rows if row.step is not None and parts.get(row.card)]
    found = []
    for one, other in pairwise(timed):
        a, b = parts[one.card], parts[other.card]
        assert one.step is not None
        assert other.step is not None
        ratio = other.step.seconds / one.step.seconds
        if one.step.host_bound and other.step.host_bound:
            found.append(
                f"{one.card} and {other.card}: Python cannot queue kernels fast enough for "
                "either; the card hardly matters."
            )
            continue
        clauses = [
            f"{name} {b[name] / a[name]:.2f}×"
            for name in sorted(a, key=lambda n: -max(a[n], b[n]))
            if a[name] > 0
            and max(a[name], b[name]) > _NOTABLE * max(sum(a.values()), sum(b.values()))
        ]
        found.append(
            f"The same step takes {ratio:.2f}× as long on {other.card} as on {one.card}: "
            + ", ".join(clauses)
            + "."
        )
    return found[:MOST_REASONS]


_NOTABLE = 0.1
"""Share of a step below which a cause is not worth a clause."""
