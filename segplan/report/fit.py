"""A frontier as a table on the terminal: what fits, what it needs, and which row to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from segplan.report import format as fmt
from segplan.report import times
from segplan.report.console import fits_width, fitting_text, make_table, say
from segplan.report.workload import title
from segplan.results import Cell, Fit, LimitedBy

LEGEND = (
    "peak: most bytes in tensors at one time. least memory: the smallest limit that still "
    "trains, and what decides (80 % interval). nvidia-smi shows more than both: the allocator "
    "keeps what it once had, and the context comes on top."
)


@dataclass(frozen=True)
class _Column:
    header: str
    text: Callable[[Cell], str]
    right: bool = True


def render(fit: Fit, console: Console) -> None:
    """Print one frontier."""
    _heading(fit, console)
    for detail in range(7):
        table = _table(fit, console, detail)
        if fits_width(table, console):
            break
    _print(table, console)
    if fit.recommended is not None:
        say(console, f"★ {fit.reason}", style="bold green")
    else:
        say(console, fit.reason, style="bold yellow")
        if fit.smallest_card is not None and fit.smallest_card not in fit.reason:
            say(console, f"The first card of the catalogue that holds it: {fit.smallest_card}.")
    for line in _notes(fit):
        say(console, line)
    for warning in fit.warnings:
        say(console, f"warning: {warning}", style="yellow")
    say(console, LEGEND, style="dim")


def render_many(fits: Sequence[Fit], console: Console) -> None:
    """Print several frontiers of one workload: a card a row, a patch a column."""
    if len(fits) == 1:
        render(fits[0], console)
        return
    patches = list(dict.fromkeys(c.patch for f in fits for c in f.cells))
    if fits:
        say(console, title(fits[0].workload), style="bold")
    say(console, "Largest batch of each patch (★ the recommended one).")
    table = make_table(console)
    table.add_column("card", no_wrap=True)
    table.add_column("budget", justify="right", no_wrap=True)
    for patch in patches:
        table.add_column(fitting_text(fmt.patch(patch), console), justify="right", no_wrap=True)
    for fit in fits:
        best = None if fit.recommended is None else fit.cells[fit.recommended].patch
        row = [fit.card, fmt.memory(fit.budget)]
        by_patch = {c.patch: c for c in fit.cells}
        for patch in patches:
            cell = by_patch.get(patch)
            mark = "★ " if patch == best else ""
            row.append(fmt.UNKNOWN if cell is None else mark + _batch(cell))
        table.add_row(*(fitting_text(text, console) for text in row))
    _print(table, console)
    for warning in dict.fromkeys(w for f in fits for w in f.warnings):
        say(console, f"warning: {warning}", style="yellow")
    say(console, "segplan fit --gpu CARD shows one card in full.", style="dim")


def _heading(fit: Fit, console: Console) -> None:
    say(console, title(fit.workload), style="bold")
    on = f" on {fit.measured_on}" if fit.measured_on else ""
    line = f"{fit.card} · {_bases(fit)}{on} · {fmt.memory(fit.budget)} to train in"
    aside = f"context {fmt.memory(fit.context)} · reserve {fmt.memory(fit.reserve)}"
    whole = f"{line} · {aside}"
    for text in [whole] if len(whole) <= console.width else [line, aside]:
        say(console, text)


def _bases(fit: Fit) -> str:
    """What the numbers rest on: "predicted", or "memory emulated, step measured"."""
    memory, step = _memory_bases(fit), _step_bases(fit)
    if not step or step == memory:
        return " and ".join(memory)
    return f"memory {' and '.join(memory)}, step {' and '.join(step)}"


def _memory_bases(fit: Fit) -> list[str]:
    return list(dict.fromkeys(c.basis.value for c in fit.cells))


def _step_bases(fit: Fit) -> list[str]:
    return list(dict.fromkeys(c.step.basis.value for c in fit.cells if c.step is not None))


def _print(table: Table, console: Console) -> None:
    console.print()
    console.print(table)
    console.print()


def _table(fit: Fit, console: Console, detail: int) -> Table:
    """The table at a level of detail: 0 shows all, each level takes less width."""
    best = fit.recommended
    table = make_table(console)
    columns = [_Column("", lambda c: "★" if best is not None and c is fit.cells[best] else " ")]
    columns += _columns(fit, detail)
    for column in columns:
        table.add_column(column.header, justify="right" if column.right else "left", no_wrap=True)
    for i, cell in enumerate(fit.cells):
        style = "bold green" if i == best else "dim" if cell.max_batch == 0 else None
        texts = (fitting_text(column.text(cell), console) for column in columns)
        table.add_row(*texts, style=style)
    return table


def _columns(fit: Fit, detail: int) -> list[_Column]:
    short = detail >= 1
    columns = [
        _Column("patch", lambda c: fmt.patch(c.patch)),
        _Column("batch" if short else "largest batch", _batch),
    ]
    if detail < 6:
        columns.append(_Column("limit" if short else "limited by", _limit, right=False))
    columns.append(_Column("peak", _peak))
    columns.append(_Column("least memory", _least if detail < 5 else _short_least, right=False))
    if any(c.step for c in fit.cells):
        step = _step if detail < 2 else _brief_step if detail < 6 else _short_step
        columns.append(_Column("step", step, right=False))
        if detail < 4:
            columns.append(_Column("patches/s", _rate))
    # The heading names the basis: the column may go where all rows agree.
    agree = len(_memory_bases(fit)) <= 1 and len(_step_bases(fit)) <= 1
    if detail < 3 or not agree:
        columns.append(_Column("basis", _basis if detail < 3 else _short_basis, right=False))
    return columns


def _batch(cell: Cell) -> str:
    if cell.status != "ok" and cell.max_batch == 0:
        return "?"
    return str(cell.max_batch) if cell.max_batch else "none"


def _limit(cell: Cell) -> str:
    if cell.status != "ok":
        return cell.status.replace("_", " ")
    return cell.limited_by.value if cell.limited_by else fmt.UNKNOWN


def _peak(cell: Cell) -> str:
    return fmt.memory(None if cell.memory is None else cell.memory.peak_allocated)


def _short_least(cell: Cell) -> str:
    return fmt.memory(None if cell.memory is None else cell.memory.least_memory)


def _least(cell: Cell) -> str:
    m = cell.memory
    if m is None:
        return fmt.UNKNOWN
    return fmt.memory_interval(m.least_memory, m.least_memory_low, m.least_memory_high)


def _step(cell: Cell) -> str:
    t = cell.step
    return fmt.UNKNOWN if t is None else fmt.seconds_interval(t.seconds, t.low, t.high)


def _step_digits(cell: Cell) -> int:
    t = cell.step
    return 2 if t is None else fmt.digits_of(t.seconds, t.low, t.high)


def _brief_step(cell: Cell) -> str:
    return times.brief(cell.step)


def _short_step(cell: Cell) -> str:
    return fmt.seconds(None if cell.step is None else cell.step.seconds, _step_digits(cell))


def _rate(cell: Cell) -> str:
    return fmt.rate(cell.patches_per_second, _step_digits(cell))


def _basis(cell: Cell) -> str:
    if cell.step is None or cell.step.basis == cell.basis:
        return cell.basis.value
    return f"{cell.basis.value}, step {cell.step.basis.value}"


def _short_basis(cell: Cell) -> str:
    parts = [cell.basis.value[:4]]
    if cell.step is not None and cell.step.basis != cell.basis:
        parts.append(cell.step.basis.value[:4])
    return "/".join(parts)


def _notes(fit: Fit) -> list[str]:
    lines = []
    for cell in fit.cells:
        if cell.status == "ok" and cell.max_batch == 0 and cell.memory is not None:
            kernel = cell.limited_by is LimitedBy.KERNEL
            needs = "exceeds what a kernel can index" if kernel else f"needs {_least(cell)}"
            lines.append(f"{fmt.patch(cell.patch)}: nothing fits; batch 1 {needs}.")
        if cell.retries:
            lines.append(
                f"{fmt.patch(cell.patch)}: fits, but thrashes: the allocator had to give memory "
                f"back {cell.retries} times; a smaller batch runs faster."
            )
        if cell.note:
            lines.append(f"{fmt.patch(cell.patch)}: {cell.note}")
    return lines
