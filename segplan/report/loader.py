"""How fast the loader delivers, and what memory it needs for that."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from segplan.dataset.nouns import LoaderRate, Sampled
from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.report.scan import printable, render_problems, spacing
from segplan.results import SCHEMA_VERSION, to_plain

_CACHES = {
    "none": "no cache",
    "memory": "CacheDataset (memory)",
    "disk": "PersistentDataset (disk)",
}


def document(rate: LoaderRate) -> dict[str, Any]:
    """The JSON document of a loader's rate."""
    return {"schema_version": SCHEMA_VERSION, **to_plain(rate)}


def render(rate: LoaderRate, console: Console) -> None:
    """Print a loader's rate and its memory."""
    workers = f"{rate.workers} worker{'s' * (rate.workers != 1)}"
    say(console, f"{printable(rate.path)} · {workers} · {_CACHES[rate.cache.value]}", style="bold")
    crops = f"{rate.num_samples} crop{'s' * (rate.num_samples != 1)} of {fmt.patch(rate.patch)}"
    say(console, f"{crops} a case at {spacing(rate.spacing)} · measured")
    for title, rows in (("", _speed(rate)), ("Host memory", _memory(rate))):
        table = make_table(console, header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(style="dim")
        for row in rows:
            table.add_row(*(fitting_text(text, console) for text in row))
        console.print()
        if title:
            say(console, title, style="bold")
        console.print(table)
    if rate.interrupted or rate.notes or rate.problems:
        console.print()
    if rate.interrupted:
        say(console, "Note: Interrupted: this is what was measured until then.")
    for note in rate.notes:
        say(console, f"Note: {note}")
    if rate.problems:
        render_problems(rate.problems, console)


def _speed(rate: LoaderRate) -> list[tuple[str, str, str]]:
    what = "later visits" if rate.warm_s is not None else "first visits"
    rows = [("patches/s", _interval(rate.patches_per_s), what)]
    if rate.first_patches_per_s is not None and rate.warm_s is not None:
        rows.append(("", _interval(rate.first_patches_per_s), "first visits"))
    rows.append(("MB/s", fmt.rate(rate.mb_per_s), "read from files"))
    rows.append(("case, cold", _time(rate.cold_s), "one worker, first visit"))
    rows.append(("case, warm", _time(rate.warm_s), "one worker, later visits"))
    rows.append(("epoch start", _time(rate.start_s), "first batch, and the workers' end"))
    rows.append(("visits", str(rate.visits), f"{rate.measured} of {rate.cases} cases"))
    return rows


def _memory(rate: LoaderRate) -> list[tuple[str, str, str]]:
    cached = "held" if rate.cache.value == "memory" else "were it held" if (
        rate.cache.value == "none"
    ) else "on disk"  # fmt: skip
    return [
        ("needed", fmt.memory(rate.host_bytes), "this process, workers, queues, cache"),
        ("each worker", fmt.memory(rate.worker_bytes), ""),
        ("queues", fmt.memory(rate.prefetch_bytes), ""),
        ("a case", fmt.memory(rate.case_bytes), "prepared"),
        ("cache", fmt.memory(rate.cache_bytes), f"all {rate.cases} cases, {cached}"),
    ]


def _interval(found: Sampled) -> str:
    few = len(found.samples) < 2
    digits = 2 if few else fmt.digits_of(found.value, found.low, found.high)
    ends = [fmt.significant(v, digits) for v in (found.low, found.high)]
    text = fmt.significant(found.value, digits)
    return text if ends[0] == ends[1] else f"{text} ({ends[0]}–{ends[1]})"


def _time(found: Sampled | None) -> str:
    if found is None:
        return fmt.UNKNOWN
    return fmt.seconds_interval(found.value, found.low, found.high)
