"""Stored measurements as a table for each card, the baseline checks, or one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from segplan.api.results_store import StoredMeasurement, StoredResults
from segplan.baseline.documents import bench_to_dict
from segplan.baseline.results import Bench
from segplan.report import format as fmt
from segplan.report.console import fits_width, fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION, Environment, Outcome, to_plain
from segplan.store import ImportReport

SKIPPED_SHOWN = 10

_STYLES = {Outcome.FITS: "green", Outcome.OUT_OF_MEMORY: "yellow", Outcome.KERNEL_LIMIT: "yellow"}

_LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("made",), ("made", "prec."))
"""Columns given up one after the other where the terminal is narrow; --json has them all."""


@dataclass(frozen=True)
class _Column:
    header: str
    text: Callable[[StoredMeasurement], str]
    right: bool = True


_COLUMNS = (
    _Column("made", lambda r: (r.measurement.made_at or fmt.UNKNOWN)[:10], right=False),
    _Column("network", lambda r: r.measurement.workload.model, right=False),
    _Column("patch", lambda r: fmt.patch(r.measurement.workload.patch)),
    _Column("batch", lambda r: str(r.measurement.workload.batch)),
    _Column("prec.", lambda r: r.measurement.workload.precision, right=False),
    _Column("limit", lambda r: fmt.memory(r.measurement.allocator_limit)),
    _Column("outcome", lambda r: r.measurement.outcome.value.replace("_", " "), right=False),
    _Column("peak", lambda r: fmt.memory(r.measurement.peak_allocated)),
    _Column("step", lambda r: fmt.seconds(r.median_step_s)),
)


def document(results: StoredResults) -> dict[str, Any]:
    """The JSON document: `schema_version`, then the keys of the Python attributes."""
    plain: dict[str, Any] = to_plain(results)
    plain["benches"] = [bench_to_dict(check) for check in results.benches]
    return {"schema_version": SCHEMA_VERSION, **plain}


def render(results: StoredResults, console: Console) -> None:
    """Print what was imported or exported, or else the measurements, a table for each card."""
    if results.imported is not None:
        _imported(results.imported, results.store, console)
    if results.exported is not None:
        what = _counts(len(results.measurements), 0)
        if not results.exported.lower().endswith(".csv"):
            what = _counts(len(results.measurements), len(results.benches))
        say(console, _clean(f"{what} written to {results.exported}."))
    if results.imported is None and results.exported is None:
        _listing(results, console)
    for warning in results.warnings:
        say(console, _clean(f"warning: {warning}"), style="yellow")


def _imported(report: ImportReport, store: str, console: Console) -> None:
    text = f"{_counts(report.added, report.benches_added)} added to {store}"
    if known := report.known + report.benches_known:
        text += f", {known} there already"
    say(console, _clean(text + "."))
    if report.skipped:
        say(console, f"{len(report.skipped)} skipped:", style="yellow")
    for row in report.skipped[:SKIPPED_SHOWN]:
        say(console, _clean(f"  {row.where}: {row.reason}"))
    if len(report.skipped) > SKIPPED_SHOWN:
        say(console, "  … and more; --json names them all.")


def _listing(results: StoredResults, console: Console) -> None:
    there = f"{results.total} in {results.store}"
    if results.total_benches:
        there = f"{_counts(results.total, results.total_benches)} in {results.store}"
    if not results.measurements and not results.benches:
        empty = not results.total and not results.total_benches
        none = "Nothing measured yet" if empty else "Nothing matches"
        say(console, _clean(f"{none} ({there})."))
        return
    cards: dict[tuple[str | None, ...], list[StoredMeasurement]] = {}
    for row in results.measurements:
        cards.setdefault(_where(row.measurement.environment), []).append(row)
    for rows in cards.values():
        _card(rows, console)
        console.print()
    if results.benches:
        _benches(results.benches, console)
        console.print()
    shown = _counts(len(results.measurements), len(results.benches))
    if len(results.measurements) < results.matching:
        shown = f"{len(results.measurements)} of {results.matching} shown; --limit N shows more"
    say(console, _clean(f"{shown} ({there})."), style="dim")


def _benches(benches: Sequence[Bench], console: Console) -> None:
    """When, on which card, how many series, and how the card stood."""
    say(console, "Baseline checks", style="bold")
    table = make_table(console)
    for name in ("made", "card", "mode"):
        table.add_column(name, no_wrap=name != "card", overflow="fold")
    table.add_column("series", justify="right", no_wrap=True)
    table.add_column("ResNet50 fp16", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for check in benches:
        rates = [
            s.images_per_s for s in check.series
            if (s.network, s.precision) == ("resnet50", "fp16")
        ]  # fmt: skip
        cells = [
            check.made_at[:10],
            check.card_name,
            check.mode.value,
            str(len(check.series)),
            f"{fmt.rate(rates[0], 4)} /s" if rates else fmt.UNKNOWN,
            "interrupted" if check.interrupted else check.verdict.standing.replace("_", " "),
        ]
        table.add_row(*(Text(fitting_text(_clean(cell), console)) for cell in cells))
    console.print(table)


def _where(environment: Environment) -> tuple[str | None, ...]:
    e = environment
    return (e.card_name, e.card_uuid, e.torch, e.cuda, e.cudnn, e.driver)


def _card(rows: Sequence[StoredMeasurement], console: Console) -> None:
    name, uuid, torch, cuda, cudnn, driver = _where(rows[0].measurement.environment)
    say(console, _clean(f"{name or 'unknown card'} ({uuid or 'no UUID'})"), style="bold")
    versions = {"torch": torch, "CUDA": cuda, "cuDNN": cudnn, "driver": driver}
    known = ", ".join(f"{what} {value}" for what, value in versions.items() if value)
    say(console, _clean(known or "versions not known"), style="dim")
    for left_out in _LEFT_OUT:
        table = _table(rows, console, left_out)
        if fits_width(table, console):
            break
    console.print(table)


def _table(rows: Sequence[StoredMeasurement], console: Console, left_out: Sequence[str]) -> Table:
    table = make_table(console)
    shown = [c for c in _COLUMNS if c.header not in left_out]
    for column in shown:
        table.add_column(
            column.header, justify="right" if column.right else "left", no_wrap=column.right
        )
    for row in rows:
        cells = [Text(fitting_text(_clean(c.text(row)), console)) for c in shown]
        for column, cell in zip(shown, cells, strict=True):
            if column.header == "outcome":
                cell.stylize(_STYLES.get(row.measurement.outcome, "red"))
        table.add_row(*cells)
    return table


def _counts(measurements: int, benches: int) -> str:
    """Such as "3 measurements and 1 baseline check"; no word of checks where there is none."""
    text = f"{measurements} measurement" + ("" if measurements == 1 else "s")
    if not benches:
        return text
    checks = f"{benches} baseline check" + ("" if benches == 1 else "s")
    return f"{text} and {checks}" if measurements else checks


def _clean(text: str) -> str:
    """Without control characters: an imported name may try to steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
