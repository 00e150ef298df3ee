"""The memory of one step, on the terminal: the numbers people confuse, side by side."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.report.workload import title
from segplan.results import MemoryEstimate
from segplan.workload import Workload


def render(
    estimate: MemoryEstimate, workload: Workload, card: str | None, console: Console
) -> None:
    """Print what one step needs, smallest number first, then what the peak is made of."""
    say(console, title(workload), style="bold")
    where = f"{card} · " if card else "no card named: tensors and allocator only · "
    patch = fmt.patch(workload.patch)
    say(console, f"{where}patch {patch}, batch {workload.batch} · {estimate.basis.value}")
    least = fmt.memory_interval(
        estimate.least_memory, estimate.least_memory_low, estimate.least_memory_high
    )
    rows = [
        ("peak allocated", fmt.memory(estimate.peak_allocated), "most bytes in tensors at once"),
        ("least memory", least, "smallest limit that trains: decides"),
        ("peak reserved", fmt.memory(estimate.peak_reserved), "what the allocator holds if let"),
    ]
    if estimate.context is not None:
        total = fmt.memory(estimate.peak_reserved + estimate.context)
        context = fmt.memory(estimate.context)
        rows.append(("process total", total, f"nvidia-smi; context {context} included"))
    _print(rows, console)
    if estimate.breakdown is None:
        return
    parts = dataclasses.asdict(estimate.breakdown)
    whole = sum(parts.values())
    say(console, "What it is made of", style="bold")
    _print(
        [
            (name.replace("_", " "), fmt.memory(size), fmt.percent(size / whole))
            for name, size in sorted(parts.items(), key=lambda item: -item[1])
            if size
        ],
        console,
    )


def _print(rows: list[tuple[str, str, str]], console: Console) -> None:
    table = make_table(console, header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="left", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*(fitting_text(text, console) for text in row))
    console.print()
    console.print(table)
    console.print()
