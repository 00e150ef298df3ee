"""The answer: both optima, what lies between them, and where they would change."""

from __future__ import annotations

from collections.abc import Callable

from segplan.purchase import flips, model, rules
from segplan.purchase.changes import smallest_changes
from segplan.purchase.describing import describe, order_of
from segplan.purchase.model import Solution
from segplan.purchase.problem import Problem
from segplan.purchase.result import Choice, ParetoPoint, PurchasePlan

Progress = Callable[[int, int, str], None]

PARETO_POINTS = 5
"""Points of the cost-against-days picture, both ends included."""

_SAME = 1e-6
"""Costs and days that differ by a smaller share are the same."""

_STEPS = ("the cheapest plan", "the fastest plan", "cost against days", "where the answer flips")


def cheapest(problem: Problem) -> Choice | None:
    """The plan of least cost over the years that meets the deadlines; None where there is none.

    Raises:
        SegplanError: no optimum was proven in time.
    """
    found = model.solve(problem)
    return None if found is None else describe(problem, found)


def fastest(problem: Problem, budget: float | None) -> Choice | None:
    """The plan with the fewest days within a budget (None: at any price).

    What is minimised is the mean days of an experiment, the demands weighted by their experiments
    a month; among equally fast plans, the cost. Deadlines are kept if the budget allows that;
    otherwise they are dropped, and the choice says so. None where the budget does not pay for the
    experiments at all.

    Raises:
        SegplanError: no optimum was proven in time.
    """
    for deadlines in (True, False):
        found = _fastest(problem, budget, deadlines=deadlines)
        if found is not None:
            return describe(problem, found)
    return None


def _fastest(problem: Problem, budget: float | None, *, deadlines: bool) -> Solution | None:
    first = model.solve(problem, minimise="days", max_cost=budget, deadlines=deadlines)
    if first is None:
        return None
    days = model.mean_days(problem, first)
    second = model.solve(problem, max_cost=budget, max_days=days, deadlines=deadlines)
    return second if second is not None else first


def plan(problem: Problem, progress: Progress = lambda _d, _t, _w: None) -> PurchasePlan:
    """Everything about a purchase.

    Args:
        problem: what is asked.
        progress: called as the parts are done.

    Raises:
        SegplanError: no optimum was proven in time.
    """
    total = len(_STEPS)
    progress(0, total, _STEPS[0])
    least = model.solve(problem)
    progress(1, total, _STEPS[1])
    quickest = None if problem.budget is None else fastest(problem, problem.budget)
    progress(2, total, _STEPS[2])
    points = () if least is None else pareto(problem, least)
    progress(3, total, _STEPS[3])
    return PurchasePlan(
        problem=problem,
        cheapest=None if least is None else describe(problem, least),
        fastest=quickest,
        pareto=points,
        flips=() if least is None else flips.find(problem, least),
        ruled_out=rules.ruled_out(problem),
        changes=smallest_changes(problem, least),
        unchecked=unchecked(problem),
    )


def pareto(problem: Problem, least: Solution) -> tuple[ParetoPoint, ...]:
    """Cost against days, from the cheapest plan to the fastest at any price.

    The days between both ends are divided evenly; each point is the cheapest plan with at most
    that many days (deadlines kept), so no plan lies below the line through them.

    Args:
        problem: what is asked.
        least: its cheapest plan.
    """
    quick = _fastest(problem, None, deadlines=True)
    ends = [least] if quick is None else [least, quick]
    first, last = (model.mean_days(problem, s) for s in (ends[0], ends[-1]))
    solutions = [least]
    if first > last * (1 + _SAME):
        for i in range(1, PARETO_POINTS - 1):
            bound = first - (first - last) * i / (PARETO_POINTS - 1)
            found = model.solve(problem, max_days=bound)
            if found is not None:
                solutions.append(found)
        solutions.append(ends[-1])
    points: list[ParetoPoint] = []
    for solution in solutions:
        cost, days = model.cost(problem, solution), model.mean_days(problem, solution)
        if points and days >= points[-1].days * (1 - _SAME):
            continue
        rented = tuple(sorted({card for _, card in solution.rents}))
        points.append(ParetoPoint(cost, days, order_of(problem, solution), rented))
    return tuple(points)


def unchecked(problem: Problem) -> tuple[str, ...]:
    """Sentences about rules that could not be checked, because a number is not known."""
    said: list[str] = []
    cards = [o for o in problem.offers if o.most != 0 and not o.module]
    for what, names in (
        ("width", [o.card for o in cards if o.width is None]),
        ("power limit", [o.card for o in problem.offers if o.power_w is None]),
        ("kind of cooling", [o.card for o in cards if o.passive is None]),
    ):
        if names:
            said.append(f"The {what} of {', '.join(names)} is not known and was not checked.")
    for what, names, asked in (
        ("power supply", [s.name for s in problem.servers if s.power_supply_w is None], True),
        (
            "number of CPU cores",
            [s.name for s in problem.servers if s.cpu_cores is None],
            problem.cpu_cores_per_gpu > 0,
        ),
        (
            "memory",
            [s.name for s in problem.servers if s.ram_gib is None],
            problem.ram_gib_per_gpu > 0,
        ),
    ):
        if names and asked:
            said.append(f"The {what} of {', '.join(names)} is not known and was not checked.")
    if not problem.cpu_cores_per_gpu:
        said.append("CPU cores were not checked: the problem says nothing of cores for a GPU.")
    if not problem.ram_gib_per_gpu:
        said.append("Memory of servers was not checked: the problem says nothing of GiB for a GPU.")
    return tuple(said)
