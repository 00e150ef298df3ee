"""The measured frontier: probes on a card that is here, seeded by the prediction."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from segplan.api.fitting import Question, budget_of, cell_note, conclude, guess_batch
from segplan.api.predicting import Predictor, Progress
from segplan.api.recording import Recorder
from segplan.errors import CardError, NetworkError, WorkerError
from segplan.gpus import Card, LocalCard, as_card
from segplan.memory.context import context_bytes
from segplan.probe import Prober
from segplan.results import (
    Basis,
    Cell,
    Fit,
    Measurement,
    MemoryEstimate,
    Outcome,
    StepTime,
)
from segplan.search import Verdict, largest_batch, largest_patch
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import MIB, Patch

BUSY_BYTES = 256 * MIB
"""Memory other processes may hold before a card counts as busy (a desktop holds about this)."""

_VERDICTS = {
    Outcome.FITS: Verdict.FITS,
    Outcome.OUT_OF_MEMORY: Verdict.TOO_BIG,
    Outcome.SPILLED: Verdict.TOO_BIG,
    Outcome.KERNEL_LIMIT: Verdict.KERNEL,
}
TIMED_STEPS = 5
_LEAST_SOFTNESS = 0.04


def fit_measured(
    question: Question,
    local: LocalCard,
    *,
    emulate: Card | None,
    store: str | None,
    share: bool,
    soak: int,
    progress: Progress,
) -> Fit:
    """The frontier of a card that is here, or of a smaller one it stands in for.

    Raises:
        CardError: the card is busy, or smaller than the one to emulate.
        NetworkError: the network cannot be built or refuses a patch.
    """
    _refuse_busy(local, share)
    card = as_card(local)
    context, _ = context_bytes(card.compute_capability)
    if emulate is not None:
        if emulate.memory_visible > local.visible_bytes:
            raise CardError(
                f"{local.name} has {local.visible_bytes // MIB} MiB and cannot stand in for the "
                f"larger {emulate.slug} ({emulate.memory_visible // MIB} MiB): predict it with "
                f"--gpu {emulate.slug}."
            )
        context, _ = context_bytes(emulate.compute_capability)
        budget = budget_of(question, emulate.memory_visible, context)
    else:
        free = local.free_bytes if local.free_bytes is not None else local.visible_bytes
        budget = budget_of(question, min(free, local.visible_bytes), context)
    if budget > local.visible_bytes:
        raise CardError(
            f"{local.name} has {local.visible_bytes // MIB} MiB, less than the limit of "
            f"{budget // MIB} MiB: ask for less."
        )
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(store))
        prober = stack.enter_context(Prober(local, allocator_limit=budget, share=share)).start()
        predictor = stack.enter_context(Predictor(question.workload, emulate or card, progress))
        search = _Search(question, prober, predictor, recorder, budget, emulate, progress)
        if question.batch is not None:
            cells = [search.largest_patch(question.batch)]
        else:
            predictor.trace((p, b) for p in question.patches for b in AFFINE_BATCHES)
            cells = [search.cell(patch) for patch in question.patches]
        slug = emulate.slug if emulate is not None else card.slug
        warnings = recorder.warnings
        if emulate is not None:
            warnings = [*warnings, f"Steps were timed on the {local.name}, not on {emulate.name}."]
        found = conclude(
            question, slug, budget, context, cells, predictor, warnings, measured_on=local.name
        )
        if soak and found.recommended is not None:
            note = search.soak(found.cells[found.recommended], soak)
            found = dataclasses.replace(found, warnings=(*found.warnings, note))
        return found


class _Search:
    """Probes, each written to the store as it is made and never made twice."""

    def __init__(
        self,
        question: Question,
        prober: Prober,
        predictor: Predictor,
        recorder: Recorder,
        budget: int,
        emulate: Card | None,
        progress: Progress,
    ) -> None:
        self.question, self.prober, self.predictor = question, prober, predictor
        self.recorder, self.budget, self.emulate, self.progress = (
            recorder, budget, emulate, progress,
        )  # fmt: skip
        self.done = 0
        self.found: dict[tuple[Patch, int], Measurement] = {}
        self.failure: dict[Patch, Measurement] = {}
        self.cells = 0

    def probe(self, patch: Patch, batch: int, *, fresh: bool) -> Measurement:
        """Measure, or take what the store has of the very same."""
        workload = self.question.workload.replace(patch=patch, batch=batch)
        known = self.recorder.reusable(workload, self.prober, self.budget, fresh=fresh)
        size = "x".join(map(str, patch))
        if known is None:
            self.progress(self.done, self._expected(), f"measuring {size} batch {batch}")
            known = self.prober.probe(workload, fresh=fresh, timed_steps=TIMED_STEPS)
            self.recorder.add(known)
        self.done += 1
        self.found[patch, batch] = known
        if known.outcome not in _VERDICTS:
            self.failure[patch] = known
        self.progress(
            self.done, self._expected(), f"{size} batch {batch}: {known.outcome.replace('_', ' ')}"
        )
        return known

    def _expected(self) -> int:
        patches = 1 if self.question.batch is not None else len(self.question.patches)
        return max(2 * patches, self.done + 1)

    def verdict(self, patch: Patch, batch: int, *, fresh: bool) -> Verdict:
        """Whether it trains; only a fresh process's word is final."""
        measured = self.probe(patch, batch, fresh=fresh)
        return _VERDICTS.get(measured.outcome, Verdict.UNKNOWN)

    def cell(self, patch: Patch) -> Cell:
        """The largest batch of a patch: predicted first, then b and b + 1 in fresh processes."""
        before = self.prober.probes
        guess: int | None
        try:
            guess = min(guess_batch(self.predictor, patch, self.budget), self.question.max_batch)
        except (NetworkError, WorkerError):
            guess = None
        answer = largest_batch(
            lambda batch: self.verdict(patch, batch, fresh=True),
            cap=self.question.max_batch,
            guess=guess,
        )
        return self._finish(
            patch, answer.max_batch, answer.limited_by, answer.violations, answer.complete, before
        )

    def largest_patch(self, batch: int) -> Cell:
        """The largest patch at a batch."""
        before = self.prober.probes
        patches = sorted(self.question.patches, key=lambda p: p[0] * p[1] * p[2])
        answer = largest_patch(lambda patch: self.verdict(patch, batch, fresh=True), patches)
        patch = answer.patch if answer.patch is not None else patches[0]
        largest = batch if answer.patch is not None else 0
        return self._finish(
            patch, largest, answer.limited_by, answer.violations, answer.complete, before
        )

    def _finish(
        self,
        patch: Patch,
        max_batch: int,
        limited_by: object,
        violations: Sequence[str],
        complete: bool,
        probes_before: int,
    ) -> Cell:
        from segplan.results import LimitedBy

        basis = Basis.MEASURED if self.emulate is None else Basis.EMULATED
        measured = self.found.get((patch, max_batch))
        failed = self.failure.get(patch)
        timed_out = failed is not None and failed.outcome is Outcome.TIMED_OUT
        status = "ok" if complete else ("timed_out" if timed_out else "failed")
        memory = self._memory(patch, max(max_batch, 1), measured, basis)
        note = failed.message if failed is not None and not complete else None
        if note is None and measured is not None and measured.allocator_retries:
            note = "fits, but thrashes: the allocator had to release its cache and try again"
        return Cell(
            patch=patch,
            max_batch=max_batch,
            limited_by=limited_by if isinstance(limited_by, LimitedBy) else None,
            memory=memory,
            step=_step_time(measured) if max_batch else None,
            basis=basis,
            status=status,
            probes=self.prober.probes - probes_before,
            retries=measured.allocator_retries if measured is not None else None,
            note=note or (cell_note(0, violations, memory, self.budget) if memory else None),
        )

    def _memory(
        self, patch: Patch, batch: int, measured: Measurement | None, basis: Basis
    ) -> MemoryEstimate | None:
        """Peaks as measured; the least memory stays predicted (it was not bisected)."""
        try:
            predicted = self.predictor.estimate(patch, batch)
        except (NetworkError, WorkerError):
            predicted = None
        if measured is None or measured.peak_allocated is None or measured.peak_reserved is None:
            return predicted
        least = predicted.least_memory if predicted else measured.peak_reserved
        low = predicted.least_memory_low if predicted else measured.peak_allocated
        high = predicted.least_memory_high if predicted else measured.peak_reserved
        if measured.outcome is Outcome.FITS:  # it trained under this limit
            least, low, high = (min(v, self.budget) for v in (least, low, high))
        return MemoryEstimate(
            peak_allocated=measured.peak_allocated,
            peak_reserved=measured.peak_reserved,
            least_memory=least,
            least_memory_low=low,
            least_memory_high=high,
            context=self.prober.context_bytes,
            basis=basis,
            breakdown=predicted.breakdown if predicted else None,
        )

    def soak(self, cell: Cell, steps: int) -> str:
        """Repeat a cell for many steps; a sentence on the drift of its time and memory."""
        workload = self.question.workload.replace(patch=cell.patch, batch=cell.max_batch)
        self.progress(self.done, self.done + 1, f"soaking for {steps} steps")
        measured = self.prober.probe(
            workload, fresh=True, timed_steps=steps, budget_s=24 * 3600.0, timeout_s=24 * 3600.0
        )
        self.recorder.add(measured)
        if measured.outcome is not Outcome.FITS or len(measured.step_seconds) < 2:
            return f"Soak of {steps} steps ended with {measured.outcome}: {measured.message}."
        half = len(measured.step_seconds) // 2
        first = statistics.median(measured.step_seconds[:half])
        last = statistics.median(measured.step_seconds[half:])
        drift = 100 * (last / first - 1)
        grown = ""
        if cell.memory is not None and measured.peak_reserved is not None:
            more = measured.peak_reserved - cell.memory.peak_reserved
            grown = f", reserved memory {more / MIB:+.0f} MiB"
        return (
            f"Soak: {len(measured.step_seconds)} steps, time {drift:+.1f} % from the first half "
            f"to the second{grown}. A probe cannot see leaks of your own training script."
        )


def _step_time(measured: Measurement | None) -> StepTime | None:
    if measured is None or not measured.step_seconds:
        return None
    samples = sorted(measured.step_seconds)
    median = statistics.median(samples)
    n = len(samples)
    low, high = samples[int(0.1 * (n - 1))], samples[-1 - int(0.1 * (n - 1))]
    return StepTime(median, low, high, Basis.MEASURED)


def _refuse_busy(local: LocalCard, share: bool) -> None:
    others = [p for p in local.processes or () if p.bytes is None or p.bytes > 0]
    used = local.visible_bytes - local.free_bytes if local.free_bytes is not None else 0
    if share or (not others and used <= BUSY_BYTES):
        return
    if not others and used <= 2 * BUSY_BYTES:
        return
    names = ", ".join(f"PID {p.pid}" + (f" ({p.name})" if p.name else "") for p in others[:4])
    raise CardError(
        f"card {local.index if local.index is not None else local.uuid} is busy: "
        f"{names or 'other processes'} hold {used // MIB} MiB. Free it, or add --share to plan "
        f"for the {(local.free_bytes or 0) // MIB} MiB that are left."
    )
