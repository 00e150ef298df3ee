"""The memory of one step: the numbers people confuse, side by side, and what would save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.report.json import estimate_document
from segplan.report.workload import title
from segplan.results import MemoryEstimate, to_plain

if TYPE_CHECKING:
    from segplan.api.estimating import CpuStitching, Study, ValidationStudy
    from segplan.api.ladder import Ladder, Rung

SMALL_SHARE = 0.01
"""Modules below this share of the least memory are shown as one."""

_NAMES = {
    "expandable_segments": "expandable segments", "amp": "mixed precision",
    "checkpointing": "checkpointing", "batch": "batch", "optimizer": "optimizer",
    "patch": "patch", "width": "width",
}  # fmt: skip

EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


def document(study: Study) -> dict[str, Any]:
    """The JSON document of a study: an estimate's, and what is known beyond it."""
    ladder: dict[str, Any] | None = to_plain(study.ladder)
    m = study.memory
    total = None
    if m.context is not None:
        outside = m.context + _communicator(study)
        total = {"least": m.least_memory + outside, "unlimited": m.peak_reserved + outside}
    return {
        **estimate_document(m, study.workload, study.card),
        "process_total": total,
        "card_memory": study.visible,
        "reserve": study.reserve,
        "budget": study.budget,
        "fits": study.fits,
        "activations_by_module": dict(study.modules),
        "ladder": ladder,
        "validation": _validation_document(study.validation),
        "data_parallel": to_plain(study.data_parallel),
        "warnings": list(study.warnings),
    }


def _validation_document(found: ValidationStudy | None) -> dict[str, Any] | None:
    if found is None:
        return None
    document: dict[str, Any] = to_plain(found)
    document["activations_by_part"] = document.pop("modules")
    return document


def _communicator(study: Study) -> int:
    return study.data_parallel.communicator if study.data_parallel is not None else 0


def render(study: Study, console: Console) -> None:
    """Print what one step needs, what that is made of and, if computed, what would save."""
    w, m = study.workload, study.memory
    say(console, title(w), style="bold")
    where = f"{study.card} · " if study.card else "no card named: tensors and allocator only · "
    say(console, f"{where}patch {fmt.patch(w.patch)}, batch {w.batch} · {m.basis.value}")
    _print(_numbers(m, _communicator(study)), console)
    if study.fits is not None:
        say(console, verdict(study), style="bold")
    for warning in study.warnings:
        say(console, f"Note: {warning}")
    if m.breakdown is not None:
        if study.fits is not None or study.warnings:
            console.print()
        say(console, "What the least memory is made of", style="bold")
        parts = dataclasses.asdict(m.breakdown)
        _print(_parts(parts, study.modules), console)
    if study.data_parallel is not None:
        size = fmt.memory(sum(study.data_parallel.buckets))
        say(
            console,
            f"Gradients include {size} in {len(study.data_parallel.buckets)} buckets of "
            f"DistributedDataParallel over {study.data_parallel.gpus} GPUs, a second copy of all "
            "of them (gradient_as_bucket_view=True does without).",
        )
        console.print()
    if study.validation is not None:
        _render_validation(study, study.validation, console)
    if study.ladder is not None:
        _render_ladder(study, study.ladder, console)


def verdict(study: Study) -> str:
    """Whether it fits the card, and how that follows, in a sentence."""
    m = study.memory
    context = fmt.memory(m.context)
    if study.data_parallel is not None:
        context += f" context, {fmt.memory(study.data_parallel.communicator)} NCCL"
    else:
        context += " context"
    aside = f"{context} and {fmt.memory(study.reserve)} reserve"
    room = f"{fmt.memory(study.budget)} ({fmt.memory(study.visible)} less {aside})"
    least = fmt.memory(m.least_memory)
    if study.fits:
        return f"Fits: {least} needed, {study.card} leaves {room}."
    return f"Does not fit: {least} needed, {study.card} leaves {room}."


def _render_validation(study: Study, found: ValidationStudy, console: Console) -> None:
    v, m = found.validation, found.memory
    say(console, f"Validation of {fmt.patch(v.volume)}", style="bold")
    windows = "window" if found.windows == 1 else "windows"
    say(
        console,
        f"{found.windows} {windows} of {fmt.patch(v.window(study.workload.patch))}, "
        f"{v.sw_batch_size} at a time, overlap {v.overlap:g}, "
        f"stitched on the {v.stitch.upper()} · {m.basis.value}",
    )
    both = found.together
    rows = [
        ("peak allocated", fmt.memory(m.peak_allocated), "training's state included"),
        ("least memory", _least(m), "of the validation alone"),
        ("with training", _least(both), "in one process: decides"),
    ]
    _print(rows, console)
    say(console, validation_verdict(study, found), style="bold")
    if found.cpu_stitching is not None:
        say(console, _stitching(study, found.cpu_stitching))
    for warning in found.warnings:
        say(console, f"Note: {warning}")
    if m.breakdown is not None:
        console.print()
        say(console, "What the validation's least memory is made of", style="bold")
        _print(_parts(dataclasses.asdict(m.breakdown), found.modules), console)


def validation_verdict(study: Study, found: ValidationStudy) -> str:
    """Which of training and validation decides, and whether both fit the card."""
    needs = {"validation": found.memory.least_memory, "training": study.memory.least_memory}
    other = "training" if found.decides == "validation" else "validation"
    text = (
        f"{found.decides.capitalize()} decides: {fmt.memory(needs[found.decides])}, "
        f"{other} {fmt.memory(needs[other])}."
    )
    if found.fits is None:
        return text
    fits = "Both fit" if found.fits else "They do not fit"
    return (
        f"{text} {fits} in one process: {fmt.memory(found.together.least_memory)} needed, "
        f"{study.card} leaves {fmt.memory(study.budget)}."
    )


