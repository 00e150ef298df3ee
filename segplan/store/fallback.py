"""FallbackLog: where what was measured goes when the store cannot be written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segplan.errors import StoreError
from segplan.results import Measurement
from segplan.store.files import BENCH_KEY, LOG_KEY
from segplan.store.paths import MEMORY, StorePath, store_path
from segplan.store.serial import measurement_to_dict, storable

LOG_VERSION = 1


class FallbackLog:
    """Measurements and baseline checks as JSON lines, in a file beside the store.

    `segplan results --import` reads the file back. Made when the store has just failed, it writes
    a first line at once, so that `path` names a file that can be written; where that fails, at
    once or later, the temp directory takes over and `path` changes.

    Args:
        store: the store's path as given to `Store.open`.

    Attributes:
        path: the file.

    Raises:
        StoreError: no place can be written at all.
    """

    def __init__(self, store: StorePath = None) -> None:
        where = store_path(store)
        self._beside = None if where == MEMORY else Path(f"{where}.unsaved.jsonl")
        self.path = self._begin()

    def add(self, measurement: Measurement) -> None:
        """Append a measurement, durably.

        Raises:
            StoreError: it could be written nowhere.
        """
        self._add(json.dumps(measurement_to_dict(storable(measurement)), allow_nan=False))

    def add_bench(self, document: Mapping[str, Any]) -> None:
        """Append a baseline check; of one that grows, reading takes the last line.

        Raises:
            StoreError: it could be written nowhere.
        """
        self._add(json.dumps({BENCH_KEY: document}, allow_nan=False))

    def _add(self, line: str) -> None:
        try:
            _append(self.path, line)
        except OSError:
            self._beside = None
            self.path = self._begin()
            try:
                _append(self.path, line)
            except OSError as error:
                raise _nowhere(error) from error

    def _begin(self) -> Path:
        first = json.dumps({LOG_KEY: LOG_VERSION})
        if self._beside is not None:
            try:
                self._beside.parent.mkdir(parents=True, exist_ok=True)
                _append(self._beside, first)
                return self._beside
            except OSError:
                self._beside = None
        try:
            # A name nobody can have prepared: the temp directory is everybody's.
            handle, name = tempfile.mkstemp(prefix="segplan-unsaved-", suffix=".jsonl")
            os.close(handle)
            _append(Path(name), first)
        except OSError as error:
            raise _nowhere(error) from error
        return Path(name)


def _append(path: Path, line: str) -> None:
    """Add one line with a single write, so that two processes cannot mix theirs."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, 0o644)
    try:
        data = (line + "\n").encode("utf-8") if line else b""
        size = os.fstat(handle).st_size
        if size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":  # a process died while writing
                data = b"\n" + data
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _nowhere(error: OSError) -> StoreError:
    return StoreError(
        f"measurements can be written neither to the store nor beside it nor to the temp "
        f"directory ({error.strerror or error}): free some space, or name a file with --store PATH."
    )
