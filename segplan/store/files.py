"""Measurements and baseline checks in files that people exchange: JSON both ways, CSV out."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from segplan.errors import FileError, RequestError, StoreError
from segplan.results import Measurement, Outcome, to_plain
from segplan.store.serial import measurement_to_dict
from segplan.workload import Workload

FILE_VERSION = 1
"""Version of an exported JSON document."""

MAX_FILE_BYTES = 256 * 2**20
"""A file larger than this is not read: at about 1.5 kB a measurement it is none of ours."""

LOG_KEY = "segplan_log"
"""The key of a fallback log's first line."""

BENCH_KEY = "bench"
"""The key of its lines that hold a baseline check."""

Format = Literal["json", "csv"]
Row = tuple[str, Any]
"""Where it stands ("line 3"), and the value there, or a StoreError that says why it is none."""


@dataclass(frozen=True)
class SkippedRow:
    """A row that is no measurement: where it stands in the file, and why not."""

    where: str
    reason: str


@dataclass(frozen=True)
class ImportReport:
    """What came of a file.

    Attributes:
        path: the file.
        added: measurements that are new.
        known: measurements that were here already.
        skipped: rows that are none.
        benches_added: baseline checks that are new.
        benches_known: baseline checks that were here already.
    """

    path: str
    added: int
    known: int
    skipped: tuple[SkippedRow, ...]
    benches_added: int = 0
    benches_known: int = 0


@dataclass(frozen=True)
class Contents:
    """The rows of a file, unchecked."""

    measurements: list[Row]
    benches: list[Row]


def write(
    measurements: Collection[Measurement],
    benches: Collection[Mapping[str, Any]],
    path: str | os.PathLike[str],
    format: Format | None = None,
) -> None:
    """Write a file, which is replaced only when the new one is complete; CSV without `benches`.

    Raises:
        RequestError: the format is neither "json" nor "csv".
        FileError: the file cannot be written.
    """
    target = Path(path)
    kind = format or target.suffix.lower().removeprefix(".")
    if kind not in ("json", "csv"):
        raise RequestError(f"'{path}' is no place to export to: end its name in .json or .csv.")
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="", dir=target.parent, prefix=f".{target.name}-",
            delete=False,
        ) as stream:  # fmt: skip
            temporary = Path(stream.name)
            if kind == "json":
                _write_json(measurements, benches, stream)
            else:
                _write_csv(measurements, stream)
        os.chmod(temporary, 0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise FileError(
            f"{path} cannot be written ({error.strerror or error}): name another file."
        ) from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _write_json(
    measurements: Collection[Measurement], benches: Collection[Mapping[str, Any]], stream: IO[str]
) -> None:
    rows = [measurement_to_dict(m) for m in measurements]
    document = {"schema_version": FILE_VERSION, "measurements": rows, "benches": list(benches)}
    json.dump(document, stream, indent=1, allow_nan=False)
    stream.write("\n")


def _write_csv(measurements: Collection[Measurement], stream: IO[str]) -> None:
    writer = csv.DictWriter(stream, list(_flat(Measurement(Workload(), Outcome.FITS))))
    writer.writeheader()
    writer.writerows(_flat(m) for m in measurements)


def _flat(measurement: Measurement) -> dict[str, Any]:
    """One flat row: lists joined by blanks, unknown values empty, bytes and seconds as they are."""
    plain = to_plain(measurement)
    workload, environment = plain.pop("workload"), plain.pop("environment")
    workload["patch"] = "x".join(map(str, workload["patch"]))
    workload["model_args"] = json.dumps(workload["model_args"], sort_keys=True)
    plain["step_seconds"] = " ".join(map(repr, plain["step_seconds"]))
    plain["throttled"] = "; ".join(plain["throttled"] or ())
    flat = {"made_at": plain.pop("made_at"), **workload, **plain, **environment}
    return {name: _cell(value) for name, value in flat.items()}


def _cell(value: Any) -> Any:
    # A spreadsheet runs text that begins like a formula, and imported text is anybody's.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return value


def read(path: str | os.PathLike[str]) -> Contents:
    """The rows of an exported JSON document or of a fallback log (JSON lines), unchecked.

    Raises:
        RequestError: there is no such file, it is no regular file, or too large.
        FileError: it cannot be read, or is neither of the two.
    """
    source = Path(path)
    if not source.is_file():
        raise RequestError(f"there is no file '{path}' to import.")
    try:
        with source.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror or error}).") from error
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB: it is no file of segplan's."
        )
    text = data.decode("utf-8-sig", "replace")
    try:
        document = _parse(text)
    except StoreError:
        document = None
    if isinstance(document, dict) and "measurements" in document:
        return _document_rows(document, path)
    rows = list(_lines(text))
    ours = LOG_KEY in text[:100] or any(
        isinstance(value, dict) and "schema_version" in value for _, value in rows
    )
    if not ours:
        raise FileError(
            f"{path} holds no measurements: import what `segplan results --export FILE.json` "
            "has written."
        )
    return _log_rows(rows)


def _log_rows(rows: list[Row]) -> Contents:
    """The lines of a log apart; of a check that grew only the last."""
    measurements: list[Row] = []
    benches: list[Row] = []
    for where, value in rows:
        if not (isinstance(value, dict) and BENCH_KEY in value):
            measurements.append((where, value))
            continue
        bench = value[BENCH_KEY]
        if benches and _grew(benches[-1][1], bench):
            benches.pop()
        benches.append((where, bench))
    return Contents(measurements, benches)


def _grew(earlier: Any, later: Any) -> bool:
    """Whether the later check begins with all series of the earlier."""
    before, after = (x.get("series") if isinstance(x, dict) else None for x in (earlier, later))
    if not isinstance(before, list) or not isinstance(after, list):
        return False
    return bool(before) and after[: len(before)] == before


def _document_rows(document: dict[str, Any], path: str | os.PathLike[str]) -> Contents:
    version, rows = document.get("schema_version"), document["measurements"]
    benches = document.get("benches", [])
    if isinstance(version, int) and version > FILE_VERSION:
        raise FileError(f"{path} was written by a newer segplan: update segplan.")
    lists = isinstance(rows, list) and isinstance(benches, list)
    if not isinstance(version, int) or not lists:
        raise FileError(f"{path} holds no list of measurements with a schema_version.")
    return Contents(
        [(f"measurement {number}", row) for number, row in enumerate(rows, 1)],
        [(f"baseline check {number}", row) for number, row in enumerate(benches, 1)],
    )


def _lines(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = _parse(line)
        except StoreError as error:
            yield f"line {number}", error
            continue
        if not (isinstance(value, dict) and LOG_KEY in value):
            yield f"line {number}", value


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise StoreError("it is no JSON.") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