def _stitching(study: Study, other: CpuStitching) -> str:
    """What stitching on the CPU would change, in a sentence."""
    saved = f"saves {fmt.memory(other.saved)}" if other.saved > 0 else "saves nothing"
    text = (
        f"Stitching on the CPU (--stitch cpu) {saved}: validation then needs "
        f"{fmt.memory(other.least_memory)}, the process {fmt.memory(other.together)}"
    )
    if other.needed:
        return f"{text}. It is needed on {study.card}."
    if other.needed is None:
        return f"{text}."
    if other.fits:
        return f"{text}. It is not needed on {study.card}."
    return f"{text}, which does not fit {study.card} either."


def change_text(rung: Rung) -> str:
    """What a rung changes, short: "checkpointing", "batch 1", "feature_size 24"."""
    texts = ["expandable segments"] if rung.expandable_segments else []
    for name, value in rung.changes.items():
        if name == "precision":
            texts.append(f"AMP ({value})")
        elif name == "checkpointing":
            texts.append(name)
        elif name == "patch":
            texts.append(f"patch {fmt.patch(value)}")
        elif name == "model_args":
            texts += [
                f"{k} {v}" if isinstance(v, int) else f"half the {k}" for k, v in value.items()
            ]
        else:
            texts.append(f"{name} {value}")
    return " + ".join(texts)


def change_options(rung: Rung) -> str:
    """The same as the command line and the environment take it."""
    texts = [EXPANDABLE] if rung.expandable_segments else []
    for name, value in rung.changes.items():
        if name == "checkpointing":
            texts.append("--checkpointing")
        elif name == "patch":
            texts.append(f"--patch {fmt.patch_option(value)}")
        elif name == "model_args":
            texts += [f"--model-arg {k}={_value(v)}" for k, v in value.items()]
        else:
            texts.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(texts)


def _value(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{','.join(_value(v) for v in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _least(m: MemoryEstimate) -> str:
    return fmt.memory_interval(m.least_memory, m.least_memory_low, m.least_memory_high)


def _numbers(m: MemoryEstimate, communicator: int = 0) -> list[tuple[str, str, str]]:
    rows = [
        ("peak allocated", fmt.memory(m.peak_allocated), "most bytes in tensors at once"),
        ("least memory", _least(m), "smallest limit that trains: decides"),
        ("peak reserved", fmt.memory(m.peak_reserved), "what the allocator holds if let"),
    ]
    if m.context is not None:
        outside = m.context + communicator
        aside = f"{fmt.memory(m.context)} context"
        what = "context"
        if communicator:
            aside += f" + {fmt.memory(communicator)} NCCL"
            what = "context + NCCL"
        rows += [
            ("process total", fmt.memory(m.least_memory + outside), f"least + {aside}"),
            (
                "in nvidia-smi",
                fmt.memory(m.peak_reserved + outside),
                f"reserved + {what}, where there is room",
            ),
        ]
    return rows


def _parts(parts: Mapping[str, int], modules: Mapping[str, int]) -> list[tuple[str, str, str]]:
    """The breakdown, largest part first, activations by module below theirs."""
    whole = sum(parts.values())
    rows = []
    for name, size in sorted(parts.items(), key=lambda item: -item[1]):
        if not size:
            continue
        rows.append((name.replace("_", " "), fmt.memory(size), _share(size, whole)))
        if name != "activations" or len(modules) < 2:
            continue
        large = {k: v for k, v in modules.items() if v >= SMALL_SHARE * whole}
        inner = [(f"  {k}", f"  {fmt.memory(v)}", v) for k, v in large.items()]
        rest = sum(modules.values()) - sum(large.values())
        if rest:
            count = len(modules) - len(large)
            inner.append((f"  {count} smaller", f"  {fmt.memory(rest)}", rest))
        rows += [(name, text, f"  {_share(v, whole)}") for name, text, v in inner]
    rows.append(("least memory", fmt.memory(whole), ""))
    return rows


def _share(part: int, whole: int) -> str:
    share = part / whole
    return "< 0.1 %" if share < 0.001 else fmt.percent(share)


def _render_ladder(study: Study, ladder: Ladder, console: Console) -> None:
    say(console, "What would save how much", style="bold")
    table = make_table(console)
    table.add_column("change", overflow="fold")
    for name in ("least memory", "saves", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    card = study.card is not None
    if card:
        table.add_column("fits", no_wrap=True)
    rungs = list(ladder.rungs)
    if ladder.together is not None:
        rungs.append(ladder.together)
    for rung in rungs:
        cells = [
            "the first together" if rung is ladder.together else change_text(rung),
            fmt.memory(rung.least_memory),
            fmt.memory(rung.saved) if rung.saved > 0 else "nothing",
            fmt.percent(rung.saved_share) if rung.saved > 0 else "",
        ]
        if card:
            cells.append("yes" if rung.fits else "no")
        style = "bold" if rung is ladder.together else None
        table.add_row(*(fitting_text(cell, console) for cell in cells), style=style)
    console.print()
    console.print(table)
    console.print()
    _say_advice(study, ladder, rungs, console)


def _say_advice(study: Study, ladder: Ladder, rungs: Sequence[Rung], console: Console) -> None:
    if study.fits is False:
        first = ladder.together or next((r for r in rungs if r.fits), None)
        if first is not None:
            say(console, f"First that fits: {change_text(first)}")
            say(console, f"  {change_options(first)}")
        else:
            say(console, "Not even all of them together fit.")
    for name, reason in ladder.left_out.items():
        say(console, f"Left out: {_NAMES.get(name, name)}: {reason}", style="dim")


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
