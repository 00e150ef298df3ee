"""Operators timed one by one on a card: which, how long each takes, and the files they are kept in.

A file holds what each operator was (name, shapes, layouts, arguments) beside its seconds, so
that it stays of use when the rules that say what an operator has to do change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from segplan.timing.work import work_of
from segplan.trace.tape import Op, Trace, trace_from_json, trace_to_json

SCHEMA_VERSION = 1

PRECISIONS = ("fp16", "bf16", "tf32", "fp32")
"""Arithmetic of an operator: "tf32" and "fp32" are float32 tensors with TF32 on and off."""

MOST_OPERATORS = 20_000
MOST_TENSORS = 100_000
MOST_AXES = 8
LARGEST = 2**40
"""Elements of a tensor beyond which no operator goes."""
LARGEST_NUMBER = 2**63
"""Among arguments: "to the end" is 2⁶³ - 1 in a slice."""

LONGEST_S = 3600.0


@dataclass(frozen=True)
class Operator:
    """One operator to time.

    Attributes:
        op: its name, tensors and arguments, as a tape has them; `step`, `at` and `end` are 0.
        precision: one of `PRECISIONS`.
    """

    op: Op
    precision: str


@dataclass(frozen=True)
class OperatorTime:
    """How long an operator takes on a card.

    Attributes:
        operator: which.
        seconds: samples, each the mean of a few calls one after the other.
    """

    operator: Operator
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Largest less smallest sample, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True)
class OperatorTimes:
    """A card's operators, timed.

    Attributes:
        card: slug.
        card_name: as the driver names it.
        card_uuid: of the one card, or None.
        memory_bandwidth: bytes per second by the catalogue or the driver; None unknown.
        times: one for each operator that was timed.
        wanted: operators on the list; the rest did not fit the memory or the time.
        software: versions (torch, cuda, cudnn, driver), as far as they are known.
        throttled: why the card's clocks were held back meanwhile; None where not told.
        made_at: UTC time, ISO 8601.
    """

    card: str
    card_name: str
    card_uuid: str | None
    times: tuple[OperatorTime, ...]
    wanted: int
    software: Mapping[str, str | None]
    throttled: tuple[str, ...] | None
    made_at: str


def operators_request(operators: Iterable[Operator]) -> dict[str, Any]:
    """Operators as `segplan.baseline.operator_job` takes them: a tape's, and their precisions."""
    chosen = list(operators)
    trace = trace_to_json(Trace(batch=0, ops=[o.op for o in chosen]))
    return {
        "tensors": trace["tensors"],
        "ops": trace["ops"],
        "precisions": [o.precision for o in chosen],
    }


def operators_plain(operators: Iterable[Operator]) -> dict[str, Any]:
    """Operators as JSON values for a file: the strides that follow from the shape are left out."""
    request = operators_request(operators)
    tensors = [
        [shape, dtype] if list(strides) == _strides(shape) else [shape, dtype, strides]
        for shape, dtype, strides in request["tensors"]
    ]
    return {**request, "tensors": tensors}


def operators_from_plain(data: Any) -> tuple[Operator, ...]:
    """The operators of `operators_plain`, from anywhere.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    _must(isinstance(data, Mapping), "operators are an object")
    tensors, ops, precisions = (data.get(key) for key in ("tensors", "ops", "precisions"))
    _must(isinstance(tensors, list) and len(tensors) <= MOST_TENSORS, "too many tensors, or none")
    _must(isinstance(ops, list) and len(ops) <= MOST_OPERATORS, "too many operators, or none")
    _must(isinstance(precisions, list) and len(precisions) == len(ops), "a precision for each")
    _must(all(p in PRECISIONS for p in precisions), f"precisions are {', '.join(PRECISIONS)}")
    tensors = [_checked_tensor(tensor) for tensor in tensors]
    for op in ops:
        _check_op(op, len(tensors))
    blank: dict[str, Any] = {
        "batch": 0, "events": [], "sizes": [], "kinds": [], "modules": [], "step_starts": []
    }  # fmt: skip
    trace = trace_from_json({**blank, "tensors": tensors, "ops": ops})
    for op in trace.ops:
        try:
            work_of(op, op.phase)
        except (IndexError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{op.name[:40]} lacks tensors or arguments") from error
    return tuple(map(Operator, trace.ops, precisions))


def times_plain(found: OperatorTimes) -> dict[str, Any]:
    """A card's operator times as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "card": found.card,
        "card_name": found.card_name,
        "card_uuid": found.card_uuid,
        "made_at": found.made_at,
        "software": dict(found.software),
        "throttled": None if found.throttled is None else list(found.throttled),
        "wanted": found.wanted,
        "operators": operators_plain(t.operator for t in found.times),
        "seconds": [[float(f"{s:.4g}") for s in t.seconds] for t in found.times],
    }


