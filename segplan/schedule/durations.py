"""Seconds with their intervals: of training, validation and checkpoints.

Intervals (80 %) are carried through by three rules:

- Scaling scales both ends: a thousand steps are as uncertain, in percent, as one. The error of
  a predicted step is a wrong rate, not noise that would average out.
- Parts that rest on the same step time (training and validation) add end by end: their errors go
  together.
- A factor that is uncertain for reasons of its own (the share of the forward pass) combines
  with the step in quadrature of the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from segplan.results import Basis, Duration, StepTime
from segplan.schedule.nouns import Schedule, StepSize
from segplan.step.validate import window_count
from segplan.units import Patch

Seconds = Duration | StepTime
"""A time with an interval and a basis."""

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in a training step.

The backward pass computes two products (the gradients of input and weight) where the forward
pass computes one: the factor 3 of Kaplan et al. 2020 (arXiv:2001.08361, section 2.1), which holds
for convolutions as well. With activation checkpointing the forward pass is done twice: a
quarter.
"""

FORWARD_SHARE_CHECKPOINTED = 1 / 4
"""As `FORWARD_SHARE`, with activation checkpointing."""

FORWARD_SPREAD = 1.5
"""80 % interval of a validation predicted from the step: a factor of 1.5 to both sides.

An assumption, also where the forward pass itself was predicted: stitching windows, metrics and
loading whole volumes come on top of it.
"""

CHECKPOINT_BYTES_PER_S = 200e6
"""Rate at which a checkpoint is written, an assumption: a network file system or a disk."""

CHECKPOINT_SPREAD = 4.0
"""A local SSD writes faster by that much, a busy file system slower."""

_TRUST = (Basis.MEASURED, Basis.EMULATED, Basis.SCALED, Basis.PREDICTED)


def weakest(bases: Iterable[Basis]) -> Basis:
    """The basis of a number made from several: the least trustworthy of them."""
    return max(bases, key=_TRUST.index)


def scale(time: Seconds, factor: float, spread: float = 1.0) -> Duration:
    """A time times a factor, itself known to within `spread` (80 %, as a ratio).

    Args:
        time: with its interval.
        factor: of at least 0.
        spread: 1 for an exact factor.
    """
    seconds = time.seconds * factor
    up, down = (_combined(end, time.seconds, spread) for end in (time.high, time.low))
    return Duration(seconds, seconds / down, seconds * up, time.basis)


def _combined(end: float, middle: float, spread: float) -> float:
    """How far an interval's end is from its middle, as a ratio, an independent one combined in."""
    if middle <= 0:
        return spread
    ratio = max(end / middle, middle / end) if end > 0 else math.inf
    if spread == 1:
        return ratio
    return math.exp(math.hypot(math.log(ratio), math.log(spread)))


def add(times: Iterable[Seconds]) -> Duration:
    """The sum of times whose errors go together: the ends add."""
    parts = list(times)
    return Duration(
        sum(t.seconds for t in parts),
        sum(t.low for t in parts),
        sum(t.high for t in parts),
        weakest(t.basis for t in parts),
    )


def paced_by(gpu: Seconds, loader: Seconds | None) -> Duration:
    """As long as the slower of GPU and loader takes, where they work side by side.

    Args:
        gpu: seconds it computes.
        loader: seconds the loader takes for the same; None: it keeps up.
    """
    if loader is None or loader.high <= gpu.low:
        return Duration(gpu.seconds, gpu.low, gpu.high, gpu.basis)
    return Duration(
        max(gpu.seconds, loader.seconds),
        max(gpu.low, loader.low),
        max(gpu.high, loader.high),
        loader.basis if loader.low >= gpu.high else weakest((gpu.basis, loader.basis)),
    )


