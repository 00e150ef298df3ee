"""The nouns of an answer: every number carries its basis and an interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from segplan.units import Patch
from segplan.workload import Workload

SCHEMA_VERSION = 1
"""Version of every JSON document segplan prints."""


class Basis(StrEnum):
    """What a number rests on."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SCALED = "scaled"
    PREDICTED = "predicted"


class LimitedBy(StrEnum):
    """What stops a larger batch."""

    MEMORY = "memory"
    KERNEL = "kernel"
    CAP = "cap"


@dataclass(frozen=True)
class MemoryBreakdown:
    """Bytes at the peak, by what they hold; the parts add up to the least memory's estimate.

    `temporaries` are tensors an operator frees before it returns or that live only within
    one phase; `fragmentation` is reserved memory that holds nothing.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    workspaces: int = 0
    temporaries: int = 0
    fragmentation: int = 0


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes one training step needs.

    Attributes:
        peak_allocated: most bytes in tensors (and workspaces) at one time.
        peak_reserved: most bytes the caching allocator holds when nothing limits it.
        least_memory: smallest allocator limit from which on every limit trains.
        least_memory_low: 80 % interval of `least_memory`, lower end.
        least_memory_high: 80 % interval of `least_memory`, upper end.
        context: bytes the process needs outside the allocator (CUDA context, loaded
            kernels); None where no card was named.
        basis: what the numbers rest on.
        breakdown: the peak by what it holds (None where it was only measured).
    """

    peak_allocated: int
    peak_reserved: int
    least_memory: int
    least_memory_low: int
    least_memory_high: int
    context: int | None = None
    basis: Basis = Basis.PREDICTED
    breakdown: MemoryBreakdown | None = None


@dataclass(frozen=True)
class StepTime:
    """Seconds of one training step (all of its accumulated batches), with an 80 % interval."""

    seconds: float
    low: float
    high: float
    basis: Basis
    host_bound: bool | None = None


@dataclass(frozen=True)
class Duration:
    """Seconds of something longer than a step, with an 80 % interval."""

    seconds: float
    low: float
    high: float
    basis: Basis


@dataclass(frozen=True)
class Environment:
    """Where a measurement was made; None is "not known", never zero."""

    card_name: str | None = None
    card_uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    torch: str | None = None
    monai: str | None = None
    segplan: str | None = None
    python: str | None = None
    host_cpu: str | None = None


class Outcome(StrEnum):
    """How a probe ended."""

    FITS = "fits"
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL_LIMIT = "kernel_limit"
    SPILLED = "spilled"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    FAILED = "failed"


@dataclass(frozen=True)
class Measurement:
    """One probe of one workload on one card: raw samples, peaks, environment.

    Attributes:
        workload: what ran, its batch included.
        outcome: how it ended.
        allocator_limit: bytes the allocator was capped to, or None.
        fresh: whether the process had run nothing before.
        step_seconds: raw samples of one step each, warm-up left out.
        peak_allocated: bytes.
        peak_reserved: bytes.
        process_bytes: bytes the driver accounts to the process, or None.
        allocator_retries: times the allocator had to release its cache and try again.
        environment: card and versions.
        message: the error's first line where there was one.
        wall_s: seconds the probe took.
        made_at: UTC time, ISO 8601.
        energy_j_per_step: joules of the card by its own counter; None where not known.
        host_bound: whether the card waited for the host during the timed steps.
        throttled: why the card was held back meanwhile (NVML's clock reasons, or another
            process); () for no reason.
    """

    workload: Workload
    outcome: Outcome
    allocator_limit: int | None = None
    fresh: bool = True
    step_seconds: tuple[float, ...] = ()
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    process_bytes: int | None = None
    allocator_retries: int | None = None
    environment: Environment = field(default_factory=Environment)
    message: str | None = None
    wall_s: float | None = None
    made_at: str | None = None
    energy_j_per_step: float | None = None
    host_bound: bool | None = None
    throttled: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Cell:
    """One point of a frontier.

    Attributes:
        patch: voxels (H, W, D).
        max_batch: largest batch that trains; 0 when nothing fits.
        limited_by: what stops a larger batch; None when the cell has no answer.
        memory: of the largest batch (of batch 1 when nothing fits).
        step: of the largest batch; None where it is not known.
        basis: what `max_batch` rests on.
        status: "ok", "timed_out" or "failed".
        probes: probes this cell took (0 for a prediction).
        retries: allocator retries at the largest batch ("fits, but thrashes"), if measured.
        note: one sentence a reader should know, or None.
    """

    patch: Patch
    max_batch: int
    limited_by: LimitedBy | None
    memory: MemoryEstimate | None
    step: StepTime | None = None
    basis: Basis = Basis.PREDICTED
    status: str = "ok"
    probes: int = 0
    retries: int | None = None
    note: str | None = None

    @property
    def patches_per_second(self) -> float | None:
        """Patches trained per second at the largest batch (no accumulation)."""
        if self.step is None or self.max_batch == 0:
            return None
        return self.max_batch / self.step.seconds


