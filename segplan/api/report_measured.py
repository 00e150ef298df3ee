"""What the store of measurements answers of a report's questions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from segplan.api.fitting import Question, cell_note
from segplan.api.predicting import Predictor
from segplan.errors import NetworkError, RequestError, SegplanError, StoreError, WorkerError
from segplan.gpus import Card, card_key
from segplan.probe.watch import step_time_of
from segplan.results import (
    Basis,
    Cell,
    LimitedBy,
    Measurement,
    MemoryEstimate,
    Outcome,
    StepTime,
)
from segplan.store import Store, store_path
from segplan.units import Patch
from segplan.workload import Workload

MAX_SENTENCE = 600
"""Characters of a baseline check's sentence."""

LIMIT_TOLERANCE = 0.01
"""A stored probe under a limit this close to a card's answers for the card.

Drivers take some MiB more or less from one machine to the next, and `fit` rounds free memory down
to 32 MiB; 1 % of 8 GiB is 80 MiB, well below the width of the predictions' intervals.
"""


class Measurements:
    """The store's answers to a report's questions; without a store, none.

    Attributes:
        path: the file, or None where there is none.
        used: ids of what entered the report.
        warnings: sentences a reader should know.
    """

    def __init__(self, store: str | None) -> None:
        self.path: str | None = None
        self.used: set[tuple[str | None, str]] = set()
        self.warnings: list[str] = []
        self._asked = store
        self._store: Store | None = None
        self._found: dict[tuple[str, Patch], list[Measurement]] = {}

    def __enter__(self) -> Measurements:
        where = store_path(self._asked)
        if where != ":memory:" and not Path(where).exists():
            if self._asked is not None:
                raise RequestError(
                    f"there is no store {where}: `segplan fit --gpu 0` makes one; leave --store "
                    "out to report predictions alone."
                )
            return self
        try:
            self._store = Store.open(self._asked)
            self.path = where
        except StoreError as error:
            self.warnings.append(f"Measurements were not read: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    def baselines(self, cards: Sequence[Card]) -> dict[str, str]:
        """By slug: what the newest baseline check of a card of that name said."""
        if self._store is None:
            return {}
        try:
            checks = self._store.benches()
        except StoreError as error:
            self.warnings.append(f"Baseline checks were not read: {error}")
            return {}
        found: dict[str, str] = {}
        for check in checks:
            name = _dug(check, "environment", "card_name")
            sentence = _dug(check, "verdict", "sentence")
            for card in cards:
                if name is not None and sentence is not None and card_key(name) in _keys(card):
                    found.setdefault(card.slug, sentence[:MAX_SENTENCE])
        return found

    def answer(
        self, cell: Cell, card: Card, budget: int, question: Question, predictor: Predictor
    ) -> Cell:
        """The cell as measured (on that card) or emulated (under its limit); else as it is.

        It needs the boundary: a batch that ran under the card's limit or less, and the next that
        did not under that limit or more (or the end of the search).
        """
        own = _keys(card)
        runs: dict[int, Measurement] = {}
        stops: dict[int, Measurement] = {}
        for m in self._of(question.workload, cell.patch):
            here = card_key(m.environment.card_name or "") in own
            limit = m.allocator_limit if m.allocator_limit is not None else budget if here else None
            batch = m.workload.batch
            if m.outcome is Outcome.KERNEL_LIMIT:
                stops.setdefault(batch, m)
            if limit is None:
                continue
            if m.outcome is Outcome.FITS and limit <= budget * (1 + LIMIT_TOLERANCE):
                if batch not in runs or here:
                    runs[batch] = m
            elif m.outcome is Outcome.OUT_OF_MEMORY and limit >= budget * (1 - LIMIT_TOLERANCE):
                stops.setdefault(batch, m)
        found = self._boundary(runs, stops, question.max_batch)
        if found is None:
            return cell
        batch, run, stop = found
        self.used |= {(m.made_at, m.workload.key()) for m in (run, stop) if m is not None}
        evidence = run if run is not None else stop
        assert evidence is not None
        here = card_key(evidence.environment.card_name or "") in own
        return self._measured(
            cell, batch, run, stop, Basis.MEASURED if here else Basis.EMULATED, budget, predictor
        )

    @staticmethod
    def _boundary(
        runs: Mapping[int, Measurement], stops: Mapping[int, Measurement], cap: int
    ) -> tuple[int, Measurement | None, Measurement | None] | None:
        for batch in sorted(runs, reverse=True):
            if batch + 1 in stops:
                return batch, runs[batch], stops[batch + 1]
            if batch >= cap:
                return batch, runs[batch], None
        return (0, None, stops[1]) if 1 in stops else None

    @staticmethod
    def _measured(
        cell: Cell,
        batch: int,
        run: Measurement | None,
        stop: Measurement | None,
        basis: Basis,
        budget: int,
        predictor: Predictor,
    ) -> Cell:
        predicted: MemoryEstimate | None = None
        with contextlib.suppress(NetworkError, WorkerError):
            predicted = predictor.estimate(cell.patch, max(batch, 1))
        memory = predicted
        if run is not None and predicted is not None and run.peak_allocated and run.peak_reserved:
            # Peaks as measured; the least memory was not bisected, but it ran within the budget.
            memory = dataclasses.replace(
                predicted,
                peak_allocated=run.peak_allocated,
                peak_reserved=run.peak_reserved,
                least_memory=min(predicted.least_memory, budget),
                least_memory_low=min(predicted.least_memory_low, budget),
                least_memory_high=min(predicted.least_memory_high, budget),
                basis=basis,
            )
        step: StepTime | None = cell.step if batch == cell.max_batch else None
        if run is not None and run.step_seconds and basis is Basis.MEASURED:
            step = step_time_of(run)
        elif batch and step is None and memory is not None:
            with contextlib.suppress(SegplanError):
                step = predictor.step_time(cell.patch, batch)
        limited_by = LimitedBy.CAP
        if stop is not None:
            kernel = stop.outcome is Outcome.KERNEL_LIMIT
            limited_by = LimitedBy.KERNEL if kernel else LimitedBy.MEMORY
        return Cell(
            patch=cell.patch,
            max_batch=batch,
            limited_by=limited_by,
            memory=memory,
            step=step,
            basis=basis,
            retries=run.allocator_retries if run is not None else None,
            note=None
            if memory is None or basis is Basis.MEASURED
            else cell_note(batch, (), memory, budget),
        )

    def _of(self, workload: Workload, patch: Patch) -> list[Measurement]:
        """What a fresh process measured of a workload at a patch, any batch, newest first."""
        if self._store is None:
            return []
        key = (workload.model, patch)
        if key not in self._found:
            try:
                self._found[key] = self._store.find(model=workload.model, patch=patch)
            except StoreError as error:
                self._found[key] = []
                self.warnings.append(f"Measurements were not read: {error}")
        same = workload.replace(patch=patch, batch=1)
        return [m for m in self._found[key] if m.fresh and m.workload.replace(batch=1) == same]


def _keys(card: Card) -> set[str]:
    return {card_key(name) for name in (card.slug, card.name, *card.aliases)}


def _dug(document: object, *keys: str) -> str | None:
    """The text at the end of these keys, if it is one."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) and document else None
