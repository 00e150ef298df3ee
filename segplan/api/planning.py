"""`days`: how long an experiment takes on each card, and at which batch it finishes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from segplan.api.budgets import left_for_allocator
from segplan.api.choosing import named_cards
from segplan.api.experiments import Experiment
from segplan.api.fitting import DEFAULT_MAX_BATCH, DEFAULT_RESERVE, Question, smallest_card
from segplan.api.known_steps import is_here, known_step
from segplan.api.pacing import loader_note, loader_pace
from segplan.api.predicting import Predictor, Progress, silent
from segplan.dataset.nouns import LoaderRate
from segplan.errors import RequestError
from segplan.gpus import Card
from segplan.memory.distributed import communicator_bytes
from segplan.networks import resolve
from segplan.results import (
    Basis,
    BatchOption,
    Cell,
    Duration,
    LimitedBy,
    MemoryEstimate,
    Plan,
    StepTime,
)
from segplan.schedule import (
    FORWARD_SPREAD,
    CasesPerEpoch,
    LoaderPace,
    Schedule,
    Seconds,
    StepSize,
    add,
    bound_by,
    checkpoint_seconds,
    data_parallel,
    energy_kwh,
    epoch_seconds,
    forward_seconds,
    link_of,
    loader_need,
    scale,
    training_seconds,
    validation_seconds,
)
from segplan.step.validate import call_count, window_count
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import Patch
from segplan.workload import Workload

WORTH = 0.97
"""Another batch is recommended from 3 % sooner on: less is within what any run varies."""

NEAR = 1.1
"""The memory of another batch is guessed from the configured one's, since activations grow with
the batch. The guess is good to a few percent: only within 10 % of the budget is it computed."""

GROWTH = (2, 4, 8, 16, 32)
"""Larger batches that are tried, in configured ones."""


class StepPredictor(Protocol):
    """What plans need to know about one workload (`segplan.api.predicting.Predictor`)."""

    card: Card | None

    def aim(self, card: Card | None) -> None:
        """Answer for this card from now on."""

    def trace(self, wanted: Iterable[tuple[Patch, int]]) -> None:
        """Prepare these (patch, batch), side by side."""

    def estimate(self, patch: Patch, batch: int) -> MemoryEstimate:
        """Bytes of a step."""

    def fits(self, patch: Patch, batch: int, limit: int) -> bool:
        """Whether a step's least memory is within that many bytes."""

    def kernel_limit(self, patch: Patch, batch: int) -> str | None:
        """What cannot work on tensors this large, or None."""

    def step_time(self, patch: Patch, batch: int) -> StepTime | None:
        """Seconds of a step; None where too little is known of the card."""

    def forward_time(self, patch: Patch, batch: int) -> StepTime | None:
        """Seconds of the forward pass alone; None as above."""


MakePredictor = Callable[[Workload, Progress], AbstractContextManager[StepPredictor]]
"""Makes the predictor of one resolved workload."""


def _tracing(workload: Workload, progress: Progress) -> AbstractContextManager[Predictor]:
    """The predictor that traces the network."""
    return Predictor(workload, None, progress)


