"""One JSON document on a stream: `schema_version`, then the keys of the Python attributes.

The schemas are in `docs/schema/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

from segplan.results import SCHEMA_VERSION, Fit, MemoryEstimate, to_plain
from segplan.workload import Workload


def fit_document(fit: Fit) -> dict[str, Any]:
    """The document of one fit."""
    return {"schema_version": SCHEMA_VERSION, **to_plain(fit)}


def fits_document(fits: Sequence[Fit]) -> dict[str, Any]:
    """The document of several fits: `fits`, in the order asked for."""
    return {"schema_version": SCHEMA_VERSION, "fits": [to_plain(f) for f in fits]}


def estimate_document(
    estimate: MemoryEstimate, workload: Workload, card: str | None
) -> dict[str, Any]:
    """The document of one estimate: the workload, the card (or null) and the bytes."""
    about = {"workload": workload.to_dict(), "card": card}
    return {"schema_version": SCHEMA_VERSION, **about, **to_plain(estimate)}


def write(document: dict[str, Any], stream: IO[str]) -> None:
    """Write a document; ASCII only, so that any pipe takes it."""
    stream.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
