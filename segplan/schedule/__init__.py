"""A dataset and epochs become iterations, hours and energy; pure arithmetic."""

from __future__ import annotations

from segplan.schedule.durations import (
    CHECKPOINT_BYTES_PER_S,
    FORWARD_SHARE,
    FORWARD_SPREAD,
    LoaderPace,
    Seconds,
    add,
    checkpoint_seconds,
    epoch_seconds,
    forward_seconds,
    paced_by,
    scale,
    training_seconds,
    validation_seconds,
)
from segplan.schedule.links import Link, data_parallel, link_of, ring_seconds
from segplan.schedule.needs import (
    IDLE_POWER_SHARE,
    LoaderNeed,
    bound_by,
    energy_kwh,
    loader_need,
)
from segplan.schedule.nouns import (
    CasesPerEpoch,
    DatasetFacts,
    FixedIterations,
    Schedule,
    StepSize,
    Validation,
)

__all__ = [
    "CHECKPOINT_BYTES_PER_S",
    "FORWARD_SHARE",
    "FORWARD_SPREAD",
    "IDLE_POWER_SHARE",
    "CasesPerEpoch",
    "DatasetFacts",
    "FixedIterations",
    "Link",
    "LoaderNeed",
    "LoaderPace",
    "Schedule",
    "Seconds",
    "StepSize",
    "Validation",
    "add",
    "bound_by",
    "checkpoint_seconds",
    "data_parallel",
    "energy_kwh",
    "epoch_seconds",
    "forward_seconds",
    "link_of",
    "loader_need",
    "paced_by",
    "ring_seconds",
    "scale",
    "training_seconds",
    "validation_seconds",
]
