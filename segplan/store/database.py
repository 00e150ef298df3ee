"""Store: the SQLite file that keeps every measurement."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from segplan.errors import StoreError
from segplan.results import Environment, Measurement, Outcome
from segplan.store import files
from segplan.store.paths import MEMORY, StorePath, explain, store_path
from segplan.store.rows import (
    INSERT,
    INSERT_BENCH,
    VERSIONS,
    any_of,
    bench_row_of,
    row_of,
    size_text,
)
from segplan.store.schema import migrate
from segplan.store.serial import measurement_from_dict
from segplan.units import Patch
from segplan.workload import Workload

_T = TypeVar("_T")

BUSY_S = 5.0
"""Seconds to wait for another process that is writing."""

REUSABLE = (Outcome.FITS, Outcome.OUT_OF_MEMORY, Outcome.KERNEL_LIMIT)
"""Outcomes that say something of the workload; the others may be an accident."""


class Store:
    """Measurements in one SQLite file; made by `Store.open`, used as a context manager.

    A row is committed before `add` returns: a process killed at any moment loses only the
    measurement it was making. Every failure is a `StoreError` that names the file and a way out.

    Attributes:
        path: the file, or ":memory:".
        warnings: sentences on rows that could not be read.
    """

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._connection = connection

    @classmethod
    def open(cls, path: StorePath = None, *, busy_s: float = BUSY_S) -> Store:
        """Open the store, making or updating the file where needed.

        Args:
            path: the file; None: $SEGPLAN_STORE, else the user's data directory.
            busy_s: seconds to wait for another process that is writing.

        Raises:
            StoreError: it cannot be opened, is damaged, or a newer segplan has written it.
        """
        where = store_path(path)
        connection = None
        try:
            if where != MEMORY:
                Path(where).parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(where, timeout=busy_s, isolation_level=None)
            migrate(connection)
        except StoreError as error:
            _close(connection)
            raise StoreError(f"the store {where} {error}") from error
        except (sqlite3.Error, OSError) as error:
            _close(connection)
            raise explain(error, where) from error
        except BaseException:
            _close(connection)
            raise
        return cls(where, connection)

    def close(self) -> None:
        """Close the file."""
        _close(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        with self._explained():
            return int(self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def add(self, measurement: Measurement) -> int:
        """Write a measurement, durably; returns its number (the old one where it is known).

        One without `made_at` is stamped with the time it is written.

        Raises:
            StoreError: it was not written.
        """
        return self._insert(measurement, imported=False)[0]

    def find(
        self,
        *,
        workload: Workload | None = None,
        model: str | None = None,
        patch: Patch | None = None,
        card: str | None = None,
        card_uuid: str | None = None,
        outcome: Outcome | Collection[Outcome] | None = None,
        environment: Environment | None = None,
        limit: int | None = None,
    ) -> list[Measurement]:
        """Measurements that match all that is given, newest first.

        Args:
            workload: exactly this one, its batch included.
            model: the network's name.
            patch: voxels (H, W, D).
            card: part of the card's name (any case), or its UUID; hyphens stand for blanks.
            card_uuid: exactly this card.
            outcome: one, or any of several.
            environment: driver, CUDA, cuDNN and torch are these, where it knows them.
            limit: no more than this.

        Raises:
            StoreError: the store cannot be read.
        """
        where: list[tuple[str, list[Any]]] = []
        if workload is not None:
            where.append(("workload = ?", [workload.key()]))
        if model is not None:
            where.append(("model = ?", [model if ":" in model else model.strip().lower()]))
        if patch is not None:
            where.append(("patch = ?", [size_text(patch)]))
        if card is not None:
            named = "instr(replace(lower(card_name), ' ', '-'), ?) > 0"
            text = card.strip()
            where.append((f"({named} OR card_uuid = ?)", [text.lower().replace(" ", "-"), text]))
        if card_uuid is not None:
            where.append(("card_uuid = ?", [card_uuid]))
        if outcome is not None:
            where.append(any_of([outcome] if isinstance(outcome, Outcome) else outcome))
        for name in VERSIONS if environment is not None else ():
            if (value := getattr(environment, name)) is not None:
                where.append((f"{name} = ?", [value]))
        return list(self._select(where, limit))

    def reusable(
        self,
        workload: Workload,
        environment: Environment,
        allocator_limit: int | None,
        *,
        fresh: bool = True,
    ) -> Measurement | None:
        """The newest measurement of the very same, or None.

        The same are: the workload with its batch; the allocator limit; driver, CUDA, cuDNN,
        torch and MONAI; and the card, by its UUID. One that was imported also counts for
        another card of the same name, as the limit stands for its memory (so not without a
        limit). What is not known (None) is never the same; only MONAI may be unknown on both
        sides. A probe that timed out, crashed, spilled or failed is never reused.

        Args:
            workload: what would run.
            environment: where it would run.
            allocator_limit: bytes, or None.
            fresh: only one from a fresh process; else from any, a fresh one included.

        Raises:
            StoreError: the store cannot be read.
        """
        if any(getattr(environment, name) is None for name in VERSIONS):
            return None
        where: list[tuple[str, list[Any]]] = [
            ("workload = ?", [workload.key()]),
            ("allocator_limit IS ?", [allocator_limit]),
            ("monai IS ?", [environment.monai]),
            *((f"{name} = ?", [getattr(environment, name)]) for name in VERSIONS),
            (
                "(card_uuid = ? OR imported AND allocator_limit IS NOT NULL AND card_name = ?)",
                [environment.card_uuid, environment.card_name],
            ),
            any_of(REUSABLE),
        ]
        if fresh:
            where.append(("fresh", []))
        return next(self._select(where, None), None)

    def add_bench(
        self, document: Mapping[str, Any], *, replaces: Mapping[str, Any] | None = None
    ) -> int:
        """Write a baseline check, durably; returns its number (the old one where it is known).

        Args:
            document: JSON values, with `made_at` (ISO 8601) and `environment`.
            replaces: a check, as it was written, whose place this one takes (the same with fewer
                series); None: of none.

        Raises:
            StoreError: it was not written, and what it replaces is still there.
        """
        return self._insert_bench(document, replaces)[0]

    def benches(self, card_uuid: str | None = None) -> list[dict[str, Any]]:
        """Baseline checks as they were written, newest first.

        Args:
            card_uuid: exactly this card's; None: all.

        Raises:
            StoreError: the store cannot be read.
        """
        sql = "SELECT payload FROM benches WHERE ?1 IS NULL OR card_uuid = ?1"
        with self._explained():
            rows = self._connection.execute(f"{sql} ORDER BY made_s DESC, number DESC", [card_uuid])
            return [json.loads(payload) for (payload,) in rows]

    def export(
        self,
        path: str | os.PathLike[str],
        format: files.Format | None = None,
        measurements: Collection[Measurement] | None = None,
        benches: Collection[Mapping[str, Any]] | None = None,
    ) -> int:
        """Write measurements and baseline checks to a JSON file, or measurements to a CSV file.

        Returns how many measurements.

        Args:
            path: the file; it is replaced only when the new one is complete.
            format: "json" or "csv"; None: by the file's ending.
            measurements: these; None: all there are, newest first.
            benches: these checks, as `benches` gives them; None: all there are, newest first.

        Raises:
            RequestError: the ending is neither .json nor .csv.
            StoreError: the store cannot be read, or the file not written.
        """
        if self.path != MEMORY and Path(path).absolute() == Path(self.path):
            raise StoreError(f"{path} is the store itself: export to another file.")
        chosen = self.find() if measurements is None else measurements
        files.write(chosen, self.benches() if benches is None else benches, path, format)
        return len(chosen)

    def import_file(
        self,
        path: str | os.PathLike[str],
        check_bench: Callable[[Any], object] = lambda _: None,
    ) -> files.ImportReport:
        """Add what an exported JSON file or a fallback log holds.

        What is known already is not added again; a row that is no measurement is skipped and
        named, and costs none of the others.

        Args:
            path: the file.
            check_bench: raises a `StoreError` for a value that is no baseline check (what one
                holds is none of the store's business).

        Raises:
            RequestError: there is no such file, or it is larger than can be.
            StoreError: the file cannot be read or holds no measurements, or the store cannot
                be written (then nothing is added).
        """
        contents = files.read(path)
        skipped: list[files.SkippedRow] = []

        def sound(rows: Collection[files.Row], check: Callable[[Any], _T]) -> Iterator[_T]:
            for where, value in rows:
                try:
                    if isinstance(value, StoreError):
                        raise value
                    found = check(value)
                except StoreError as error:
                    skipped.append(files.SkippedRow(where, str(error)))
                else:
                    yield found

        def measurement(value: Any) -> Measurement:
            found = measurement_from_dict(value)
            if found.made_at is None:
                raise StoreError("it has no 'made_at'.")
            return found

        def bench(value: Any) -> Mapping[str, Any]:
            bench_row_of(value)
            check_bench(value)
            return value  # type: ignore[no-any-return]

        with self._explained(), self._transaction():
            measured = [
                self._insert(m, imported=True)[1] for m in sound(contents.measurements, measurement)
            ]
            checks = [self._insert_bench(value)[1] for value in sound(contents.benches, bench)]
        return files.ImportReport(
            os.fspath(path),
            sum(measured),
            len(measured) - sum(measured),
            tuple(skipped),
            sum(checks),
            len(checks) - sum(checks),
        )

    def _insert_bench(
        self, document: Mapping[str, Any], replaces: Mapping[str, Any] | None = None
    ) -> tuple[int, bool]:
        """(number, whether it is new)."""
        values = bench_row_of(document)
        old = None if replaces is None else bench_row_of(replaces)[0]
        with self._explained(), self._transaction():
            new = self._connection.execute(INSERT_BENCH, values).rowcount > 0
            if old is not None and old != values[0]:
                self._connection.execute("DELETE FROM benches WHERE id = ?", [old])
            found = self._connection.execute("SELECT number FROM benches WHERE id = ?", values[:1])
            return int(found.fetchone()[0]), new

    def _insert(self, measurement: Measurement, *, imported: bool) -> tuple[int, bool]:
        """(number, whether it is new)."""
        values = row_of(measurement, imported)
        with self._explained():
            cursor = self._connection.execute(INSERT, values)
            if cursor.rowcount and cursor.lastrowid is not None:
                return cursor.lastrowid, True
            found = self._connection.execute(
                "SELECT number FROM measurements WHERE id = ?", values[:1]
            )
            return int(found.fetchone()[0]), False

    def _select(
        self, where: list[tuple[str, list[Any]]], limit: int | None
    ) -> Iterator[Measurement]:
        condition = " AND ".join(clause for clause, _ in where) or "1"
        sql = (
            f"SELECT number, payload FROM measurements WHERE {condition} "
            "ORDER BY made_s DESC, number DESC LIMIT ?"
        )
        values = [value for _, some in where for value in some]
        with self._explained():
            rows = self._connection.execute(sql, [*values, -1 if limit is None else limit])
            for number, payload in rows.fetchall():
                try:
                    yield measurement_from_dict(json.loads(payload))
                except (StoreError, ValueError, TypeError, RecursionError) as error:
                    self.warnings.append(f"row {number} of {self.path} cannot be read: {error}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing; within another one, a part of that."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise explain(error, self.path) from error


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
