"""Units: constants and parsing. Formatting for people lives in `report/`."""

from __future__ import annotations

import re

from segplan.errors import RequestError

KIB = 2**10
MIB = 2**20
GIB = 2**30

Patch = tuple[int, int, int]
"""Patch size in voxels, axis order (H, W, D) as in MONAI."""

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|K|M|G|KB|MB|GB)?\s*$", re.IGNORECASE)
_SCALE = {
    "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "k": KIB, "m": MIB, "g": GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
}  # fmt: skip


def parse_bytes(text: str, *, default_unit: str = "B") -> int:
    """Bytes from "512 MiB", "23000MiB", "24GB" or a bare number in `default_unit`.

    Raises:
        RequestError: the text is no size.
    """
    match = _SIZE.match(text)
    if not match:
        raise RequestError(f"'{text}' is no memory size: write it like 512MiB or 23GiB.")
    return int(float(match[1]) * _SCALE[(match[2] or default_unit).lower()])


def parse_patch(text: str) -> Patch:
    """(H, W, D) from "96" (a cube) or "128x128x64".

    Raises:
        RequestError: the text is no patch size.
    """
    parts = re.split(r"[x×,]", text.strip().lower())
    try:
        sizes = tuple(int(p) for p in parts)
    except ValueError:
        sizes = ()
    if len(sizes) == 1:
        sizes = sizes * 3
    if len(sizes) != 3 or min(sizes) <= 0:
        raise RequestError(
            f"'{text}' is no patch size: write it like 96 or 128x128x64 (H x W x D)."
        )
    return (sizes[0], sizes[1], sizes[2])
