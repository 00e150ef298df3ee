"""The smallest change that makes an impossible request possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from segplan.purchase import model, rules
from segplan.purchase.chances import quantile
from segplan.purchase.model import Solution
from segplan.purchase.problem import Cannot, Demand, Offer, Problem, Reason
from segplan.purchase.result import Change, ChangeKind

T = TypeVar("T")

_MOST_PIECES = 64
"""No more cards or servers are proposed than this."""


def smallest_changes(problem: Problem, least: Solution | None) -> tuple[Change, ...]:
    """What would make the request possible; empty where it is.

    Args:
        problem: what is asked.
        least: its cheapest solution, the budget left aside; None where there is none.

    Raises:
        SegplanError: no optimum was proven in time.
    """
    if least is not None:
        return _budget(problem, least)
    stuck = [c for d in problem.demands for c in _stuck(problem, d)]
    found = [*stuck, *_deadlines(problem), *_more(problem)]
    share = model.largest_share(problem)
    if share > 0:
        # Rounded down: the factor itself must be possible.
        found.append(Change(ChangeKind.DEMAND, None, 1.0, math.floor(share * 1000) / 1000))
    return tuple(found)


def _budget(problem: Problem, least: Solution) -> tuple[Change, ...]:
    cost = model.cost(problem, least)
    if problem.budget is None or cost <= problem.budget * (1 + 1e-6):
        return ()
    return (Change(ChangeKind.BUDGET, None, problem.budget, cost),)


def _possible(problem: Problem) -> bool:
    return model.solve(problem) is not None


def _obtainable(problem: Problem, offer: Offer, size: int) -> bool:
    """Whether a card can be rented, or had and housed."""
    if offer.rent_per_hour is not None:
        return True
    if offer.most is not None and offer.most < size:
        return False
    return any(s.most != 0 and rules.most_groups(problem, s, offer, size) for s in problem.servers)


def _stuck(problem: Problem, demand: Demand) -> list[Change]:
    """For a demand that no obtainable card runs: a card that would, or a server for one."""
    if any(
        rules.serves(problem, demand, o.card) and _obtainable(problem, o, demand.gpus)
        for o in problem.offers
    ):
        return []
    holds = [o for o in problem.offers if rules.hours_of(problem, demand, o.card) is not None]
    quick = [o for o in holds if rules.serves(problem, demand, o.card)]
    if quick:
        return [Change(ChangeKind.SERVER, o.card, None, None) for o in quick]
    if holds:  # too slow: a longer deadline does it, unless they cannot be had either
        late = bool(_days_possible(problem, demand))
        return [] if late else [Change(ChangeKind.SERVER, o.card, None, None) for o in holds]
    cannot = [problem.times.get((demand.name, o.card)) for o in problem.offers]
    memory = [
        c.need
        for c in cannot
        if isinstance(c, Cannot) and c.reason is Reason.MEMORY and c.need is not None
    ]
    return [Change(ChangeKind.CARD, demand.name, None, min(memory, default=None))]


def _days_possible(problem: Problem, demand: Demand) -> list[float]:
    """Days beyond the deadline after which another card becomes quick enough, sorted."""
    days = set()
    for offer in problem.offers:
        hours = rules.hours_of(problem, demand, offer.card)
        if hours is not None and _obtainable(problem, offer, demand.gpus):
            days.add(quantile(hours, problem.confidence) / 24)
    return sorted(d for d in days if d > demand.deadline_days)


def _deadlines(problem: Problem) -> list[Change]:
    """The longer deadlines that are enough: the same least stretch for all, then each demand's
    own set back as far as the others allow."""
    asked = {d.name: d.deadline_days for d in problem.demands}
    days = {d.name: _days_possible(problem, d) for d in problem.demands}
    stretches = sorted({day / asked[name] for name, some in days.items() for day in some})

    def stretched(factor: float) -> dict[str, float]:
        limit = factor * (1 + 1e-9)
        return {
            name: max([asked[name], *(d for d in some if d <= asked[name] * limit)])
            for name, some in days.items()
        }

    least = _first(stretches, lambda f: _possible(problem.with_deadlines(stretched(f))))
    if least is None:
        return []
    current = stretched(least)
    for name in asked:
        choices = [asked[name], *(d for d in days[name] if d <= current[name])]
        kept = _first(choices, _with(problem, current, name))
        current[name] = current[name] if kept is None else kept
    return [
        Change(ChangeKind.DEADLINE, name, asked[name], after)
        for name, after in current.items()
        if after > asked[name]
    ]


def _with(problem: Problem, current: dict[str, float], name: str) -> Callable[[float], bool]:
    return lambda days: _possible(problem.with_deadlines({**current, name: days}))


def _more(problem: Problem) -> list[Change]:
    """More cards of one kind, or more servers of one model, where their number is limited."""
    found: list[Change] = []
    counts = list(range(1, _MOST_PIECES + 1))

    def search(test: Callable[[int], bool], most: int, kind: ChangeKind, name: str) -> None:
        least = _first(counts, test)
        if least is not None:
            found.append(Change(kind, name, most, most + least))

    for offer in problem.offers:
        if offer.most is not None and any(
            rules.serves(problem, d, offer.card) for d in problem.demands
        ):
            search(_more_cards(problem, offer.card), offer.most, ChangeKind.MORE_CARDS, offer.card)
    for server in problem.servers:
        if server.most is not None:
            search(
                _more_servers(problem, server.name), server.most, ChangeKind.MORE_SERVERS,
                server.name,
            )  # fmt: skip
    return found


def _more_cards(problem: Problem, card: str) -> Callable[[int], bool]:
    owned = problem.offer(card).most or 0
    return lambda n: _possible(problem.with_offer(card, price=None, owned=owned + n))


def _more_servers(problem: Problem, name: str) -> Callable[[int], bool]:
    owned = problem.server(name).most or 0
    return lambda n: _possible(problem.with_server(name, price=None, owned=owned + n))


def _first(values: list[T], test: Callable[[T], bool]) -> T | None:
    """The first value that passes, by bisection: the test must stay true once it is true."""
    if not values or not test(values[-1]):
        return None
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test(values[middle]) else (middle + 1, high)
    return values[high]
