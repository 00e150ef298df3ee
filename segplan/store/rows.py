"""A measurement as a row: its JSON, and the columns it is found by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
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


def bench_row_of(document: Mapping[str, Any]) -> list[Any]:
    """The values of `INSERT_BENCH`: the id is the SHA-256 of the canonical JSON.

    Raises:
        StoreError: it is no JSON object with `made_at` and `environment`.
    """
    try:
        payload = json.dumps(document, sort_keys=True, allow_nan=False)
        made_s = seconds_since_epoch(str(document["made_at"]))
        where = dict(document["environment"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"a baseline check cannot be stored: {error!r}.") from error
    card = [where.get(name) for name in ("card_name", "card_uuid", "driver", "torch")]
    if not all(value is None or isinstance(value, str) for value in card):
        raise StoreError("a baseline check cannot be stored: its environment is no text.")
    return [hashlib.sha256(payload.encode("utf-8")).hexdigest(), made_s, *card, payload]


def any_of(outcomes: Collection[Outcome]) -> tuple[str, list[Any]]:
    """A condition and its values."""
    return f"outcome IN ({', '.join('?' * len(outcomes))})", [o.value for o in outcomes]


def size_text(patch: Patch) -> str:
    """A patch as the column holds it."""
    return "x".join(map(str, patch))
