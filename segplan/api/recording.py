"""Measurements go to the store as they are made, and come back where everything is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from importlib import metadata
from types import TracebackType

from segplan.errors import StoreError
from segplan.gpus import LocalCard
from segplan.results import Environment, Measurement
from segplan.store import FallbackLog, Store
from segplan.workload import Workload


class Recorder:
    """Writes to the store, and beside it when the store cannot be written.

    Nothing measured is lost: a disk that is full or a store that is locked or corrupt costs
    the reuse of results, not the answer.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._store: Store | None = None
        self._log: FallbackLog | None = None
        self._errors: list[str] = []

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

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences a reader should know: what could not be read or written, and what to do."""
        told = [_sentence(error) for error in self._errors]
        if self._log is not None and told:
            told[0] += (
                f" Measurements are kept in {self._log.path}: read them back with "
                f"`segplan results --import {self._log.path}`."
            )
        return (*told, *(self._store.warnings if self._store is not None else ()))

    def add(self, measurement: Measurement) -> None:
        """Write a measurement at once."""
        if self._store is not None:
            try:
                self._store.add(measurement)
                return
            except StoreError as error:
                self._fall_back(error)
        if self._log is not None:
            try:
                self._log.add(measurement)
            except StoreError as error:
                self._errors.append(str(error))
                self._log = None

    def reusable(
        self, workload: Workload, environment: Environment, limit: int
    ) -> Measurement | None:
        """The newest answer of a fresh process to the very same question, or None."""
        if self._store is None:
            return None
        try:
            return self._store.reusable(workload, environment, limit)
        except StoreError as error:
            self._fall_back(error)
            return None

    def _fall_back(self, error: StoreError) -> None:
        """Leave the store alone from now on (each try may wait for a lock) and use a file."""
        self._errors.append(str(error))
        if self._store is not None:
            self._store.close()
            self._store = None
        try:
            self._log = FallbackLog(self._path)
        except StoreError as nowhere:
            self._errors.append(str(nowhere))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class EnvironmentAhead:
    """The environment that probes of a card will report, known before the first has run.

    The card and its driver are NVML's; the versions are torch's own, which this process imports
    aside, while its children do the same (that creates no CUDA context). The first probe's
    report replaces it.
    """

    def __init__(self, local: LocalCard) -> None:
        self._known = Environment(card_name=local.name, card_uuid=local.uuid, driver=local.driver)
        self._versions: dict[str, str | None] | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._ask)
        self._thread.start()

    def get(self) -> Environment:
        """The environment, as far as it is known."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.learn(dataclasses.replace(self._known, **(self._versions or {})))
        return self._known

    def learn(self, reported: Environment) -> None:
        """What a probe reported."""
        self._known = reported

    def _ask(self) -> None:
        with contextlib.suppress(Exception):  # the children will say what is wrong with torch
            self._versions = software()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def software() -> dict[str, str | None]:
    """Versions of what decides about memory, as a probe would report them."""
    import torch

    from segplan.probe.device import cudnn_text

    return {
        "monai": _version("monai"),  # importing it takes seconds
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": cudnn_text(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }
