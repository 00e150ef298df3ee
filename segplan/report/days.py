"""How long experiments take, card by card: a table on the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from segplan.report import format as fmt
from segplan.report.console import fits_width, fitting_text, make_table, say
from segplan.report.times import interval, middle
from segplan.report.workload import title
from segplan.results import SCHEMA_VERSION, BatchOption, Plan, to_plain

if TYPE_CHECKING:
    from segplan.api.experiments import Experiment
    from segplan.schedule import Schedule

LEGEND = (
    "total: training, validation and checkpoints of all folds, with an 80 % interval; not the "
    "start, nor pauses. kWh: the cards alone, at their power limit while they compute. patches/s: "
    "what the data loader must deliver for the GPU never to wait; MB/s: the same as data read, "
    "nothing cached."
)

_DETAILS = 6
_SLUG_WIDTH = 20


def document(experiments: Sequence[Experiment], plans: Sequence[Plan]) -> dict[str, Any]:
    """The JSON document: what was asked, and a plan for each experiment and card."""
    return {
        "schema_version": SCHEMA_VERSION,
        "experiments": [to_plain(e) for e in experiments],
        "plans": [to_plain(plan) for plan in plans],
    }


def render(experiments: Sequence[Experiment], plans: Sequence[Plan], console: Console) -> None:
    """Print the plans, as `plan_days` returns them: soonest card first, in a table for each
    experiment."""
    count = len(plans) // max(len(experiments), 1)
    for i, experiment in enumerate(experiments):
        if i:
            console.print()
        _render_one(experiment, plans[i * count : (i + 1) * count], console)
    say(console, LEGEND, style="dim")


def _render_one(experiment: Experiment, plans: Sequence[Plan], console: Console) -> None:
    _heading(experiment, plans[0], console)
    ordered = sorted(plans, key=_soonest)
    for detail in range(_DETAILS):
        table = _table(ordered, console, detail)
        if fits_width(table, console):
            break
    console.print()
    console.print(table)
    console.print()
    for text, style in _sentences(experiment, ordered):
        say(console, text, style=style)


def _soonest(plan: Plan) -> tuple[int, float]:
    """Sorts what fits by its total, then what fits without one, then the rest by its option."""
    total = plan.total
    if plan.fits:
        return (0, total.seconds) if total is not None else (1, 0.0)
    option = plan.options[0].total if plan.options else None
    return (2, option.seconds) if option is not None else (3, 0.0)


def _heading(experiment: Experiment, plan: Plan, console: Console) -> None:
    w = plan.workload
    about = title(w)
    if len(about) > 2 * console.width:  # a network of many lists: its name says enough
        about = title(w.replace(model_args={}))
    say(console, f"{plan.name}: {about}", style="bold")
    schedule = experiment.schedule
    if schedule is not None:
        say(console, _schedule_text(schedule, plan))
    gpus = f" · {plan.gpus} GPUs each" if plan.gpus > 1 else ""
    passes = f" in {w.grad_accumulation} passes" if w.grad_accumulation > 1 else ""
    say(
        console,
        f"Patch {fmt.patch(w.patch)} · patches per GPU per step: {plan.patches_per_gpu}"
        f"{passes}{gpus}",
    )


def _schedule_text(schedule: Schedule, plan: Plan) -> str:
    from segplan.schedule import FixedIterations

    epoch = schedule.epoch
    if isinstance(epoch, FixedIterations):
        more = (
            f" + {epoch.validation_iterations} to validate" if epoch.validation_iterations else ""
        )
        what = f"{epoch.iterations:,} iterations{more}"
    else:
        crops = "patch" if epoch.num_samples == 1 else "patches"
        what = f"{epoch.cases:,} cases × {epoch.num_samples} {crops}"
    text = f"{_count(schedule.epochs, 'epoch')} of {what}"
    if schedule.folds > 1:
        text += f" · {schedule.folds} folds"
    v = schedule.validation
    if v is not None:
        once = v.every == schedule.epochs
        when = "at the end" if once else f"every {v.every} epochs" if v.every > 1 else "every epoch"
        text += f" · validation of {_count(v.cases, 'volume')} {when}"
        if plan.windows_per_volume is not None and v.seconds_per_volume is None:
            text += f", {_count(plan.windows_per_volume, 'window')} each"
    return text


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


@dataclass(frozen=True)
class _Column:
    header: str
    text: Callable[[Plan], str]
    right: bool = False


def _table(plans: Sequence[Plan], console: Console, detail: int) -> Table:
    """The table at a level of detail: 0 shows all, each level takes less width."""
    best = plans[0] if plans[0].fits and plans[0].total is not None and len(plans) > 1 else None
    width = _SLUG_WIDTH if detail else 1_000
    table = make_table(console)
    table.add_column(" ", no_wrap=True)
    table.add_column("card", no_wrap=True)
    columns = _columns(plans, detail)
    for column in columns:
        table.add_column(column.header, justify="right" if column.right else "left", no_wrap=True)
    for plan in plans:
        texts = ["★" if plan is best else " ", _slug(plan, width), *(c.text(plan) for c in columns)]
        style = "bold green" if plan is best else "dim" if not plan.fits else None
        table.add_row(*(fitting_text(text, console) for text in texts), style=style)
    return table


def _slug(plan: Plan, width: int) -> str:
    """The card's name, broken after hyphens."""
    lines = [""]
    for part in plan.card.split("-"):
        joined = f"{lines[-1]}-{part}" if lines[-1] else part
        if len(joined) < width or not lines[-1]:
            lines[-1] = joined
        else:
            lines[-1] += "-"
            lines.append(part)
    return "\n".join(lines)


