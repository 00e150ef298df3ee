"""Both optima against trying everything."""

from __future__ import annotations

from collections import Counter

import pytest

from segplan.purchase import Demand, Hours, Offer, Problem, Server, model
from tests.purchase.brute_force import Brute, random_problem

CASES = 320
BATCH = 10


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_optima_equal_brute_force(first):
    solved = 0
    for seed in range(first, first + BATCH):
        problem = random_problem(seed)
        brute = Brute(problem)
        found, expected = model.solve(problem), brute.least_cost()
        assert (found is None) == (expected is None), seed
        if found is not None:
            assert model.cost(problem, found) == pytest.approx(expected, rel=1e-5, abs=1e-3), seed
            check(problem, found)
            solved += 1
        quick = model.solve(problem, minimise="days", max_cost=problem.budget)
        days = brute.least_days(problem.budget)
        assert (quick is None) == (days is None), seed
        if quick is not None:
            assert model.mean_days(problem, quick) == pytest.approx(days, rel=1e-5), seed
            check(problem, quick)
            if problem.budget is not None:
                assert model.cost(problem, quick) <= problem.budget * (1 + 1e-5)
    assert solved >= BATCH // 4  # the rest has no solution: that is tested, too


def check(problem: Problem, solution: model.Solution) -> None:
    """Every server by itself holds what is in it, and the cards have the hours."""
    brute = Brute.__new__(Brute)
    brute.problem = problem
    for name, groups in solution.racks:
        cards = [problem.offer(c) for c, size in groups for _ in range(size)]
        assert brute._fits(problem.server(name), cards)
    pools = solution.groups()
    hours: Counter[model.Pool] = Counter()
    for (name, pool), count in solution.runs.items():
        hours[pool] += count * model.group_hours(problem, problem.demand(name), pool)
    for pool, work in hours.items():
        assert work <= pools[pool] * model.capacity(problem) * (1 + 1e-4)
    for offer in problem.offers:
        assert offer.most is None or solution.cards()[offer.card] <= offer.most
    for server in problem.servers:
        assert server.most is None or solution.servers()[server.name] <= server.most
    for demand in problem.demands:
        runs = sum(n for (name, _), n in solution.runs.items() if name == demand.name)
        rents = sum(n for (name, _), n in solution.rents.items() if name == demand.name)
        assert runs + rents == pytest.approx(demand.per_month, rel=1e-5)


def one_each(watts: dict[str, int], counts: dict[str, int], servers: int) -> Problem:
    """Each card is the only one for its demand, which needs so many of it."""
    demands = tuple(Demand(card, counts[card], 31) for card in watts)
    offers = tuple(Offer(card, 1, power_w=w, width=1, passive=False) for card, w in watts.items())
    times = {(card, card): Hours(730, 730, 730) for card in watts}
    rack = Server("s", 9, power_supply_w=1000, supply_rest=0, price=1000, available=servers)
    return Problem(demands, offers, (rack,), times, utilisation=1.0)


def test_watts_added_up_over_servers_promise_too_much():
    # 600 + 3 × 300 + 500 W are 2000 W in all, but no two servers of 1000 W hold them.
    problem = one_each({"a": 600, "b": 300, "c": 500}, {"a": 1, "b": 3, "c": 1}, 5)
    found = model.solve(problem)
    assert found is not None
    assert found.servers()["s"] == 3
    check(problem, found)
    assert (
        model.solve(one_each({"a": 600, "b": 300, "c": 500}, {"a": 1, "b": 3, "c": 1}, 2)) is None
    )


def test_a_heavier_mix_fits_where_it_can_be_laid_out():
    # 600 + 400 and 500 + 500 W.
    problem = one_each({"a": 600, "b": 400, "c": 500}, {"a": 1, "b": 1, "c": 2}, 5)
    found = model.solve(problem)
    assert found is not None
    assert found.servers()["s"] == 2
