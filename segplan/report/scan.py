"""What a dataset holds, and what is wrong with it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console

from segplan.dataset.nouns import DatasetScan, LabelSample, Problem, ProblemKind, ShapeSpread
from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION, to_plain

SHOWN = 3
"""Files shown for each kind of problem; the JSON document lists all."""

MOST_VALUES = 12

_LAYOUTS = {
    "msd": "dataset.json (Medical Segmentation Decathlon)",
    "nnunet": "nnU-Net v2",
    "folders": "folders of images and labels",
    "fingerprint": "nnU-Net fingerprint (sizes after cropping)",
    "data_stats": "MONAI data statistics",
}

_KINDS = {
    ProblemKind.RGB: "colours",
    ProblemKind.AXES: "number of axes",
    ProblemKind.MISMATCH: "does not match",
    ProblemKind.OUTSIDE: "outside of the folder",
    ProblemKind.DOCUMENT: "description",
    ProblemKind.ZERO_SIZE: "axis without voxels",
}


def document(scan: DatasetScan) -> dict[str, Any]:
    """The JSON document of a scan."""
    return {
        "schema_version": SCHEMA_VERSION,
        **to_plain(scan),
        "bytes_per_case": scan.bytes_per_case,
        "problem_counts": scan.problem_counts,
    }


def render(scan: DatasetScan, console: Console) -> None:
    """Print a scan: what a network and a loader will meet, then what is wrong."""
    say(console, printable(scan.name or scan.path), style="bold")
    say(console, _LAYOUTS[scan.layout.value])
    table = make_table(console, header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for row in _rows(scan):
        table.add_row(*(fitting_text(text, console) for text in row))
    console.print()
    console.print(table)
    if scan.problems:
        console.print()
        render_problems(scan.problems, console)


def render_problems(problems: Sequence[Problem], console: Console) -> None:
    """Print problems by kind, the most frequent first, some files of each."""
    ordered = sorted(problems, key=lambda p: p.kind.value)
    groups = [(kind, list(found)) for kind, found in groupby(ordered, key=lambda p: p.kind)]
    for kind, found in sorted(groups, key=lambda g: -len(g[1])):
        name = _KINDS.get(kind, kind.value.replace("_", " "))
        out = sum(p.left_out for p in found)
        left = "left out" if out == len(found) else f"{out} left out" if out else "kept"
        say(console, f"{name.capitalize()}: {len(found)}, {left}", style="bold")
        for problem in found[:SHOWN]:
            text = f"{printable(problem.file)}: {printable(problem.sentence)}"
            for line in textwrap.wrap(
                text, console.width, initial_indent="  ", subsequent_indent="    "
            ):
                say(console, line)
        if len(found) > SHOWN:
            say(console, f"  and {len(found) - SHOWN} more (--json lists all)", style="dim")


def printable(text: str) -> str:
    """A file's name as a terminal takes it: no control characters, no broken Unicode."""
    return "".join(c if c.isprintable() else "?" for c in text)


def spacing(sizes: Sequence[float]) -> str:
    """ "0.79×0.79×5 mm"."""
    if len(set(sizes)) == 1:
        return f"{_millimetres(sizes[0])} mm"
    return "×".join(_millimetres(s) for s in sizes) + " mm"


def _millimetres(size: float) -> str:
    text = fmt.significant(size, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _rows(scan: DatasetScan) -> list[tuple[str, str, str]]:
    cases = str(scan.cases) if scan.cases == scan.found else f"{scan.cases} of {scan.found} usable"
    rows = [
        ("cases", cases, ""),
        ("channels", _known(scan.channels), ""),
        ("classes", _known(scan.classes), "" if scan.classes else "--labels finds out"),
    ]
    if scan.shape is not None:
        rows.append(("shape", fmt.patch(scan.shape.median), _range(scan.shape)))
    if scan.spacing is not None:
        low, high = spacing(scan.spacing.low), spacing(scan.spacing.high)
        text = "" if low == high else f"{low.removesuffix(' mm')} to {high}"
        rows.append(("spacing", spacing(scan.spacing.median), text))
    if scan.resampled is not None and scan.target_spacing is not None:
        name = f"at {spacing(scan.target_spacing)}"
        rows.append((name, fmt.patch(scan.resampled.median), _range(scan.resampled)))
    if scan.orientations:
        text = ", ".join(f"{name} {n}" for name, n in list(scan.orientations.items())[:4])
        rows.append(("orientation", text, ""))
    if scan.bytes_on_disk is not None:
        a_case = f"{fmt.memory(scan.bytes_per_case)} a case"
        rows.append(("on disk", fmt.memory(scan.bytes_on_disk), a_case))
    if scan.labels is not None:
        rows += _label_rows(scan.labels)
    return rows


def _label_rows(labels: LabelSample) -> list[tuple[str, str, str]]:
    rows = [("labels read", f"{labels.read} of {labels.cases}", "")]
    if labels.values:
        shown = [str(v) for v in list(labels.values)[:MOST_VALUES]]
        more = len(labels.values) - len(shown)
        text = ", ".join(shown) + (f" and {more} more" if more else "")
        rows.append(("label values", text, ""))
    empty = f"{labels.empty} without any" if labels.empty else ""
    rows.append(("foreground", fmt.percent(labels.foreground), empty))
    return rows


def _range(spread: ShapeSpread) -> str:
    if spread.low == spread.high:
        return "all alike"
    return f"{_sizes(spread.low)} to {_sizes(spread.high)}"


def _sizes(sizes: Sequence[int]) -> str:
    return "×".join(str(n) for n in sizes)


def _known(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else str(value)
