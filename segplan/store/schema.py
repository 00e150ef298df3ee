"""The database's tables, version by version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from segplan.errors import StoreError


def _first(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
    connection.execute("INSERT INTO schema_version VALUES (0)")
    connection.execute(
        """
        CREATE TABLE measurements (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            made_s REAL NOT NULL,
            imported INTEGER NOT NULL,
            workload TEXT NOT NULL,
            model TEXT NOT NULL,
            patch TEXT NOT NULL,
            batch INTEGER NOT NULL,
            precision TEXT NOT NULL,
            outcome TEXT NOT NULL,
            allocator_limit INTEGER,
            fresh INTEGER NOT NULL,
            card_name TEXT,
            card_uuid TEXT,
            driver TEXT,
            cuda TEXT,
            cudnn TEXT,
            torch TEXT,
            monai TEXT,
            payload TEXT NOT NULL
        )
        """
    )
    connection.execute("CREATE INDEX by_workload ON measurements (workload)")
    connection.execute("CREATE INDEX by_time ON measurements (made_s)")


def _benches(connection: sqlite3.Connection) -> None:
    """Baseline checks: one row for each run of `segplan bench`."""
    connection.execute(
        """
        CREATE TABLE benches (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            made_s REAL NOT NULL,
            card_name TEXT,
            card_uuid TEXT,
            driver TEXT,
            torch TEXT,
            payload TEXT NOT NULL
        )
        """
    )


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [_first, _benches]
"""The n-th leads from version n to n + 1; only ever append."""


def version_of(connection: sqlite3.Connection) -> int:
    """The database's version; 0 for an empty one.

    Raises:
        StoreError: it belongs to another program, or a newer segplan has written it. The
            message is an ending: "... is no store of segplan".
    """
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return 0
    if not {"schema_version", "measurements"} <= names:
        raise StoreError("is a database of another program: name another file with --store.")
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    version = row[0] if row else None
    if not isinstance(version, int) or version < 1:
        raise StoreError("has no version: name another file with --store.")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"was written by a newer segplan (version {version}, this one knows "
            f"{len(MIGRATIONS)}): update segplan, or name another file with --store."
        )
    return version


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to the newest version, in one transaction (errors as `version_of`).

    The connection must be in autocommit mode (`isolation_level=None`).
    """
    if version_of(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated it meanwhile.
        for number in range(version_of(connection), len(MIGRATIONS)):
            MIGRATIONS[number](connection)
            connection.execute("UPDATE schema_version SET version = ?", (number + 1,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
