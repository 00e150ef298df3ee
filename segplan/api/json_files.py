"""JSON files from anywhere, read so that none of them can harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from segplan.errors import RequestError
from segplan.files import read_regular


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
    raw = read_regular(path, most_bytes, too_large=f"that is no {what}", hint=hint)
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no JSON: {hint}.") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
