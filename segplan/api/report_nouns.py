"""The nouns of a capacity report: what each card does for each workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from segplan.gpus import Card
from segplan.results import Cell, Fit, MemoryEstimate, Plan
from segplan.units import Patch
from segplan.workload import Workload

MAX_PAIRS = 2_000
"""Workloads times cards of one report; a page with more serves nobody."""


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
