"""A solution in the words of a result: orders, placements, loads, runs and chances."""

from __future__ import annotations

import math
from collections import Counter

from segplan.purchase import model, rules
from segplan.purchase.chances import chance_of_capacity, chance_within
from segplan.purchase.model import Pool, Solution
from segplan.purchase.problem import Hours, Problem
from segplan.purchase.result import Choice, Costs, Load, OrderLine, Placement, Run, Service


def order_of(problem: Problem, solution: Solution) -> tuple[OrderLine, ...]:
    """What a solution uses, and what of it has to be bought."""
    cards, servers = solution.cards(), solution.servers()
    lines = [
        _line("server", s.name, servers[s.name], s.owned, s.price)
        for s in problem.servers
        if servers[s.name]
    ]
    lines += [
        _line("card", o.card, cards[o.card], o.owned, o.price)
        for o in problem.offers
        if cards[o.card]
    ]
    return tuple(lines)


def _line(kind: str, name: str, used: int, owned: int, price: float | None) -> OrderLine:
    buy = max(0, used - owned)
    return OrderLine(kind, name, used, used - buy, buy, price if buy else None)


def describe(problem: Problem, solution: Solution) -> Choice:
    """A solution with everything a reader wants to know of it."""
    runs = _runs(problem, solution)
    services = tuple(_service(problem, d.name, d.deadline_days, runs) for d in problem.demands)
    chances = {(r.demand, r.card): r.chance for r in runs}
    kept = all(rules.serves(problem, problem.demand(run.demand), run.card) for run in runs)
    return Choice(
        order=order_of(problem, solution),
        placements=_placements(problem, solution),
        loads=_loads(problem, solution),
        runs=runs,
        services=services,
        costs=Costs(*model.costs(problem, solution)),
        days=model.mean_days(problem, solution),
        meets_deadlines=kept,
        chance_common=min(chances.values()),
        chance_independent=math.prod(chances.values()),
    )


def _placements(problem: Problem, solution: Solution) -> tuple[Placement, ...]:
    alike: Counter[tuple[str, tuple[tuple[str, int], ...]]] = Counter()
    for server, groups in solution.racks:
        held: Counter[str] = Counter()
        for card, size in groups:
            held[card] += size
        cards = tuple((o.card, held[o.card]) for o in problem.offers if held[o.card])
        alike[server, cards] += 1
    return tuple(
        Placement(server, count, tuple(c for c, _ in cards), tuple(n for _, n in cards))
        for (server, cards), count in alike.items()
    )


def _hours(problem: Problem, demand: str, card: str) -> Hours:
    hours = rules.hours_of(problem, problem.demand(demand), card)
    if hours is None:
        raise KeyError((demand, card))
    return hours


def _loads(problem: Problem, solution: Solution) -> tuple[Load, ...]:
    loads: list[Load] = []
    for pool, count in sorted(solution.groups().items()):
        loads.append(_pool_load(problem, solution, pool, count))
    rented: dict[str, float] = {}
    for (name, card), experiments in solution.rents.items():
        gpus = problem.demand(name).gpus
        rented[card] = rented.get(card, 0.0) + experiments * gpus * _hours(problem, name, card).mid
    loads += [Load(card, True, None, 1, hours, None, 1.0) for card, hours in rented.items()]
    return tuple(loads)


def _pool_load(problem: Problem, solution: Solution, pool: Pool, count: int) -> Load:
    card, size = pool
    parts = [
        (
            experiments * hours.mid / (size // problem.demand(name).gpus) * size,
            hours,
        )
        for (name, p), experiments in solution.runs.items()
        if p == pool
        for hours in [_hours(problem, name, card)]
    ]
    offered = count * size * model.capacity(problem)
    return Load(
        card=card,
        rented=False,
        cards=count * size,
        job_gpus=size,
        gpu_hours=sum(work for work, _ in parts),
        capacity=offered,
        chance=chance_of_capacity(parts, offered),
    )


def _runs(problem: Problem, solution: Solution) -> tuple[Run, ...]:
    amounts: dict[tuple[str, str, bool], float] = {}
    for (name, (card, _)), experiments in solution.runs.items():
        key = (name, card, False)
        amounts[key] = amounts.get(key, 0.0) + experiments
    for (name, card), experiments in solution.rents.items():
        amounts[name, card, True] = experiments
    order = {d.name: i for i, d in enumerate(problem.demands)}
    runs: list[Run] = []
    for (name, card, rented), experiments in sorted(
        amounts.items(), key=lambda item: (order[item[0][0]], -item[1])
    ):
        hours = _hours(problem, name, card)
        limit = problem.demand(name).deadline_days * 24
        runs.append(
            Run(
                demand=name,
                card=card,
                rented=rented,
                per_month=experiments,
                days=hours.mid / 24,
                days_low=hours.low / 24,
                days_high=hours.high / 24,
                chance=chance_within(hours, limit),
            )
        )
    return tuple(runs)


def _service(problem: Problem, name: str, deadline: float, runs: tuple[Run, ...]) -> Service:
    mine = [run for run in runs if run.demand == name]
    total = sum(run.per_month for run in mine)
    return Service(
        demand=name,
        deadline_days=deadline,
        days=sum(run.per_month * run.days for run in mine) / total,
        slowest_days=max(run.days for run in mine),
        chance=sum(run.per_month * run.chance for run in mine) / total,
    )
