"""What the voxels of labels hold, read in pieces: memory never grows with the file."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from segplan.dataset.headers import Header, HeaderFault
from segplan.dataset.nouns import ProblemKind

MAX_LABEL_BYTES = 4 * 2**30
"""A larger label (2,000 x 2,000 x 1,000 of one byte) is not read: it would take minutes."""

MAX_VALUES = 1000
"""A label with more different values is an image."""

_PIECE = 4 * 2**20
_SMALL = 2**16


@dataclass(frozen=True)
class LabelVoxels:
    """Voxels of each value of one label, scaling applied."""

    values: dict[int, int]


def read_label(header: Header) -> LabelVoxels:
    """Count the voxels of each value.

    Raises:
        HeaderFault: the file ends early, is broken, too large, or holds no label's values.
    """
    wanted = header.voxels * header.dtype.itemsize
    if wanted > MAX_LABEL_BYTES:
        raise HeaderFault(ProblemKind.LABEL_VALUES, f"Its {wanted:,} bytes are too many to read.")
    stored: Counter[float] = Counter()
    try:
        with _open(header.data_path) as file:
            _skip(file, header.data_offset)
            while wanted:
                piece = _exactly(file, min(_PIECE, wanted))
                _count(np.frombuffer(piece, header.dtype), stored)
                wanted -= len(piece)
                if len(stored) > MAX_VALUES:
                    raise HeaderFault(
                        ProblemKind.LABEL_VALUES,
                        f"It holds more than {MAX_VALUES:,} different values: it is no label.",
                    )
    except EOFError as error:
        raise HeaderFault(ProblemKind.TRUNCATED, "Its voxels end too early.") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise HeaderFault(ProblemKind.TRUNCATED, "Its compressed voxels are broken.") from error
    except OSError as error:
        raise HeaderFault(
            ProblemKind.UNREADABLE, f"It cannot be read: {error.strerror or error}."
        ) from error
    return LabelVoxels(_scaled(stored, header))


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """So many of the items, evenly spread over their order."""
    if count >= len(items):
        return list(items)
    return [items[(2 * n + 1) * len(items) // (2 * count)] for n in range(count)]


def _open(path: Path) -> IO[bytes]:
    opener: Callable[..., Any] = gzip.open if path.name.lower().endswith(".gz") else open
    file: IO[bytes] = opener(path, "rb")
    return file


def _skip(file: IO[bytes], count: int) -> None:
    while count:
        count -= len(_exactly(file, min(_PIECE, count)))


def _exactly(file: IO[bytes], count: int) -> bytes:
    pieces = []
    while count:
        piece = file.read(count)
        if not piece:
            raise EOFError
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _count(voxels: np.ndarray[Any, Any], into: Counter[float]) -> None:
    """Add a piece's values; counting beats sorting where they are small whole numbers."""
    if voxels.dtype.kind in "iu" and voxels.size:
        low, high = int(voxels.min()), int(voxels.max())
        if high - low < _SMALL:
            counts = np.bincount((voxels.astype(np.int64) - low).ravel())
            for place in np.flatnonzero(counts):
                into[low + int(place)] += int(counts[place])
            return
    values, counts = np.unique(voxels, return_counts=True)
    for value, number in zip(values[: MAX_VALUES + 1].tolist(), counts.tolist(), strict=False):
        into[value] += number


def _scaled(stored: Counter[float], header: Header) -> dict[int, int]:
    values: Counter[int] = Counter()
    for value, number in stored.items():
        real = value * header.slope + header.inter
        if not np.isfinite(real) or abs(real - round(real)) > 1e-3:
            raise HeaderFault(
                ProblemKind.LABEL_VALUES, f"It holds {real:g}, which is no class's number."
            )
        values[round(real)] += number
    return dict(sorted(values.items()))
