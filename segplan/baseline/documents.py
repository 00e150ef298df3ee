"""A baseline check as JSON values and back; what is read may come from another machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from segplan.baseline.results import Bench
from segplan.errors import StoreError
from segplan.results import to_plain
from segplan.store.serial import seconds_since_epoch

MAX_TEXT = 4_000
"""Characters of any text in a check."""

MAX_ITEMS = 1_000
"""Series, comparisons, samples or sentences in a check."""


def bench_to_dict(found: Bench) -> dict[str, Any]:
    """A check as JSON values; what is computed from the samples is written out."""
    plain: dict[str, Any] = to_plain(found)
    for values, series in zip(plain["series"], found.series, strict=True):
        values |= {"images_per_s": series.images_per_s, "rates": list(series.rates)}
    for values, comparison in zip(plain["comparisons"], found.comparisons, strict=True):
        values |= {"ratio": comparison.ratio, "slow": comparison.slow, "above": comparison.above}
    return plain


def bench_from_dict(values: Any) -> Bench:
    """The check of `bench_to_dict`; a missing key takes the attribute's default.

    Raises:
        StoreError: it is no check; the message says why in one sentence.
    """
    from pydantic import TypeAdapter, ValidationError

    if not all(_is_sound(value) for value in _leaves(values)):
        raise StoreError("it holds a value that no baseline check has.")
    try:
        found = TypeAdapter(Bench).validate_python(values)
    except (ValidationError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise StoreError("it is nested too deep.") from error
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        raise StoreError(
            f"it is no baseline check: {key + ': ' if key else ''}{message}."
        ) from error
    for made_at in (found.made_at, *(s.made_at for s in found.series if s.made_at is not None)):
        seconds_since_epoch(made_at)
    for series in found.series:
        if series.images < 1 or not series.seconds or min(series.seconds) <= 0:
            raise StoreError(f"it is no baseline check: {series.name} has no times.")
    if any(c.published <= 0 for c in found.comparisons):
        raise StoreError("it is no baseline check: a published figure is not above 0.")
    return found


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Every value in it; NaN where it is nested too deep or too long."""
    if depth > 6:
        yield math.nan
    elif isinstance(value, (dict, list)):
        if len(value) > MAX_ITEMS:
            yield math.nan
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _leaves(item, depth + 1)
    else:
        yield value


def _is_sound(value: Any) -> bool:
    """A finite number, nothing, or text that can be written again."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any(0xD800 <= ord(c) < 0xE000 for c in value)
    if isinstance(value, (int, float)):
        return -1e15 <= value <= 1e15  # also False for NaN
    return value is None
