"""`report`: what each card does for each workload, in one document.

Everything here is composed of other answers: frontiers (`fitting`), days (`planning`), and the
measurements of the store where they answer the same question. Nothing is measured for a report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segplan.api.fitting import (
    DEFAULT_MAX_BATCH,
    DEFAULT_RESERVE,
    Question,
    ask,
    cell_note,
    fit_predicted,
    predicted_batch,
    smallest_card,
    voxels,
)
from segplan.api.predicting import Predictor, Progress, silent
from segplan.errors import NetworkError, RequestError, SegplanError, StoreError, WorkerError
from segplan.gpus import Card, GpuKind, as_card, card_key, catalogue, find_card, parse_gpus, select
from segplan.networks import resolve
from segplan.results import (
    SCHEMA_VERSION,
    Basis,
    Cell,
    Duration,
    Fit,
    LimitedBy,
    Measurement,
    MemoryEstimate,
    Outcome,
    Plan,
    StepTime,
)
from segplan.store import Store, store_path
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import Patch
from segplan.workload import Workload

if TYPE_CHECKING:
    from segplan.api.planning import Experiment

MAX_REPORT_BYTES = 64 * 2**20
"""A larger file is no report: six workloads on a hundred cards take about 3 MiB."""

MAX_PAIRS = 2_000
"""Workloads times cards of one report; a page with more serves nobody."""

MAX_SENTENCE = 600
"""Characters of a baseline check's sentence."""

LIMIT_TOLERANCE = 0.01
"""A stored probe under a limit this close to a card's answers for the card.

Drivers take some MiB more or less from one machine to the next, and `fit` rounds free memory down
to 32 MiB; 1 % of 8 GiB is 80 MiB, well below the width of the predictions' intervals.
"""

_PACKAGES = ("segplan", "torch", "monai")


class ChangeKind(StrEnum):
    """What would change an answer."""

    CHECKPOINTING = "checkpointing"
    SMALLER_BATCH = "smaller_batch"
    SMALLER_PATCH = "smaller_patch"
    CARD = "card"
    CARD_FOR_BATCH = "card_for_batch"
    CARD_FOR_PATCH = "card_for_patch"


@dataclass(frozen=True)
class Change:
    """One thing that would change what a card does for a workload.

    Attributes:
        kind: "checkpointing", "smaller_batch" and "smaller_patch" stay on this card; "card" is
            where the step as asked would fit, "card_for_batch" and "card_for_patch" where the
            next larger one would.
        patch: what would then be trained, voxels (H, W, D).
        batch: the same, patches; with checkpointing the largest.
        card: slug of the catalogue card with the least memory that holds it; None for a kind
            that stays on this card, or where no card of the catalogue holds it.
        card_name: its name.
        least_memory: bytes of that step on this card; None where it was not computed.
    """

    kind: ChangeKind
    patch: Patch
    batch: int
    card: str | None = None
    card_name: str | None = None
    least_memory: int | None = None


@dataclass(frozen=True)
class Entry:
    """One workload on one card.

    Attributes:
        card: slug.
        fits: whether the step as asked (patch and batch) trains there; None: no answer.
        memory: of the step as asked, whether or not it fits; None where there is no answer.
        fit: the frontier; cells the store answers are measured or emulated.
        plan: how long the experiment takes.
        changes: what would change the answer.
    """

    card: str
    fits: bool | None
    memory: MemoryEstimate | None
    fit: Fit
    plan: Plan
    changes: tuple[Change, ...] = ()

    @property
    def asked(self) -> Cell:
        """The frontier's cell at the patch that was asked for."""
        patch = self.plan.workload.patch
        return next(cell for cell in self.fit.cells if cell.patch == patch)


@dataclass(frozen=True)
class WorkloadReport:
    """One workload on all cards.

    Attributes:
        name: of the experiment: its preset or file.
        workload: as asked, defaults filled.
        entries: one for each card, in the report's order.
    """

    name: str
    workload: Workload
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class CapacityReport:
    """What each card does for each workload.

    Attributes:
        made_at: UTC time, ISO 8601.
        versions: of segplan, torch, MONAI and Python.
        cards: in the order asked for.
        workloads: in the order asked for.
        baselines: by card's slug: what the baseline check said, in a sentence; a card that is
            absent was not checked.
        store: file the measurements came from; None where there was none.
        measurements: how many of them entered the report.
        warnings: sentences a reader should know.
    """

    made_at: str
    versions: Mapping[str, str]
    cards: tuple[Card, ...]
    workloads: tuple[WorkloadReport, ...]
    baselines: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None
    measurements: int = 0
    warnings: tuple[str, ...] = ()


