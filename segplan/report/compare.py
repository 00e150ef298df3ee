"""Cards side by side on the terminal: what each holds, how fast, and why the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from segplan.api.comparing import CardComparison, Comparison
from segplan.report import format as fmt
from segplan.report.console import fits_width, fitting_text, make_table, say
from segplan.report.times import brief, interval
from segplan.report.workload import title
from segplan.results import SCHEMA_VERSION, to_plain

_WAITS = {
    "arithmetic": "arithmetic",
    "bandwidth": "bandwidth",
    "blocks": "norm layers",
    "launches": "kernel starts",
    "host": "Python",
}


def document(comparison: Comparison) -> dict[str, Any]:
    """The document of `segplan compare --json`."""
    plain = to_plain(comparison)
    for row, card in zip(plain["cards"], comparison.cards, strict=True):
        row["patches_per_second"] = card.patches_per_second
    return {"schema_version": SCHEMA_VERSION, **plain}


def render(comparison: Comparison, console: Console) -> None:
    """Print a comparison, the quickest card first."""
    w = comparison.workload
    step = f"{fmt.patch(w.patch)} batch {w.batch}"
    say(console, title(w), style="bold")
    say(console, f"Predicted. Equal work: one step of {step}. Best: the batch with most patches/s.")
    for detail in range(3):
        table = make_table(console)
        columns = _columns(comparison, detail)
        for header, _text, right in columns:
            table.add_column(
                fitting_text(header, console),
                justify="right" if right else "left",
                no_wrap=True,
            )
        for row in comparison.cards:
            texts = (fitting_text(text(row), console) for _header, text, _right in columns)
            table.add_row(*texts, style=None if row.max_batch else "dim")
        if fits_width(table, console):
            break
    console.print()
    console.print(table)
    console.print()
    for reason in comparison.reasons:
        say(console, reason)
    for note in dict.fromkeys(n for row in comparison.cards for n in row.notes):
        say(console, f"note: {note}")
    for warning in comparison.warnings:
        say(console, f"warning: {warning}", style="yellow")
    say(
        console,
        "Intervals are 80 %. Order within overlapping intervals is not certain; ratios between "
        "cards are surer than the times.",
        style="dim",
    )


_Column = tuple[str, Callable[[CardComparison], str], bool]


def _columns(comparison: Comparison, detail: int) -> Sequence[_Column]:
    w = comparison.workload
    time = interval if detail < 1 else brief
    columns: list[_Column] = [
        ("card", lambda r: r.card, False),
        ("step" if detail else "step, equal work", lambda r: time(r.step), False),
        ("batch" if detail else f"largest batch at {fmt.patch(w.patch)}", _batch, True),
    ]
    if detail < 2:
        header = "patch" if detail else f"largest patch at batch {w.batch}"
        columns.append((header, _patch, True))
    columns.append(("best" if detail else "best batch", _best, True))
    columns.append(("patches/s", lambda r: fmt.rate(r.patches_per_second), True))
    columns.append(("1 M patches", lambda r: time(r.million), False))
    if detail < 2:
        columns.append(("waits for", _waits, False))
    return columns


def _batch(row: CardComparison) -> str:
    return str(row.max_batch) if row.max_batch else "none"


def _patch(row: CardComparison) -> str:
    return fmt.UNKNOWN if row.largest_patch is None else fmt.patch(row.largest_patch)


def _best(row: CardComparison) -> str:
    return str(row.best_batch) if row.best_batch else fmt.UNKNOWN


def _waits(row: CardComparison) -> str:
    if not row.waits:
        return fmt.UNKNOWN
    name, share = max(row.waits.items(), key=lambda item: item[1])
    return f"{_WAITS[name]} {fmt.percent(share)}"
