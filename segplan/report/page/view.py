"""What the page's template shows: a report as text, nothing computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segplan.report import format as fmt
from segplan.report.page import sentences
from segplan.report.page.charts import batch_text
from segplan.report.tables import PARTS
from segplan.report.times import interval
from segplan.report.workload import title

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport, Entry, WorkloadReport
    from segplan.gpus.card import Card
    from segplan.results import Plan

View = dict[str, Any]


def page_view(report: CapacityReport) -> View:
    """Everything the template reads."""
    names = sentences.card_names(report)
    return {
        "made_at": report.made_at.replace("T", " ").replace("+00:00", " UTC"),
        "summary": sentences.summary(report),
        "evidence": sentences.evidence(report),
        "cards": [_card(report, card, names[card.slug]) for card in report.cards],
        "workloads": [_workload(report, i, part) for i, part in enumerate(report.workloads)],
        "overview": _overview(report, names),
        "method": sentences.method(report),
        "bases": sentences.BASES,
        "limits": sentences.LIMITS,
        "versions": list(report.versions.items()),
        "store": _store(report),
        "warnings": list(report.warnings),
    }


def _overview(report: CapacityReport, names: dict[str, str]) -> list[View]:
    """A row for each card, a cell for each workload."""
    rows = []
    for index, card in enumerate(report.cards):
        cells = [_verdict(part.entries[index]) for part in report.workloads]
        rows.append({"slug": card.slug, "name": names[card.slug],
                     "memory": fmt.memory(card.memory_nominal), "cells": cells})  # fmt: skip
    return rows


def _verdict(entry: Entry) -> View:
    if entry.fits is None:
        return {"state": "unknown", "text": "no answer"}
    if not entry.fits:
        return {"state": "bad", "text": "does not fit"}
    total = entry.plan.total
    if total is None:
        return {"state": "good", "text": "fits, time not known"}
    return {"state": "good", "text": interval(total)}


def _workload(report: CapacityReport, index: int, part: WorkloadReport) -> View:
    names = sentences.card_names(report)
    quick, small = sentences.quickest(part), sentences.smallest(report, part)
    return {
        "index": index,
        "name": part.name,
        "title": title(part.workload),
        "step": sentences.step_text(part.workload.patch, part.workload.batch),
        "batch": part.workload.batch,
        "patch": fmt.patch(part.workload.patch),
        "answer": sentences.workload_answer(report, part),
        "holding": len(sentences.fitting(part)),
        "count": len(part.entries),
        "fastest": names[quick.card] if quick else None,
        "fastest_time": interval(quick.plan.total) if quick else None,
        "smallest": names[small.card] if small else None,
        "patches": [fmt.patch(cell.patch) for cell in part.entries[0].fit.cells],
        "rows": [_row(part, entry, names[entry.card]) for entry in part.entries],
        "gpus": part.entries[0].plan.gpus,
        "parts": [name.replace("_", " ") for name in PARTS],
    }


def _row(part: WorkloadReport, entry: Entry, name: str) -> View:
    plan, memory = entry.plan, entry.memory
    parts = memory.breakdown if memory else None
    left = entry.fit.budget - memory.least_memory if memory else None
    return {
        "slug": entry.card,
        "name": name,
        "verdict": _verdict(entry),
        "fits": {None: "no answer", True: "yes", False: "no"}[entry.fits],
        "state": {None: "unknown", True: "good", False: "bad"}[entry.fits],
        "step": interval(plan.step),
        "steps": fmt.count(plan.steps) if plan.steps else fmt.UNKNOWN,
        "training": interval(plan.training),
        "validation": interval(plan.validation),
        "total": interval(plan.total),
        "bound": sentences.bound_text(plan.bound_by),
        "loader": _loader(plan),
        "energy": fmt.UNKNOWN if plan.energy_kwh is None
        else f"{fmt.significant(plan.energy_kwh, 2)} kWh",
        "time_basis": plan.total.basis.value if plan.total else None,
        "cells": [
            {
                "text": batch_text(cell.max_batch, cell.limited_by, cell.status),
                "recommended": i == entry.fit.recommended,
                "asked": cell.patch == part.workload.patch,
                "basis": cell.basis.value,
            }
            for i, cell in enumerate(entry.fit.cells)
        ],
        "bases": sorted({cell.basis.value for cell in entry.fit.cells}),
        "needs": fmt.UNKNOWN if memory is None else fmt.memory_interval(
            memory.least_memory, memory.least_memory_low, memory.least_memory_high
        ),
        "room": fmt.memory(entry.fit.budget),
        "left": fmt.UNKNOWN if left is None else
        (fmt.memory(left) if left >= 0 else f"lacks {fmt.memory(-left)}"),
        "memory_basis": memory.basis.value if memory else None,
        "parts": [_size(getattr(parts, name)) if parts else fmt.UNKNOWN for name in PARTS],
        "context": fmt.memory(entry.fit.context),
        "reserve": fmt.memory(entry.fit.reserve),
        "limit": sentences.limit_text(part, entry),
        "changes": [
            *(sentences.option_text(option, plan) for option in plan.options),
            *(sentences.change_text(change, entry) for change in entry.changes),
        ],
        "notes": _notes(entry),
    }  # fmt: skip


def _loader(plan: Plan) -> str:
    texts = []
    if plan.loader_patches_per_s is not None:
        texts.append(f"{fmt.rate(plan.loader_patches_per_s)} patches/s")
    if plan.loader_mb_per_s is not None:
        texts.append(f"{fmt.rate(plan.loader_mb_per_s)} MB/s")
    return ", ".join(texts) or fmt.UNKNOWN


def _size(n: int) -> str:
    return fmt.memory(n) if n else "0"


def _notes(entry: Entry) -> list[str]:
    """What a reader should know, each once."""
    notes = [*entry.fit.warnings, *entry.plan.notes]
    where: dict[str, list[str]] = {}
    for cell in entry.fit.cells:
        if cell.note:
            where.setdefault(cell.note, []).append(fmt.patch(cell.patch))
    notes += [f"{', '.join(patches)}: {note}." for note, patches in where.items()]
    return list(dict.fromkeys(note.replace("..", ".") for note in notes))


def _card(report: CapacityReport, card: Card, name: str) -> View:
    return {
        "slug": card.slug,
        "name": name,
        "nominal": fmt.memory(card.memory_nominal),
        "visible": fmt.memory(card.memory_visible),
        "visible_basis": card.visible_basis,
        "bandwidth": fmt.UNKNOWN if card.memory_bandwidth is None
        else f"{fmt.significant(card.memory_bandwidth / 1e9, 3)} GB/s",
        "power": fmt.UNKNOWN if card.power_w is None else f"{card.power_w:.0f} W",
        "launch": card.launch or fmt.UNKNOWN,
        "baseline": report.baselines.get(card.slug, sentences.NOT_MEASURED),
        "source": card.source or fmt.UNKNOWN,
    }  # fmt: skip


def _store(report: CapacityReport) -> str:
    if report.store is None:
        return "no store of measurements was there."
    count = report.measurements
    what = "one measurement" if count == 1 else f"{count or 'no'} measurements"
    return f"{what} of the store answered a question of this report."