Planner = Callable[..., Sequence[Plan]]
"""`segplan.api.planning.plan_days`, or what stands in for it."""


def make_report(
    experiments: Sequence[Experiment],
    gpus: Sequence[str],
    *,
    store: str | None = None,
    baselines: Mapping[str, str] | None = None,
    planner: Planner | None = None,
    progress: Progress = silent,
) -> CapacityReport:
    """What each card does for each experiment: frontier, memory, days, and what would change it.

    Args:
        experiments: as from `segplan.api.planning.load_experiment`.
        gpus: cards by name, "catalog", or cards that are here ("0": predicted, as any other, but
            with the memory of this very one).
        store: file of measurements; None: the default one. Measurements that answer a cell's
            question take the place of its prediction.
        baselines: by slug: what a card's baseline check said, in a sentence, on top of what the
            store knows.
        planner: instead of `plan_days`.
        progress: called with (done, total, what).

    Raises:
        RequestError: a network, a patch or a card cannot be used as asked.
        WorkerError: every trace of a workload died.
    """
    named = _named_cards(gpus)
    if not experiments:
        raise RequestError("no workload is named: give --config a preset or a YAML file.")
    if len(experiments) * len(named) > MAX_PAIRS:
        raise RequestError(
            f"{len(experiments)} workloads on {len(named)} cards are more than one report holds: "
            f"ask for at most {MAX_PAIRS} pairs."
        )
    if planner is None:
        from segplan.api.planning import plan_days

        planner = plan_days
    questions = [_question(resolve(e.workload)) for e in experiments]  # before hours are spent
    with _Measurements(store) as measurements:
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


def _named_cards(gpus: Sequence[str]) -> list[tuple[str, Card]]:
    """(as to be named to others, card) without repeats.

    Raises:
        CardError: there is no such card.
        RequestError: none is named.
    """
    found: dict[str, tuple[str, Card]] = {}
    for request in parse_gpus(",".join(gpus)) if any(g.strip() for g in gpus) else ():
        if request.kind is GpuKind.ALL:
            raise RequestError("a report predicts: name cards, like rtx-3090,a40, or catalog.")
        if request.kind is GpuKind.CATALOG:
            chosen = [(card.slug, card) for card in catalogue()]
        elif request.kind is GpuKind.LOCAL:
            chosen = [(request.text, as_card(select(request.text)))]
        else:
            chosen = [(request.text, find_card(request.text))]
        for text, card in chosen:
            found.setdefault(card.slug, (text, card))
    if not found:
        raise RequestError("no card is named: give --gpus names, like rtx-3090,a40, or catalog.")
    return list(found.values())


