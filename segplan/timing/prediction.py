"""The predicted time of a step on a card, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segplan.gpus.card import Card
from segplan.results import Basis, StepTime
from segplan.timing.correction import Correction
from segplan.timing.model import (
    Calibration,
    NotTimeable,
    Rates,
    Seconds,
    forward_seconds,
    rates_of,
    seconds,
)
from segplan.timing.work import WorkTable
from segplan.workload import Workload

EIGHTY = 1.2816
"""Standard deviations to each side that hold 80 % of a normal distribution."""

LARGE_CACHE = 60 * 2**20
"""Bytes of second-level cache from which on more stays in it than on the calibrated card."""


@dataclass(frozen=True)
class TimedCard:
    """A card whose operators were timed one by one.

    Attributes:
        card: which.
        correction: what they say of the model.
        here: whether it is a card of this machine.
    """

    card: Card
    correction: Correction
    here: bool


def predict_step(
    table: WorkTable,
    workload: Workload,
    card: Card,
    calibration: Calibration,
    timed: TimedCard | None = None,
) -> tuple[StepTime, Seconds]:
    """The time of a training step and its parts.

    Args:
        table: the work of one forward and backward pass and of the optimizer (or of all
            accumulated passes, if the tape holds them).
        workload: what is trained.
        card: where.
        calibration: of a real card.
        timed: a card whose timed operators correct the model; on another card than that one
            what is left over of them is carried over.

    Raises:
        NotTimeable: a figure of the card that the model needs is not known.
    """
    rates = rates_of(card, workload.precision)
    factors = None if timed is None else timed.correction.factors(table, workload.precision)
    parts = seconds(
        table,
        rates,
        calibration,
        channels_last=workload.memory_format == "channels_last_3d",
        factors=factors,
    )
    width = math.exp(EIGHTY * spread_of(card, workload, rates, calibration, parts, timed))
    scaled = timed is not None and timed.here and timed.card.slug != card.slug
    return (
        StepTime(
            seconds=parts.total,
            low=parts.total / width,
            high=parts.total * width,
            basis=Basis.SCALED if scaled else Basis.PREDICTED,
            host_bound=parts.host_bound,
        ),
        parts,
    )


def predict_forward(
    table: WorkTable,
    workload: Workload,
    card: Card,
    calibration: Calibration,
    timed: TimedCard | None = None,
) -> StepTime:
    """The time of the forward pass alone, as in validation (arguments as `predict_step`)."""
    step, parts = predict_step(table, workload, card, calibration, timed)
    share = forward_seconds(parts) / parts.total
    return StepTime(
        step.seconds * share, step.low * share, step.high * share, step.basis, step.host_bound
    )


def spread_of(
    card: Card,
    workload: Workload,
    rates: Rates,
    calibration: Calibration,
    parts: Seconds,
    timed: TimedCard | None = None,
) -> float:
    """Standard deviation of the logarithm of the prediction, from left-out residuals.

    Independent causes add in quadrature: the network, the card, and what the calibration does
    not know: cards without tensor cores under autocast, larger caches, another host's Python.
    """
    spread = calibration.spread
    network = spread["network"]
    if timed is not None:
        network = spread.get("network.timed", network)
    total = network**2
    if card.slug != (calibration.card if timed is None else timed.card.slug):
        seen = (
            rates.generation == "hopper"
            or not rates.tensor["half"]
            or f"generation.{rates.generation}" in calibration.factors
        )
        total += spread["card.other" if seen else "card.unseen"] ** 2
        if (card.l2_bytes or 0) > LARGE_CACHE:
            total += spread["cache"] ** 2
    known = timed is not None and timed.card.slug == card.slug
    if workload.amp and not rates.tensor["half"] and not known:
        total += spread["no_tensor_cores"] ** 2
    if parts.host_bound:
        total += spread["host"] ** 2
    return math.sqrt(total)


def warnings_of(
    card: Card, workload: Workload, rates: Rates, calibration: Calibration
) -> list[str]:
    """What makes a prediction for this card less sure than its neighbours', in sentences."""
    found = []
    if workload.amp and not rates.tensor["half"]:
        found.append(
            f"The {card.name} has no tensor cores for {workload.precision}: autocast saves "
            "memory there, not time."
        )
    if card.slug != calibration.card and (card.l2_bytes or 0) > LARGE_CACHE:
        found.append(
            f"The {card.name} has a cache of {(card.l2_bytes or 0) // 2**20} MiB: steps with small "
            "tensors may run faster than predicted."
        )
    return found


__all__ = [
    "NotTimeable", "TimedCard", "predict_forward", "predict_step", "spread_of", "warnings_of"
]  # fmt: skip
