"""`days`: how long an experiment takes on each card, and at which batch it finishes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from segplan.api.choosing import named_cards
from segplan.api.experiments import Experiment
from segplan.api.fitting import DEFAULT_MAX_BATCH, DEFAULT_RESERVE
from segplan.api.predicting import Predictor, Progress, silent
from segplan.dataset.nouns import LoaderRate
from segplan.errors import RequestError, SegplanError
from segplan.gpus import Card, catalogue
from segplan.memory.context import context_bytes
from segplan.networks import resolve
from segplan.results import Basis, BatchOption, Duration, MemoryEstimate, Plan, StepTime
from segplan.schedule import (
    FORWARD_SPREAD,
    CasesPerEpoch,
    Schedule,
    Seconds,
    StepSize,
    add,
    bound_by,
    calls_per_volume,
    checkpoint_seconds,
    data_parallel,
    energy_kwh,
    forward_seconds,
    link_of,
    loader_need,
    paced_by,
    scale,
    training_seconds,
    validation_seconds,
    windows_per_volume,
)
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

    def aim(self, card: Card | None) -> None:
        """Answer for this card from now on."""

    def trace(self, wanted: Iterable[tuple[Patch, int]]) -> None:
        """Prepare these (patch, batch), side by side."""

    def estimate(self, patch: Patch, batch: int) -> MemoryEstimate:
        """Bytes of a step."""

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
    make_predictor: MakePredictor | None = None,
    progress: Progress = silent,
) -> tuple[Plan, ...]:
    """How long each experiment takes on each card.

    Each network is traced once, for all cards. All times are predicted; they count the
    steps, validation, and checkpoints, not the start, the loading of the first epoch's
    cache, or pauses.

    Args:
        experiments: as from `segplan.api.experiments.load_experiment`.
        gpus: cards by name, "catalog", or cards that are here ("0": predicted too, with the
            memory of this very one).
        gpus_per_job: GPUs that train one experiment together; each gets the workload's batch.
        loader: patches per second that the data loader delivers for one experiment, or what
            `segplan loader` measured; None: it keeps up.
        reserve: bytes of each card left free on purpose.
        max_batch: look no further for another batch.
        make_predictor: instead of `segplan.api.predicting.Predictor`.
        progress: called with (done, total, what).

    Returns:
        A plan for each experiment and card, experiment by experiment, also where it does not fit.

    Raises:
        RequestError: a network, a patch, a card or an option cannot be used as asked.
        WorkerError: a trace died.
    """
    cards = [card for _, card in named_cards(gpus, "days are predicted").values()]
    if not experiments:
        raise RequestError("no experiment is named: give --config a preset or a YAML file.")
    for name, value in (("gpus_per_job", gpus_per_job), ("max_batch", max_batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(f"{name} must be a whole number of at least 1, not {value!r}.")
    if reserve < 0:
        raise RequestError(f"reserve must be at least 0, not {reserve}.")
    rate = _rate(loader)
    questions = [
        _Question(e, resolve(e.workload), gpus_per_job, rate, reserve, max_batch)
        for e in experiments
    ]  # before the first trace: a typing error in the last must not cost minutes
    plans: list[Plan] = []
    for question in questions:
        w = question.workload
        maker: MakePredictor = _tracing if make_predictor is None else make_predictor
        with maker(w, progress) as predictor:
            predictor.trace([(w.patch, b) for b in question.batches_to_trace])
            planner = _Planner(question, predictor)
            plans += [planner.plan(card) for card in cards]
    return tuple(plans)


@dataclass(frozen=True)
class _Rate:
    """Patches per second of a loader, with its interval."""

    value: float
    low: float
    high: float

    def seconds(self, patches: int) -> Duration:
        """What the loader takes for so many patches."""
        return Duration(
            patches / self.value, patches / self.high, patches / self.low, Basis.MEASURED
        )


def _rate(loader: float | LoaderRate | None) -> _Rate | None:
    if loader is None:
        return None
    if isinstance(loader, LoaderRate):
        s = loader.patches_per_s
        return _Rate(s.value, s.low, s.high)
    if not 0 < loader < float("inf"):
        raise RequestError(f"a loader delivers more than 0 patches per second, not {loader:g}.")
    return _Rate(loader, loader, loader)


@dataclass(frozen=True)
class _Question:
    """One experiment, checked.

    Attributes:
        experiment: as asked.
        workload: resolved.
        gpus: GPUs of one experiment.
        rate: of the loader; None: it keeps up.
        reserve: bytes left free.
        max_batch: largest batch looked at.
    """

    experiment: Experiment
    workload: Workload
    gpus: int
    rate: _Rate | None
    reserve: int
    max_batch: int

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
        count = windows_per_volume(shape, v.roi or self.workload.patch, v.overlap)
        return count, calls_per_volume(count, v.sw_batch_size) * v.passes

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
    """What one batch takes on one card."""

    alone: StepTime
    step: StepTime
    training: Duration
    epoch: Duration
    validation: Duration | None
    rest: Duration | None
    total: Duration | None
    loader: Duration | None


class _Planner:
    """Plans one experiment on card after card."""

    def __init__(self, question: _Question, predictor: StepPredictor) -> None:
        self.question, self.predictor = question, predictor
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
            smallest_card=self._smallest_card(card, budget, memory) if limit is None else None,
        )

    def _budget(self, card: Card) -> int:
        """Bytes that the allocator may use."""
        context, _measured = context_bytes(card.compute_capability)
        return card.memory_visible - context - self.question.reserve

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
        own = self.predictor.step_time(self.patch, batch)
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
        loader = None if q.rate is None else q.rate.seconds(size.patches)
        if schedule is None:
            nothing = Duration(0.0, 0.0, 0.0, step.basis)
            return _Times(alone, step, nothing, nothing, None, None, None, loader)
        paced = paced_by(step, loader)
        training = training_seconds(schedule, paced, size)
        forward = self._forward(alone, size)
        shape = None if dataset is None else dataset.shape
        validation = validation_seconds(schedule, forward, size, self.patch, shape)
        rest = checkpoint_seconds(schedule, _state_bytes(memory))
        unknown = schedule.validation is not None and validation is None
        parts: list[Seconds] = [t for t in (training, validation, rest) if t is not None]
        return _Times(
            alone=alone,
            step=step,
            training=training,
            epoch=scale(paced, schedule.steps_per_epoch(size)),
            validation=validation,
            rest=rest,
            total=None if unknown else add(parts),
            loader=loader,
        )

    def _forward(self, step: StepTime, size: StepSize) -> Duration:
        """The forward pass of one patch in validation."""
        time = self.predictor.forward_time(self.patch, size.batch)
        if time is None:
            saving = self.question.workload.checkpointing
            return forward_seconds(step, size.per_gpu, checkpointing=saving)
        return scale(time, 1 / size.batch, FORWARD_SPREAD)

    def _energy(
        self, card: Card, schedule: Schedule, size: StepSize, times: _Times
    ) -> float | None:
        if card.power_w is None:
            return None
        computing: list[Seconds] = [training_seconds(schedule, times.step, size)]
        if times.validation is not None:
            computing.append(times.validation)
        waiting = times.training.seconds - computing[0].seconds
        waiting += 0.0 if times.rest is None else times.rest.seconds
        return energy_kwh(card.power_w, add(computing), max(waiting, 0.0), size.gpus)

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

    def _smallest_card(self, card: Card, budget: int, memory: MemoryEstimate) -> str | None:
        """Slug of the catalogue card with the least memory that trains the step as configured."""
        if self._smallest is None:
            self._smallest = (self._search(budget, memory),)
            self.predictor.aim(card)
        return self._smallest[0]

    def _search(self, too_small: int, memory: MemoryEstimate) -> str | None:
        least = max(too_small + 1, memory.peak_allocated)
        for card in sorted(catalogue(), key=lambda c: c.memory_visible):
            budget = self._budget(card)
            if budget < least:
                continue
            self.predictor.aim(card)
            try:
                needed = self.predictor.estimate(self.patch, self.question.workload.batch)
            except SegplanError:
                return None
            if needed.least_memory <= budget:
                return card.slug
        return None


NO_SCHEDULE = (
    "No schedule: write epochs and cases (or iterations) under schedule in the configuration."
)
TOO_LITTLE_KNOWN = (
    "Too little is known of the card to predict a step's time: its bandwidth, rates, "
    "multiprocessors and compute capability are needed; give them in a YAML card."
)
NO_SHAPE = "The total is not known: validation needs a shape under dataset or schedule.validation."


def _repeated(step: StepTime, times: float) -> StepTime:
    """A step with so many times as many passes; its optimizer's part is counted each time."""
    return dataclasses.replace(
        step, seconds=step.seconds * times, low=step.low * times, high=step.high * times
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