@dataclass(frozen=True)
class LoaderPace:
    """How a data loader delivers, for one experiment (all of its GPUs).

    Worker processes start anew in every epoch and every validation, as PyTorch's `DataLoader` does
    unless `persistent_workers` is set: the GPU waits for the first batch. The first batches of all
    workers come together; from then on the rate decides, or the GPU.

    Attributes:
        patch: seconds for each patch.
        case: seconds for each whole case; None: not known.
        start: seconds without any batch at the start and the end of an epoch; None: not known.
        patches_at_once: patches that come with the first batch, one batch of each worker.
        cases_at_once: cases in them.
        beside_steps: whether it loads while the GPU computes; without workers it takes turns.
    """

    patch: Duration
    case: Duration | None = None
    start: Duration | None = None
    patches_at_once: int = 0
    cases_at_once: int = 0
    beside_steps: bool = True

    def patches(self, count: int) -> Duration:
        """Seconds for so many patches of one epoch, from the first batch on."""
        return scale(self.patch, max(count - self.patches_at_once, 0))

    def cases(self, count: int) -> Duration | None:
        """Seconds for so many whole cases, from the first one on; None: not known."""
        return None if self.case is None else scale(self.case, max(count - self.cases_at_once, 0))

    def beside(self, gpu: Duration, loading: Duration | None) -> Duration:
        """An epoch or a validation of so much computing and loading."""
        if loading is not None and not self.beside_steps:
            return add((gpu, loading))
        paced = paced_by(gpu, loading)
        return paced if self.start is None else add((self.start, paced))


def epoch_seconds(
    schedule: Schedule, step: StepTime, size: StepSize, pace: LoaderPace | None = None
) -> Duration:
    """The training steps of one epoch, and what the loader adds to them.

    An incomplete last batch of an epoch counts like a full one.

    Args:
        schedule: of the experiment.
        step: on the GPUs alone.
        size: of the step.
        pace: of the loader; None: it keeps up and starts at once.
    """
    gpu = scale(step, schedule.steps_per_epoch(size))
    if pace is None:
        return gpu
    return pace.beside(gpu, pace.patches(schedule.epoch.patches(size)))


def training_seconds(
    schedule: Schedule, step: StepTime, size: StepSize, pace: LoaderPace | None = None
) -> Duration:
    """All training steps of an experiment (arguments as for `epoch_seconds`)."""
    return scale(epoch_seconds(schedule, step, size, pace), schedule.epochs * schedule.folds)


def forward_seconds(step: StepTime, per_gpu: int, *, checkpointing: bool = False) -> Duration:
    """The forward pass of one patch, predicted from the training step of `per_gpu` patches."""
    share = FORWARD_SHARE_CHECKPOINTED if checkpointing else FORWARD_SHARE
    time = scale(step, share / per_gpu, FORWARD_SPREAD)
    return Duration(time.seconds, time.low, time.high, Basis.PREDICTED)


def validation_seconds(
    schedule: Schedule,
    forward: Duration,
    size: StepSize,
    patch: Patch,
    shape: Patch | None,
    pace: LoaderPace | None = None,
) -> Duration | None:
    """All validation of an experiment; None where there is none, or it cannot be known.

    Volumes are shared by the GPUs; a window costs as much, for its voxels, as a patch.

    Args:
        schedule: of the experiment.
        forward: the forward pass of one patch.
        size: of the training step.
        patch: voxels of a patch.
        shape: voxels of a volume where the validation does not say; None: not known.
        pace: of the loader, which loads whole volumes here; None: it keeps up.
    """
    parts: list[Duration] = []
    iterations = schedule.validation_iterations
    if iterations:
        passes = scale(forward, iterations * size.batch)
        patches = iterations * size.batch * size.gpus
        parts.append(passes if pace is None else paced_by(passes, scale(pace.patch, patches)))
    v = schedule.validation
    if v is not None:
        shape = v.shape or shape
        if v.seconds_per_volume is not None:
            s = v.seconds_per_volume
            volume = Duration(s, s, s, Basis.MEASURED)
        elif shape is None:
            return None
        else:
            roi = v.roi or patch
            cost = window_count(shape, roi, v.overlap) * v.passes
            volume = scale(forward, cost * math.prod(roi) / math.prod(patch))
        once = scale(volume, math.ceil(v.cases / size.gpus))
        if pace is not None:
            once = pace.beside(once, pace.cases(v.cases))
        parts.append(scale(once, schedule.validations))
    return add(parts) if parts else None


def checkpoint_seconds(schedule: Schedule, state_bytes: int) -> Duration | None:
    """Saving all checkpoints of `state_bytes` each; None where none are counted."""
    if not schedule.checkpoints:
        return None
    seconds = schedule.checkpoints * state_bytes / CHECKPOINT_BYTES_PER_S
    return scale(Duration(seconds, seconds, seconds, Basis.PREDICTED), 1.0, CHECKPOINT_SPREAD)
