"""What an experiment asks of everything around the GPU: loader, power; and what it waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segplan.results import BoundBy, Duration, StepTime
from segplan.schedule.durations import Seconds
from segplan.schedule.nouns import FixedIterations, Schedule, StepSize
from segplan.units import Patch

IDLE_POWER_SHARE = 0.25
"""Share of the board's power limit drawn while the GPU waits for data, an assumption: clocks stay
up between two steps."""

VOXEL_BYTES = 4
"""nnU-Net keeps preprocessed images and labels as 4-byte arrays that it maps into memory."""


@dataclass(frozen=True)
class LoaderNeed:
    """What the data loader must deliver for the GPUs never to wait.

    Attributes:
        patches_per_s: over all GPUs.
        mb_per_s: 10^6 bytes read per second, nothing cached; None where it is not known.
    """

    patches_per_s: float
    mb_per_s: float | None


def loader_need(
    schedule: Schedule,
    step: Seconds,
    size: StepSize,
    *,
    bytes_per_case: int | None,
    patch: Patch,
    channels: int,
) -> LoaderNeed:
    """The rate at which the GPUs take patches.

    Where an epoch visits cases, a whole case is read for its `num_samples` patches. Where it is a
    number of iterations, preprocessed arrays are mapped into memory as nnU-Net does, and only the
    patch is read: its channels and the label, 4 bytes a voxel.

    Args:
        schedule: of the experiment.
        step: on the GPUs, a loader that keeps up.
        size: of the step.
        bytes_per_case: image and label on disk; None: not known.
        patch: voxels of a patch.
        channels: image channels.
    """
    patches = size.patches / step.seconds
    if isinstance(schedule.epoch, FixedIterations):
        per_patch: float | None = math.prod(patch) * (channels + 1) * VOXEL_BYTES
    else:
        per_patch = None if bytes_per_case is None else bytes_per_case / schedule.epoch.num_samples
    return LoaderNeed(patches, None if per_patch is None else patches * per_patch / 1e6)


def bound_by(step: StepTime, loader: Seconds | None) -> BoundBy:
    """What a step waits for: the slower of GPU and loader; the host where the GPU waits for it.

    Args:
        step: on the GPUs.
        loader: seconds the loader takes for its patches; None: it keeps up.
    """
    if loader is not None and loader.seconds > step.seconds:
        return BoundBy.LOADER
    return BoundBy.HOST if step.host_bound else BoundBy.GPU


def energy_kwh(power_w: float, busy: Duration, waiting_s: float, gpus: int) -> float:
    """Kilowatt hours of the cards alone, without the server and its cooling.

    Assumes that a card draws its board's power limit while it computes, which a real step stays
    somewhat below, and `IDLE_POWER_SHARE` of it while it waits.

    Args:
        power_w: the board's power limit.
        busy: seconds of computing.
        waiting_s: seconds of waiting for data.
        gpus: cards at work.
    """
    joules = power_w * gpus * (busy.seconds + IDLE_POWER_SHARE * waiting_s)
    return joules / 3.6e6