def _columns(plans: Sequence[Plan], detail: int) -> list[_Column]:
    columns = [_Column("step", lambda p: (interval if detail < 3 else middle)(p.step))]
    if detail < 2:
        columns.append(_Column("epoch", lambda p: middle(p.epoch), right=True))
    columns.append(_Column("total", _total))
    columns.append(_Column("kWh", lambda p: fmt.rate(p.energy_kwh), right=True))
    if any(p.bound_by is not None and p.bound_by.value != "gpu" for p in plans) or detail < 4:
        columns.append(
            _Column("bound by", lambda p: p.bound_by.value if p.bound_by else fmt.UNKNOWN)
        )
    if any(p.gpus > 1 for p in plans):
        columns.append(_Column("scaling", lambda p: fmt.percent(p.efficiency), right=True))
    columns.append(_Column("patches/s", lambda p: fmt.rate(p.loader_patches_per_s), right=True))
    if detail < 1:
        columns.append(_Column("MB/s", lambda p: fmt.rate(p.loader_mb_per_s), right=True))
    if any(_recommended(p) for p in plans):
        columns.append(_Column("best batch", _best if detail < 4 else _short_best))
    return columns


def _total(plan: Plan) -> str:
    if not plan.fits:
        need = fmt.memory(None if plan.memory is None else plan.memory.least_memory)
        return f"no: needs {need}"
    return interval(plan.total)


def _best(plan: Plan) -> str:
    """The recommended batch; where it is another than configured, with its total."""
    option = _recommended(plan)
    if option is None:
        return fmt.UNKNOWN if plan.recommended_batch is None else str(plan.recommended_batch)
    return f"{_batch(option)}: {middle(option.total)}"


def _short_best(plan: Plan) -> str:
    option = _recommended(plan)
    return _best(plan) if option is None else _batch(option)


def _batch(option: BatchOption) -> str:
    if option.patches_per_gpu == option.batch:
        return str(option.batch)
    return f"{option.batch} × {option.accumulation}"


def _recommended(plan: Plan) -> BatchOption | None:
    """The option that is recommended; None where the configured batch is, or nothing fits."""
    if plan.fits and plan.recommended_batch == plan.workload.batch:
        return None
    return next((o for o in plan.options if o.batch == plan.recommended_batch), None)


def _sentences(experiment: Experiment, plans: Sequence[Plan]) -> list[tuple[str, str | None]]:
    """What the table cannot say, most important first, with a style."""
    found: list[tuple[str, str | None]] = []
    fitting = [p for p in plans if p.fits]
    if not fitting:
        found.append((_nothing_fits(plans), "bold yellow"))
    elif len(plans) > 1 and fitting[0].total is not None:
        text = f"★ {fitting[0].card} finishes first: {interval(fitting[0].total)}."
        found.append((text, "bold green"))
    if fitting and fitting[0].loader_patches_per_s is not None:
        found.append((_loader(fitting[0]), None))
    measured = [p for p in fitting if p.step is not None and p.step.basis.value == "measured"]
    if measured:
        found.append((_measured(measured, len(plans)), None))
    found += [(text, None) for text in _options(experiment, plans)]
    if plans[0].gpus > 1:
        found.append((_together(experiment, plans), None))
    for text, cards in _by_note(plans).items():
        found.append((f"{_cards(cards, len(plans))}: {text}", "yellow"))
    return found


def _measured(plans: Sequence[Plan], of: int) -> str:
    return (
        f"{_cards([p.card for p in plans], of)}: the step was measured there, and what is not "
        "measured (other batches, validation) is the prediction scaled by it."
    )


