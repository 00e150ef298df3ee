"""A capacity report as Markdown (GitHub's flavour): the tables and sentences of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from segplan.report.page.view import page_view

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport

_SPECIAL = re.compile(r"([\\`*_\[\]!|<>~$&@]|:(?=//))")


def render(report: CapacityReport, stream: IO[str]) -> None:
    """Write the report."""
    view = page_view(report)
    put = _Writer(stream)
    put.line("# GPU capacity report")
    put.line(_text(view["made_at"]))
    put.items(view["summary"])
    put.items(view["warnings"])
    put.line("## At a glance")
    put.table(
        ["Card", "Memory", *(f"{w['name']}, {w['step']}" for w in view["workloads"])],
        [
            [row["name"], row["memory"], *(cell["text"] for cell in row["cells"])]
            for row in view["overview"]
        ],
    )
    for workload in view["workloads"]:
        _workload(workload, put)
    put.line("## The cards")
    put.table(
        ["Card", "Memory", "Visible to torch", "Bandwidth", "Power", "Launch", "Baseline check",
         "Source"],
        [
            [c["name"], c["nominal"], f"{c['visible']} ({c['visible_basis']})", c["bandwidth"],
             c["power"], c["launch"], c["baseline"], c["source"]]
            for c in view["cards"]
        ],
    )  # fmt: skip
    _end(view, put)


def _workload(w: dict[str, Any], put: _Writer) -> None:
    put.line(f"## {_text(w['name'])}")
    put.line(_text(f"{w['title']} · {w['step']}"))
    put.line(_text(w["answer"]))
    put.line("### How long it takes")
    put.table(
        ["Card", "Whole experiment", "One step", "Steps", "Training", "Validation", "Waits for",
         "Energy", "Loader must deliver", "Basis"],
        [
            [r["name"], r["verdict"]["text"], r["step"], r["steps"], r["training"],
             r["validation"], r["bound"], r["energy"], r["loader"], r["time_basis"] or "–"]
            for r in w["rows"]
        ],
    )  # fmt: skip
    put.line("### What fits")
    put.line("The largest batch for each patch size; + where the search ended, * recommended.")
    put.table(
        ["Card", f"Trains {w['step']}", *w["patches"], "Basis"],
        [
            [
                r["name"],
                r["fits"],
                *(c["text"] + ("*" if c["recommended"] else "") for c in r["cells"]),
                ", ".join(r["bases"]),
            ]
            for r in w["rows"]
        ],
    )
    put.line("### What the memory holds")
    put.table(
        ["Card", "Needs (80 %)", "Room", "Left over", *(p.capitalize() for p in w["parts"]),
         "CUDA context", "Reserve", "Basis"],
        [
            [r["name"], r["needs"], r["room"], r["left"], *r["parts"], r["context"],
             r["reserve"], r["memory_basis"] or "–"]
            for r in w["rows"]
        ],
    )  # fmt: skip
    put.line("### What limits it, and what would change that")
    put.table(
        ["Card", "What limits", "What would change it", "To know"],
        [
            [r["name"], r["limit"], " ".join(r["changes"]) or "–", " ".join(r["notes"]) or "–"]
            for r in w["rows"]
        ],
    )


def _end(view: dict[str, Any], put: _Writer) -> None:
    put.line("## How these numbers came about")
    put.items(f"{what}: {how}" for what, how in view["method"])
    put.line("### What each number rests on")
    put.line(_text(f"{view['evidence']} Of measurements, {view['store']}"))
    put.items(f"{basis}: {meaning}" for basis, meaning in view["bases"])
    put.line("### Limits")
    put.items(view["limits"])
    put.line("### Versions")
    put.line(_text(", ".join(f"{name} {version}" for name, version in view["versions"])))


def _text(text: object) -> str:
    """Text that stays text: nothing in it is markup, and no line of it begins anything."""
    flat = " ".join(str(text).split())
    escaped = _SPECIAL.sub(r"\\\1", flat)
    # "1. x" and "- x" begin lists, "# x" a heading; "=" underlines one; "www." makes a link.
    escaped = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", escaped)
    escaped = re.sub(r"^([-=+#])", r"\\\1", escaped)
    return re.sub(r"(?i)www\.", "www\\.", escaped)


class _Writer:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._first = True

    def line(self, text: str) -> None:
        """A paragraph or a heading."""
        self._stream.write(("" if self._first else "\n") + text + "\n")
        self._first = False

    def items(self, texts: Iterable[str]) -> None:
        lines = [f"- {_text(text)}" for text in texts]
        if lines:
            self.line("\n".join(lines))

    def table(self, heads: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
        lines = [heads, ["---"] * len(heads), *rows]
        self.line(
            "\n".join(
                f"| {' | '.join('---' if cell == '---' else _text(cell) for cell in line)} |"
                for line in lines
            )
        )
