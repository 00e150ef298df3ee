"""A calibration: how a card's operators stand to the model, and where they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION, to_plain

if TYPE_CHECKING:
    from segplan.api.calibrating import CalibrationRun

_SHOWN_REASONS = 3


def document(found: CalibrationRun) -> dict[str, Any]:
    """The JSON document of a calibration: all but the operators, which `--out` writes."""
    times = found.times
    plain: dict[str, Any] = to_plain(found.by_kind)
    return {
        "schema_version": SCHEMA_VERSION,
        "card": found.card,
        "card_name": found.card_name,
        "operators": len(times.times),
        "wanted": times.wanted,
        "refused": dict(found.refused),
        "spent_s": found.spent_s,
        "noisy": found.noisy,
        "by_kind": plain,
        "throttled": None if times.throttled is None else list(times.throttled),
        "software": dict(times.software),
        "health": list(found.health),
        "kept_at": found.kept_at,
        "made_at": times.made_at,
        "interrupted": found.interrupted,
        "warnings": list(found.warnings),
    }


def render(found: CalibrationRun, console: Console) -> None:
    """Print what was timed, and how it stands to the model."""
    times = found.times
    say(console, f"{found.card_name}: operators timed one by one", style="bold")
    software = " · ".join(
        f"{name} {times.software[name]}" for name in ("torch", "driver") if times.software.get(name)
    )
    took = f"{len(times.times)} of {times.wanted} operators in {fmt.seconds(found.spent_s)}"
    say(console, " · ".join(filter(None, (took, "measured", software))))
    if found.by_kind:
        _by_kind(found, console)
    if found.kept_at is not None:
        console.print()
        say(
            console,
            f"Kept in {found.kept_at}. With SEGPLAN_CALIBRATIONS=use predictions for this card "
            "rest on it, and those for other cards are scaled from it; not yet by default, as it "
            "was no gain where it was tried.",
        )
    notes = []
    if found.interrupted:
        notes.append("Interrupted: this is what was timed until then.")
    if found.noisy > 0.1:
        notes.append(
            f"The samples of {fmt.percent(found.noisy)} of the operators differ by more than a "
            "fifth: something else may have used the card."
        )
    if found.refused:
        count = sum(found.refused.values())
        some = "; ".join(list(found.refused)[:_SHOWN_REASONS])
        notes.append(f"{count} operators could not be timed: {some}.")
    notes += [*found.health, *found.warnings]
    if notes:
        console.print()
    for text in notes:
        say(console, f"Note: {text}")


def _by_kind(found: CalibrationRun, console: Console) -> None:
    table = make_table(console)
    table.add_column("kind of work", no_wrap=True)
    for name in ("operators", "measured/modelled", "80 % between"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind in found.by_kind:
        cells = [
            kind.kind.replace("_", " "),
            str(kind.operators),
            fmt.significant(kind.ratio, 2),
            f"{fmt.significant(kind.low, 2)}–{fmt.significant(kind.high, 2)}",
        ]
        table.add_row(*(fitting_text(cell, console) for cell in cells))
    console.print()
    console.print(table)