def _loader(plan: Plan) -> str:
    text = (
        f"To keep {plan.card} busy the data loader must deliver "
        f"{fmt.rate(plan.loader_patches_per_s)} patches/s"
    )
    if plan.loader_mb_per_s is not None:
        text += f" ({fmt.rate(plan.loader_mb_per_s)} MB/s read where nothing is cached)"
    if plan.bound_by is not None and plan.bound_by.value == "loader":
        text += "; it delivers less, and a faster card would not help"
    return text + "."


def _nothing_fits(plans: Sequence[Plan]) -> str:
    plan = plans[0]
    least = fmt.memory(min((p.memory.least_memory for p in plans if p.memory), default=None))
    text = f"Nothing fits: a step at batch {plan.workload.batch} needs {least}."
    option = next((p for p in plans if p.options), None)
    if option is not None:
        return f"{text} {_accumulating(option, option.options[0])}"
    card = next((p.smallest_card for p in plans if p.smallest_card), None)
    if card is not None:
        return f"{text} The smallest card that holds it: {card}."
    return f"{text} Try checkpointing, a smaller patch, or segplan estimate for what would help."


def _accumulating(plan: Plan, option: BatchOption) -> str:
    total = "" if option.total is None else f", in {interval(option.total)}"
    return (
        f"Batch {option.batch} in {option.accumulation} accumulated passes trains on "
        f"{plan.card}{total} (--batch {option.batch} --grad-accumulation {option.accumulation})."
    )


def _options(experiment: Experiment, plans: Sequence[Plan]) -> list[str]:
    """One sentence for each kind of option, told for the soonest card that has it."""
    schedule = experiment.schedule
    texts = []
    fits = [p for p in plans if p.fits and p.options]
    if schedule is not None and schedule.fixed and fits:
        plan, option = fits[0], fits[0].options[0]
        times = option.patches / plan.patches
        texts.append(
            f"A larger batch makes an epoch longer, not shorter: its iterations stay "
            f"{plan.steps_per_epoch:,}. Batch {option.batch} trains on {_several(fits)} too and "
            f"would see {_times(times)} times the patches: on {plan.card} in "
            f"{middle(option.total)} instead of {middle(plan.total)}."
        )
    elif schedule is not None:
        for batch in dict.fromkeys(p.options[0].batch for p in fits):
            same = [p for p in fits if p.options[0].batch == batch]
            plan, option = same[0], same[0].options[0]
            told = "" if len(same) == 1 else f"{plan.card}: "
            texts.append(
                f"Batch {batch} finishes sooner on {_several(same)} "
                f"({told}{middle(option.total)} instead of {middle(plan.total)}): "
                f"{option.steps_per_epoch:,} steps an epoch instead of {plan.steps_per_epoch:,} "
                f"in the same {schedule.epochs:,} epochs. The weights are updated "
                f"{_times(plan.steps / option.steps)} times less often: the learning "
                "rate may want adapting."
            )
    others = [p for p in plans if not p.fits and p.options]
    if others and any(p.fits for p in plans):
        texts.append("Where it does not fit: " + _accumulating(others[0], others[0].options[0]))
    return texts


def _times(ratio: float) -> str:
    return f"{round(ratio, 1):g}"


def _together(experiment: Experiment, plans: Sequence[Plan]) -> str:
    n, plan = plans[0].gpus, plans[0]
    text = (
        f"{n} GPUs: each trains a batch of {plan.workload.batch} of its own, and gradients travel "
        f"over {', '.join(dict.fromkeys(p.link or '' for p in plans))}; the scaling is predicted."
    )
    schedule = experiment.schedule
    if schedule is not None and schedule.fixed:
        text += (
            f" An epoch keeps its iterations, so it takes no less time and sees {n} times the "
            "patches; nnU-Net divides its batch by the GPUs instead."
        )
    return text


def _by_note(plans: Sequence[Plan]) -> Mapping[str, list[str]]:
    notes: dict[str, list[str]] = {}
    for plan in plans:
        for note in plan.notes:
            notes.setdefault(note, []).append(plan.card)
    return notes


def _several(plans: Sequence[Plan]) -> str:
    return plans[0].card if len(plans) == 1 else f"{len(plans)} of these cards"


def _cards(cards: Sequence[str], of: int) -> str:
    if len(cards) == of and of > 1:
        return "All cards"
    return (
        ", ".join(cards) if len(cards) <= 3 else f"{', '.join(cards[:3])} and {len(cards) - 3} more"
    )
