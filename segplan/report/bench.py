"""A baseline check: each iteration as it ends, then the figures, what was published, a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from segplan.baseline.documents import bench_to_dict
from segplan.baseline.results import LABELS
from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION

if TYPE_CHECKING:
    from segplan.baseline.results import Bench, Comparison, Series

_TF32 = (
    "tf32: fp32 tensors with TF32 on, which PyTorch 1.7 to 1.11 and the tables of 2022 call fp32. "
    "fp32: TF32 off."
)


def document(found: Bench) -> dict[str, Any]:
    """The JSON document of a check."""
    return {"schema_version": SCHEMA_VERSION, **bench_to_dict(found)}


def series_line(network: str, precision: str) -> str:
    """A series as it begins."""
    return f"{LABELS.get(network, network)} {precision}: warming up"


def iteration_line(
    network: str, precision: str, number: int, images_per_s: float, seconds: float
) -> str:
    """One iteration as it ends: "ResNet50 fp16  3: 2403 images/s, 0.80 s"."""
    name = f"{LABELS.get(network, network)} {precision}"
    return f"{name} {number}: {fmt.rate(images_per_s, 4)} images/s, {_seconds(seconds)}"


def known_line(series: Series) -> str:
    """A series that an interrupted check has kept."""
    made = f", measured {series.made_at[:16].replace('T', ' ')} UTC" if series.made_at else ""
    return f"{series.name}: {fmt.rate(series.images_per_s, 4)} images/s{made}"


def render(found: Bench, console: Console) -> None:
    """Print the verdict, what was measured and what was published."""
    say(console, f"{found.card_name}: baseline check, {found.mode.value}", style="bold")
    images = found.series[0].images if found.series else 0
    count = len(found.series[0].seconds) if found.series else 0
    software = " · ".join(
        text
        for text in (
            f"torch {found.environment.torch}" if found.environment.torch else "",
            f"driver {found.environment.driver}" if found.environment.driver else "",
        )
        if text
    )
    say(console, f"{count} iterations of {images} images, warm-up not counted · {software}")
    console.print()
    say(console, found.verdict.sentence, style="bold")
    for text in (*found.warnings, *found.verdict.findings, *found.verdict.notes):
        if text not in found.verdict.sentence:
            say(console, f"Note: {text}")
    _measured(found.series, console)
    if {"tf32", "fp32"} <= {s.precision for s in found.series}:
        say(console, _TF32, style="dim")
        console.print()
    _published(found, console)


def _measured(series: Sequence[Series], console: Console) -> None:
    table = make_table(console)
    for name in ("network", "precision"):
        table.add_column(name, no_wrap=True)
    for name in ("batch", "images/s (all)", "seconds", "J/image", "MHz", "W"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in series:
        cells = [
            LABELS.get(one.network, one.network),
            one.precision + (" (autocast)" if one.method.value == "autocast" else ""),
            str(one.batch),
            _span(one.images_per_s, one.rates),
            _seconds(one.images / one.images_per_s).removesuffix(" s"),
            fmt.UNKNOWN if one.energy_j_per_image is None
            else fmt.significant(one.energy_j_per_image, 2),
            fmt.UNKNOWN if one.sm_mhz is None else str(one.sm_mhz),
            fmt.UNKNOWN if one.power_w is None else f"{one.power_w:.0f}",
        ]  # fmt: skip
        table.add_row(*(fitting_text(cell, console) for cell in cells))
    console.print()
    console.print(table)
    console.print()


def _published(found: Bench, console: Console) -> None:
    shown = [c for one in found.series for c in _shown(one, found.comparisons)]
    if not shown:
        return
    say(console, "Beside published figures (images/s)", style="bold")
    table = make_table(console)
    table.add_column("network", no_wrap=True)
    table.add_column("card", overflow="fold")
    for name in ("published", "ratio", "expected"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("software, and what differs", overflow="fold", ratio=1)
    for c in shown:
        about = list(c.differences)
        if not any(c.software in difference for difference in about):
            about.insert(0, c.software)
        cells = [
            f"{LABELS.get(c.network, c.network)} {c.precision}",
            c.card_name if c.same_card else f"near: {c.card_name}",
            fmt.rate(c.published, 4),
            f"{c.ratio:.2f}",
            f"≥ {fmt.rate(c.low, 3)}" if c.high is None
            else f"{fmt.rate(c.low, 3)}–{fmt.rate(c.high, 3)}",
            "; ".join(about),
        ]  # fmt: skip
        style = "red" if c.slow else None
        table.add_row(*(fitting_text(cell, console) for cell in cells), style=style)
    console.print()
    console.print(table)
    console.print()
    say(
        console,
        "expected: what this card should reach by that figure; a neighbour's is scaled by the "
        "ratios of their bandwidths and rates. Sources and all figures: --json.",
        style="dim",
    )


def _shown(one: Series, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """At most two figures of the card itself, and its nearest neighbours where there is none."""
    mine = [c for c in comparisons if (c.network, c.precision) == (one.network, one.precision)]
    own = [c for c in mine if c.same_card]
    return own[:2] or mine[:2]


def _span(middle: float, rates: Sequence[float]) -> str:
    low, high = (fmt.rate(r, 4) for r in (min(rates), max(rates)))
    text = fmt.rate(middle, 4)
    return text if low == high else f"{text} ({low}–{high})"


def _seconds(s: float) -> str:
    return f"{fmt.significant(s, 3)} s"
