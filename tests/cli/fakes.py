"""Answers for the command line's tests: no torch, no prediction, just the nouns."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

from segplan.results import (
    Basis,
    Cell,
    Fit,
    LimitedBy,
    MemoryBreakdown,
    MemoryEstimate,
    StepTime,
)
from segplan.units import GIB, MIB, Patch
from segplan.workload import Workload


def estimate_of(gib: float) -> MemoryEstimate:
    """A round estimate: the least memory is `gib`."""
    least = int(gib * GIB)
    return MemoryEstimate(
        peak_allocated=least * 15 // 16,
        peak_reserved=least * 17 // 16,
        least_memory=least,
        least_memory_low=least * 31 // 32,
        least_memory_high=least * 33 // 32,
        context=720 * MIB,
        breakdown=MemoryBreakdown(256 * MIB, 256 * MIB, 512 * MIB, least - 1024 * MIB),
    )


def cell_of(patch: Patch, batch: int, gib: float, step_s: float | None = None) -> Cell:
    step = None if step_s is None else StepTime(step_s, step_s * 0.93, step_s * 1.08, Basis.SCALED)
    return Cell(patch, batch, LimitedBy.MEMORY, estimate_of(gib), step)


def fit_of(*cells: Cell, recommended: int | None = 0, **changes: Any) -> Fit:
    fit = Fit(
        workload=Workload(),
        card="rtx-3090",
        budget=int(22.25 * GIB),
        context=720 * MIB,
        reserve=512 * MIB,
        cells=cells,
        recommended=recommended,
        reason="96³ at batch 4: the largest patch that trains two patches or more."
        if recommended is not None
        else "Nothing fits: the smallest patch needs 33.4 GiB.",
    )
    return dataclasses.replace(fit, **changes)


USUAL = fit_of(
    cell_of((64, 64, 64), 17, 21.9, 0.61),
    cell_of((96, 96, 96), 4, 20.1, 0.412),
    cell_of((128, 128, 64), 3, 20.8, 0.434),
    cell_of((192, 192, 192), 0, 33.4),
    recommended=1,
)
"""A frontier with a cube, a slab, a step and a row where nothing fits."""


class FakeApi:
    """Stands in for `segplan.api.fitting` and `.estimating`; remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer: Fit = USUAL
        self.error: BaseException | None = None

    def install(self, monkeypatch: Any) -> None:
        fitting = types.ModuleType("segplan.api.fitting")
        estimating = types.ModuleType("segplan.api.estimating")
        vars(fitting).update(fit=self.fit, fit_many=self.fit_many)
        vars(estimating).update(estimate=self.estimate)
        monkeypatch.setitem(sys.modules, "segplan.api.fitting", fitting)
        monkeypatch.setitem(sys.modules, "segplan.api.estimating", estimating)

    def _called(self, name: str, workload: Workload, arguments: dict[str, Any]) -> None:
        self.calls.append({"name": name, "workload": workload, **arguments})
        if self.error is not None:
            raise self.error

    def fit(self, workload: Workload, **arguments: Any) -> Fit:
        self._called("fit", workload, arguments)
        arguments["progress"](1, 4, "64³: batch 16")
        return dataclasses.replace(self.answer, workload=workload)

    def fit_many(self, workload: Workload, **arguments: Any) -> tuple[Fit, ...]:
        self._called("fit_many", workload, arguments)
        return tuple(dataclasses.replace(self.answer, card=name) for name in arguments["gpus"])

    def estimate(self, workload: Workload, **arguments: Any) -> MemoryEstimate:
        self._called("estimate", workload, arguments)
        return estimate_of(10.5)