@dataclass(frozen=True)
class Fit:
    """The frontier of a workload on a card.

    Attributes:
        workload: as asked; its patch and batch are replaced by each cell's.
        card: slug of the card the answer is for.
        measured_on: name of the card that ran the probes; None for a prediction.
        budget: bytes the allocator may use.
        context: bytes outside the allocator that were set aside.
        reserve: bytes left free on purpose.
        cells: one for each patch (or one, with a wanted batch: the largest patch).
        recommended: index into `cells`, or None when nothing fits.
        reason: why that cell, in one sentence; or what would fit when nothing does.
        smallest_card: slug of the first catalogue card that holds the smallest patch at
            batch 1 when nothing fits here; None where something fits or no card does.
        warnings: sentences a reader should know.
    """

    workload: Workload
    card: str
    budget: int
    context: int
    reserve: int
    cells: tuple[Cell, ...]
    recommended: int | None
    reason: str
    measured_on: str | None = None
    smallest_card: str | None = None
    warnings: tuple[str, ...] = ()


class BoundBy(StrEnum):
    """What an experiment waits for."""

    GPU = "gpu"
    LOADER = "loader"
    HOST = "host"


@dataclass(frozen=True)
class BatchOption:
    """The same experiment at another batch on the same card, on which that batch trains.

    Attributes:
        batch: patches in one forward pass on one GPU.
        accumulation: forward passes of one optimizer step.
        patches_per_gpu: patches per GPU per step.
        steps_per_epoch: training steps of one epoch.
        steps: training steps of the whole experiment, all folds.
        patches: patches trained on in the whole experiment, over all GPUs.
        step: of one training step; None where it is not known.
        total: training, validation and the rest; None where it is not known.
        memory: of the step; None where it was far below the limit and not computed.
    """

    batch: int
    accumulation: int
    patches_per_gpu: int
    steps_per_epoch: int
    steps: int
    patches: int
    step: StepTime | None = None
    total: Duration | None = None
    memory: MemoryEstimate | None = None


@dataclass(frozen=True)
class Plan:
    """A frontier point times a schedule on one card: how long an experiment takes there.

    Attributes:
        name: of the experiment (its configuration's name).
        workload: what a step trains on one GPU, its patch and batch included.
        card: slug.
        fits: whether it trains on the card at all; where it does not, the rest is None or 0.
        gpus: GPUs one experiment uses.
        memory: of the step; None where it is not known.
        step: of one training step; None where it is not known.
        steps: training steps of the whole experiment, all folds.
        training: all training steps, loader counted in where it is slower.
        validation: all validation; None without any.
        total: training, validation and the rest.
        bound_by: what it waits for most of the time.
        energy_kwh: of the cards alone, not of the server.
        loader_patches_per_s: what the loader must deliver, over all GPUs.
        loader_mb_per_s: the same in megabytes read.
        notes: sentences a reader should know.
        patches_per_gpu: patches per GPU per step, accumulated ones included.
        steps_per_epoch: training steps of one epoch.
        patches: patches trained on in the whole experiment, over all GPUs.
        epoch: training steps of one epoch, loader counted in; no validation.
        rest: saving checkpoints; None where none are counted.
        efficiency: share of `gpus` times one GPU's patches per second; None with one GPU.
        link: what gradients travel over; None with one GPU.
        windows_per_volume: sliding windows of a typical validation volume; None without any.
        calls_per_volume: forward passes that hold them.
        power_w: the board's power limit; None where it is not known.
        options: other batches worth knowing: a sooner one, one that would fit, or, where
            an epoch is a number of iterations, what a larger one costs.
        recommended_batch: by time to finish: `workload.batch`, or that of an option; None where
            nothing fits.
        smallest_card: slug of the catalogue card with the least memory that trains the
            workload, where this one does not; None where none does.
    """

    name: str
    workload: Workload
    card: str
    fits: bool
    gpus: int = 1
    memory: MemoryEstimate | None = None
    step: StepTime | None = None
    steps: int = 0
    training: Duration | None = None
    validation: Duration | None = None
    total: Duration | None = None
    bound_by: BoundBy | None = None
    energy_kwh: float | None = None
    loader_patches_per_s: float | None = None
    loader_mb_per_s: float | None = None
    notes: tuple[str, ...] = ()
    patches_per_gpu: int | None = None
    steps_per_epoch: int = 0
    patches: int = 0
    epoch: Duration | None = None
    rest: Duration | None = None
    efficiency: float | None = None
    link: str | None = None
    windows_per_volume: int | None = None
    calls_per_volume: int | None = None
    power_w: float | None = None
    options: tuple[BatchOption, ...] = ()
    recommended_batch: int | None = None
    smallest_card: str | None = None


def to_plain(value: Any) -> Any:
    """Dataclasses, enums and tuples as plain JSON values, with the attributes' names as keys."""
    if isinstance(value, Workload):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value
