"""The ladder: what would save how much memory, every rung traced and replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from segplan.api.predicting import TRACE_TIMEOUT_S, Progress, silent, target_for
from segplan.errors import NetworkError, RequestError, SegplanError
from segplan.gpus.card import Card
from segplan.memory.alloc_conf import settings_from_environment
from segplan.memory.allocator import Settings
from segplan.memory.limits import kernel_limit
from segplan.memory.prediction import Target, predict
from segplan.networks import arguments_of, network_of, resolve, rule_for
from segplan.results import MemoryEstimate
from segplan.step.validate import Validation
from segplan.trace import cache
from segplan.trace.job import TARGET
from segplan.trace.tape import AFFINE_BATCHES, Tape, Trace, trace_from_json
from segplan.units import MIB, Patch
from segplan.worker import WorkerPool
from segplan.workload import Workload

DEFAULT_RESERVE = 512 * MIB

ORDER = (
    "expandable_segments", "amp", "checkpointing", "batch", "optimizer", "patch", "width"
)  # fmt: skip
"""From what changes nothing about the training to what changes the network."""

FEW_BATCHES = 4
"""Up to this batch every smaller one is a rung; above, halves and the largest that fits."""

PATCH_STEP = 16
"""A smaller patch is smaller by at least this, where the network would take any."""


@dataclass(frozen=True)
class Rung:
    """One change, or several together, and what it saves.

    Attributes:
        names: of `ORDER`; several for a combination.
        changes: the workload's attributes that change, with their new values (of `model_args`
            those that change).
        expandable_segments: whether the allocator's setting changes too.
        peak_allocated: bytes, as in `MemoryEstimate`.
        least_memory: bytes, as in `MemoryEstimate`.
        least_memory_low: 80 % interval, lower end.
        least_memory_high: 80 % interval, upper end.
        saved: bytes less than without the change (negative where it needs more).
        saved_share: the same as a share of what is needed without it.
        fits: whether it trains on the card; None where no card was named.
    """

    names: tuple[str, ...]
    changes: Mapping[str, Any]
    expandable_segments: bool
    peak_allocated: int
    least_memory: int
    least_memory_low: int
    least_memory_high: int
    saved: int
    saved_share: float
    fits: bool | None


@dataclass(frozen=True)
class Ladder:
    """What would save how much.

    Attributes:
        least_memory: bytes without any change.
        fits: whether that trains on the card; None where no card was named.
        rungs: each on its own, in the order of `ORDER`.
        together: the first rungs combined, as far as it takes to fit; None where a card was
            not named, where nothing is needed, where an earlier rung alone does, or where
            all together are not enough.
        left_out: rungs that cannot be tried, with the reason.
    """

    least_memory: int
    fits: bool | None
    rungs: tuple[Rung, ...]
    together: Rung | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


class Tracer:
    """Traces of many workloads by a few child processes; use as a context manager."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress
        self._tapes: dict[str, Tape] = {}
        self._failed: dict[str, SegplanError] = {}
        self._validations: dict[tuple[Workload, Validation], Trace | SegplanError] = {}
        self._pool: WorkerPool | None = None
        self._done = self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def trace(
        self,
        workloads: Iterable[Workload],
        validations: Iterable[tuple[Workload, Validation]] = (),
    ) -> None:
        """Trace steps and validations of resolved workloads side by side.

        A failure is raised by `tape` or `validation`.
        """
        jobs: list[tuple[Workload, Validation | None]] = [
            (w, None) for w in dict.fromkeys(workloads)
            if w.key() not in self._failed and self._tape(w).missing(w.batch)
            and not self._found(w)
        ]  # fmt: skip
        jobs += [
            (w, v) for w, v in dict.fromkeys((_batch_1(w), v) for w, v in validations)
            if (w, v) not in self._validations
        ]  # fmt: skip
        if not jobs:
            return
        if self._pool is None:
            self._pool = WorkerPool(TARGET)
        self._total += len(jobs)
        self.progress(self._done, self._total, f"tracing {jobs[0][0].model}")
        requests = [
            {"workload": w.to_dict(), **({} if v is None else {"validation": v.to_dict()})}
            for w, v in jobs
        ]
        for index, result in self._pool.map_unordered(requests, TRACE_TIMEOUT_S):
            workload, validation = jobs[index]
            self._done += 1
            what = f"{_size(workload.patch)} batch {workload.batch}"
            if validation is not None:
                what = f"validation on {_size(validation.volume)}"
            self.progress(self._done, self._total, f"traced {workload.model} {what}")
            if isinstance(result, SegplanError):
                if validation is None:
                    self._failed[workload.key()] = result
                else:
                    self._validations[workload, validation] = result
                continue
            trace = trace_from_json(result["trace"])
            if validation is None:
                self._tape(workload).traces[workload.batch] = trace
                cache.keep(workload, result["trace"])
            else:
                self._validations[workload, validation] = trace

    def _found(self, workload: Workload) -> bool:
        """Take a step's trace from an earlier run, if there is one."""
        trace = cache.load_trace(workload)
        if trace is not None:
            self._tape(workload).traces[workload.batch] = trace
        return trace is not None

    def validation(self, workload: Workload, validation: Validation) -> Trace:
        """The trace of a validation; raises as `tape`."""
        self.trace((), [(workload, validation)])
        found = self._validations[_batch_1(workload), validation]
        if isinstance(found, SegplanError):
            raise found
        return found

    def tape(self, workload: Workload) -> Tape:
        """The tape that has the workload's batch.

        Raises:
            NetworkError: the network cannot be built or refuses the input.
            WorkerError: the trace died.
        """
        self.trace([workload])
        if workload.key() in self._failed:
            raise self._failed[workload.key()]
        return self._tape(workload)

    def _tape(self, workload: Workload) -> Tape:
        return self._tapes.setdefault(_batch_1(workload).key(), Tape())


