"""Random small purchases, and their optima by trying every whole-number decision.

Nothing here is shared with `segplan.purchase` but the nouns: what goes into a server is decided
anew, every way to fill every number of servers is tried, and only the division of the work among
the cards (real numbers, with the cards fixed) is left to a linear program.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from segplan.purchase import Cannot, Demand, Hours, Offer, Problem, Reason, Server

ANY_NUMBER = 4
"""Pieces tried where any number can be bought: more than the loads of these problems need."""


def random_problem(seed: int) -> Problem:
    """At most three demands, three cards and two models of servers, all odd in some way."""
    r = random.Random(seed)
    demands = tuple(
        Demand(f"d{i}", r.choice([2, 4, 6, 8]), r.choice([4, 5, 6, 8]), r.choice([1, 1, 1, 2]))
        for i in range(r.randint(1, 3))
    )
    modules = r.random() < 0.15
    offers = tuple(
        Offer(
            card=f"c{i}",
            price=None if r.random() < 0.1 else r.choice([300, 700, 1200, 2500]),
            owned=r.choice([0, 0, 0, 1, 2]),
            available=r.choice([None, None, 2, 3]),
            rent_per_hour=r.choice([None, None, None, 0.4, 0.9, 2.0]),
            power_w=r.choice([None, 150, 300, 350, 450, 500]),
            width=r.choice([None, 1, 2, 2, 3]),
            passive=r.choice([None, False, False, True]),
            module=modules and r.random() < 0.5,
        )
        for i in range(r.randint(1, 3))
    )
    servers = tuple(
        Server(
            name=f"s{i}",
            slots=r.choice([2, 3, 3]),
            slot_spacing=r.choice([1, 2, 2, 3]),
            widest=r.choice([None, None, 2]),
            max_cards=r.choice([None, None, 2]),
            power_supply_w=r.choice([None, 1000, 1200, 1500]),
            supply_rest=r.choice([0.25, 0.2]),
            workstation=r.random() < 0.3,
            modules=modules and r.random() < 0.5,
            cpu_cores=r.choice([None, 8, 16, 24]),
            ram_gib=r.choice([None, 64, 128]),
            power_w=r.choice([0, 100, 250]),
            price=r.choice([None, 500, 1000, 2500]),
            owned=r.choice([0, 0, 1]),
            available=r.choice([None, None, 2, 3]),
        )
        for i in range(r.randint(1, 2))
    )
    times: dict[tuple[str, str], Hours | Cannot] = {}
    for demand in demands:
        for offer in offers:
            mid = r.choice([10, 24, 47, 70, 90, 130])
            energy = r.choice([None, None, mid * 0.25])
            if r.random() < 0.15:
                times[demand.name, offer.card] = Cannot(Reason.MEMORY, 30e9, 24e9)
            else:
                times[demand.name, offer.card] = Hours(mid * 0.8, mid, mid * 1.3, energy)
    utilisation = r.choice([0.5, 0.8])
    slowest = {d.name: 0.0 for d in demands}
    for (name, _), hours in times.items():
        if isinstance(hours, Hours):
            slowest[name] = max(slowest[name], hours.mid)
    groups = sum(d.per_month * slowest[d.name] for d in demands) / 730 / utilisation
    if groups > ANY_NUMBER - 2:  # trying everything must not end before the optimum does
        offers, servers = (
            tuple(replace(x, available=2 if x.available is None else x.available) for x in some)
            for some in (offers, servers)
        )
    return Problem(
        demands, offers, servers, times,
        years=r.choice([1, 3]),
        budget=r.choice([None, 3000, 6000, 12000, 30000]),
        power_price=r.choice([0.0, 0.25]),
        pue=r.choice([1.0, 1.5]),
        utilisation=utilisation,
        confidence=r.choice([0.5, 0.9]),
        cpu_cores_per_gpu=r.choice([0, 6]),
        ram_gib_per_gpu=r.choice([0, 40]),
    )  # fmt: skip


class Brute:
    """Optima of a problem by trying everything."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kinds = [
            (o, size) for o in problem.offers for size in sorted({d.gpus for d in problem.demands})
        ]
        self.options = self._options()

    def _options(self) -> list[tuple[float, tuple[int, ...]]]:
        """(money for pieces and for the servers' power, groups of each kind), cheapest of each."""
        cheapest: dict[tuple[int, ...], float] = {}
        per_server = [self._fillings(s) for s in self.problem.servers]
        racks: list[list[tuple[int, Counter[int]]]] = []
        for server, fillings in zip(self.problem.servers, per_server, strict=True):
            most = ANY_NUMBER - 1 if server.most is None else min(server.most, ANY_NUMBER - 1)
            racks.append(
                [
                    (count, sum((Counter(f) for f in some), Counter()))
                    for count in range(most + 1)
                    for some in itertools.combinations_with_replacement(fillings, count)
                ]
            )
        for chosen in itertools.product(*racks):
            held: Counter[int] = sum((c for _, c in chosen), Counter())
            groups = tuple(held[i] for i in range(len(self.kinds)))
            money = self._money([n for n, _ in chosen], groups)
            if money is not None and money < cheapest.get(groups, math.inf):
                cheapest[groups] = money
        return sorted((money, groups) for groups, money in cheapest.items())

    def _fillings(self, server: Server) -> list[tuple[int, ...]]:
        """Every way to fill one server: sorted indices of `kinds`."""
        found: list[tuple[int, ...]] = []
        for size in range(1, server.slots + 1):
            for some in itertools.combinations_with_replacement(range(len(self.kinds)), size):
                cards = [o for i in some for o in [self.kinds[i][0]] * self.kinds[i][1]]
                if self._fits(server, cards):
                    found.append(some)
        return found

    def _fits(self, server: Server, cards: list[Offer]) -> bool:
        p = self.problem
        places = 0
        for card in cards:
            if card.module is not server.modules:
                return False
            if card.width and server.widest and card.width > server.widest:
                return False
            if card.passive and server.workstation:
                return False
            known = card.width and not server.modules
            places += math.ceil(card.width / server.slot_spacing) if known else 1
        count = len(cards)
        if places > server.slots or (server.max_cards and count > server.max_cards):
            return False
        watts = sum(card.power_w or 0 for card in cards)
        if server.power_supply_w and watts > server.power_supply_w * (1 - server.supply_rest):
            return False
        if server.cpu_cores and count * p.cpu_cores_per_gpu > server.cpu_cores:
            return False
        return not (server.ram_gib and count * p.ram_gib_per_gpu > server.ram_gib)

    def _money(self, servers: list[int], groups: tuple[int, ...]) -> float | None:
        p = self.problem
        money = 0.0
        for count, server in zip(servers, p.servers, strict=True):
            money += max(0, count - server.owned) * (server.price or 0)
            money += count * server.power_w / 1000 * 730 * 12 * p.years * p.power_price * p.pue
        for offer in p.offers:
            count = sum(
                n * size for n, (o, size) in zip(groups, self.kinds, strict=True) if o is offer
            )
            if count > (ANY_NUMBER if offer.most is None else offer.most):
                return None
            money += max(0, count - offer.owned) * (offer.price or 0)
        return money

    def _work(self, groups: tuple[int, ...], by_days: bool, budget: float | None, fixed: float):
        """The linear program over who runs where; None where it has no solution."""
        p = self.problem
        total = sum(d.per_month for d in p.demands)
        columns: list[tuple[int, int, float, float, float]] = []  # demand, kind, hours, money, days
        for i, demand in enumerate(p.demands):
            for k, (offer, size) in enumerate(self.kinds):
                hours = self._hours(demand, offer)
                if hours is None or size < demand.gpus or not groups[k]:
                    continue
                kwh = hours.energy_kwh
                if kwh is None:
                    kwh = hours.mid * demand.gpus * (offer.power_w or 0) / 1000
                money = kwh * p.power_price * p.pue * 12 * p.years
                columns.append(
                    (i, k, self._late(hours) / (size // demand.gpus), money, hours.mid / 24 / total)
                )
            for offer in p.offers:
                hours = self._hours(demand, offer)
                if hours is None or offer.rent_per_hour is None:
                    continue
                money = hours.mid * demand.gpus * offer.rent_per_hour * 12 * p.years
                columns.append((i, -1, 0.0, money, hours.mid / 24 / total))
        if {c[0] for c in columns} != set(range(len(p.demands))):
            return None
        size = len(columns)
        equal = np.zeros((len(p.demands), size))
        below = np.zeros((len(self.kinds) + 1, size))
        limits = [n * 730 * p.utilisation for n in groups]
        for c, (i, k, hours, money, _) in enumerate(columns):
            equal[i, c] = 1
            if k >= 0:
                below[k, c] = hours
            below[-1, c] = money
        limits.append(1e12 if budget is None else budget - fixed)
        found = linprog(
            [c[4] if by_days else c[3] for c in columns],
            A_ub=below, b_ub=limits, A_eq=equal, b_eq=[d.per_month for d in p.demands],
            method="highs",
        )  # fmt: skip
        return found.fun if found.status == 0 else None

    def _hours(self, demand: Demand, offer: Offer) -> Hours | None:
        hours = self.problem.times[demand.name, offer.card]
        if isinstance(hours, Cannot):
            return None
        return hours if self._late(hours) <= demand.deadline_days * 24 + 1e-9 else None

    def _late(self, hours: Hours) -> float:
        """Hours that nine of ten experiments stay within, or the expected ones.

        Nine tenths lie below the upper end of an interval around the middle of the logarithm.
        """
        stretch = math.sqrt(hours.high / hours.low)
        return hours.mid * stretch if self.problem.confidence == 0.9 else hours.mid

    def least_cost(self) -> float | None:
        best = math.inf
        for fixed, groups in self.options:
            if fixed >= best:
                break
            work = self._work(groups, False, None, fixed)
            if work is not None:
                best = min(best, fixed + work)
        return None if best == math.inf else best

    def least_days(self, budget: float | None) -> float | None:
        """Mean days within a budget, deadlines kept."""
        total = sum(d.per_month for d in self.problem.demands)
        best = math.inf
        for fixed, groups in self.options:
            if budget is not None and fixed > budget:
                continue
            there = {o.card for n, (o, _) in zip(groups, self.kinds, strict=True) if n}
            there |= {o.card for o in self.problem.offers if o.rent_per_hour is not None}
            bound = 0.0
            for demand in self.problem.demands:
                known = [
                    h.mid
                    for o in self.problem.offers
                    if o.card in there and (h := self._hours(demand, o)) is not None
                ]
                bound += min(known, default=math.inf) * demand.per_month / 24 / total
            if bound >= best - 1e-9:
                continue
            days = self._work(groups, True, budget, fixed)
            if days is not None:
                best = min(best, days)
        return None if best == math.inf else best
