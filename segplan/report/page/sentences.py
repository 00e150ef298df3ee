"""A capacity report in sentences: the answer, what limits it, and what would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from segplan.report import format as fmt
from segplan.report.tables import measured_share
from segplan.report.times import interval
from segplan.results import SCHEMA_VERSION, BoundBy, LimitedBy, to_plain

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport, Change, Entry, WorkloadReport
    from segplan.results import BatchOption, Plan
    from segplan.units import Patch

MOST_NAMED = 5
"""Cards named in a sentence; the tables name them all."""

NOT_MEASURED = "not measured"

_BOUND = {
    BoundBy.GPU: "the GPU",
    BoundBy.LOADER: "the data loader",
    BoundBy.HOST: "the host (Python)",
}


def step_text(patch: Patch, batch: int) -> str:
    """ "96³ at batch 4"."""
    return f"{fmt.patch(patch)} at batch {batch}"


def bound_text(bound: BoundBy | None) -> str:
    """What an experiment waits for, as part of a sentence."""
    return fmt.UNKNOWN if bound is None else _BOUND[bound]


def summary(report: CapacityReport) -> list[str]:
    """The answer of the whole report."""
    lines = [f"{part.name}: {workload_answer(report, part)}" for part in report.workloads]
    if len(report.workloads) > 1:
        lines.append(_all_of_them(report))
    lines.append(evidence(report))
    return lines


def workload_answer(report: CapacityReport, part: WorkloadReport) -> str:
    """Which cards train one workload, the fastest and the smallest of them."""
    names = card_names(report)
    step = step_text(part.workload.patch, part.workload.batch)
    holding = fitting(part)
    count = len(part.entries)
    unknown = sum(entry.fits is None for entry in part.entries)
    aside = f" ({unknown} without an answer)" if unknown else ""
    if not holding:
        text = "this card does not train" if count == 1 else f"none of these {count} cards trains"
        text = f"{text} {step}{aside}."
        needs = [e.memory.least_memory for e in part.entries if e.memory is not None]
        if needs:
            text += f" It needs {fmt.memory(min(needs))} to train in."
        elsewhere = sorted({c.card_name for e in part.entries for c in e.changes
                            if c.kind == "card" and c.card_name})  # fmt: skip
        if elsewhere:
            text += f" The smallest card of the catalogue that holds it: {elsewhere[0]}."
        return _capital(text)
    trains = "this card trains" if count == 1 else (
        f"{_all(count)} cards train" if len(holding) == count else
        f"{len(holding)} of {count} cards {'trains' if len(holding) == 1 else 'train'}"
    )  # fmt: skip
    text = f"{trains} {step}{aside}."
    fastest = quickest(part)
    if fastest is not None:
        where = f"on the {names[fastest.card]}"
        fast = "It takes" if len(holding) == 1 else "Fastest:"
        text += f" {fast} {interval(fastest.plan.total)} {where}."
    small = smallest(report, part)
    if small is not None and len(holding) > 1:
        text += f" Smallest card that trains it: {names[small.card]}"
        if small.plan.total is not None and small is not fastest:
            text += f", {interval(small.plan.total)}"
        text += "."
    return _capital(text)


def card_names(report: CapacityReport) -> dict[str, str]:
    """The cards' names by slug; two of one name are told apart by their slugs."""
    taken = Counter(card.name for card in report.cards)
    return {
        card.slug: card.name if taken[card.name] == 1 else f"{card.name} ({card.slug})"
        for card in report.cards
    }


def fitting(part: WorkloadReport) -> list[Entry]:
    """The cards that train a workload as asked."""
    return [entry for entry in part.entries if entry.fits]


def quickest(part: WorkloadReport) -> Entry | None:
    """Of those the one on which it ends first; None where no time is known."""
    timed = [entry for entry in fitting(part) if entry.plan.total is not None]
    return min(timed, key=lambda e: e.plan.total.seconds if e.plan.total else 0.0, default=None)


def smallest(report: CapacityReport, part: WorkloadReport) -> Entry | None:
    """Of those the one with the least memory."""
    room = {card.slug: card.memory_visible for card in report.cards}
    return min(fitting(part), key=lambda entry: room[entry.card], default=None)


def _all_of_them(report: CapacityReport) -> str:
    names = card_names(report)
    every = [
        slug
        for slug in names
        if all(e.fits for p in report.workloads for e in p.entries if e.card == slug)
    ]
    count = len(report.workloads)
    if not every:
        return f"No card of these trains {_all(count)} workloads as asked."
    if len(every) == len(names) and len(names) > 1:
        return f"Every card trains {_all(count)} workloads as asked."
    shown = [names[slug] for slug in every[:MOST_NAMED]]
    if len(every) > MOST_NAMED:
        shown.append(f"{len(every) - MOST_NAMED} more")
    return f"All {count} workloads as asked train on: {_listed(shown)}."