def _batch_1(workload: Workload) -> Workload:
    return workload.replace(batch=1)


def _size(sizes: Patch) -> str:
    return "x".join(map(str, sizes))


@dataclass(frozen=True)
class Question:
    """One workload on one card.

    Attributes:
        workload: resolved.
        card: or None: tensors and allocator only.
        budget: bytes the allocator may use; None without a card.
        settings: of the allocator.
        gpus: that train together, by DistributedDataParallel if more than one.
    """

    workload: Workload
    card: Card | None
    budget: int | None
    settings: Settings = field(default_factory=settings_from_environment)
    gpus: int = 1

    @property
    def target(self) -> Target:
        """What the card and the settings mean for a prediction."""
        target = target_for(self.workload, self.card, self.settings)
        return dataclasses.replace(target, data_parallel=self.gpus > 1)

    def answer(self, tracer: Tracer) -> tuple[MemoryEstimate, bool | None]:
        """(bytes, whether it fits; None without a card); raises as `Tracer.tape`."""
        tape, batch = tracer.tape(self.workload), self.workload.batch
        estimate = predict(tape, batch, self.target)
        if self.budget is None:
            return estimate, None
        within = kernel_limit(tape.at(batch)) is None and estimate.least_memory <= self.budget
        return estimate, within


@dataclass(frozen=True)
class _Step:
    """A rung before it is computed."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    expandable: bool = False

    def apply(self, to: Question) -> Question:
        """The question with the change made.

        Raises:
            RequestError: the network does not take it.
        """
        settings = to.settings
        if self.expandable:
            settings = dataclasses.replace(settings, expandable_segments=True)
        changes = dict(self.changes)
        if "model_args" in changes:
            changes["model_args"] = {**to.workload.model_args, **changes["model_args"]}
        workload = resolve(to.workload.replace(**changes))
        return dataclasses.replace(to, workload=workload, settings=settings)


def ladder(
    workload: Workload,
    gpu: str | None = None,
    *,
    reserve: int = DEFAULT_RESERVE,
    progress: Progress = silent,
) -> Ladder:
    """Compute what each way of saving memory would save.

    Args:
        workload: its patch and batch are those of the step.
        gpu: a card's name, index, UUID or YAML file; None: tensors and allocator only, and
            nothing is said about what fits.
        reserve: bytes of the card left free on purpose.
        progress: called as traces finish.

    Returns:
        A rung for each way that the workload leaves open, alone, and the first ones together.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch.
        CardError: there is no such card, or nothing of it is left for the allocator.
        WorkerError: the trace died.
    """
    from segplan.api.estimating import budget_of, named_card

    card = named_card(gpu) if gpu is not None else None
    question = Question(resolve(workload), card, budget_of(card, reserve))
    with Tracer(progress) as tracer:
        return climb(question, tracer)


def climb(
    question: Question, tracer: Tracer, known: tuple[MemoryEstimate, bool | None] | None = None
) -> Ladder:
    """The ladder of a question, whose own answer may be known already (raises as `ladder`)."""
    left_out: dict[str, str] = {}
    steps = [step for name in ORDER for step in _open(question, name, left_out)]
    asked: list[tuple[_Step, Question]] = []
    for step in steps:
        try:
            asked.append((step, step.apply(question)))
        except RequestError as error:
            left_out[step.name] = str(error)
    tracer.trace([question.workload, *(q.workload for _, q in asked)])
    base, base_fits = known or question.answer(tracer)

    rungs: list[Rung] = []
    useful: list[_Step] = []
    for step, changed in _with_best_batch(question, asked, tracer):
        try:
            rung = _rung((step,), changed, base, tracer)
        except SegplanError as error:
            left_out[step.name] = str(error)
            continue
        if step.expandable and rung.saved <= 0:
            left_out[step.name] = "it saves nothing here."
            continue
        rungs.append(rung)
        useful.append(step)
    return Ladder(
        least_memory=base.least_memory,
        fits=base_fits,
        rungs=tuple(rungs),
        together=_together(question, base, rungs, useful, tracer) if base_fits is False else None,
        left_out=left_out,
    )


def _rung(steps: Sequence[_Step], changed: Question, base: MemoryEstimate, tracer: Tracer) -> Rung:
    estimate, within = changed.answer(tracer)
    saved = base.least_memory - estimate.least_memory
    changes: dict[str, Any] = {}
    for step in steps:
        changes.update(step.changes)
    return Rung(
        names=tuple(dict.fromkeys(step.name for step in steps)),
        changes=changes,
        expandable_segments=any(step.expandable for step in steps),
        peak_allocated=estimate.peak_allocated,
        least_memory=estimate.least_memory,
        least_memory_low=estimate.least_memory_low,
        least_memory_high=estimate.least_memory_high,
        saved=saved,
        saved_share=saved / base.least_memory,
        fits=within,
    )


def _together(
    question: Question,
    base: MemoryEstimate,
    rungs: Sequence[Rung],
    steps: Sequence[_Step],
    tracer: Tracer,
) -> Rung | None:
    """The first rungs combined that fit, unless one of them does alone.

    A rung that saves nothing beyond those before it is passed over; what alone saves nothing
    may well save with another, as mixed precision does with expandable segments.
    """
    first = next((i for i, rung in enumerate(rungs) if rung.fits), len(rungs))
    taken: list[_Step] = []
    changed, saved = question, 0
    for step in steps[:first]:
        try:
            further = step.apply(changed)
            found = _rung([*taken, step], further, base, tracer)
        except SegplanError:
            continue
        if found.fits and taken:
            return found
        if found.saved > saved:
            taken, changed, saved = [*taken, step], further, found.saved
    return None


def _with_best_batch(
    question: Question, asked: Sequence[tuple[_Step, Question]], tracer: Tracer
) -> list[tuple[_Step, Question]]:
    """The same, with the largest batch that fits where only halves were to be tried."""
    batch = question.workload.batch
    if question.budget is None or batch <= FEW_BATCHES:
        return list(asked)
    low, high = 1, batch  # the largest that fits lies in [low, high)
    try:
        tracer.trace(question.workload.replace(batch=b) for b in AFFINE_BATCHES)
        while high - low > 1:
            middle = (low + high) // 2
            smaller = dataclasses.replace(
                question, workload=question.workload.replace(batch=middle)
            )
            if smaller.answer(tracer)[1]:
                low = middle
            else:
                high = middle
    except SegplanError:
        return list(asked)
    found: list[tuple[_Step, Question]] = []
    for step, changed in asked:
        if step.name == "batch" and changed.workload.batch < low:
            if not any(q.workload.batch == low for _, q in found):
                best = _Step("batch", {"batch": low})
                found.append((best, best.apply(question)))
            continue
        found.append((step, changed))
    return found


def _open(question: Question, name: str, left_out: dict[str, str]) -> list[_Step]:
    """The rungs of a kind that the workload leaves open."""
    w = question.workload
    if name == "expandable_segments":
        return [] if question.settings.expandable_segments else [_Step(name, expandable=True)]
    if name == "amp":
        return [] if w.amp else [_Step(name, {"precision": "fp16"})]
    if name == "checkpointing":
        return [] if w.checkpointing else [_Step(name, {"checkpointing": True})]
    if name == "batch":
        return [_Step(name, {"batch": batch}) for batch in smaller_batches(w.batch)]
    if name == "optimizer":
        return [] if w.optimizer == "sgd" else [_Step(name, {"optimizer": "sgd"})]
    try:
        if name == "patch":
            patch = smaller_patch(w)
            return [_Step(name, {"patch": patch})] if patch is not None else []
        arguments = narrower(w)
    except NetworkError as error:
        left_out[name] = str(error)
        return []
    return [_Step(name, {"model_args": arguments})] if arguments is not None else []


def smaller_batches(batch: int) -> list[int]:
    """Batches below, largest first: every one of a few, halves of many."""
    if batch <= FEW_BATCHES:
        return list(range(batch - 1, 0, -1))
    found = []
    while batch > 1:
        batch //= 2
        found.append(batch)
    return found


def smaller_patch(workload: Workload) -> Patch | None:
    """The next patch below that trains: the longest sides shortened; None if there is none."""
    rule = rule_for(workload)
    sides = list(workload.patch)
    longest = max(sides)
    for axis, side in enumerate(sides):
        if side == longest:
            step = -(-PATCH_STEP // rule.divisor[axis]) * rule.divisor[axis]
            sides[axis] = (side - 1) // step * step
    shorter: Patch = (sides[0], sides[1], sides[2])
    return None if min(sides) < 1 else rule.round_down(shorter, workload.batch)


def narrower(workload: Workload) -> dict[str, Any] | None:
    """The network's argument for its width, halved; None where it cannot be.

    Raises:
        NetworkError: the network is no registered one.
    """
    if ":" in workload.model:
        return None
    network = network_of(workload.model)
    name = network.width_argument
    if name is None:
        return None
    known = arguments_of(network).get(name)
    half = _halved(workload.model_args.get(name, known))
    return None if half is None else {name: half}


def _halved(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        halves = [_halved(v) for v in value]
        return tuple(halves) if halves and None not in halves else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2 and value % 2 == 0:
        return value // 2
    return None