def _workload_report(
    experiment: Experiment,
    question: Question,
    named: Sequence[tuple[str, Card]],
    planner: Planner,
    measurements: _Measurements,
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
        measurements: _Measurements,
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


class _Measurements:
    """The store's answers to a report's questions; without a store, none.

    Attributes:
        path: the file, or None where there is none.
        used: ids of what entered the report.
        warnings: sentences a reader should know.
    """

    def __init__(self, store: str | None) -> None:
        self.path: str | None = None
        self.used: set[tuple[str | None, str]] = set()
        self.warnings: list[str] = []
        self._asked = store
        self._store: Store | None = None
        self._found: dict[tuple[str, Patch], list[Measurement]] = {}

    def __enter__(self) -> _Measurements:
        where = store_path(self._asked)
        if where != ":memory:" and not Path(where).exists():
            if self._asked is not None:
                raise RequestError(
                    f"there is no store {where}: `segplan fit --gpu 0` makes one; leave --store "
                    "out to report predictions alone."
                )
            return self
        try:
            self._store = Store.open(self._asked)
            self.path = where
        except StoreError as error:
            self.warnings.append(f"Measurements were not read: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    def baselines(self, cards: Sequence[Card]) -> dict[str, str]:
        """By slug: what the newest baseline check of a card of that name said."""
        if self._store is None:
            return {}
        try:
            checks = self._store.benches()
        except StoreError as error:
            self.warnings.append(f"Baseline checks were not read: {error}")
            return {}
        found: dict[str, str] = {}
        for check in checks:
            name = _dug(check, "environment", "card_name")
            sentence = _dug(check, "verdict", "sentence")
            for card in cards:
                if name is not None and sentence is not None and card_key(name) in _keys(card):
                    found.setdefault(card.slug, sentence[:MAX_SENTENCE])
        return found

    def answer(
        self, cell: Cell, card: Card, budget: int, question: Question, predictor: Predictor
    ) -> Cell:
        """The cell as measured (on that card) or emulated (under its limit); else as it is.

        It needs the boundary: a batch that ran under the card's limit or less, and the next that
        did not under that limit or more (or the end of the search).
        """
        own = _keys(card)
        runs: dict[int, Measurement] = {}
        stops: dict[int, Measurement] = {}
        for m in self._of(question.workload, cell.patch):
            here = card_key(m.environment.card_name or "") in own
            limit = m.allocator_limit if m.allocator_limit is not None else budget if here else None
            batch = m.workload.batch
            if m.outcome is Outcome.KERNEL_LIMIT:
                stops.setdefault(batch, m)
            if limit is None:
                continue
            if m.outcome is Outcome.FITS and limit <= budget * (1 + LIMIT_TOLERANCE):
                if batch not in runs or here:
                    runs[batch] = m
            elif m.outcome is Outcome.OUT_OF_MEMORY and limit >= budget * (1 - LIMIT_TOLERANCE):
                stops.setdefault(batch, m)
        found = self._boundary(runs, stops, question.max_batch)
        if found is None:
            return cell
        batch, run, stop = found
        self.used |= {(m.made_at, m.workload.key()) for m in (run, stop) if m is not None}
        evidence = run if run is not None else stop
        assert evidence is not None
        here = card_key(evidence.environment.card_name or "") in own
        return self._measured(
            cell, batch, run, stop, Basis.MEASURED if here else Basis.EMULATED, budget, predictor
        )

    @staticmethod
    def _boundary(
        runs: Mapping[int, Measurement], stops: Mapping[int, Measurement], cap: int
    ) -> tuple[int, Measurement | None, Measurement | None] | None:
        for batch in sorted(runs, reverse=True):
            if batch + 1 in stops:
                return batch, runs[batch], stops[batch + 1]
            if batch >= cap:
                return batch, runs[batch], None
        return (0, None, stops[1]) if 1 in stops else None

    @staticmethod
    def _measured(
        cell: Cell,
        batch: int,
        run: Measurement | None,
        stop: Measurement | None,
        basis: Basis,
        budget: int,
        predictor: Predictor,
    ) -> Cell:
        predicted: MemoryEstimate | None = None
        with contextlib.suppress(NetworkError, WorkerError):
            predicted = predictor.estimate(cell.patch, max(batch, 1))
        memory = predicted
        if run is not None and predicted is not None and run.peak_allocated and run.peak_reserved:
            # Peaks as measured; the least memory was not bisected, but it ran within the budget.
            memory = dataclasses.replace(
                predicted,
                peak_allocated=run.peak_allocated,
                peak_reserved=run.peak_reserved,
                least_memory=min(predicted.least_memory, budget),
                least_memory_low=min(predicted.least_memory_low, budget),
                least_memory_high=min(predicted.least_memory_high, budget),
                basis=basis,
            )
        step: StepTime | None = cell.step if batch == cell.max_batch else None
        if run is not None and run.step_seconds and basis is Basis.MEASURED:
            step = _sampled(run.step_seconds)
        elif batch and step is None and memory is not None:
            with contextlib.suppress(SegplanError):
                step = predictor.step_time(cell.patch, batch)
        limited_by = LimitedBy.CAP
        if stop is not None:
            kernel = stop.outcome is Outcome.KERNEL_LIMIT
            limited_by = LimitedBy.KERNEL if kernel else LimitedBy.MEMORY
        return Cell(
            patch=cell.patch,
            max_batch=batch,
            limited_by=limited_by,
            memory=memory,
            step=step,
            basis=basis,
            retries=run.allocator_retries if run is not None else None,
            note=None
            if memory is None or basis is Basis.MEASURED
            else cell_note(batch, (), memory, budget),
        )

    def _of(self, workload: Workload, patch: Patch) -> list[Measurement]:
        """What a fresh process measured of a workload at a patch, any batch, newest first."""
        if self._store is None:
            return []
        key = (workload.model, patch)
        if key not in self._found:
            try:
                self._found[key] = self._store.find(model=workload.model, patch=patch)
            except StoreError as error:
                self._found[key] = []
                self.warnings.append(f"Measurements were not read: {error}")
        same = workload.replace(patch=patch, batch=1)
        return [m for m in self._found[key] if m.fresh and m.workload.replace(batch=1) == same]


def _keys(card: Card) -> set[str]:
    return {card_key(name) for name in (card.slug, card.name, *card.aliases)}


def _dug(document: object, *keys: str) -> str | None:
    """The text at the end of these keys, if it is one."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) and document else None


def _sampled(samples: Sequence[float]) -> StepTime:
    """Median and 80 % interval of a probe's own samples."""
    ordered = sorted(samples)
    n = len(ordered)
    cut = int(0.1 * (n - 1))
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return StepTime(middle, ordered[cut], ordered[-1 - cut], Basis.MEASURED)


def read_report(path: str | Path) -> CapacityReport:
    """The report that `segplan report --out FILE.json` wrote.

    The file may come from anybody: every value is checked, and nothing in it runs.

    Raises:
        RequestError: there is no such file, or it holds no report; the message says why.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_REPORT_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(raw) > MAX_REPORT_BYTES:
        raise RequestError(f"{path} is larger than 64 MiB: that is no report.")
    try:
        values = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{path} is no JSON: --from takes what `segplan report --out FILE.json` wrote."
        ) from error
    return report_from_plain(values, str(path))


def report_from_plain(values: Any, where: str = "the document") -> CapacityReport:
    """The report of plain JSON values; `where` names it in messages (errors as `read_report`)."""
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(values, Mapping) or "workloads" not in values or "cards" not in values:
        raise RequestError(
            f"{where} is no report: --from takes what `segplan report --out FILE.json` wrote."
        )
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RequestError(
            f"{where} has schema_version {version!r:.20}, and this segplan reads {SCHEMA_VERSION}: "
            "make the report anew."
        )
    try:
        report = TypeAdapter(CapacityReport).validate_python(values)
        _check(report)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])[:120]
        raise RequestError(f"{where} is no report: {place}: {problem['msg']}.") from error
    except (SegplanError, RecursionError, OverflowError) as error:
        raise RequestError(f"{where} is no report: {error}") from error
    return report


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _check(report: CapacityReport) -> None:
    """What types alone do not say.

    Raises:
        RequestError: a number is out of range, or the parts do not belong together.
    """
    _check_numbers(report, "report")
    slugs = [card.slug for card in report.cards]
    if not slugs or not report.workloads or len(set(slugs)) != len(slugs):
        raise RequestError("it needs cards, each once, and workloads.")
    if len(slugs) * len(report.workloads) > MAX_PAIRS:
        raise RequestError(f"it holds more than {MAX_PAIRS} pairs of workload and card.")
    for part in report.workloads:
        if [entry.card for entry in part.entries] != slugs:
            raise RequestError("a workload does not have one entry for each card.")
        for entry in part.entries:
            cells = entry.fit.cells
            if entry.plan.workload.patch not in [cell.patch for cell in cells]:
                raise RequestError("a frontier lacks the patch that was asked for.")
            recommended = entry.fit.recommended
            if recommended is not None and recommended >= len(cells):
                raise RequestError("a frontier recommends a cell it does not have.")


def _check_numbers(value: Any, name: str) -> None:
    """Every number of a dataclass is finite and at least 0; every time has its interval."""
    if isinstance(value, (StepTime, Duration)):
        if not 0 <= value.low <= value.seconds <= value.high:
            raise RequestError(f"{name}: seconds must lie between low and high.")
        if isinstance(value, StepTime) and value.low <= 0:
            raise RequestError(f"{name}: a step takes longer than 0 s.")
    if isinstance(value, (int, float)) and not (0 <= value <= 1e18 and math.isfinite(value)):
        raise RequestError(f"{name} must be a number from 0 to 1e18.")
    if isinstance(value, Workload):  # it checks itself, and its arguments may be anything
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            _check_numbers(getattr(value, part.name), part.name)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_numbers(part, name)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_numbers(part, name)
