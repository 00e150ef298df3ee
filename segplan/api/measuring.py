"""The measured frontier: probes on a card that is here, seeded by the prediction."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from contextlib import ExitStack

from segplan.api.fitting import (
    Question,
    budget_of,
    conclude,
    guess_patch,
    voxels,
)
from segplan.api.guessing import Guesses
from segplan.api.predicting import Predictor, Progress, one_at_a_time
from segplan.api.recording import EnvironmentAhead, Recorder
from segplan.errors import CardError, NetworkError, WorkerError
from segplan.gpus import Card, LocalCard, as_card
from segplan.memory.context import context_bytes
from segplan.probe import Prober
from segplan.probe.watch import step_time_of
from segplan.results import (
    Basis,
    Cell,
    Fit,
    LimitedBy,
    Measurement,
    MemoryEstimate,
    Outcome,
)
from segplan.search import BatchAnswer, PatchAnswer, Verdict, largest_batch, largest_patch
from segplan.units import GIB, MIB, Patch

BUSY_BYTES = 256 * MIB
"""Memory other processes may hold before a card counts as busy (a desktop holds about this)."""

_VERDICTS = {
    Outcome.FITS: Verdict.FITS,
    Outcome.OUT_OF_MEMORY: Verdict.TOO_BIG,
    Outcome.SPILLED: Verdict.TOO_BIG,
    Outcome.KERNEL_LIMIT: Verdict.KERNEL,
}
TIMED_STEPS = 5
SOAK_PATIENCE = 3
"""A soak may take so many times what its steps should."""

GIVE_UP = 2
"""Probes of one cell without an answer (each may be a hang) before it is given up."""

_BUDGET_GRAIN = 32 * MIB
"""Free memory is rounded down to this, so that a later run meets the same limit and can reuse
results although some other program took or gave back a little."""

_SELDOM_RESERVED = GIB
"""Bytes drivers keep for themselves, where NVML does not tell how many."""


def fit_measured(
    question: Question,
    local: LocalCard,
    *,
    emulate: Card | None,
    store: str | None,
    share: bool,
    soak: int,
    progress: Progress,
    predictor: Predictor | None = None,
) -> Fit:
    """The frontier of a card that is here, or of a smaller one it stands in for.

    Args:
        question: what is asked.
        local: the card.
        emulate: the smaller one; None: the card itself.
        store: file measurements are kept in; None: the default one.
        share: measure although other processes use the card.
        soak: steps to repeat the recommended cell for; 0: none.
        progress: as for `fit`.
        predictor: of the same workload, to use its traces; None: one of its own.

    Raises:
        CardError: the card is busy, is smaller than the one to emulate, or was taken by another
            process in between.
        NetworkError: the network cannot be built or refuses a patch.
    """
    refuse_busy(local, share)
    card = as_card(local)
    progress = one_at_a_time(progress)
    budget, context, warnings = _room(question, local, card, emulate)
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(store))
        prober = stack.enter_context(Prober(local, allocator_limit=budget, share=share)).start()
        environment = EnvironmentAhead(local)
        # What runs is this card's kernels, whichever card it stands in for.
        if predictor is None:
            predictor = stack.enter_context(Predictor(question.workload, card, progress))
        predictor.aim(card)
        search = _Search(
            question, prober, predictor, recorder, budget, context, emulate, environment, progress
        )
        if question.batch is not None:
            cells = [search.largest_patch(question.batch)]
        else:
            guesses = stack.enter_context(Guesses(question, predictor, budget))
            cells = search.cells_of(guesses)
        if emulate is not None:
            warnings.append(f"Steps were timed on the {local.name}, not on the {emulate.name}.")
        slug = emulate.slug if emulate is not None else card.slug
        found = conclude(
            question, slug, budget, context, cells, predictor, warnings, measured_on=local.name
        )
        soaked = []
        if soak and found.recommended is not None:
            soaked.append(search.soak(found.cells[found.recommended], soak))
        return dataclasses.replace(found, warnings=(*found.warnings, *soaked, *recorder.warnings))


def _room(
    question: Question, local: LocalCard, card: Card, emulate: Card | None
) -> tuple[int, int, list[str]]:
    """(bytes the allocator may use, bytes outside it set aside, warnings).

    Raises:
        CardError: the card here has less than is asked for.
    """
    visible = card.memory_visible
    own, measured = context_bytes(card.compute_capability)
    free = visible if local.free_bytes is None else min(local.free_bytes, visible)
    warnings = []
    if emulate is None:
        context = own
        budget = budget_of(question, free, own)
        if question.allocator_limit is None:
            budget = max(budget // _BUDGET_GRAIN * _BUDGET_GRAIN, 1)
    else:
        context, measured = context_bytes(emulate.compute_capability)
        budget = budget_of(question, emulate.memory_visible, context)
    if not measured and question.allocator_limit is None:
        name = card.name if emulate is None else emulate.name
        warnings.append(
            f"The CUDA context of the {name} was not measured: {context // MIB} MiB assumed."
        )
    if budget > free - own:
        have = f"{local.name} has {max(free - own, 0) // MIB} MiB to train in"
        if emulate is None:
            raise CardError(
                f"{have}, less than the limit of {budget // MIB} MiB: lower --allocator-limit."
            )
        if free < visible - BUSY_BYTES:
            raise CardError(
                f"{have} as other processes use it, and {emulate.slug} {budget // MIB} MiB: free "
                f"it, or predict with --gpu {emulate.slug}."
            )
        raise CardError(
            f"{have} and cannot stand in for the larger {emulate.slug} ({budget // MIB} MiB): "
            f"predict it with --gpu {emulate.slug}."
        )
    return budget, context, warnings


class _Search:
    """Probes, each written to the store as it is made and never made twice."""

    def __init__(
        self,
        question: Question,
        prober: Prober,
        predictor: Predictor,
        recorder: Recorder,
        budget: int,
        context: int,
        emulate: Card | None,
        environment: EnvironmentAhead,
        progress: Progress,
    ) -> None:
        self.question, self.prober, self.predictor = question, prober, predictor
        self.recorder, self.budget, self.context = recorder, budget, context
        self.basis = Basis.MEASURED if emulate is None else Basis.EMULATED
        self.environment, self.progress = environment, progress
        self.done = 0
        self.cells = 0
        self.found: dict[tuple[Patch, int], Measurement] = {}

    def probe(self, patch: Patch, batch: int) -> Measurement:
        """Measure in a process that has run nothing, or take what the store has of the same."""
        workload = self.question.workload.replace(patch=patch, batch=batch)
        size = "x".join(map(str, patch))
        known = self.recorder.reusable(workload, self.environment.get(), self.budget)
        if known is None:
            self.progress(self.done, self._expected(), f"measuring {size} batch {batch}")
            known = self.prober.probe(workload, fresh=True, timed_steps=TIMED_STEPS)
            self.environment.learn(known.environment)
            self.recorder.add(known)
        self.done += 1
        self.found[patch, batch] = known
        self.progress(
            self.done, self._expected(), f"{size} batch {batch}: {known.outcome.replace('_', ' ')}"
        )
        return known

    def _expected(self) -> int:
        """Probes in all, as far as one can say: two for each cell that is still to come."""
        patches = 1 if self.question.batch is not None else len(self.question.patches)
        return max(self.done + 2 * (patches - self.cells), 1)

    def verdict(self, patch: Patch, batch: int) -> Verdict:
        """Whether it trains."""
        measured = self.probe(patch, batch)
        return _VERDICTS.get(measured.outcome, Verdict.UNKNOWN).because(_told(measured))

    def cells_of(self, guesses: Guesses) -> list[Cell]:
        """The cell of each patch, measured in the order in which guesses come."""
        answers: dict[Patch, tuple[BatchAnswer, int]] = {}
        for patch in guesses.order():
            before = self.prober.probes
            answers[patch] = self._batch(patch, guesses.batch(patch)), self.prober.probes - before
            self.cells += 1
        guesses.finish()
        return [self._cell(patch, *answers[patch]) for patch in self.question.patches]

    def _batch(self, patch: Patch, guess: int | None) -> BatchAnswer:
        """The largest batch of a patch: the predicted one and its neighbour come first."""
        return largest_batch(
            lambda batch: self.verdict(patch, batch),
            cap=self.question.max_batch,
            guess=guess,
            give_up=GIVE_UP,
        )

    def _cell(self, patch: Patch, answer: BatchAnswer, probes: int) -> Cell:
        hung = any(self._hung(patch, batch) for batch, _ in answer.calls)
        largest = answer.max_batch
        return self._finish((patch, max(largest, 1)), largest, answer, hung, probes)

    def largest_patch(self, batch: int) -> Cell:
        """The largest patch at a batch."""
        before = self.prober.probes
        patches = sorted(self.question.patches, key=voxels)
        guess = guess_patch(self.predictor, patches, batch, self.budget)
        answer = largest_patch(
            lambda patch: self.verdict(patch, batch), patches, guess=guess, give_up=GIVE_UP
        )
        hung = any(self._hung(patch, batch) for patch, _ in answer.calls)
        probes = self.prober.probes - before
        self.cells += 1
        if answer.patch is None:
            return self._finish((patches[0], batch), 0, answer, hung, probes)
        return self._finish((answer.patch, batch), batch, answer, hung, probes)

    def _hung(self, patch: Patch, batch: int) -> bool:
        return self.found[patch, batch].outcome is Outcome.TIMED_OUT

    def _finish(
        self,
        at: tuple[Patch, int],
        max_batch: int,
        answer: BatchAnswer | PatchAnswer,
        hung: bool,
        probes: int,
    ) -> Cell:
        """The cell of an answer; `at` is the largest that trains, or the smallest there is."""
        measured = self.found.get(at) if max_batch else None
        status = "ok" if answer.complete else ("timed_out" if hung else "failed")
        note = answer.violations[0] if answer.violations else None
        if not answer.complete:
            note = answer.message
        elif answer.limited_by is LimitedBy.KERNEL:
            refusals = [v.message for _, v in answer.calls if v.limited_by is LimitedBy.KERNEL]
            note = note or refusals[-1]
        return Cell(
            patch=at[0],
            max_batch=max_batch,
            limited_by=answer.limited_by,
            memory=self._memory(*at, measured),
            step=None if measured is None else step_time_of(measured),
            basis=self.basis,
            status=status,
            probes=probes,
            retries=measured.allocator_retries if measured is not None else None,
            note=note,
        )

    def _memory(
        self, patch: Patch, batch: int, measured: Measurement | None
    ) -> MemoryEstimate | None:
        """Peaks as measured; the least memory stays predicted (it was not bisected)."""
        predicted: MemoryEstimate | None = None
        with contextlib.suppress(NetworkError, WorkerError):
            predicted = self.predictor.estimate(patch, batch)
        if measured is None or measured.peak_allocated is None or measured.peak_reserved is None:
            return predicted
        least, low, high = measured.peak_reserved, measured.peak_allocated, measured.peak_reserved
        if predicted is not None:  # but it trained under this limit
            least, low, high = (
                min(value, self.budget)
                for value in (
                    predicted.least_memory,
                    predicted.least_memory_low,
                    predicted.least_memory_high,
                )
            )
        return MemoryEstimate(
            peak_allocated=measured.peak_allocated,
            peak_reserved=measured.peak_reserved,
            least_memory=least,
            least_memory_low=low,
            least_memory_high=high,
            context=self._context(measured),
            basis=self.basis,
            breakdown=predicted.breakdown if predicted else None,
        )

    def _context(self, measured: Measurement) -> int:
        """Bytes outside the allocator: of the very probe, so that it is the same when reused."""
        process, reserved = measured.process_bytes, measured.peak_reserved
        if process is None or reserved is None or measured.allocator_retries:
            return self.context  # the pool has shrunk since its peak: the difference says nothing
        return max(process - reserved, 0)

    def soak(self, cell: Cell, steps: int) -> str:
        """Repeat a cell for many steps; a sentence on the drift of its time and memory."""
        workload = self.question.workload.replace(patch=cell.patch, batch=cell.max_batch)
        self.progress(self.done, self.done + 1, f"soaking for {steps} steps")
        expected = steps * cell.step.seconds if cell.step is not None else float(steps)
        patience = SOAK_PATIENCE * expected + self.prober.timeout_s
        measured = self.prober.probe(
            workload, fresh=True, timed_steps=steps, budget_s=patience, timeout_s=patience
        )
        self.recorder.add(measured)
        if measured.outcome is not Outcome.FITS:
            return f"The soak of {steps} steps ended early: {_told(measured)}"
        if len(measured.step_seconds) < 2:
            return "The soak is too short to show a drift: ask for more steps."
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


def _told(measured: Measurement) -> str:
    w = measured.workload
    what = f"{'x'.join(map(str, w.patch))} at batch {w.batch}"
    return f"{what}: {measured.message or measured.outcome.replace('_', ' ')}"


def refuse_busy(local: LocalCard, share: bool) -> None:
    """Make sure nobody else uses the card, unless that is accepted.

    Raises:
        CardError: somebody does; the message names them and the fix.
    """
    if share or local.visible_bytes is None or local.free_bytes is None:
        return
    used = local.visible_bytes - local.free_bytes
    tolerated = BUSY_BYTES
    if local.reserved_bytes is None and not local.processes:
        tolerated = _SELDOM_RESERVED  # counted as used by drivers that do not tell it apart
    if used <= tolerated:
        return
    names = [
        f"PID {p.pid}" + (f" ({os.path.basename(p.name)})" if p.name else "")
        for p in sorted(local.processes or (), key=lambda p: p.used_bytes or 0, reverse=True)
    ]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    raise CardError(
        f"card {local.index if local.index is not None else local.uuid} is busy: {used // MIB} MiB "
        f"are held by {', '.join(names[:4]) or 'other processes'}{more}. Free it, or add --share "
        f"to plan for the {local.free_bytes // MIB} MiB that are left."
    )
