"""Whole plans: worked by hand, and the promises that hold for any."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from segplan.purchase import (
    Cannot,
    ChangeKind,
    Demand,
    FlipKind,
    Hours,
    Offer,
    Reason,
    Server,
    cheapest,
    fastest,
    model,
    plan,
)
from segplan.purchase import flips as flips_of
from segplan.purchase.changes import smallest_changes
from segplan.purchase.planning import pareto
from tests.purchase.brute_force import random_problem
from tests.purchase.lab import FAST, GIB, SLOW, TOWER, lab

SOME = range(0, 60)


def bought(choice) -> dict[str, int]:
    return {line.name: line.buy for line in choice.order if line.buy}


def test_one_slow_card_is_enough():
    choice = cheapest(lab())
    assert bought(choice) == {"slow": 1}
    assert choice.costs.total == choice.costs.purchase == 800
    assert choice.days == pytest.approx(2)
    (load,) = choice.loads
    assert (load.gpu_hours, load.capacity) == (pytest.approx(480), pytest.approx(584))
    (run,) = choice.runs
    assert (run.card, run.days, run.days_high) == ("slow", pytest.approx(2), pytest.approx(2.5))


def test_two_slow_cards_fit_and_a_third_does_not():
    # 24 experiments are 1152 h: two slow cards. 26 are 1248 h: one fast card (624 h) is short of
    # 40 h, a fast and a slow one take four places of three.
    assert bought(cheapest(lab(demands=(Demand("a", 24, 3),)))) == {"slow": 2}
    more = cheapest(lab(demands=(Demand("a", 26, 3),)))
    assert bought(more) == {"fast": 1, "slow": 1}
    (placed,) = more.placements
    assert (placed.cards, placed.numbers) == (("fast", "slow"), (1, 1))


def test_power_counts_over_the_years():
    # Each experiment: 14.4 kWh on the slow card, 9.6 on the fast one; 120 a year at 1.5 × 1 money.
    choice = cheapest(lab(power_price=1.0, pue=1.5))
    assert bought(choice) == {"slow": 1}
    assert choice.costs.power == pytest.approx(120 * 14.4 * 1.5)
    longer = cheapest(lab(power_price=1.0, pue=1.5, years=2))
    assert bought(longer) == {"fast": 1}  # 1200 more to buy, 1728 less to run
    assert longer.costs.power == pytest.approx(240 * 9.6 * 1.5)
    told = lab(times={("a", "slow"): Hours(48, 48, 48, energy_kwh=10)}, power_price=1.0)
    assert cheapest(told).costs.power == pytest.approx(120 * 10)


def test_the_server_itself_draws_power_all_the_time():
    tower = dataclasses.replace(TOWER, power_w=100)
    choice = cheapest(lab(servers=(tower,), power_price=0.5))
    own = 120 * 48 * 0.3 * 0.5
    assert choice.costs.power == pytest.approx(own + 0.1 * 8760 * 0.5)


def test_rent_where_little_is_run():
    rented = dataclasses.replace(FAST, rent_per_hour=1.0)
    few = cheapest(lab(demands=(Demand("a", 1, 3),), offers=(rented, SLOW)))
    assert bought(few) == {}
    assert few.costs.rent == pytest.approx(12 * 24)
    assert few.runs[0].rented
    assert bought(cheapest(lab(offers=(rented, SLOW)))) == {"slow": 1}


def test_what_is_owned_costs_nothing():
    choice = cheapest(lab(offers=(FAST, dataclasses.replace(SLOW, owned=2, price=None))))
    assert bought(choice) == {}
    assert choice.costs.total == 0
    card = next(line for line in choice.order if line.kind == "card")
    assert (card.name, card.used, card.owned) == ("slow", 1, 1)  # the second stands idle


def test_two_gpus_at_a_time_need_them_in_one_server():
    pair = (Demand("a", 10, 3, gpus=2),)
    choice = cheapest(lab(demands=pair))
    assert bought(choice) == {"slow": 2}
    assert (choice.loads[0].cards, choice.loads[0].job_gpus) == (2, 2)
    assert choice.loads[0].gpu_hours == pytest.approx(960)
    narrow = dataclasses.replace(TOWER, slots=2, price=3000)
    apart = cheapest(lab(demands=pair, servers=(narrow,)))
    assert bought(apart) == {"fast": 2}  # two slow cards would take four places


def test_single_experiments_share_a_group():
    demands = (Demand("a", 5, 3, gpus=2), Demand("b", 10, 3))
    times = {(d, c): Hours(48, 48, 48) for d in "ab" for c in ("slow",)}
    choice = cheapest(lab(demands=demands, times=times))
    # 5 × 48 h of a pair and 10 × 48 / 2 h: 480 of 584.
    assert bought(choice) == {"slow": 2}


def test_the_fastest_plan_for_a_budget():
    assert bought(fastest(lab(), 2000)) == {"fast": 1}
    assert bought(fastest(lab(), None)) == {"fast": 1}
    short = fastest(lab(), 1999)
    assert bought(short) == {"slow": 1}
    assert short.days == pytest.approx(2)
    assert fastest(lab(), 700) is None


def test_a_budget_too_small_for_the_deadlines():
    urgent = lab(demands=(Demand("a", 10, 1.5),), budget=1000)
    found = plan(urgent)
    assert bought(found.cheapest) == {"fast": 1}
    assert bought(found.fastest) == {"slow": 1}
    assert not found.fastest.meets_deadlines
    (change,) = found.changes
    assert (change.kind, change.before) == (ChangeKind.BUDGET, 1000)
    assert change.after == pytest.approx(2000)
    assert found.cheapest.meets_deadlines


def test_equally_fast_plans_are_told_apart_by_cost():
    twin = Offer("twin", price=1500, power_w=400, width=2, passive=False)
    times = dict(lab().times) | {("a", "twin"): Hours(20, 24, 30)}
    assert bought(fastest(lab(offers=(FAST, SLOW, twin), times=times), None)) == {"twin": 1}


def test_chances_of_the_deadlines():
    choice = cheapest(lab(demands=(Demand("a", 10, 60 / 24),)))
    # log(60 / 48) / (log(60 / 40) / 2.5631) = 1.41 standard deviations.
    assert choice.services[0].chance == pytest.approx(0.9208, abs=1e-3)
    for chance in (choice.chance_common, choice.chance_independent):
        assert chance == pytest.approx(choice.services[0].chance)


def test_confidence_leaves_room_in_the_load():
    # 480 of 584 h are 82 %; 90 % are sure of 480 × (60 / 40) ^ 0.5 = 588 h: not on one slow card.
    assert bought(cheapest(lab())) == {"slow": 1}
    sure = cheapest(lab(confidence=0.9))
    assert bought(sure) == {"slow": 2}
    assert sum(load.gpu_hours for load in sure.loads) == pytest.approx(480)
    assert all(load.chance >= 0.9 for load in sure.loads)


def test_an_idle_problem_has_a_plan_without_purchases():
    found = plan(lab(offers=(dataclasses.replace(SLOW, owned=1, price=None),), budget=10))
    assert found.cheapest.costs.total == 0
    assert found.fastest == found.cheapest
    assert len(found.pareto) == 1


@pytest.mark.parametrize("seed", SOME)
def test_promises_of_every_plan(seed):
    problem = random_problem(seed)
    best = model.solve(problem)
    if best is None:
        check_changes(problem)
        return
    assert smallest_changes(problem, best) == () or problem.budget is not None
    check_pareto(problem, best)
    check_flips(problem, best)


def check_pareto(problem, best):
    points = pareto(problem, best)
    assert points[0].cost == pytest.approx(model.cost(problem, best))
    for left, right in itertools.pairwise(points):
        assert right.days < left.days
        assert right.cost >= left.cost * (1 - 1e-6)
    least = model.mean_days(problem, model.solve(problem, minimise="days"))
    assert points[-1].days == pytest.approx(least, rel=1e-4)


def check_flips(problem, best):
    found = flips_of.find(problem, best)
    for flip in found:
        before, after = flip.now + (flip.at - flip.now) * 0.99, flip.at + (flip.at - flip.now) / 50
        if flip.kind is FlipKind.DEMAND:
            assert flip.at != flip.now
            continue
        key = "price" if flip.kind is FlipKind.PRICE else "rent_per_hour"
        here = problem.with_offer(flip.card, **{key: before})
        mine = model.cost(here, best)
        assert model.cost(here, model.solve(here)) == pytest.approx(mine, rel=3e-5, abs=1e-2)
        if flip.at != flip.now:
            there = problem.with_offer(flip.card, **{key: after})
            assert model.cost(there, model.solve(there)) < model.cost(there, best)
    told = {(f.kind, f.card) for f in found}
    for offer in problem.offers:  # where none is told, half and twice the price change nothing
        if offer.price is None or (FlipKind.PRICE, offer.card) in told:
            continue
        paid = best.cards()[offer.card] > offer.owned
        far = problem.with_offer(offer.card, price=offer.price * (2 if paid else 0.5))
        mine = model.cost(far, best)
        assert model.cost(far, model.solve(far)) == pytest.approx(mine, rel=3e-5, abs=1e-2)


def check_changes(problem):
    def possible(changed) -> bool:
        return model.solve(changed) is not None

    changes = smallest_changes(problem, None)
    assert changes
    days = {c.subject: c.after for c in changes if c.kind is ChangeKind.DEADLINE}
    if days:
        assert possible(problem.with_deadlines(days))
    for change in changes:
        if change.kind is ChangeKind.DEADLINE:
            assert change.after > change.before
            assert not possible(
                problem.with_deadlines(days | {change.subject: change.after * 0.999})
            )
        elif change.kind is ChangeKind.DEMAND:
            assert possible(problem.scaled(change.after))
            assert change.after >= 0.999 or not possible(problem.scaled(change.after + 0.002))
        elif change.kind in (ChangeKind.MORE_CARDS, ChangeKind.MORE_SERVERS):
            cards = change.kind is ChangeKind.MORE_CARDS
            change_to = problem.with_offer if cards else problem.with_server
            for number, wanted in ((change.after, True), (change.after - 1, False)):
                changed = change_to(change.subject, price=None, owned=number)
                assert possible(changed) is wanted
        elif change.kind is ChangeKind.CARD:
            demand = problem.demand(change.subject)
            known = [problem.times[demand.name, o.card] for o in problem.offers]
            assert all(isinstance(k, Cannot) for k in known)
        else:
            assert change.kind is ChangeKind.SERVER


def test_where_the_answer_flips_by_hand():
    found = {(f.kind, f.card, f.at >= f.now): f for f in plan(lab()).flips}
    # One fast card does the work of one slow card here: 800 against 2000 money.
    assert (FlipKind.PRICE, "slow", True) not in found  # flips at 2000: more than twice 800
    assert (FlipKind.PRICE, "fast", False) not in found  # at 800: less than half of 2000
    near = plan(lab(offers=(dataclasses.replace(FAST, price=1300), SLOW))).flips
    found = {(f.kind, f.card, f.at >= f.now): f for f in near}
    assert found[FlipKind.PRICE, "slow", True].at == pytest.approx(1300)
    assert found[FlipKind.PRICE, "fast", False].at == pytest.approx(800)
    assert [line.name for line in found[FlipKind.PRICE, "fast", False].order if line.buy] == [
        "fast"
    ]
    # A slow card is full at 584 / 480 = 1.217 times the experiments.
    assert found[FlipKind.DEMAND, None, True].at == pytest.approx(1.217, rel=0.06)


def test_a_deadline_too_short_for_every_card():
    found = plan(lab(demands=(Demand("a", 10, 0.75),)))
    assert found.cheapest is None
    (change,) = found.changes
    assert (change.kind, change.subject, change.before) == (ChangeKind.DEADLINE, "a", 0.75)
    assert change.after == pytest.approx(1)


def test_only_the_deadlines_that_matter_are_moved():
    demands = (Demand("a", 5, 1.5), Demand("b", 5, 0.5))
    times = {(d, c): Hours(h, h, h) for d in "ab" for c, h in (("fast", 24), ("slow", 48))}
    (change,) = plan(lab(demands=demands, times=times)).changes
    assert (change.subject, change.after) == ("b", pytest.approx(1))


def test_a_card_that_nobody_offers():
    need = Cannot(Reason.MEMORY, 31 * GIB, 24 * GIB)
    found = plan(lab(times={("a", "fast"): need, ("a", "slow"): need}))
    (change,) = found.changes
    assert (change.kind, change.subject, change.after) == (ChangeKind.CARD, "a", 31 * GIB)


def test_a_card_that_no_server_takes():
    passive = dataclasses.replace(FAST, passive=True)
    found = plan(lab(demands=(Demand("a", 10, 1.5),), offers=(passive, SLOW)))
    kinds = {(c.kind, c.subject) for c in found.changes}
    assert kinds == {(ChangeKind.SERVER, "fast"), (ChangeKind.DEADLINE, "a")}
    cooled = Server("rack", 4, price=1000)
    there = plan(lab(demands=(Demand("a", 10, 1.5),), offers=(passive, SLOW),
                     servers=(TOWER, cooled)))  # fmt: skip
    assert bought(there.cheapest) == {"fast": 1, "rack": 1}


def test_more_experiments_than_the_servers_hold():
    # 40 experiments are 960 h on fast cards: two of them; one place leaves 584 h.
    small = dataclasses.replace(TOWER, slots=1)
    found = plan(lab(demands=(Demand("a", 40, 3),), servers=(small,)))
    by_kind = {c.kind: c for c in found.changes}
    assert by_kind[ChangeKind.MORE_SERVERS].after == 2
    assert by_kind[ChangeKind.DEMAND].after == pytest.approx(584 / 960, abs=1e-3)
    assert ChangeKind.DEADLINE not in by_kind


def test_what_could_not_be_checked_is_named():
    blank = Offer("blank", price=1)
    found = plan(lab(offers=(FAST, SLOW, blank), servers=(TOWER, Server("s", 4, price=1))))
    text = " ".join(found.unchecked)
    for what in ("width of blank", "power limit of blank", "cooling of blank", "supply of s"):
        assert what in text
    assert "CPU cores were not checked" in text
