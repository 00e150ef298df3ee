"""Files from anywhere, opened so that none of them can hang or exhaust memory."""

from __future__ import annotations

import stat
from pathlib import Path

from segplan.errors import RequestError
from segplan.units import MIB


def read_regular(path: str | Path, most_bytes: int, *, too_large: str, hint: str = "") -> bytes:
    """What a regular file holds.

    Args:
        path: of the file.
        most_bytes: a larger file is not read; whole MiB.
        too_large: what is wrong with a larger one, like "that is no report".
        hint: which file is wanted, for the sentence about a pipe, a folder or no name.

    Raises:
        RequestError: it has no name, is no regular file, is too large, or cannot be read.
    """
    wanted = f": {hint}" if hint else ""
    if not str(path).strip():
        raise RequestError(f"the name of a file is empty{wanted}.")
    try:
        # Opening a pipe would wait for a writer for ever.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise RequestError(f"{path} is no regular file{wanted}.")
        with Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(raw) > most_bytes:
        raise RequestError(f"{path} is larger than {most_bytes // MIB} MiB: {too_large}.")
    return raw
