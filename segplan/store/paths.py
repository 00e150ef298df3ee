"""Where the store is, and what a failure to use it means."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from segplan.errors import StoreError

MEMORY = ":memory:"
VARIABLE = "SEGPLAN_STORE"

StorePath = str | os.PathLike[str] | None


def store_path(path: StorePath = None) -> str:
    """The store's file: as given, else $SEGPLAN_STORE, else in the user's data directory."""
    chosen = os.fspath(path) if path is not None else os.environ.get(VARIABLE, "").strip()
    if chosen == MEMORY:
        return MEMORY
    if chosen:
        return str(Path(chosen).expanduser().absolute())
    from platformdirs import user_data_dir

    return str(Path(user_data_dir("segplan", appauthor=False)) / "results.sqlite")


def explain(error: Exception, path: str) -> StoreError:
    """An error of SQLite or of the file system as one sentence that names the file and a way out.

    The file itself is never touched: what it holds may have taken days to measure.
    """
    if isinstance(error, StoreError):
        return error
    text = str(error).lower()
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None

    def means(number: int, *words: str) -> bool:
        return primary == number or (primary is None and any(word in text for word in words))

    store = f"the store {path}"
    if means(sqlite3.SQLITE_FULL, "disk is full", "no space left"):
        return StoreError(
            f"{store} cannot be written because its disk is full: free some space, or name a "
            "file on another disk with --store PATH."
        )
    if means(sqlite3.SQLITE_BUSY, "is locked") or primary == sqlite3.SQLITE_LOCKED:
        return StoreError(
            f"{store} is locked by another process: wait for it to end, or name another file "
            "with --store PATH."
        )
    if means(sqlite3.SQLITE_CORRUPT, "malformed") or means(sqlite3.SQLITE_NOTADB, "not a database"):
        return StoreError(
            f"{store} is damaged or no database; it was left as it is: name another file with "
            "--store PATH."
        )
    if means(sqlite3.SQLITE_READONLY, "readonly", "read-only"):
        return StoreError(
            f"{store} cannot be written: make the file and its directory writable, or name "
            "another file with --store PATH."
        )
    if means(sqlite3.SQLITE_CANTOPEN, "unable to open") or isinstance(error, OSError):
        why = getattr(error, "strerror", None)
        if why is None:
            there = os.path.isdir(path)
            why = "it is a directory" if there else "is its directory writable?"
        return StoreError(f"{store} cannot be opened ({why}): name another file with --store PATH.")
    return StoreError(f"{store} cannot be used ({error}): name another file with --store PATH.")
