"""A purchase plan for the person who signs the order: what, why, and where it would change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from segplan.errors import RequestError
from segplan.purchase import (
    Change,
    ChangeKind,
    Choice,
    Flip,
    FlipKind,
    Hours,
    OrderLine,
    ParetoPoint,
    PurchasePlan,
    Reason,
    RuledOut,
)
from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION, to_plain

_BAR = 24
"""Characters of the longest bar of cost against days."""

_DAY = 86400.0


def document(plan: PurchasePlan) -> dict[str, Any]:
    """The JSON document: the plan's attributes, the problem's times as a list."""
    found: dict[str, Any] = to_plain(plan)
    times = []
    for (demand, card), value in plan.problem.times.items():
        key = "hours" if isinstance(value, Hours) else "cannot"
        times.append({"demand": demand, "card": card, "hours": None, "cannot": None}
                     | {key: to_plain(value)})  # fmt: skip
    found["problem"]["times"] = times
    for name in ("cheapest", "fastest"):
        choice = getattr(plan, name)
        if choice is not None:
            found[name]["costs"]["total"] = choice.costs.total
    return {"schema_version": SCHEMA_VERSION, **found}


def render(plan: PurchasePlan, console: Console) -> None:
    """Print both plans, cost against days, flips, what was ruled out, and what to know."""
    p = plan.problem
    say(console, f"What to buy for {_count(len(p.demands), 'kind')} of experiments", style="bold")
    say(
        console,
        f"{_count(len(p.offers), 'card')} and {_count(len(p.servers), 'server')} on offer · "
        f"{_years(p.years)} · {p.currency} · power {_rate(p.power_price)} a kWh, "
        f"PUE {_number(p.pue)} · a card trains {fmt.percent(p.utilisation)} of the time",
    )
    _render_cheapest(plan, console)
    _render_changes(plan, console)
    _render_fastest(plan, console)
    _render_pareto(plan, console)
    _render_flips(plan, console)
    _render_ruled_out(plan, console)
    _render_notes(plan, console)


def _render_cheapest(plan: PurchasePlan, console: Console) -> None:
    console.print()
    if plan.cheapest is None:
        say(console, "No plan meets every deadline.", style="bold")
        return
    say(
        console,
        f"Cheapest plan that meets the deadlines: {_cost(plan, plan.cheapest.costs.total)}",
        style="bold",
    )
    _render_choice(plan, plan.cheapest, console)


def _render_fastest(plan: PurchasePlan, console: Console) -> None:
    budget = plan.problem.budget
    if budget is None:
        return
    console.print()
    if plan.fastest is None:
        say(console, f"{_cost(plan, budget)} do not pay for these experiments.", style="bold")
        return
    days = _days(plan.fastest.days)
    say(console, f"Fastest plan for {_cost(plan, budget)}: {days} on average", style="bold")
    if plan.fastest == plan.cheapest:
        say(console, "It is the cheapest plan: more money within the budget buys no days.")
        return
    if not plan.fastest.meets_deadlines:
        say(console, "It misses deadlines: the budget is too small for them.")
    _render_choice(plan, plan.fastest, console)


def _render_choice(plan: PurchasePlan, choice: Choice, console: Console) -> None:
    say(console, summary(plan, choice))
    if choice.order:
        _table(
            console,
            ("order", "at work", "owned", "buy", "each", "together"),
            [_order_row(line) for line in choice.order],
        )
    costs = choice.costs
    console.print()
    say(
        console,
        f"Over {_years(plan.problem.years)}: purchase {_money(costs.purchase)}, power "
        f"{_money(costs.power)}, rent {_money(costs.rent)}; together "
        f"{_cost(plan, costs.total)}.",
    )
    for placed in choice.placements:
        pairs = zip(placed.numbers, placed.cards, strict=True)
        held = " + ".join(f"{n} × {card}" for n, card in pairs)
        say(console, f"In {placed.count} × {placed.server}: {held}.")
    deadlines = {s.demand: s.deadline_days for s in choice.services}
    _table(
        console,
        ("experiment", "runs on", "a month", "each takes", "days", "in time"),
        [
            (
                run.demand,
                run.card + (" (rented)" if run.rented else ""),
                fmt.significant(run.per_month, 2),
                fmt.seconds_interval(run.days * _DAY, run.days_low * _DAY, run.days_high * _DAY),
                _number(deadlines[run.demand]),
                _chance(run.chance),
            )
            for run in choice.runs
        ],
        text=(0, 1),
    )
    _table(
        console,
        ("cards", "GPU-hours a month", "of", "load", "enough"),
        [
            (
                f"{load.cards} × {load.card}" + (f" in {load.job_gpus}s" * (load.job_gpus > 1))
                if load.cards
                else f"{load.card} (rented)",
                _money(load.gpu_hours),
                _money(load.capacity) if load.capacity else "",
                fmt.percent(load.gpu_hours / load.capacity) if load.capacity else "",
                _chance(load.chance),
            )
            for load in choice.loads
        ],
    )
    console.print()
    say(
        console,
        f"All deadlines are met with a probability of {_chance(choice.chance_common)} if every "
        f"prediction is off alike, {_chance(choice.chance_independent)} if each is off by itself.",
    )


def _order_row(line: OrderLine) -> tuple[str, ...]:
    counts = (line.name, str(line.used), str(line.owned))
    if not line.buy:
        return (*counts, "", "", "")
    return (*counts, str(line.buy), _money(line.price), _money((line.price or 0) * line.buy))


def summary(plan: PurchasePlan, choice: Choice) -> str:
    """The order in a sentence: "Buy 1 × lab server and 2 × rtx-3090; rent a40."."""
    bought = [f"{line.buy} × {line.name}" for line in choice.order if line.buy]
    rented = [
        f"{_money(load.gpu_hours)} h of {load.card} a month" for load in choice.loads if load.rented
    ]
    parts = [f"buy {_and(bought)}"] if bought else ["buy nothing"]
    if rented:
        parts.append(f"rent {_and(rented)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _render_changes(plan: PurchasePlan, console: Console) -> None:
    if not plan.changes:
        return
    console.print()
    say(console, "What would make it possible", style="bold")
    together = [c for c in plan.changes if c.kind is ChangeKind.DEADLINE]
    if len(together) > 1:
        say(console, "Longer deadlines (all of these):")
    for change in plan.changes:
        say(console, f"- {change_text(plan, change)}")


def change_text(plan: PurchasePlan, change: Change) -> str:
    """One change as a person would say it."""
    name, before, after = change.subject, change.before, change.after
    if change.kind is ChangeKind.DEADLINE:
        return f"{name}: the deadline from {_number(before)} to {_up(after)} days."
    if change.kind is ChangeKind.DEMAND:
        return f"{fmt.percent(after, 3)} of the experiments, of every kind, at the same deadlines."
    if change.kind is ChangeKind.MORE_CARDS:
        return f"{name}: {_number(after)} cards instead of {_number(before)}."
    if change.kind is ChangeKind.MORE_SERVERS:
        return f"{name}: {_number(after)} servers instead of {_number(before)}."
    if change.kind is ChangeKind.CARD:
        size = None if after is None else fmt.memory(round(after))
        return f"{name}: no card on offer trains it" + (
            f"; one with {size} of memory or more would." if size else "."
        )
    if change.kind is ChangeKind.SERVER:
        return f"{name}, and a server that takes it: what is in the way is below."
    return (
        f"A budget of {_cost(plan, after)}, {_cost(plan, (after or 0) - (before or 0))} more, "
        "meets the deadlines."
    )


def _render_pareto(plan: PurchasePlan, console: Console) -> None:
    if len(plan.pareto) < 2:
        return
    console.print()
    say(console, "Cost against days", style="bold")
    most = max(point.days for point in plan.pareto)
    _table(
        console,
        (plan.problem.currency, "on average", "", "buy"),
        [
            (
                _money(point.cost),
                _days(point.days),
                "#" * max(1, round(_BAR * point.days / most)),
                order_text(point.order, point.rented),
            )
            for point in plan.pareto
        ],
        text=(2, 3),
    )


def order_text(order: Sequence[OrderLine], rented: Sequence[str] = ()) -> str:
    """An order short: "1 × server, 2 × rtx-3090; rent a40"."""
    bought = ", ".join(f"{line.buy} × {line.name}" for line in order if line.buy)
    text = bought or "nothing"
    return f"{text}; rent {', '.join(rented)}" if rented else text


def _render_flips(plan: PurchasePlan, console: Console) -> None:
    if plan.cheapest is None:
        return
    console.print()
    say(console, "Where the answer flips", style="bold")
    if not plan.flips:
        say(
            console,
            "Nowhere between half and twice a price, or half and three times the experiments.",
        )
    for flip in plan.flips:
        say(console, f"- {flip_text(plan, flip)}")


def flip_text(plan: PurchasePlan, flip: Flip) -> str:
    """One flip as a person would say it."""
    then = order_text(flip.order, flip.rented)
    up = flip.at >= flip.now
    if flip.kind is FlipKind.DEMAND:
        what = f"At {fmt.significant(flip.at, 2)} times the experiments"
        if not flip.order and not flip.rented:
            return f"{what}: not possible any more."
        return f"{what}: buy {then}."
    word = "above" if up else "below"
    rent = flip.kind is FlipKind.RENT
    at = _rate(flip.at) if rent else _money(flip.at)
    now = _rate(flip.now) if rent else _money(flip.now)
    kind = "an hour" if rent else "a card"
    return f"{flip.card} {word} {at} {plan.problem.currency} {kind} (now {now}): buy {then}."


def _render_ruled_out(plan: PurchasePlan, console: Console) -> None:
    if not plan.ruled_out:
        return
    console.print()
    say(console, "Ruled out", style="bold")
    _table(
        console,
        ("card", "for", "because"),
        [(out.card, out.where or "everything", reason_text(out)) for out in plan.ruled_out],
        text=(0, 1, 2),
    )


def reason_text(out: RuledOut) -> str:
    """Why a card is ruled out, with the numbers."""
    need, limit = out.need, out.limit
    if out.reason is Reason.MEMORY:
        if need is None or limit is None:
            return "memory: it does not fit"
        return f"memory: needs {fmt.memory(round(need))}, has {fmt.memory(round(limit))}"
    if out.reason is Reason.DEADLINE:
        return f"too slow: {_up(need)} days, deadline {_number(limit)}"
    if need is None or limit is None:
        return _PLAIN.get(out.reason, str(out.reason))
    units = {
        Reason.SLOTS: ("slots", "places"),
        Reason.WIDTH: ("width", "slots"),
        Reason.POWER: ("power", "W"),
        Reason.CPU: ("CPU", "cores"),
        Reason.RAM: ("RAM", "GiB"),
    }
    what, unit = units[out.reason]
    return f"{what}: needs {_number(need)} {unit}, there are {_number(limit)}"


_PLAIN = {
    Reason.KERNEL: "its tensors are too large for the kernels",
    Reason.UNKNOWN_TIME: "how long it takes is not known",
    Reason.PASSIVE: "passive cooling in a workstation",
    Reason.MODULE: "module and PCIe do not go together",
    Reason.NOT_FOR_SALE: "no price, none owned, not for rent",
    Reason.NO_SERVER: "no server takes it",
}


def _render_notes(plan: PurchasePlan, console: Console) -> None:
    console.print()
    say(console, "To know", style="bold")
    standing = (
        "Days and energy are predicted, with 80 % intervals. Queues are not modelled: cards are "
        "filled to their hours, but an experiment may wait for one.",
    )
    for text in (*plan.notes, *plan.unchecked, *standing):
        say(console, f"- {text}")


def check_picture(path: str) -> Path:
    """The file a picture goes to, checked before anything is computed.

    Raises:
        RequestError: it is no .svg, or its folder is not there.
    """
    file = Path(path)
    if file.suffix.lower() != ".svg":
        raise RequestError(f"--plot {path}: the name must end in .svg.")
    if not file.parent.is_dir():
        raise RequestError(f"--plot {path}: there is no folder {file.parent}.")
    return file


def picture(plan: PurchasePlan) -> str:
    """Cost against days as an SVG document: a step line, a dot and a label for each point."""
    points = plan.pareto
    width, height, left, top, right, bottom = 720, 400, 80, 30, 30, 60
    title = escape(f"Cost over {_years(plan.problem.years)} against the mean time of an experiment")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" role="img" '
        f'aria-label="{title}">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">'
        f"{escape(plan.problem.currency)}</text>",
        f'<text x="18" y="{top + 100}" transform="rotate(-90 18 {top + 100})" '
        'text-anchor="middle">mean time of an experiment</text>',
        f'<path d="M{left} {top}V{height - bottom}H{width - right}" fill="none" stroke="#6b7280"/>',
    ]
    dots = _places(points, (left, width - right - 40), (top + 10, height - bottom - 10))
    if len(dots) > 1:
        line = f"M{dots[0][0]:.1f} {dots[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" for x, y in dots[1:]
        )
        parts.append(f'<path d="{line}" fill="none" stroke="#2a9d8f" stroke-width="2"/>')
    for (x, y), point in zip(dots, points, strict=True):
        label = f"{_money(point.cost)} {plan.problem.currency}, {_days(point.days)}: "
        text = escape(label + order_text(point.order, point.rented))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#33415c">')
        parts.append(f"<title>{text}</title></circle>")
        side, at = ("end", x - 9) if x > width * 0.75 else ("start", x + 9)
        parts.append(
            f'<text x="{at:.1f}" y="{y - 8:.1f}" text-anchor="{side}">'
            f"{_money(point.cost)} · {_days(point.days)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(
    points: Sequence[ParetoPoint], across: tuple[float, float], down: tuple[float, float]
) -> list[tuple[float, float]]:
    """Where the points go: cost to the right, days upward; both axes from a tenth below."""
    if not points:
        return []
    costs, days = [p.cost for p in points], [p.days for p in points]
    low_cost, low_days = min(costs) * 0.9, min(days) * 0.9
    wide, tall = max(costs) - low_cost or 1.0, max(days) - low_days or 1.0
    return [
        (
            across[0] + (across[1] - across[0]) * (p.cost - low_cost) / wide,
            down[1] - (down[1] - down[0]) * (p.days - low_days) / tall,
        )
        for p in points
    ]


def _table(
    console: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    text: Sequence[int] = (0,),
) -> None:
    """A table; `text` are the columns that wrap, the others hold numbers and never do."""
    table = make_table(console)
    for i, head in enumerate(heads):
        table.add_column(
            fitting_text(head, console),
            justify="left" if i in text else "right",
            no_wrap=i not in text,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(fitting_text(cell, console) for cell in row))
    console.print()
    console.print(table)


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _years(value: float) -> str:
    return "1 year" if value == 1 else f"{_number(value)} years"


def _cost(plan: PurchasePlan, value: float | None) -> str:
    return f"{_money(value)} {plan.problem.currency}"


def _money(value: float | None) -> str:
    """Whole money, thousands apart: "12,340"."""
    return fmt.UNKNOWN if value is None else f"{value:,.0f}"


def _rate(value: float) -> str:
    """Money for an hour or a kWh: "0.45"."""
    return f"{value:.2f}"


def _number(value: float | None) -> str:
    """A number without false digits: "3", "0.75", "3.6"."""
    if value is None:
        return fmt.UNKNOWN
    if value == int(value):
        return f"{value:.0f}"
    text = fmt.significant(value, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _up(value: float | None) -> str:
    """A number rounded up to two digits after the point: never less than what is needed."""
    if value is None:
        return fmt.UNKNOWN
    return f"{math.ceil(value * 100 - 1e-6) / 100:g}"


def _days(value: float) -> str:
    """Days as "3.4 days", "7.2 h"."""
    return fmt.seconds(value * _DAY)


def _chance(value: float) -> str:
    """A probability; never a false certainty."""
    if value > 0.99:
        return "> 99 %"
    return "< 1 %" if value < 0.01 else f"{100 * value:.0f} %"
