"""Traces of earlier runs, kept in the user's cache folder: tracing is most of a prediction's time.

A trace depends on the workload and on the code that makes it: the versions of torch and MONAI
and the text of segplan's own rooms are part of its name, so that nothing stale is ever found.
Networks of one's own are not kept, since their code is not known. `SEGPLAN_CACHE` names another
folder, or is "off".
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from segplan.trace.tape import Trace, trace_from_json
from segplan.workload import Workload

VARIABLE = "SEGPLAN_CACHE"
MOST_FILES = 400
"""Traces that are kept, 50 to 200 KiB each; the oldest go first."""

_ROOMS = ("trace", "step", "networks")


def cache_folder() -> Path | None:
    """Where traces are kept, or None for nowhere."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("segplan", appauthor=False)) / "traces"


def load(workload: Workload) -> dict[str, Any] | None:
    """The kept trace of a resolved workload (`trace_to_json`'s values), or None.

    A file that cannot be read counts as none.
    """
    path = _path(workload)
    if path is None:
        return None
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            found = json.load(file)
    except (OSError, EOFError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def load_trace(workload: Workload) -> Trace | None:
    """`load`, as a trace; None as well where the values make no sense."""
    kept = load(workload)
    if kept is None:
        return None
    try:
        return trace_from_json(kept)
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def keep(workload: Workload, trace: dict[str, Any]) -> None:
    """Keep a trace; a full or forbidden disk is no reason to fail."""
    path = _path(workload)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as raw, gzip.open(raw, "wt", 4, encoding="ascii") as file:
                json.dump(trace, file)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _make_room(path.parent)


def _make_room(folder: Path) -> None:
    kept = sorted(folder.glob("*.json.gz"), key=lambda p: p.stat().st_mtime)
    for path in kept[:-MOST_FILES]:
        path.unlink(missing_ok=True)


def _path(workload: Workload) -> Path | None:
    folder = cache_folder()
    if folder is None or ":" in workload.model:
        return None
    name = hashlib.sha256(f"{_code()} {workload.key()}".encode()).hexdigest()
    return folder / f"{name}.json.gz"


@lru_cache(maxsize=1)
def _code() -> str:
    """What makes a trace: versions, and the text of the rooms that take part."""
    digest = hashlib.sha256()
    for package in ("torch", "monai"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{package} {metadata.version(package)}".encode())
    root = Path(__file__).parents[1]
    for room in _ROOMS:
        for path in sorted((root / room).glob("*.*")):
            if path.suffix in (".py", ".json"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
