"""Measurements go to the store as they are made, and come back where everything is the same."""

from __future__ import annotations

from types import TracebackType

from segplan.errors import StoreError
from segplan.results import Environment, Measurement
from segplan.store import FallbackLog, Store
from segplan.workload import Workload


class Recorder:
    """Writes to the store, and beside it when the store cannot be written.

    Nothing measured is lost: a disk that is full or a store that is locked or corrupt costs
    the reuse of results, not the answer.

    Attributes:
        warnings: sentences a reader should know.
    """

    def __init__(self, path: str | None) -> None:
        self.warnings: list[str] = []
        self._path = path
        self._store: Store | None = None
        self._log: FallbackLog | None = None

    def __enter__(self) -> Recorder:
        try:
            self._store = Store.open(self._path)
        except StoreError as error:
            self._fall_back(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            self._store.close()

    def add(self, measurement: Measurement) -> None:
        """Write a measurement at once."""
        if self._store is not None:
            try:
                self._store.add(measurement)
                return
            except StoreError as error:
                self._fall_back(error)
        if self._log is not None:
            self._log.add(measurement)

    def reusable(
        self, workload: Workload, environment: Environment | None, limit: int | None
    ) -> Measurement | None:
        """The newest measurement of the very same, or None."""
        if self._store is None or environment is None:
            return None
        try:
            return self._store.reusable(workload, environment, limit)
        except StoreError as error:
            self._fall_back(error)
            return None

    def _fall_back(self, error: StoreError) -> None:
        if self._log is None:
            self._log = FallbackLog(self._path)
            self.warnings.append(
                f"{error} Measurements are kept in {self._log.path}: read them back with "
                f"`segplan results --import {self._log.path}`."
            )
