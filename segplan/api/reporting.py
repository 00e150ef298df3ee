"""`report`: what each card does for each workload, in one document.

Everything here is composed of other answers: frontiers (`fitting`), days (`planning`), and the
measurements of the store where they answer the same question. Nothing is measured for a report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata

from segplan.api.choosing import named_cards
from segplan.api.experiments import Experiment
from segplan.api.fitting import (
    DEFAULT_MAX_BATCH,
    DEFAULT_RESERVE,
    Question,
    ask,
    fit_predicted,
    predicted_batch,
    smallest_card,
    voxels,
)
from segplan.api.planning import plan_days
from segplan.api.predicting import Predictor, Progress, silent
from segplan.api.report_measured import Measurements
from segplan.api.report_nouns import (
    MAX_PAIRS,
    CapacityReport,
    Change,
    ChangeKind,
    Entry,
    WorkloadReport,
)
from segplan.errors import NetworkError, RequestError, WorkerError
from segplan.gpus import Card, find_card
from segplan.networks import resolve
from segplan.results import Cell, Fit, LimitedBy, MemoryEstimate, Plan
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import Patch
from segplan.workload import Workload

_PACKAGES = ("segplan", "torch", "monai")

Planner = Callable[..., Sequence[Plan]]
"""`segplan.api.planning.plan_days`, or what stands in for it."""


def make_report(
    experiments: Sequence[Experiment],
    gpus: Sequence[str],
    *,
    store: str | None = None,
    baselines: Mapping[str, str] | None = None,
    planner: Planner = plan_days,
    progress: Progress = silent,
) -> CapacityReport:
    """What each card does for each experiment: frontier, memory, days, and what would change it.

    Args:
        experiments: as from `segplan.api.experiments.load_experiment`.
        gpus: cards by name, "catalog", or cards that are here ("0": predicted, as any other, but
            with the memory of this very one).
        store: file of measurements; None: the default one. Measurements that answer a cell's
            question take the place of its prediction.
        baselines: by slug: what a card's baseline check said, in a sentence, on top of what the
            store knows.
        planner: `plan_days`, or what stands in for it.
        progress: called with (done, total, what).

    Raises:
        RequestError: a network, a patch or a card cannot be used as asked.
        WorkerError: every trace of a workload died.
    """
    named = list(named_cards(gpus, "a report predicts").values())
    if not experiments:
        raise RequestError("no workload is named: give --config a preset or a YAML file.")
    if len(experiments) * len(named) > MAX_PAIRS:
        raise RequestError(
            f"{len(experiments)} workloads on {len(named)} cards are more than one report holds: "
            f"ask for at most {MAX_PAIRS} pairs."
        )
    questions = [_question(resolve(e.workload)) for e in experiments]  # before hours are spent
    with Measurements(store) as measurements:
        workloads = tuple(
            _workload_report(experiment, question, named, planner, measurements, progress)
            for experiment, question in zip(experiments, questions, strict=True)
        )
        checked = measurements.baselines([card for _, card in named])
    return CapacityReport(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        cards=tuple(card for _, card in named),
        workloads=workloads,
        baselines={**checked, **(baselines or {})},
        store=measurements.path,
        measurements=len(measurements.used),
        warnings=tuple(measurements.warnings),
    )


def versions() -> dict[str, str]:
    """Versions of what the answers depend on."""
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return {**found, "python": platform.python_version()}


def _workload_report(
    experiment: Experiment,
    question: Question,
    named: Sequence[tuple[str, Card]],
    planner: Planner,
    measurements: Measurements,
    progress: Progress,
) -> WorkloadReport:
    workload = resolve(experiment.workload)
    with contextlib.ExitStack() as stack:
        predictor = stack.enter_context(Predictor(question.workload, None, progress))
        predictor.trace((patch, b) for patch in question.patches for b in AFFINE_BATCHES)
        plans = planner(
            [experiment],
            [text for text, _ in named],
            make_predictor=lambda *_: contextlib.nullcontext(predictor),
            progress=progress,
        )
        saving = _checkpointing(question)
        saver = None
        if saving is not None:
            saver = stack.enter_context(Predictor(saving.workload, None, progress))
        asker = _Asker(workload, question, predictor, saving, saver, measurements)
        entries = tuple(
            asker.entry(card, plan) for (_, card), plan in zip(named, plans, strict=True)
        )
    return WorkloadReport(experiment.name, workload, entries)


def _question(workload: Workload) -> Question:
    """The default patches and the one asked for, ascending."""
    most = max(DEFAULT_MAX_BATCH, workload.batch)
    question = ask(workload, None, None, None, DEFAULT_RESERVE, most)
    patches = sorted({*question.patches, workload.patch}, key=lambda p: (voxels(p), p))
    return dataclasses.replace(question, patches=tuple(patches))


def _checkpointing(question: Question) -> Question | None:
    """The same with checkpointing; None where it is on already or the network has none."""
    if question.workload.checkpointing:
        return None
    try:
        workload = resolve(question.workload.replace(checkpointing=True), check_patch=False)
    except NetworkError:
        return None
    return dataclasses.replace(question, workload=workload)


class _Asker:
    """Answers for one workload, card after card."""

    def __init__(
        self,
        workload: Workload,
        question: Question,
        predictor: Predictor,
        saving: Question | None,
        saver: Predictor | None,
        measurements: Measurements,
    ) -> None:
        self.workload, self.question, self.predictor = workload, question, predictor
        self.saving, self.saver, self.measurements = saving, saver, measurements

    def entry(self, card: Card, plan: Plan) -> Entry:
        self.predictor.aim(card)
        fit = fit_predicted(self.question, card, self.predictor)
        cells = tuple(
            self.measurements.answer(cell, card, fit.budget, self.question, self.predictor)
            for cell in fit.cells
        )
        fit = dataclasses.replace(fit, cells=cells)
        asked = next(cell for cell in cells if cell.patch == self.workload.patch)
        fits = asked.max_batch >= self.workload.batch if asked.status == "ok" else None
        return Entry(
            card=card.slug,
            fits=fits,
            memory=self._memory(asked),
            fit=fit,
            plan=plan,
            changes=tuple(self._changes(card, fit, asked, fits, plan)),
        )

    def _memory(self, asked: Cell) -> MemoryEstimate | None:
        """Of the step as asked: the cell's where it is that step's, else predicted."""
        if asked.max_batch == self.workload.batch:
            return asked.memory
        with contextlib.suppress(WorkerError):
            return self.predictor.estimate(self.workload.patch, self.workload.batch)
        return None

    def _changes(
        self, card: Card, fit: Fit, asked: Cell, fits: bool | None, plan: Plan
    ) -> Iterator[Change]:
        if fits is None:
            return
        if asked.limited_by is LimitedBy.MEMORY:
            saved = self._with_checkpointing(card, fit.budget)
            if saved is not None and saved.batch > asked.max_batch:
                yield saved
        if fits:
            if asked.limited_by is LimitedBy.MEMORY:
                yield from self._card_for(
                    ChangeKind.CARD_FOR_BATCH, asked.patch, asked.max_batch + 1, fit.budget
                )
            larger = self._next_patch(fit)
            if larger is not None:
                yield from self._card_for(
                    ChangeKind.CARD_FOR_PATCH, larger, self.workload.batch, fit.budget
                )
            return
        if asked.max_batch and not plan.options:
            yield Change(ChangeKind.SMALLER_BATCH, asked.patch, asked.max_batch)
        smaller = [
            cell
            for cell in fit.cells
            if voxels(cell.patch) < voxels(asked.patch) and cell.max_batch >= self.workload.batch
        ]
        if smaller:
            largest = max(smaller, key=lambda cell: voxels(cell.patch))
            yield Change(ChangeKind.SMALLER_PATCH, largest.patch, self.workload.batch)
        if plan.smallest_card is not None:
            name = find_card(plan.smallest_card).name
            at = (asked.patch, self.workload.batch)
            yield Change(ChangeKind.CARD, *at, plan.smallest_card, name)
        else:
            yield from self._card_for(ChangeKind.CARD, asked.patch, self.workload.batch, fit.budget)

    def _next_patch(self, fit: Fit) -> Patch | None:
        """The smallest patch beyond the one asked for that does not train at its batch."""
        return next(
            (
                cell.patch
                for cell in fit.cells
                if voxels(cell.patch) > voxels(self.workload.patch)
                and cell.max_batch < self.workload.batch
                and cell.limited_by is LimitedBy.MEMORY
            ),
            None,
        )

    def _card_for(
        self, kind: ChangeKind, patch: Patch, batch: int, budget: int
    ) -> Iterator[Change]:
        with contextlib.suppress(WorkerError, NetworkError):
            if self.predictor.kernel_limit(patch, batch) is not None:
                return  # no card helps
            memory = self.predictor.estimate(patch, batch)
            slug = smallest_card(
                dataclasses.replace(self.question, batch=batch),
                self.predictor,
                Cell(patch, batch, LimitedBy.MEMORY, memory),
                budget,
            )
            name = find_card(slug).name if slug is not None else None
            yield Change(kind, patch, batch, slug, name, memory.least_memory)

    def _with_checkpointing(self, card: Card, budget: int) -> Change | None:
        """The largest batch of the patch asked for when activations are recomputed."""
        if self.saving is None or self.saver is None:
            return None
        patch = self.workload.patch
        self.saver.aim(card)
        self.saver.trace((patch, batch) for batch in AFFINE_BATCHES)
        with contextlib.suppress(WorkerError, NetworkError):
            batch = predicted_batch(self.saving, self.saver, patch, budget).max_batch
            if batch:
                memory = self.saver.estimate(patch, batch)
                kind = ChangeKind.CHECKPOINTING
                return Change(kind, patch, batch, least_memory=memory.least_memory)
        return None