def evidence(report: CapacityReport) -> str:
    """How much of it was measured."""
    measured, cells = measured_share(report)
    if not measured:
        text = f"All {cells} points of the frontiers are predicted; none was measured."
    else:
        text = (
            f"{measured} of {cells} points of the frontiers were measured, on the card itself or "
            "under its memory; the rest is predicted."
        )
    return f"{text} Intervals are 80 %."


def limit_text(part: WorkloadReport, entry: Entry) -> str:
    """What limits a workload on a card."""
    cell, asked = entry.asked, part.workload.batch
    patch = fmt.patch(cell.patch)
    if cell.status != "ok":
        return f"No answer: {cell.note or cell.status.replace('_', ' ')}"
    if cell.limited_by is LimitedBy.KERNEL:
        text = (
            f"Not memory: a kernel cannot index tensors of batch {cell.max_batch + 1} at {patch}."
        )
    elif cell.limited_by is LimitedBy.CAP:
        return f"Nothing up to batch {cell.max_batch}, where the search ends."
    else:
        text = f"Memory: batch {cell.max_batch} is the largest at {patch}."
        if cell.max_batch == 0:
            text = f"Memory: not even one patch of {patch} trains."
    if entry.fits is False and entry.memory is not None and cell.limited_by is LimitedBy.MEMORY:
        over = entry.memory.least_memory - entry.fit.budget
        if over > 0:
            text += f" Batch {asked} lacks {fmt.memory(over)}."
    return text


def change_text(change: Change, entry: Entry) -> str:
    """One thing that would change the answer."""
    step = step_text(change.patch, change.batch)
    where = change.card_name or change.card
    if change.kind == "checkpointing":
        then = f"batch {change.batch} instead of {entry.asked.max_batch}"
        return f"Checkpointing trains {then} at {fmt.patch(change.patch)}, in more time."
    if change.kind == "smaller_batch":
        return f"Batch {change.batch} fits."
    if change.kind == "smaller_patch":
        return f"{fmt.patch(change.patch)} fits at batch {change.batch}."
    if where is None:
        return f"No card of the catalogue holds {step}."
    if change.kind == "card_for_batch":
        return f"Smallest card for batch {change.batch}: {where}."
    which = "the next patch, " if change.kind == "card_for_patch" else ""
    return f"Smallest card for {which}{step}: {where}."


def option_text(option: BatchOption, plan: Plan) -> str:
    """The same experiment at another batch."""
    text = f"Batch {option.batch}"
    if option.accumulation > 1:
        text += f", accumulated {option.accumulation} times,"
    if not plan.fits:
        return text + (f" fits: {interval(option.total)}." if option.total else " fits.")
    if option.total is None or plan.total is None:
        return text + " fits as well."
    how = "ends sooner" if option.total.seconds < plan.total.seconds else "takes longer"
    return f"{text} {how}: {interval(option.total)}."


def method(report: CapacityReport) -> list[tuple[str, str]]:
    """How the numbers came about: (what, how)."""
    return [
        (
            "Memory",
            "The training step runs on tensors without data; every allocation it makes is replayed "
            "through a replica of the caching allocator, with the workspaces that the card's "
            "kernels take. The least memory is the smallest limit under which the step trains.",
        ),
        (
            "Room on a card",
            "What torch sees of the card's memory, less the CUDA context, less a reserve of "
            f"{fmt.memory(report.workloads[0].entries[0].fit.reserve)} left free on purpose.",
        ),
        (
            "Frontier",
            "For each patch the largest batch whose least memory is within that room; the batch "
            "counts patches in one forward pass on one GPU.",
        ),
        (
            "Time",
            "One step is predicted from its operators and the card's rates, or measured; the "
            "experiment is all of its steps and validation, or what the loader can deliver where "
            "that is slower.",
        ),
        (
            "Intervals",
            "80 %: of ten true values about eight lie within. Those of a step's memory and time "
            "come from measurements on other cards and networks; those of validation and of saving "
            "checkpoints are assumptions.",
        ),
    ]


BASES = (
    ("measured", "ran on this very model of card"),
    ("emulated", "ran on a larger card whose allocator was capped to this card's room"),
    ("scaled", "a measured step, carried over to this card by its rates"),
    ("predicted", "computed from the training step and the card's specifications; nothing ran"),
)
"""What each basis means."""

LIMITS = (
    "A prediction says what the training step needs. Validation on whole volumes, other programs "
    "on the card and a desktop need memory of their own: leave room.",
    "A fit within the interval of the least memory may turn out either way: measure it on the card "
    "with segplan fit --gpu 0 before money depends on it.",
    "Days assume that the machine does nothing else and that the data loader keeps up unless it is "
    "named as what the experiment waits for.",
    "Energy is that of the cards alone, not of the server.",
    "Another batch or patch changes how a network learns: the report does not speak of accuracy.",
)
"""What the report does not say."""


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def document(report: CapacityReport) -> dict[str, Any]:
    """The JSON document: `schema_version` and `summary`, then the keys of the Python attributes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "summary": summary(report),
        **to_plain(report),
    }


def _all(count: int) -> str:
    return "both" if count == 2 else f"all {count}"
