"""Vega-Lite specifications of a report's charts, as plain dicts.

Colours are CSS variables, so that light, dark and print are the stylesheet's matter alone. No text
of a user becomes part of an expression: names are data (a list to sort by would become one, so
the order is a scale's domain or a rank). The page's script keeps the rows of the
chosen cards and sets the width; every row therefore carries its card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segplan.report import format as fmt
from segplan.report.page import sentences
from segplan.report.tables import PARTS
from segplan.report.times import interval
from segplan.results import Basis
from segplan.units import GIB

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport, WorkloadReport

Spec = dict[str, Any]

DAY_S = 86400.0
_UNITS = ((DAY_S, "days"), (3600.0, "hours"), (60.0, "minutes"))
_ENOUGH = 3
"""Units that the longest experiment takes at least, or the axis counts in a smaller one."""

ROW_PX = 30
"""Height of a card's row; the page's script sets the height by the cards it keeps."""

_ORDER = ("activations", "parameters", "gradients", "optimizer_state", "workspaces",
          "temporaries", "fragmentation")  # fmt: skip
_ASIDE = ("CUDA context", "reserve")
_BATCH_TICKS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)

_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--grid)",
        "domainColor": "var(--line)", "tickColor": "var(--line)", "labelFontSize": 12,
        "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 180, "labelPadding": 6,
    },
    "legend": {
        "labelColor": "var(--ink)", "titleColor": "var(--soft)", "labelFontSize": 12,
        "symbolSize": 110, "symbolType": "square",
    },
    "header": {"labelColor": "var(--ink)", "labelFontSize": 13, "labelFontWeight": 600,
               "labelPadding": 4, "labelLimit": 240},
    "text": {"fontSize": 12, "color": "var(--ink)"},
}  # fmt: skip


def charts(report: CapacityReport) -> dict[str, Spec]:
    """Every chart of the report by its id: "days-0", "frontier-0", "memory-0" and so on."""
    found: dict[str, Spec] = {}
    for index, part in enumerate(report.workloads):
        found[f"days-{index}"] = days_chart(report, part)
        found[f"frontier-{index}"] = frontier_chart(report, part)
        found[f"memory-{index}"] = memory_chart(report, part)
    return found


def days_chart(report: CapacityReport, part: WorkloadReport) -> Spec:
    """A bar for each card, fastest first, with its interval."""
    names = sentences.card_names(report)
    longest = max((e.plan.total.high for e in part.entries if e.fits and e.plan.total), default=0.0)
    large = (one for one in _UNITS if longest >= _ENOUGH * one[0])
    unit, unit_name = next(large, _UNITS[-1])
    rows = []
    for entry in part.entries:
        total = entry.plan.total if entry.fits else None
        row: Spec = {"card": entry.card, "name": names[entry.card], "basis": "", "waits": ""}
        if total is not None:
            row |= {
                "time": total.seconds / unit, "low": total.low / unit, "high": total.high / unit,
                "text": interval(total), "basis": total.basis.value,
                "waits": sentences.bound_text(entry.plan.bound_by),
                "step": interval(entry.plan.step),
                "short": fmt.seconds(
                    total.seconds, fmt.digits_of(total.seconds, total.low, total.high)
                ),
            }  # fmt: skip
        else:
            row |= {"none": 0, "text": _no_time(entry.fits)}
        rows.append(row)
    rows.sort(key=lambda row: row.get("high", float("inf")))
    order = [row["name"] for row in rows]
    y = {"field": "name", "type": "nominal", "scale": {"domain": order}, "title": None,
         "axis": {"ticks": False, "domain": False}}  # fmt: skip
    room = max(longest / unit, 1e-9) * 1.3  # for the labels
    x = {"field": "time", "type": "quantitative", "title": unit_name,
         "axis": {"tickCount": 5, "domain": False},
         "scale": {"domain": [0, room], "nice": False}}  # fmt: skip
    tip = _tooltip(name="Card", text="Time (80 %)", step="Step (80 %)", waits="Waits for",
                   basis="Basis")  # fmt: skip
    timed = [row for row in rows if "time" in row]
    untimed = [row for row in rows if "time" not in row]
    layers: list[Spec] = [
        {
            "data": {"values": timed},
            "mark": {"type": "bar", "height": {"band": 0.62}, "cornerRadiusEnd": 3,
                     "color": "var(--bar)"},
            "encoding": {"x": x, "tooltip": tip},
        },
        {
            "data": {"values": timed},
            "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--ink)"},
            "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"},
                         "tooltip": tip},
        },
        *(
            {
                "data": {"values": timed},
                "mark": {"type": "tick", "thickness": 2, "size": 10, "color": "var(--ink)"},
                "encoding": {"x": {"field": end, "type": "quantitative"}},
            }
            for end in ("low", "high")
        ),
        {
            "data": {"values": timed},
            "mark": {"type": "text", "align": "left", "dx": 8},
            "encoding": {"x": {"field": "high", "type": "quantitative"},
                         "text": {"field": "short"}},
        },
        {
            "data": {"values": untimed},
            "mark": {"type": "text", "align": "left", "dx": 4, "color": "var(--bad)"},
            "encoding": {"x": {"field": "none", "type": "quantitative"},
                         "text": {"field": "text"}},
        },
    ]  # fmt: skip
    return {
        **_whole(f"Time of one experiment on each card, in {unit_name}, with 80 % intervals."),
        "width": "container",
        "height": ROW_PX * len(part.entries),
        "encoding": {"y": y},
        "layer": layers,
    }


def frontier_chart(report: CapacityReport, part: WorkloadReport) -> Spec:
    """A small chart for each card: the largest batch over the patch; what was asked is a dot."""
    names = sentences.card_names(report)
    patches = [fmt.patch(cell.patch) for cell in part.entries[0].fit.cells]
    rows: list[Spec] = []
    for rank, entry in enumerate(part.entries):
        for index, cell in enumerate(entry.fit.cells):
            known = cell.status == "ok"
            memory = cell.memory
            rows.append(
                {
                    "kind": "cell",
                    "rank": rank,
                    "card": entry.card,
                    "name": names[entry.card],
                    "patch": fmt.patch(cell.patch),
                    "batch": cell.max_batch if known else None,
                    "text": batch_text(cell.max_batch, cell.limited_by, cell.status),
                    "memory": fmt.memory(memory.least_memory if memory else None),
                    "step": interval(cell.step),
                    "rate": fmt.rate(cell.patches_per_second),
                    "limit": cell.limited_by.value if cell.limited_by else fmt.UNKNOWN,
                    "basis": cell.basis.value,
                    "ran": cell.basis in (Basis.MEASURED, Basis.EMULATED),
                    "recommended": index == entry.fit.recommended,
                }
            )
    rows += [
        {
            "kind": "asked",
            "rank": rank,
            "card": entry.card,
            "name": names[entry.card],
            "patch": fmt.patch(part.workload.patch),
            "batch": part.workload.batch,
            "text": sentences.step_text(part.workload.patch, part.workload.batch),
            "fits": _yes_no(entry.fits),
        }
        for rank, entry in enumerate(part.entries)
    ]
    top = max(row["batch"] or 0 for row in rows)
    ticks = [tick for tick in _BATCH_TICKS if tick <= top * 1.2]
    x = {
        "field": "patch",
        "type": "ordinal",
        "title": None,
        "scale": {"type": "point", "padding": 0.45, "domain": patches},
        "axis": {
            "labelAngle": 0,
            "domain": True,
            "ticks": False,
            "labelFontSize": 11,
            "labelOverlap": "greedy",
        },
    }
    y = {
        "field": "batch",
        "type": "quantitative",
        "title": None,
        "scale": {"type": "symlog", "domain": [0, top * 3], "nice": False},
        "axis": {"values": ticks, "domain": False, "ticks": False, "labelFontSize": 11},
    }
    return {
        **_whole("Largest batch over the patch size, a panel for each card."),
        "data": {"values": rows},
        "facet": {"field": "name", "type": "nominal", "title": None,
                  "sort": {"field": "rank", "op": "min"}},
        "columns": 4,
        "spacing": {"row": 18, "column": 26},
        "spec": {"width": 200, "height": 110, "encoding": {"x": x, "y": y},
                 "layer": _frontier_layers()},
        "resolve": {"axis": {"x": "independent"}},
    }  # fmt: skip


def _frontier_layers() -> list[Spec]:
    """Area, line, points and labels of the cells, and the step that was asked for."""
    cells = {"filter": "datum.kind === 'cell'"}
    tip = _tooltip(
        name="Card",
        patch="Patch",
        text="Largest batch",
        limit="Limited by",
        memory="Memory",
        step="Step (80 %)",
        rate="Patches/s",
        basis="Basis",
    )
    labels = [
        {
            "transform": [cells, {"filter": f"{'' if bold else '!'}datum.recommended"}],
            "mark": {
                "type": "text",
                "dy": -11,
                "fontSize": 12 if bold else 11,
                "fontWeight": 700 if bold else 400,
                "color": "var(--ink)" if bold else "var(--soft)",
            },
            "encoding": {"text": {"field": "text"}},
        }
        for bold in (True, False)
    ]
    ran = {"test": "datum.ran", "value": "var(--bar)"}
    answers = {
        "domain": ["yes", "no", "not known"],
        "range": ["var(--good)", "var(--bad)", "var(--soft)"],
    }
    return [
        {"transform": [cells], "mark": {"type": "area", "color": "var(--area)", "line": False}},
        {"transform": [cells],
         "mark": {"type": "line", "color": "var(--bar)", "strokeWidth": 2}},
        {
            "transform": [cells],
            "mark": {"type": "point", "size": 38, "opacity": 1, "stroke": "var(--bar)",
                     "strokeWidth": 2},
            "encoding": {"fill": {"condition": ran, "value": "var(--page)"}, "tooltip": tip},
        },
        *labels,
        {
            "transform": [{"filter": "datum.kind === 'asked'"}],
            "mark": {"type": "point", "shape": "diamond", "size": 130, "opacity": 1,
                     "stroke": "var(--page)", "strokeWidth": 1.5},
            "encoding": {
                "fill": {"field": "fits", "type": "nominal", "scale": answers, "legend": None},
                "tooltip": _tooltip(name="Card", text="As asked", fits="Trains"),
            },
        },
    ]  # fmt: skip


def memory_chart(report: CapacityReport, part: WorkloadReport) -> Spec:
    """A stacked bar for each card, of the step as asked, and a mark at the card's memory."""
    cards = {card.slug: card for card in report.cards}
    named = sentences.card_names(report)
    order = [*(name.replace("_", " ") for name in _ORDER), *_ASIDE]
    rows: list[Spec] = []
    lines: list[Spec] = []
    for entry in part.entries:
        card = cards[entry.card]
        who = {"card": entry.card, "name": named[entry.card]}
        parts = entry.memory.breakdown if entry.memory is not None else None
        sizes = {name.replace("_", " "): getattr(parts, name) if parts else 0 for name in PARTS}
        sizes |= dict(zip(_ASIDE, (entry.fit.context, entry.fit.reserve), strict=True))
        for name, size in sizes.items():
            if size:
                rows.append(
                    {
                        **who,
                        "part": name,
                        "order": order.index(name),
                        "gib": size / GIB,
                        "text": fmt.memory(size),
                    }
                )
        lines.append(
            {
                **who,
                "gib": card.memory_visible / GIB,
                "text": fmt.memory(card.memory_visible),
                "fits": _yes_no(entry.fits),
            }
        )
    lines.sort(key=lambda line: line["gib"])
    names = list(dict.fromkeys(line["name"] for line in lines))
    colours = [f"var(--part-{i})" for i in range(len(order))]
    y = {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": names},
        "title": None,
        "axis": {"ticks": False, "domain": False},
    }
    x = {
        "field": "gib",
        "type": "quantitative",
        "title": "GiB",
        "stack": "zero",
        "axis": {"tickCount": 6, "domain": False},
    }
    return {
        **_whole("Memory of one step by what it holds, against each card's memory, in GiB."),
        "width": "container",
        "height": ROW_PX * len(part.entries),
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "bar", "height": {"band": 0.62}},
                "encoding": {
                    "y": y,
                    "x": x,
                    "order": {"field": "order", "type": "quantitative"},
                    "color": {
                        "field": "part", "type": "nominal", "title": None,
                        "scale": {"domain": order, "range": colours},
                        "legend": {"orient": "bottom", "columns": 5, "offset": 14,
                                   "rowPadding": 6, "columnPadding": 18},
                    },
                    "tooltip": _tooltip(name="Card", part="Holds", text="Memory"),
                },
            },
            {
                "data": {"values": lines},
                "mark": {"type": "tick", "thickness": 3, "size": 26, "color": "var(--ink)"},
                "encoding": {
                    "y": y,
                    "x": {"field": "gib", "type": "quantitative"},
                    "tooltip": _tooltip(name="Card", text="Visible to torch", fits="Trains"),
                },
            },
        ],
    }  # fmt: skip


def batch_text(batch: int, limited_by: str | None, status: str) -> str:
    """ "4", "64+" where the search ended there, "?" without an answer."""
    if status != "ok":
        return "?"
    return f"{batch}+" if limited_by == "cap" else str(batch)


def _whole(description: str) -> Spec:
    return {"description": description, "config": _CONFIG}


def _tooltip(**titles: str) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]


def _yes_no(value: bool | None) -> str:
    return "not known" if value is None else ("yes" if value else "no")


def _no_time(fits: bool | None) -> str:
    if fits is None:
        return "no answer"
    return "time not known" if fits else "does not fit"
