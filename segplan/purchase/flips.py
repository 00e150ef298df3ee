"""Where the cheapest order stops being the cheapest: prices, rents, and the number of experiments.

With every decision fixed, a plan's cost is a straight line in one price; the least cost over all
plans is the lower edge of such lines. The price at which today's plan leaves that edge is found
exactly: take a plan that is cheaper far away, go to where both lines cross, and solve there; if a
third plan is cheaper still, take that one and repeat. In the number of experiments the edge has no
such shape; there, steps outward and bisection find a place where the answer changes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from segplan.purchase import model
from segplan.purchase.describing import order_of
from segplan.purchase.model import Solution
from segplan.purchase.problem import Problem
from segplan.purchase.result import Flip, FlipKind

RANGE = (0.5, 2.0)
"""Prices are followed from half to twice what they are now: beyond that it is another market."""

_MOST_ROUNDS = 30
_BISECTIONS = 3
_STEPS_UP = (1.5, 3.0)
_STEPS_DOWN = (0.5,)
_SAME = 1e-5
"""Costs that differ by a smaller share are the same."""


@dataclass(frozen=True)
class _Price:
    """One number of an offer that may change: its price or its rent."""

    kind: FlipKind
    card: str
    now: float

    def set(self, problem: Problem, value: float) -> Problem:
        """The problem with another value."""
        if self.kind is FlipKind.RENT:
            return problem.with_offer(self.card, rent_per_hour=value)
        return problem.with_offer(self.card, price=value)

    def pays(self, problem: Problem, solution: Solution) -> bool:
        """Whether a solution pays this price at all."""
        if self.kind is FlipKind.RENT:
            return any(card == self.card for _, card in solution.rents)
        return solution.cards()[self.card] > problem.offer(self.card).owned


def find(problem: Problem, best: Solution) -> tuple[Flip, ...]:
    """Every flip: prices and rents that are paid, upward; the others, downward; and the
    experiments, both ways.

    Args:
        problem: what is asked.
        best: its cheapest solution.
    """
    prices = [_Price(FlipKind.PRICE, o.card, o.price) for o in problem.offers if o.price]
    prices += [
        _Price(FlipKind.RENT, o.card, o.rent_per_hour) for o in problem.offers if o.rent_per_hour
    ]
    paid = [price for price in prices if price.pays(problem, best)]
    found = [_along(problem, price, price.now * RANGE[1], best) for price in paid]
    unpaid = _tempting(problem, best, [price for price in prices if price not in paid])
    found += [_along(problem, price, price.now * RANGE[0], best) for price in unpaid]
    found += [_demand(problem, best, steps) for steps in (_STEPS_UP, _STEPS_DOWN)]
    return tuple(flip for flip in found if flip is not None)


def _tempting(problem: Problem, best: Solution, prices: list[_Price]) -> list[_Price]:
    """Those of the prices not paid that could matter on their own if they fell.

    All are lowered at once: if even that leads to nothing cheaper, none of them matters; if it
    does, those that are then paid are set aside, and the rest are asked again.
    """
    rest, tempting = list(prices), list[_Price]()
    cost = model.cost(problem, best)
    while rest:
        lowered = problem
        for price in rest:
            lowered = price.set(lowered, price.now * RANGE[0])
        other = model.solve(lowered)
        if other is None or not _cheaper(model.cost(lowered, other), cost):
            break
        paid = [price for price in rest if price.pays(lowered, other)]
        if not paid:
            break
        tempting += paid
        rest = [price for price in rest if price not in paid]
    return [price for price in prices if price in tempting]


def _along(problem: Problem, price: _Price, far: float, best: Solution) -> Flip | None:
    """The first value between now and `far` where `best` stops being the cheapest."""
    now = price.now

    def at(value: float) -> Problem:
        return price.set(problem, value)

    mine = {value: model.cost(at(value), best) for value in (now, far)}
    other = model.solve(at(far))
    if other is None or not _cheaper(model.cost(at(far), other), mine[far]):
        return None
    value = far
    for _ in range(_MOST_ROUNDS):
        ahead = model.cost(at(now), other) - mine[now]  # at least 0: `best` is the best now
        behind = mine[far] - model.cost(at(far), other)
        share = max(0.0, ahead) / (max(0.0, ahead) + behind)
        value = now + (far - now) * share
        third = model.solve(at(value))
        if third is None or not _cheaper(model.cost(at(value), third), model.cost(at(value), best)):
            break
        other = third
    return Flip(price.kind, price.card, now, value, order_of(at(value), other), _rented(other))


def _demand(problem: Problem, best: Solution, steps: tuple[float, ...]) -> Flip | None:
    """A number of experiments, as a multiple of what is asked, at which the order changes."""
    pieces = best.pieces(problem)
    kept = 1.0
    for step in steps:
        changed, other = _changes(problem.scaled(step), pieces)
        if not changed:
            kept = step
            continue
        flip = step
        for _ in range(_BISECTIONS):
            middle = (kept + flip) / 2
            changed, found = _changes(problem.scaled(middle), pieces)
            if changed:
                flip, other = middle, found
            else:
                kept = middle
        if other is None:
            return Flip(FlipKind.DEMAND, None, 1.0, flip, (), ())
        order = order_of(problem.scaled(flip), other)
        return Flip(FlipKind.DEMAND, None, 1.0, flip, order, _rented(other))
    return None


def _cost_with(problem: Problem, pieces: tuple[tuple[str, int], ...]) -> float | None:
    """The least cost if exactly these pieces are bought; None where they are not enough.

    Quick to solve: nothing but what is there has to be decided about.
    """
    bought = dict(pieces)
    fixed = dataclasses.replace(
        problem,
        offers=tuple(
            dataclasses.replace(o, price=None, owned=o.owned + bought.get(o.card, 0))
            for o in problem.offers
        ),
        servers=tuple(
            dataclasses.replace(s, price=None, owned=s.owned + bought.get(s.name, 0))
            for s in problem.servers
        ),
    )
    found = model.solve(fixed)
    if found is None:
        return None
    prices = {o.card: o.price or 0.0 for o in problem.offers}
    prices |= {s.name: s.price or 0.0 for s in problem.servers}
    return model.cost(fixed, found) + sum(prices[name] * n for name, n in pieces)


def _changes(problem: Problem, pieces: tuple[tuple[str, int], ...]) -> tuple[bool, Solution | None]:
    """Whether buying `pieces` is no longer cheapest, and what is.

    Another order at the same cost is no change.
    """
    found = model.solve(problem)
    if found is None or found.pieces(problem) == pieces:
        return found is None, found
    cost = _cost_with(problem, pieces)
    return cost is None or _cheaper(model.cost(problem, found), cost), found


def _rented(solution: Solution) -> tuple[str, ...]:
    return tuple(sorted({card for _, card in solution.rents}))


def _cheaper(this: float, than: float) -> bool:
    return this < than - _SAME * max(abs(than), 1.0)