def plan_days(
    experiments: Sequence[Experiment],
    gpus: Sequence[str],
    *,
    gpus_per_job: int = 1,
    loader: float | LoaderRate | None = None,
    reserve: int = DEFAULT_RESERVE,
    max_batch: int = DEFAULT_MAX_BATCH,
    store: str | None = None,
    make_predictor: MakePredictor | None = None,
    progress: Progress = silent,
) -> tuple[Plan, ...]:
    """How long each experiment takes on each card.

    Each network is traced once, for all cards. Times count the steps, validation, and
    checkpoints, not the start, the loading of the first epoch's cache, or pauses. The step of a
    card that is here is the measured one where the store has it, and everything else about that
    card's time is the prediction scaled by it; all other steps are predicted.

    Args:
        experiments: as from `segplan.api.experiments.load_experiment`.
        gpus: cards by name, "catalog", or cards that are here ("0": with the memory of this very
            one, and its measured steps).
        gpus_per_job: GPUs that train one experiment together; each gets the workload's batch.
        loader: patches per second that the data loader delivers for one experiment, or what
            `segplan loader` measured; None: it keeps up.
        reserve: bytes of each card left free on purpose.
        store: file measurements are kept in; None: the default one. Only cards that are here are
            looked up.
        max_batch: look no further for another batch.
        make_predictor: instead of `segplan.api.predicting.Predictor`.
        progress: called with (done, total, what).

    Returns:
        A plan for each experiment and card, experiment by experiment, also where it does not fit.

    Raises:
        RequestError: a network, a patch, a card or an option cannot be used as asked.
        WorkerError: a trace died.
    """
    named = named_cards(gpus, "days are predicted")
    cards = [card for _, card in named.values()]
    here = {slug: text for slug, (text, _) in named.items() if is_here(text)}
    if not experiments:
        raise RequestError("no experiment is named: give --config a preset or a YAML file.")
    for name, value in (("gpus_per_job", gpus_per_job), ("max_batch", max_batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(f"{name} must be a whole number of at least 1, not {value!r}.")
    if reserve < 0:
        raise RequestError(f"reserve must be at least 0, not {reserve}.")
    pace = loader_pace(loader)
    questions = [
        _Question(e, resolve(e.workload), gpus_per_job, pace, reserve, max_batch, _note(loader, e))
        for e in experiments
    ]  # before the first trace: a typing error in the last must not cost minutes
    plans: list[Plan] = []
    for question in questions:
        w = question.workload
        maker: MakePredictor = _tracing if make_predictor is None else make_predictor
        with maker(w, progress) as predictor:
            predictor.trace([(w.patch, b) for b in question.batches_to_trace])
            known = {slug: known_step(w, text, store) for slug, text in here.items()}
            planner = _Planner(question, predictor, known)
            plans += [planner.plan(card) for card in cards]
    return tuple(plans)


def _note(loader: float | LoaderRate | None, experiment: Experiment) -> str | None:
    return loader_note(loader, experiment) if isinstance(loader, LoaderRate) else None


@dataclass(frozen=True)
class _Question:
    """One experiment, checked.

    Attributes:
        experiment: as asked.
        workload: resolved.
        gpus: GPUs of one experiment.
        pace: of the loader; None: it keeps up.
        reserve: bytes left free.
        max_batch: largest batch looked at.
        note: where the loader was measured with something else.
    """

    experiment: Experiment
    workload: Workload
    gpus: int
    pace: LoaderPace | None
    reserve: int
    max_batch: int
    note: str | None = None

    @property
    def batches_to_trace(self) -> tuple[int, ...]:
        """Two batches give all larger ones; batch 1 has operators of its own."""
        batch = self.workload.batch
        return AFFINE_BATCHES if batch >= AFFINE_BATCHES[0] else (batch, *AFFINE_BATCHES)

    def size(self, batch: int, accumulation: int) -> StepSize:
        return StepSize(batch, accumulation, self.gpus)

    @property
    def windows(self) -> tuple[int, int] | tuple[None, None]:
        """Windows of a validation volume, and the forward passes that hold them."""
        schedule, dataset = self.experiment.schedule, self.experiment.dataset
        v = None if schedule is None else schedule.validation
        shape = None if v is None else v.shape
        if shape is None and dataset is not None:
            shape = dataset.shape
        if v is None or shape is None:
            return None, None
        count = window_count(shape, v.roi or self.workload.patch, v.overlap)
        return count, call_count(count, v.sw_batch_size) * v.passes

    @property
    def larger(self) -> list[int]:
        """Larger batches worth a look: multiples of the configured one that an epoch can fill."""
        schedule, batch = self.experiment.schedule, self.workload.batch
        if schedule is None:
            return []
        found = [batch * n for n in GROWTH if batch * n <= self.max_batch]
        if isinstance(schedule.epoch, CasesPerEpoch):
            most = -(-schedule.epoch.cases // self.gpus) * schedule.epoch.num_samples
            return [b for b in found if b <= most]
        return found[:1]

    @property
    def smaller(self) -> list[int]:
        """Smaller batches that accumulate to the configured one, largest first."""
        batch = self.workload.batch
        return [b for b in range(batch - 1, 0, -1) if batch % b == 0]


@dataclass(frozen=True)
class _Times:
    """What one batch takes on one card; `validating` is the GPU's part of `validation`."""

    alone: StepTime
    step: StepTime
    training: Duration
    epoch: Duration
    validation: Duration | None
    validating: Duration | None
    rest: Duration | None
    total: Duration | None
    loader: Duration | None


class _Planner:
    """Plans one experiment on card after card."""

    def __init__(
        self,
        question: _Question,
        predictor: StepPredictor,
        known: Mapping[str, StepTime | None],
    ) -> None:
        self.question, self.predictor, self.known = question, predictor, known
        self.patch = question.workload.patch
        self._smallest: tuple[str | None] | None = None
        self._limits: dict[int, str | None] = {}

    def plan(self, card: Card) -> Plan:
        """The plan for one card."""
        q, w = self.question, self.question.workload
        self.predictor.aim(card)
        budget = self._budget(card)
        memory = self.predictor.estimate(self.patch, w.batch)
        plan = Plan(
            name=q.experiment.name,
            workload=w,
            card=card.slug,
            fits=False,
            gpus=q.gpus,
            memory=memory,
            power_w=card.power_w,
            patches_per_gpu=q.size(w.batch, w.grad_accumulation).per_gpu,
            link=link_of(card).name if q.gpus > 1 else None,
            windows_per_volume=q.windows[0],
            calls_per_volume=q.windows[1],
        )
        limit = self._kernel_limit(w.batch)
        if limit is None and memory.least_memory <= budget:
            return self._fitting(plan, card, budget)
        why = () if limit is None else (f"{limit} refuses tensors of 2^31 elements.",)
        option = self._smaller(card, budget, memory)
        return dataclasses.replace(
            plan,
            notes=why,
            options=() if option is None else (option,),
            recommended_batch=None if option is None else option.batch,
            smallest_card=self._smallest_card(budget, memory) if limit is None else None,
        )

    def _budget(self, card: Card) -> int:
        """Bytes that the allocator may use on each GPU."""
        return left_for_allocator(card, self.question.reserve, self.question.gpus)

    def _kernel_limit(self, batch: int) -> str | None:
        """What refuses tensors of this batch, the same on all cards."""
        if batch not in self._limits:
            self._limits[batch] = self.predictor.kernel_limit(self.patch, batch)
        return self._limits[batch]

    def _fitting(self, plan: Plan, card: Card, budget: int) -> Plan:
        """The rest of a plan for a card that trains the step."""
        q, w, memory = self.question, self.question.workload, plan.memory
        assert memory is not None
        notes = []
        if memory.least_memory_high > budget:
            notes.append("It fits by less than the uncertainty of the least memory: measure it.")
        plan = dataclasses.replace(plan, fits=True, recommended_batch=w.batch, notes=tuple(notes))
        times = self._times(card, w.batch, w.grad_accumulation, memory)
        if isinstance(times, str):
            return dataclasses.replace(plan, notes=(*notes, times))
        if card.slug in self.known and self.known[card.slug] is None:
            notes.append(NOT_MEASURED)
        if q.note is not None:
            notes.append(q.note)
        schedule, dataset = q.experiment.schedule, q.experiment.dataset
        if schedule is None:
            return dataclasses.replace(plan, step=times.step, notes=(*notes, NO_SCHEDULE))
        size = q.size(w.batch, w.grad_accumulation)
        if schedule.validation is not None and times.total is None:
            notes.append(NO_SHAPE)
        need = loader_need(
            schedule,
            times.step,
            size,
            bytes_per_case=None if dataset is None else dataset.bytes_per_case,
            patch=self.patch,
            channels=w.in_channels,
        )
        plan = dataclasses.replace(
            plan,
            step=times.step,
            steps=schedule.steps(size),
            steps_per_epoch=schedule.steps_per_epoch(size),
            patches=schedule.patches(size),
            training=times.training,
            epoch=times.epoch,
            validation=times.validation,
            rest=times.rest,
            total=times.total,
            bound_by=bound_by(times.step, times.loader),
            energy_kwh=self._energy(card, schedule, size, times),
            loader_patches_per_s=need.patches_per_s,
            loader_mb_per_s=need.mb_per_s,
            efficiency=times.alone.seconds / times.step.seconds if q.gpus > 1 else None,
            notes=tuple(notes),
        )
        option = self._larger(card, budget, plan)
        if option is None:
            return plan
        sooner = not schedule.fixed
        return dataclasses.replace(
            plan,
            options=(option,),
            recommended_batch=option.batch if sooner else w.batch,
        )

    def _times(
        self, card: Card, batch: int, accumulation: int, memory: MemoryEstimate
    ) -> _Times | str:
        """What one batch takes; a sentence where the step's time is not known."""
        q, w = self.question, self.question.workload
        own = self._step(card, batch)
        if own is None:
            return TOO_LITTLE_KNOWN
        # The predictor's step accumulates as the workload says; this one perhaps more often.
        alone = own if accumulation == w.grad_accumulation else _repeated(
            own, accumulation / w.grad_accumulation
        )  # fmt: skip
        schedule, dataset = q.experiment.schedule, q.experiment.dataset
        size = q.size(batch, accumulation)
        step = data_parallel(
            alone, _parameter_bytes(memory), q.gpus, link_of(card), accumulation=accumulation
        )
        loader = None if q.pace is None else scale(q.pace.patch, size.patches)
        if schedule is None:
            nothing = Duration(0.0, 0.0, 0.0, step.basis)
            return _Times(alone, step, nothing, nothing, None, None, None, None, loader)
        training = training_seconds(schedule, step, size, q.pace)
        forward = self._forward(card, alone, size)
        shape = None if dataset is None else dataset.shape
        validating, validation = (
            validation_seconds(schedule, forward, size, self.patch, shape, pace)
            for pace in (None, q.pace)
        )
        rest = checkpoint_seconds(schedule, _state_bytes(memory))
        unknown = schedule.validation is not None and validation is None
        parts: list[Seconds] = [t for t in (training, validation, rest) if t is not None]
        return _Times(
            alone=alone,
            step=step,
            training=training,
            epoch=epoch_seconds(schedule, step, size, q.pace),
            validation=validation,
            validating=validating,
            rest=rest,
            total=None if unknown else add(parts),
            loader=loader,
        )

    def _step(self, card: Card, batch: int) -> StepTime | None:
        """A step of this batch: measured, or predicted and scaled by what was measured."""
        known = self.known.get(card.slug)
        if known is not None and batch == self.question.workload.batch:
            return known
        predicted = self.predictor.step_time(self.patch, batch)
        if known is None or predicted is None:
            return predicted
        return _repeated(predicted, self._correction(card), Basis.SCALED)

    def _correction(self, card: Card) -> float:
        """Measured over predicted seconds of the configured step; 1 where either is not known."""
        known = self.known.get(card.slug)
        if known is None:
            return 1.0
        predicted = self.predictor.step_time(self.patch, self.question.workload.batch)
        return 1.0 if predicted is None else known.seconds / predicted.seconds

    def _forward(self, card: Card, step: StepTime, size: StepSize) -> Duration:
        """The forward pass of one patch in validation."""
        time = self.predictor.forward_time(self.patch, size.batch)
        if time is None:
            saving = self.question.workload.checkpointing
            return forward_seconds(step, size.per_gpu, checkpointing=saving)
        if self.known.get(card.slug) is not None:
            time = _repeated(time, self._correction(card), Basis.SCALED)
        return scale(time, 1 / size.batch, FORWARD_SPREAD)

    def _energy(
        self, card: Card, schedule: Schedule, size: StepSize, times: _Times
    ) -> float | None:
        if card.power_w is None:
            return None
        computing: list[Seconds] = [training_seconds(schedule, times.step, size)]
        if times.validating is not None:
            computing.append(times.validating)
        busy = add(computing)
        all_of_it = (times.training, times.validation, times.rest)
        waiting = sum(t.seconds for t in all_of_it if t is not None) - busy.seconds
        return energy_kwh(card.power_w, busy, max(waiting, 0.0), size.gpus)

    def _larger(self, card: Card, budget: int, plan: Plan) -> BatchOption | None:
        """A larger batch that finishes sooner; where epochs are iterations: the next larger."""
        schedule, memory, w = self.question.experiment.schedule, plan.memory, plan.workload
        assert schedule is not None
        assert memory is not None
        found = []
        for batch in self.question.larger:
            if _guess(memory, w.batch, batch) > NEAR * budget:
                break
            times = self._times(card, batch, w.grad_accumulation, memory)
            if isinstance(times, str) or times.total is None or plan.total is None:
                return None
            if schedule.fixed or times.total.seconds < WORTH * plan.total.seconds:
                found.append((times.total.seconds, batch, times))
        for _seconds, batch, times in sorted(found, key=lambda item: item[0]):
            option = self._option(batch, w.grad_accumulation, budget, memory, times)
            if option is not None:
                return option
        return None

    def _smaller(self, card: Card, budget: int, memory: MemoryEstimate) -> BatchOption | None:
        """The largest smaller batch that trains, accumulating to as many patches a step."""
        w = self.question.workload
        for batch in self.question.smaller:
            if _guess(memory, w.batch, batch) > NEAR * budget:
                continue
            accumulation = w.grad_accumulation * w.batch // batch
            times = self._times(card, batch, accumulation, memory)
            # Gradients now live through the forward passes of a step, which they did not before.
            kept = _parameter_bytes(memory) if w.grad_accumulation == 1 else 0
            known = None if isinstance(times, str) else times
            option = self._option(batch, accumulation, budget - kept, memory, known)
            if option is not None:
                return option
        return None

    def _option(
        self,
        batch: int,
        accumulation: int,
        budget: int,
        configured: MemoryEstimate,
        times: _Times | None,
    ) -> BatchOption | None:
        """The option of a batch, or None where it does not train."""
        if self._kernel_limit(batch) is not None:
            return None
        memory = None
        if _guess(configured, self.question.workload.batch, batch) * NEAR > budget:
            memory = self.predictor.estimate(self.patch, batch)
            if memory.least_memory > budget:
                return None
        size, schedule = self.question.size(batch, accumulation), self.question.experiment.schedule
        return BatchOption(
            batch=batch,
            accumulation=accumulation,
            patches_per_gpu=size.per_gpu,
            steps_per_epoch=0 if schedule is None else schedule.steps_per_epoch(size),
            steps=0 if schedule is None else schedule.steps(size),
            patches=0 if schedule is None else schedule.patches(size),
            step=None if times is None else times.step,
            total=None if times is None else times.total,
            memory=memory,
        )

    def _smallest_card(self, budget: int, memory: MemoryEstimate) -> str | None:
        """Slug of the catalogue card with the least memory that trains the step as configured."""
        if self._smallest is None:
            q, w = self.question, self.question.workload
            aside = q.reserve + communicator_bytes(q.gpus)
            asked = Question(w, (self.patch,), w.batch, None, aside, q.max_batch)
            refused = Cell(self.patch, 0, LimitedBy.MEMORY, memory)
            self._smallest = (smallest_card(asked, self.predictor, refused, budget),)
        return self._smallest[0]


NO_SCHEDULE = (
    "No schedule: write epochs and cases (or iterations) under schedule in the configuration."
)
TOO_LITTLE_KNOWN = (
    "Too little is known of the card to predict a step's time: its bandwidth, rates, "
    "multiprocessors and compute capability are needed; give them in a YAML card."
)
NOT_MEASURED = (
    "No step of this workload was measured on this card: predicted (segplan fit --gpu measures it)."
)
NO_SHAPE = "The total is not known: validation needs a shape under dataset or schedule.validation."


def _repeated(step: StepTime, times: float, basis: Basis | None = None) -> StepTime:
    """A step with so many times as many passes; its optimizer's part is counted each time."""
    return dataclasses.replace(
        step,
        seconds=step.seconds * times,
        low=step.low * times,
        high=step.high * times,
        basis=basis or step.basis,
    )


def _parameter_bytes(memory: MemoryEstimate) -> int:
    """Bytes of all gradients: float32, as the parameters are."""
    return 0 if memory.breakdown is None else memory.breakdown.parameters


def _state_bytes(memory: MemoryEstimate) -> int:
    """Bytes of a checkpoint: parameters and the optimizer's state."""
    b = memory.breakdown
    return 0 if b is None else b.parameters + b.optimizer_state


def _guess(memory: MemoryEstimate, batch: int, other: int) -> float:
    """The least memory at another batch: what belongs to patches grows with them."""
    fixed = _state_bytes(memory)
    return fixed + (memory.least_memory - fixed) * other / batch
