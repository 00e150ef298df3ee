"""Saved reports, read so that nothing in them can harm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segplan.api.json_files import read_json
from segplan.api.report_nouns import MAX_PAIRS, CapacityReport
from segplan.errors import RequestError, SegplanError
from segplan.results import SCHEMA_VERSION, Duration, StepTime
from segplan.workload import Workload

MAX_REPORT_BYTES = 64 * 2**20
"""A larger file is no report: six workloads on a hundred cards take about 3 MiB."""

_WANTED = "--from takes what `segplan report --out FILE.json` wrote"


def read_report(path: str | Path) -> CapacityReport:
    """The report that `segplan report --out FILE.json` wrote.

    The file may come from anybody: every value is checked, and nothing in it runs.

    Raises:
        RequestError: there is no such file, or it holds no report; the message says why.
    """
    values = read_json(path, MAX_REPORT_BYTES, "report", _WANTED)
    return report_from_plain(values, str(path))


def report_from_plain(values: Any, where: str = "the document") -> CapacityReport:
    """The report of plain JSON values; `where` names it in messages (errors as `read_report`)."""
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(values, Mapping) or "workloads" not in values or "cards" not in values:
        raise RequestError(f"{where} is no report: {_WANTED}.")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RequestError(
            f"{where} has schema_version {version!r:.20}, and this segplan reads {SCHEMA_VERSION}: "
            "make the report anew."
        )
    try:
        report = TypeAdapter(CapacityReport).validate_python(values)
        _check(report)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])[:120]
        raise RequestError(f"{where} is no report: {place}: {problem['msg']}.") from error
    except (SegplanError, RecursionError, OverflowError) as error:
        raise RequestError(f"{where} is no report: {error}") from error
    return report


def _check(report: CapacityReport) -> None:
    """What types alone do not say.

    Raises:
        RequestError: a number is out of range, or the parts do not belong together.
    """
    _check_numbers(report, "report")
    slugs = [card.slug for card in report.cards]
    if not slugs or not report.workloads or len(set(slugs)) != len(slugs):
        raise RequestError("it needs cards, each once, and workloads.")
    if len(slugs) * len(report.workloads) > MAX_PAIRS:
        raise RequestError(f"it holds more than {MAX_PAIRS} pairs of workload and card.")
    for part in report.workloads:
        if [entry.card for entry in part.entries] != slugs:
            raise RequestError("a workload does not have one entry for each card.")
        for entry in part.entries:
            cells = entry.fit.cells
            if entry.plan.workload.patch not in [cell.patch for cell in cells]:
                raise RequestError("a frontier lacks the patch that was asked for.")
            recommended = entry.fit.recommended
            if recommended is not None and recommended >= len(cells):
                raise RequestError("a frontier recommends a cell it does not have.")


def _check_numbers(value: Any, name: str) -> None:
    """Every number of a dataclass is finite and at least 0; every time has its interval."""
    if isinstance(value, (StepTime, Duration)):
        if not 0 <= value.low <= value.seconds <= value.high:
            raise RequestError(f"{name}: seconds must lie between low and high.")
        if isinstance(value, StepTime) and value.low <= 0:
            raise RequestError(f"{name}: a step takes longer than 0 s.")
    if isinstance(value, (int, float)) and not (0 <= value <= 1e18 and math.isfinite(value)):
        raise RequestError(f"{name} must be a number from 0 to 1e18.")
    if isinstance(value, Workload):  # it checks itself, and its arguments may be anything
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            _check_numbers(getattr(value, part.name), part.name)
    elif isinstance(value, Mapping):
        for part in value.values():
            _check_numbers(part, name)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_numbers(part, name)