def times_from_plain(data: Any) -> OperatorTimes:
    """The operator times of `times_plain`, from anywhere.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    _must(isinstance(data, Mapping), "a calibration is an object")
    _must(
        data.get("schema_version") == SCHEMA_VERSION,
        f"its schema_version is {str(data.get('schema_version'))[:20]}, not {SCHEMA_VERSION}",
    )
    for key in ("card", "card_name", "made_at"):
        _must(isinstance(data.get(key), str) and len(data[key]) <= 200, f"{key} is no name")
    uuid = data.get("card_uuid")
    _must(uuid is None or (isinstance(uuid, str) and len(uuid) <= 100), "card_uuid is no name")
    operators = operators_from_plain(data.get("operators"))
    seconds = data.get("seconds")
    _must(
        isinstance(seconds, list) and len(seconds) == len(operators) > 0,
        "seconds are a list for each operator",
    )
    for samples in seconds:
        _must(isinstance(samples, list) and 0 < len(samples) <= 100, "a few samples each")
        _must(all(_is_time(s) for s in samples), "samples are seconds")
    wanted, software, throttled = (data.get(k) for k in ("wanted", "software", "throttled"))
    _must(type(wanted) is int and wanted >= len(operators), "wanted is a count")
    _must(
        isinstance(software, Mapping)
        and len(software) <= 50
        and all(value is None or isinstance(value, str) for value in software.values()),
        "software are versions",
    )
    _must(
        throttled is None
        or (isinstance(throttled, list) and all(isinstance(t, str) for t in throttled)),
        "throttled are reasons",
    )
    return OperatorTimes(
        card=data["card"],
        card_name=data["card_name"],
        card_uuid=uuid,
        times=tuple(
            OperatorTime(operator, tuple(map(float, samples)))
            for operator, samples in zip(operators, seconds, strict=True)
        ),
        wanted=wanted,
        software=dict(software),
        throttled=None if throttled is None else tuple(throttled),
        made_at=data["made_at"],
    )


@lru_cache
def shipped_operators() -> tuple[Operator, ...]:
    """The operators that `calibrate` times, the most telling first."""
    return operators_from_plain(_shipped("operators.json"))


@lru_cache
def shipped_times() -> OperatorTimes | None:
    """The operator times that come with segplan: an H200's; None where there is no such file."""
    data = _shipped("h200_operators.json")
    return None if data is None else times_from_plain(data)


def _shipped(name: str) -> Any:
    import json

    file = resources.files("segplan.timing").joinpath(name)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _is_time(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 < value <= LONGEST_S
    )


def _is_name(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and value.isascii()


def _checked_tensor(tensor: Any) -> list[Any]:
    """A tensor as a tape writes it: a contiguous one gets its strides."""
    _must(
        isinstance(tensor, list) and len(tensor) in (2, 3),
        "a tensor is shape, dtype and strides, or contiguous without",
    )
    shape, dtype = tensor[:2]
    _must(_is_name(dtype, 20), "a dtype is a name")
    for sizes in (shape, *tensor[2:]):
        _must(isinstance(sizes, list) and len(sizes) <= MOST_AXES, "sizes are a short list")
        _must(all(type(n) is int and 0 <= n <= LARGEST for n in sizes), "sizes are counts")
    _must(math.prod(shape) <= LARGEST, "a tensor is too large")
    if len(tensor) == 3:
        _must(len(shape) == len(tensor[2]), "as many strides as sizes")
        return list(tensor)
    return [shape, dtype, _strides(shape)]


def _strides(shape: Sequence[int]) -> list[int]:
    """Of a tensor of this shape without gaps, in row-major order."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _check_op(op: Any, tensors: int) -> None:
    _must(isinstance(op, list) and len(op) == 8, "an operator is a list of eight")
    name, phase, step, at, end, inputs, outputs, args = op
    _must(_is_name(name, 100), "an operator has a name")
    _must(phase in ("forward", "backward", "optimizer"), "a phase is of a step")
    _must(all(type(n) is int for n in (step, at, end)), "positions are numbers")
    for indices in (inputs, outputs):
        _must(
            isinstance(indices, list)
            and len(indices) <= 10_000
            and all(type(i) is int and 0 <= i < tensors for i in indices),
            "an operator's tensors are in the list",
        )
    _must(isinstance(args, list), "arguments are a list")
    _check_values(args, 3)


def _check_values(values: Sequence[Any], depth: int) -> None:
    _must(len(values) <= 10_000, "too many arguments")
    for value in values:
        if isinstance(value, list):
            _must(depth > 0, "arguments are nested too deep")
            _check_values(value, depth - 1)
        elif isinstance(value, str):
            _must(len(value) <= 200, "an argument is too long")
        else:
            _must(value is None or isinstance(value, (bool, int, float)), "an argument is no value")
            _must(
                value is None or abs(value) <= LARGEST_NUMBER,
                "an argument is too large, or no number",
            )


__all__ = [
    "PRECISIONS", "Operator", "OperatorTime", "OperatorTimes", "operators_from_plain",
    "operators_plain", "operators_request", "shipped_operators", "shipped_times",
    "times_from_plain", "times_plain",
]  # fmt: skip
