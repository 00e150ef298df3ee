"""Measurements as JSON: written canonically, read back with every value checked.

What is read may come from another machine: nothing in it is trusted, and nothing in it runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from segplan.errors import StoreError, WorkloadError
from segplan.results import Environment, Measurement, Outcome, to_plain
from segplan.workload import Workload

MEASUREMENT_VERSION = 1
"""Version of one measurement's JSON."""

MAX_TEXT = 4_000
"""Characters kept of any text; a message is one line, a name less."""

MAX_SAMPLES = 1_000_000
_MAX_INT = 2**63 - 1  # SQLite's largest
_MAX_REASONS = 100

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version's JSON to the next one's."""


def measurement_to_dict(measurement: Measurement) -> dict[str, Any]:
    """Plain values for JSON, with `schema_version`; the keys are the attributes' names."""
    return {"schema_version": MEASUREMENT_VERSION, **to_plain(measurement)}


def measurement_from_dict(values: Any) -> Measurement:
    """The measurement of `measurement_to_dict`, of this or an older version.

    A missing key takes the attribute's default, so that attributes may be added.

    Raises:
        StoreError: it is no measurement; the message says why in one sentence.
    """
    if not isinstance(values, Mapping):
        raise StoreError("it is no measurement (not a JSON object).")
    data = _upgraded(dict(values))
    known = {f.name for f in dataclasses.fields(Measurement)}
    _no_others(data, known, "a measurement")
    for name in ("workload", "outcome"):
        if name not in data:
            raise StoreError(f"it has no '{name}'.")
    try:
        workload = Workload.from_dict(_mapping("workload", data.pop("workload")))
        json.dumps(workload.to_dict(), allow_nan=False).encode("utf-8")
    except WorkloadError as error:
        raise StoreError(str(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError("its workload holds a value that is none.") from error
    environment = _environment(data.pop("environment", None))
    checked = {name: _CHECKS[name](name, value) for name, value in data.items()}
    return Measurement(workload=workload, environment=environment, **checked)


def storable(measurement: Measurement) -> Measurement:
    """The measurement as it can be kept: stamped with the time, its message of bounded length."""
    made_at, message = measurement.made_at, measurement.message
    if made_at is None:
        made_at = datetime.now(UTC).isoformat()
    if message is not None:
        message = message.encode("utf-8", "replace").decode("utf-8")[:MAX_TEXT]
    return dataclasses.replace(measurement, made_at=made_at, message=message)


def content_id(measurement: Measurement) -> str:
    """SHA-256 of the canonical JSON: the same measurement has the same id everywhere.

    What is not known (None) is left out, so that an attribute added later changes no id.
    """
    plain = _without_none(to_plain(measurement))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def seconds_since_epoch(made_at: str) -> float:
    """An ISO 8601 time as seconds since 1970; without a zone it is UTC.

    Raises:
        StoreError: the text is no time.
    """
    try:
        time = datetime.fromisoformat(made_at)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise StoreError("made_at must be a time in ISO 8601.") from error


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    version = data.pop("schema_version", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise StoreError("it has no schema_version.")
    if version > MEASUREMENT_VERSION:
        raise StoreError(f"a newer segplan wrote it (version {version}): update segplan.")
    while version < MEASUREMENT_VERSION:
        data = UPGRADES[version](data)
        version += 1
    return data


def _no_others(data: Mapping[str, Any], known: set[str], what: str) -> None:
    for key in data:
        if key not in known:
            raise StoreError(f"{what} has no '{str(key)[:40]}'.")


def _environment(value: Any) -> Environment:
    if value is None:
        return Environment()
    data = _mapping("environment", value)
    _no_others(data, {f.name for f in dataclasses.fields(Environment)}, "an environment")
    return Environment(**{name: _text(name, text) for name, text in data.items()})


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StoreError(f"{name} must be an object.")
    return value


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise StoreError(f"{name} must be text of at most {MAX_TEXT} characters.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StoreError(f"{name} holds characters that are none.") from error
    return value


def _whole(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INT:
        raise StoreError(f"{name} must be a whole number of at least 0.")
    return value


def _seconds(name: str, value: Any) -> float | None:
    return None if value is None else _number(name, value)


def _number(name: str, value: Any) -> float:
    whole_or_not = isinstance(value, (int, float)) and not isinstance(value, bool)
    # An int beyond any float would raise: compare before converting.
    if not whole_or_not or not 0 <= value <= 1e15 or not math.isfinite(value):
        raise StoreError(f"{name} must be seconds, at least 0.")
    return float(value)


def _samples(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > MAX_SAMPLES:
        raise StoreError(f"{name} must be a list of seconds.")
    return tuple(_number(name, sample) for sample in value)


def _outcome(name: str, value: Any) -> Outcome:
    try:
        return Outcome(value)
    except ValueError as error:
        raise StoreError(f"{name} must be one of {', '.join(Outcome)}.") from error


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise StoreError(f"{name} must be true or false.")
    return value


def _flag_or_none(name: str, value: Any) -> bool | None:
    return None if value is None else _flag(name, value)


def _joules(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return _number(name, value)
    except StoreError as error:
        raise StoreError(f"{name} must be joules, at least 0.") from error


def _texts(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_REASONS:
        raise StoreError(f"{name} must be a list of at most {_MAX_REASONS} texts.")
    texts = tuple(_text(name, text) for text in value)
    if None in texts:
        raise StoreError(f"{name} must hold texts only.")
    return tuple(text for text in texts if text is not None)


def _time(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is not None:
        seconds_since_epoch(text)
    return text


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "outcome": _outcome,
    "allocator_limit": _whole,
    "fresh": _flag,
    "step_seconds": _samples,
    "peak_allocated": _whole,
    "peak_reserved": _whole,
    "process_bytes": _whole,
    "allocator_retries": _whole,
    "message": _text,
    "wall_s": _seconds,
    "made_at": _time,
    "energy_j_per_step": _joules,
    "host_bound": _flag_or_none,
    "throttled": _texts,
}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
