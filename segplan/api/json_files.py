"""JSON files from anywhere, read so that none of them can harm."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from segplan.errors import RequestError
from segplan.units import MIB


def read_json(path: str | Path, most_bytes: int, what: str, hint: str) -> Any:
    """The value in a JSON file; numbers are finite.

    Args:
        path: of the file.
        most_bytes: a larger file is not read; whole MiB.
        what: a larger file is none, like "report".
        hint: which file is wanted, for the sentence about one that is no JSON.

    Raises:
        RequestError: it cannot be read, is too large, is nested too deep, or is no JSON.
    """
    try:
        # Opening a pipe would wait for a writer for ever.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise RequestError(f"{path} is no regular file: {hint}.")
        with Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(raw) > most_bytes:
        raise RequestError(f"{path} is larger than {most_bytes // MIB} MiB: that is no {what}.")
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no JSON: {hint}.") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
