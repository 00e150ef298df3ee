"""A capacity report as pandas frames: bytes and seconds, one fact a column, ready to compute with.

Frames hold plain numbers; `csv_text` is what goes to a file that a spreadsheet may open.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from segplan.report import format as fmt
from segplan.results import Basis, Duration, MemoryBreakdown, StepTime

if TYPE_CHECKING:
    import pandas as pd

    from segplan.api.report_nouns import CapacityReport, Entry, WorkloadReport

PARTS = tuple(part.name for part in dataclasses.fields(MemoryBreakdown))

_FORMULA = ("=", "+", "-", "@")
"""What makes a spreadsheet take a cell for a formula (OWASP, "CSV Injection")."""


def frontier_frame(report: CapacityReport) -> pd.DataFrame:
    """A row for each workload, card and patch: the largest batch, its memory and its step."""
    rows = []
    for part, entry in _entries(report):
        for index, cell in enumerate(entry.fit.cells):
            memory, step = cell.memory, cell.step
            rows.append(
                {
                    **_who(part, entry),
                    "patch": fmt.patch_option(cell.patch),
                    "asked": cell.patch == part.workload.patch,
                    "recommended": index == entry.fit.recommended,
                    "max_batch": cell.max_batch if cell.status == "ok" else None,
                    "limited_by": cell.limited_by.value if cell.limited_by else None,
                    "least_memory_bytes": memory.least_memory if memory else None,
                    "least_memory_low_bytes": memory.least_memory_low if memory else None,
                    "least_memory_high_bytes": memory.least_memory_high if memory else None,
                    "budget_bytes": entry.fit.budget,
                    **_span("step", step),
                    "patches_per_s": cell.patches_per_second,
                    "basis": cell.basis.value,
                    "step_basis": step.basis.value if step else None,
                    "status": cell.status,
                    "note": cell.note,
                }
            )
    return _frame(rows, integers=("max_batch", "least_memory_bytes", "least_memory_low_bytes",
                                  "least_memory_high_bytes", "budget_bytes"))  # fmt: skip


def memory_frame(report: CapacityReport) -> pd.DataFrame:
    """A row for each workload and card: the step as asked by what it holds, and the card's room."""
    visible = {card.slug: card.memory_visible for card in report.cards}
    rows = []
    for part, entry in _entries(report):
        memory = entry.memory
        parts = memory.breakdown if memory else None
        rows.append(
            {
                **_who(part, entry),
                "patch": fmt.patch_option(part.workload.patch),
                "batch": part.workload.batch,
                "fits": entry.fits,
                "least_memory_bytes": memory.least_memory if memory else None,
                "least_memory_low_bytes": memory.least_memory_low if memory else None,
                "least_memory_high_bytes": memory.least_memory_high if memory else None,
                **{f"{name}_bytes": getattr(parts, name) if parts else None for name in PARTS},
                "context_bytes": entry.fit.context,
                "reserve_bytes": entry.fit.reserve,
                "budget_bytes": entry.fit.budget,
                "card_bytes": visible[entry.card],
                "basis": memory.basis.value if memory else None,
            }
        )
    sizes = [name for name in (rows[0] if rows else ()) if name.endswith("_bytes")]
    return _frame(rows, integers=sizes)


def days_frame(report: CapacityReport) -> pd.DataFrame:
    """A row for each workload and card: how long the experiment takes, in seconds."""
    rows = []
    for part, entry in _entries(report):
        plan = entry.plan
        rows.append(
            {
                **_who(part, entry),
                "patch": fmt.patch_option(part.workload.patch),
                "batch": part.workload.batch,
                "fits": entry.fits,
                "gpus": plan.gpus,
                "steps": plan.steps or None,
                **_span("step", plan.step),
                **_span("training", plan.training),
                **_span("validation", plan.validation),
                **_span("total", plan.total),
                "bound_by": plan.bound_by.value if plan.bound_by else None,
                "energy_kwh": plan.energy_kwh,
                "loader_patches_per_s": plan.loader_patches_per_s,
                "loader_mb_per_s": plan.loader_mb_per_s,
                "step_basis": plan.step.basis.value if plan.step else None,
                "total_basis": plan.total.basis.value if plan.total else None,
                "notes": " ".join(plan.notes) or None,
            }
        )
    return _frame(rows, integers=("steps",))


def answers_frame(report: CapacityReport) -> pd.DataFrame:
    """The frontier, with the days beside the patch that was asked for: what the CSV file holds."""
    import pandas as pd

    days = days_frame(report).drop(columns=["gpus"]).add_prefix("experiment_")
    keys = ["workload", "card", "patch"]
    days = days.rename(columns={f"experiment_{key}": key for key in keys})
    return pd.merge(frontier_frame(report), days, on=keys, how="left", sort=False)


def csv_text(frame: pd.DataFrame) -> str:
    """The frame as CSV, a line for each row.

    Text that a spreadsheet would take for a formula gets a quote before it.
    """
    safe = frame.copy()
    for name in safe.columns:
        if not _is_number(safe[name].dtype):
            safe[name] = safe[name].map(_plain, na_action="ignore")
    text: str = safe.to_csv(index=False, lineterminator="\n")
    return text


def _is_number(dtype: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(dtype) or is_bool_dtype(dtype)


def _plain(value: object) -> object:
    if not isinstance(value, str):
        return value
    line = "".join(c if c.isprintable() else " " for c in value)
    return "'" + line if line.lstrip().startswith(_FORMULA) else line


def _entries(report: CapacityReport) -> list[tuple[WorkloadReport, Entry]]:
    return [(part, entry) for part in report.workloads for entry in part.entries]


def _who(part: WorkloadReport, entry: Entry) -> dict[str, Any]:
    return {"workload": part.name, "card": entry.card}


def _span(name: str, time: StepTime | Duration | None) -> dict[str, float | None]:
    return {
        f"{name}_s": time.seconds if time else None,
        f"{name}_low_s": time.low if time else None,
        f"{name}_high_s": time.high if time else None,
    }


def _frame(rows: list[dict[str, Any]], integers: Any) -> pd.DataFrame:
    """Whole numbers stay whole where some are not known."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in integers:
        frame[name] = frame[name].astype("Int64")
    return frame


def measured_share(report: CapacityReport) -> tuple[int, int]:
    """(frontier cells that were measured or emulated, all cells)."""
    cells = [cell for _, entry in _entries(report) for cell in entry.fit.cells]
    return sum(cell.basis in (Basis.MEASURED, Basis.EMULATED) for cell in cells), len(cells)
