"""A measurement as a row: its JSON, and the columns it is found by."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from segplan.errors import StoreError
from segplan.results import Measurement, Outcome
from segplan.store.serial import (
    content_id,
    measurement_from_dict,
    measurement_to_dict,
    seconds_since_epoch,
    storable,
)
from segplan.units import Patch

VERSIONS = ("driver", "cuda", "cudnn", "torch")
"""Columns that must be known and the same before a measurement is used again."""

COLUMNS = (
    "id", "made_s", "imported", "workload", "model", "patch", "batch", "precision", "outcome",
    "allocator_limit", "fresh", "card_name", "card_uuid", "driver", "cuda", "cudnn", "torch",
    "monai", "payload",
)  # fmt: skip
INSERT = (
    f"INSERT INTO measurements ({', '.join(COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT (id) DO NOTHING"
)

INSERT_BENCH = (
    "INSERT INTO benches (id, made_s, card_name, card_uuid, driver, torch, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)


def row_of(measurement: Measurement, imported: bool) -> list[Any]:
    """The values of `COLUMNS`.

    Raises:
        StoreError: the measurement holds a value that could not be read back.
    """
    kept = storable(measurement)
    workload, card = kept.workload, kept.environment
    try:
        payload = json.dumps(measurement_to_dict(kept), allow_nan=False)
        measurement_from_dict(json.loads(payload))
        return [
            content_id(kept), seconds_since_epoch(kept.made_at or ""), imported,
            workload.key(), workload.model, size_text(workload.patch), workload.batch,
            workload.precision, kept.outcome.value, kept.allocator_limit, kept.fresh,
            card.card_name, card.card_uuid, card.driver, card.cuda, card.cudnn, card.torch,
            card.monai, payload,
        ]  # fmt: skip
    except (StoreError, ValueError) as error:
        raise StoreError(f"a measurement cannot be stored: {error}") from error


def any_of(outcomes: Collection[Outcome]) -> tuple[str, list[Any]]:
    """A condition and its values."""
    return f"outcome IN ({', '.join('?' * len(outcomes))})", [o.value for o in outcomes]


def size_text(patch: Patch) -> str:
    """A patch as the column holds it."""
    return "x".join(map(str, patch))
