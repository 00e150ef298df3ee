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

from segplan.results import Basis, Duration, StepTime
from segplan.schedule.nouns import Schedule, StepSize
from segplan.schedule.windows import windows_per_volume
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


def paced_by(step: StepTime, loader: Seconds | None) -> StepTime:
    """A step that lasts as long as the slower of GPU and loader.

    Args:
        step: on the GPU.
        loader: seconds the loader takes for the patches of a step; None: it keeps up.
    """
    if loader is None or loader.high <= step.low:
        return step
    return StepTime(
        max(step.seconds, loader.seconds),
        max(step.low, loader.low),
        max(step.high, loader.high),
        loader.basis if loader.low >= step.high else weakest((step.basis, loader.basis)),
        step.host_bound,
    )


def training_seconds(schedule: Schedule, step: StepTime, size: StepSize) -> Duration:
    """All training steps of an experiment.

    An incomplete last batch of an epoch counts like a full one.
    """
    return scale(step, schedule.steps(size))


def forward_seconds(step: StepTime, per_gpu: int, *, checkpointing: bool = False) -> Duration:
    """The forward pass of one patch, predicted from the training step of `per_gpu` patches."""
    share = FORWARD_SHARE_CHECKPOINTED if checkpointing else FORWARD_SHARE
    time = scale(step, share / per_gpu, FORWARD_SPREAD)
    return Duration(time.seconds, time.low, time.high, Basis.PREDICTED)


def validation_seconds(
    schedule: Schedule, forward: Duration, size: StepSize, patch: Patch, shape: Patch | None
) -> Duration | None:
    """All validation of an experiment; None where there is none, or it cannot be known.

    Volumes are shared by the GPUs; a window costs as much, for its voxels, as a patch.

    Args:
        schedule: of the experiment.
        forward: the forward pass of one patch.
        size: of the training step.
        patch: voxels of a patch.
        shape: voxels of a volume where the validation does not say; None: not known.
    """
    parts: list[Duration] = []
    if schedule.validation_iterations:
        parts.append(scale(forward, schedule.validation_iterations * size.batch))
    v = schedule.validation
    if v is not None:
        rounds = schedule.validations * math.ceil(v.cases / size.gpus)
        shape = v.shape or shape
        if v.seconds_per_volume is not None:
            s = v.seconds_per_volume * rounds
            parts.append(Duration(s, s, s, Basis.MEASURED))
        elif shape is None:
            return None
        else:
            roi = v.roi or patch
            cost = windows_per_volume(shape, roi, v.overlap) * v.passes
            voxels = math.prod(roi) / math.prod(patch)
            parts.append(scale(forward, rounds * cost * voxels))
    return add(parts) if parts else None


def checkpoint_seconds(schedule: Schedule, state_bytes: int) -> Duration | None:
    """Saving all checkpoints of `state_bytes` each; None where none are counted."""
    if not schedule.checkpoints:
        return None
    seconds = schedule.checkpoints * state_bytes / CHECKPOINT_BYTES_PER_S
    return scale(Duration(seconds, seconds, seconds, Basis.PREDICTED), 1.0, CHECKPOINT_SPREAD)
