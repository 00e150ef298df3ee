"""The purchase as a mixed-integer linear program, solved by HiGHS through SciPy.

Whole numbers: servers of each model in use, and groups of cards in them. A group is as many equal
cards in one server as a demand's experiments use at a time; smaller experiments may share it, as
many side by side as go into it. Real numbers: experiments a month of each demand on each kind of
group, or on rented cards. Work flows like a liquid: a card is never asked for more hours than it
has, but no queue is modelled.

    every demand:   experiments on groups and on rented cards = experiments a month
    every group:    hours of its experiments ≤ 730 h × utilisation × groups
    every server:   places, cards, watts, cores and memory of its groups ≤ what it offers
    cost:           purchase beyond what is owned + (kWh of cards and servers + rent) × months

Servers of one model are first taken together (their places added up), which can only promise too
much. Where such a solution cannot be laid out server by server, that model's servers enter the
program one by one and it is solved again: the result is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from segplan.errors import SegplanError
from segplan.purchase import rules
from segplan.purchase.chances import quantile
from segplan.purchase.dominance import without_dominated
from segplan.purchase.problem import HOURS_PER_MONTH, Demand, Offer, Problem

TIME_LIMIT_S = 60.0
"""A problem whose optimum takes longer to prove is given up."""

GAP = 1e-7
"""Relative gap between the solution and the proof: an optimum, up to rounding."""

_SLACK = 1e-7
"""Relative slack of a bound that an earlier optimum gives, so that it stays possible."""

_CRUMB = 1e-5
"""Shares of a demand below this are rounding, not decisions."""

Pool = tuple[str, int]
"""Groups of one kind: (card's slug, cards in a group)."""


@dataclass(frozen=True)
class Solution:
    """What the program decides.

    Attributes:
        racks: for each server in use, its model's name and its groups, sorted.
        runs: experiments a month of (demand's name, pool).
        rents: experiments a month of (demand's name, card) on rented cards.
    """

    racks: tuple[tuple[str, tuple[Pool, ...]], ...]
    runs: Mapping[tuple[str, Pool], float]
    rents: Mapping[tuple[str, str], float]

    def cards(self) -> Counter[str]:
        """Cards at work in servers, by slug."""
        sizes: Counter[str] = Counter()
        for _, groups in self.racks:
            for card, size in groups:
                sizes[card] += size
        return sizes

    def groups(self) -> Counter[Pool]:
        """Groups, by pool."""
        return Counter(pool for _, groups in self.racks for pool in groups)

    def servers(self) -> Counter[str]:
        """Servers in use, by name."""
        return Counter(name for name, _ in self.racks)

    def pieces(self, problem: Problem) -> tuple[tuple[str, int], ...]:
        """What has to be bought, sorted: the order by which two solutions are compared."""
        cards, servers = self.cards(), self.servers()
        counts = [(o.card, cards[o.card] - o.owned) for o in problem.offers]
        counts += [(s.name, servers[s.name] - s.owned) for s in problem.servers]
        return tuple(sorted((name, n) for name, n in counts if n > 0))


def group_hours(problem: Problem, demand: Demand, pool: Pool) -> float:
    """Hours of a group that one experiment is given: less where several run side by side.

    Like the deadlines, they are those that an experiment stays within with the problem's
    confidence (0.5: the expected hours).
    """
    card, size = pool
    hours = rules.hours_of(problem, demand, card)
    if hours is None:
        raise KeyError((demand.name, card))
    return quantile(hours, problem.confidence) / (size // demand.gpus)


def kwh(problem: Problem, demand: Demand, offer: Offer) -> float:
    """Energy of one experiment on a card, all its GPUs."""
    hours = rules.hours_of(problem, demand, offer.card)
    if hours is None:
        raise KeyError((demand.name, offer.card))
    return rules.kwh(demand, offer, hours)


def capacity(problem: Problem) -> float:
    """Hours a month that a card (or a group) offers."""
    return HOURS_PER_MONTH * problem.utilisation


def mean_days(problem: Problem, solution: Solution) -> float:
    """Mean days of an experiment, demands weighted by their experiments a month."""
    total = 0.0
    for (name, (card, _)), count in solution.runs.items():
        total += count * _mid(problem, name, card)
    for (name, card), count in solution.rents.items():
        total += count * _mid(problem, name, card)
    return total / 24 / sum(d.per_month for d in problem.demands)


def costs(problem: Problem, solution: Solution) -> tuple[float, float, float]:
    """Money for purchase, power and rent over the years."""
    cards, servers = solution.cards(), solution.servers()
    purchase = sum(
        max(0, cards[o.card] - o.owned) * (o.price or 0.0) for o in problem.offers
    ) + sum(max(0, servers[s.name] - s.owned) * (s.price or 0.0) for s in problem.servers)
    energy = sum(n * problem.server(s).power_w for s, n in servers.items())
    monthly_kwh = energy * HOURS_PER_MONTH / 1000
    for (name, (card, _)), count in solution.runs.items():
        monthly_kwh += count * kwh(problem, problem.demand(name), problem.offer(card))
    rent = 0.0
    for (name, card), count in solution.rents.items():
        rate = problem.offer(card).rent_per_hour or 0.0
        rent += count * _mid(problem, name, card) * problem.demand(name).gpus * rate
    return purchase, monthly_kwh * problem.months * problem.kwh_cost, rent * problem.months


def cost(problem: Problem, solution: Solution) -> float:
    """Money over the years, all of it."""
    return sum(costs(problem, solution))


def _mid(problem: Problem, demand: str, card: str) -> float:
    hours = rules.hours_of(problem, problem.demand(demand), card)
    return 0.0 if hours is None else hours.mid


def solve(
    problem: Problem,
    *,
    minimise: str = "cost",
    max_cost: float | None = None,
    max_days: float | None = None,
    deadlines: bool = True,
) -> Solution | None:
    """The best solution, or None where there is none.

    Args:
        problem: what is asked.
        minimise: "cost" or "days" (`mean_days`).
        max_cost: over the years.
        max_days: bound of `mean_days`.
        deadlines: whether experiments may only run on cards that are quick enough.

    Raises:
        SegplanError: no optimum was proven within `TIME_LIMIT_S`.
    """
    found = _optimum(problem, minimise, max_cost, max_days, deadlines)
    return None if found is None else found[0]


def largest_share(problem: Problem) -> float:
    """The largest factor (at most 1) by which all demands can be multiplied and be met.

    Raises:
        SegplanError: as `solve`.
    """
    found = _optimum(problem, "factor", None, None, True)
    return 0.0 if found is None else found[1]


def _optimum(
    problem: Problem,
    minimise: str,
    max_cost: float | None,
    max_days: float | None,
    deadlines: bool,
) -> tuple[Solution, float] | None:
    """The best solution and its factor (1 unless that is what is sought)."""
    apart: frozenset[str] = frozenset()
    fewer = without_dominated(problem)
    while True:
        program = _Program(fewer, apart, deadlines, factor=minimise == "factor")
        values = program.run(minimise, max_cost, max_days)
        if values is None:
            return None
        counts, groups, runs, rents = program.read(values)
        groups = _needed(problem, groups, runs)
        racks, failed = _lay_out(problem, counts, groups, apart)
        if not failed:
            factor = float(values[program.factor]) if program.factor >= 0 else 1.0
            return Solution(racks, runs, rents), factor
        apart |= failed


class _Program:
    """Variables and rows; every row is (coefficients by variable, least, most)."""

    def __init__(
        self, problem: Problem, apart: frozenset[str], deadlines: bool, *, factor: bool = False
    ) -> None:
        self.problem = problem
        self.whole: list[bool] = []
        self.most: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.cost: dict[int, float] = {}
        self.days: dict[int, float] = {}
        self.offers = {o.card: o for o in problem.offers}
        self.pools = _pools(problem, deadlines)
        self.enough = _enough(problem, self.pools, deadlines)
        self.factor = self._variable(1.0) if factor else -1
        self._add_runs(deadlines)
        self._add_servers(apart)
        self._add_hours()
        self._add_cuts()
        self._add_orders()

    def _variable(self, most: float, *, whole: bool = False) -> int:
        self.whole.append(whole)
        self.most.append(most)
        return len(self.most) - 1

    def _add_runs(self, deadlines: bool) -> None:
        problem = self.problem
        total = sum(d.per_month for d in problem.demands)
        self.runs: dict[tuple[str, Pool], int] = {}
        self.rents: dict[tuple[str, str], int] = {}
        for demand in problem.demands:
            row: dict[int, float] = {}
            for pool in self.pools:
                card, size = pool
                if size < demand.gpus or not rules.serves(
                    problem, demand, card, deadlines=deadlines
                ):
                    continue
                v = self.runs[demand.name, pool] = self._variable(demand.per_month)
                self.cost[v] = (
                    kwh(problem, demand, self.offers[card]) * problem.kwh_cost * problem.months
                )
                self.days[v] = _mid(problem, demand.name, card) / 24 / total
                row[v] = 1.0
            for offer in problem.offers:
                if offer.rent_per_hour is None or not rules.serves(
                    problem, demand, offer.card, deadlines=deadlines
                ):
                    continue
                v = self.rents[demand.name, offer.card] = self._variable(demand.per_month)
                hours = _mid(problem, demand.name, offer.card)
                self.cost[v] = hours * demand.gpus * offer.rent_per_hour * problem.months
                self.days[v] = hours / 24 / total
                row[v] = 1.0
            if self.factor >= 0:
                row[self.factor] = -demand.per_month
                self.rows.append((row, 0.0, 0.0))
            else:
                self.rows.append((row, demand.per_month, demand.per_month))

    def _add_servers(self, apart: frozenset[str]) -> None:
        """Bins: all servers of a model together, or one server each for the models `apart`."""
        problem = self.problem
        in_all = _enough_servers(problem, self.pools, self.enough)
        self.bins: list[tuple[str, int]] = []
        self.placed: dict[tuple[int, Pool], int] = {}
        for server in problem.servers:
            caps = {
                (card, size): rules.most_groups(problem, server, self.offers[card], size)
                for card, size in self.pools
            }
            limit = int(min(in_all, math.inf if server.most is None else server.most))
            if not any(caps.values()) or limit <= 0:
                continue
            single = server.name in apart
            before: int | None = None
            for _ in range(limit if single else 1):
                count = self._variable(1 if single else limit, whole=True)
                self.cost[count] = (
                    server.power_w * HOURS_PER_MONTH / 1000 * problem.kwh_cost * problem.months
                )
                if before is not None:  # equal servers: the first ones are used first
                    self.rows.append(({before: 1.0, count: -1.0}, 0.0, math.inf))
                before = count
                self.bins.append((server.name, count))
                self._fill(len(self.bins) - 1, count, caps, limit)

    def _fill(self, at: int, count: int, caps: Mapping[Pool, int], limit: int) -> None:
        problem = self.problem
        server = problem.server(self.bins[at][0])
        sums: list[dict[int, float]] = [{} for _ in rules.limits(server)]
        for pool, cap in caps.items():
            if not cap:
                continue
            card, size = pool
            v = self.placed[at, pool] = self._variable(
                min(self.enough[pool], cap * limit), whole=True
            )
            self.rows.append(({v: 1.0, count: -float(cap)}, -math.inf, 0.0))
            for row, need in zip(
                sums, rules.needs(problem, server, self.offers[card]), strict=True
            ):
                if need > 0:
                    row[v] = need * size
        for row, have in zip(sums, rules.limits(server), strict=True):
            if row and math.isfinite(have):
                # In units of what one server offers, so that rounding is alike in every row.
                scaled = {v: need / max(have, 1e-9) for v, need in row.items()}
                self.rows.append(({**scaled, count: -(1 + 1e-9)}, -math.inf, 0.0))

    def _add_hours(self) -> None:
        hours = capacity(self.problem)
        for pool in self.pools:
            row = {v: -1.0 for (_, p), v in self.placed.items() if p == pool}
            for (name, p), v in self.runs.items():
                if p == pool:
                    row[v] = group_hours(self.problem, self.problem.demand(name), pool) / hours
            self.rows.append((row, -math.inf, 0.0))

    def _add_cuts(self) -> None:
        """Rows that whole numbers meet anyway, but that tell fractions of a card apart.

        A demand runs on groups there are at least one of, and in at least one server, unless
        all of it is rented.
        """
        counts = {count: 1.0 for _, count in self.bins}
        for demand in self.problem.demands:
            outside = dict(counts)
            for pool in self.pools:
                v = self.runs.get((demand.name, pool))
                if v is None:
                    continue
                groups = {g: -1.0 for (_, p), g in self.placed.items() if p == pool}
                self.rows.append(({**groups, v: 1 / demand.per_month}, -math.inf, 0.0))
                outside[v] = -1 / demand.per_month
            self.rows.append((outside, 0.0, math.inf))

    def _add_orders(self) -> None:
        """Pieces to buy: those at work beyond those owned."""
        for offer in self.problem.offers:
            used = {v: float(size) for (_, (c, size)), v in self.placed.items() if c == offer.card}
            self._order(used, offer.owned, offer.most, offer.price)
        for server in self.problem.servers:
            used = {count: 1.0 for name, count in self.bins if name == server.name}
            self._order(used, server.owned, server.most, server.price)

    def _order(
        self, used: dict[int, float], owned: int, most: int | None, price: float | None
    ) -> None:
        if not used:
            return
        if most is not None:
            self.rows.append((used, -math.inf, float(most)))
        if price is not None:
            buy = self._variable(math.inf)
            self.cost[buy] = price
            self.rows.append(({**used, buy: -1.0}, -math.inf, float(owned)))

    def run(self, minimise: str, max_cost: float | None, max_days: float | None) -> Any:
        """Values of the variables at the optimum; None where the rows contradict each other."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows = list(self.rows)
        for terms, bound in ((self.cost, max_cost), (self.days, max_days)):
            if bound is None:
                continue
            scale = max(abs(bound), 1e-9)
            row = {v: c / scale for v, c in terms.items() if c}
            rows.append((row, -math.inf, bound / scale + _SLACK))
        size = len(self.most)
        if size == 0 or any(not row and low > 0 for row, low, _ in rows):
            return None
        if minimise == "factor":
            objective = {self.factor: -1.0}
        else:
            objective = self.cost if minimise == "cost" else self.days
        costs = np.zeros(size)  # not scaled: HiGHS proves to within 1e-6 money (or days)
        for v, value in objective.items():
            costs[v] = value
        at = [i for i, (row, _, _) in enumerate(rows) for _ in row]
        columns = [v for row, _, _ in rows for v in row]
        values = [value for row, _, _ in rows for value in row.values()]
        matrix = csr_array((values, (at, columns)), shape=(len(rows), size))
        bounds = LinearConstraint(matrix, [r[1] for r in rows], [r[2] for r in rows])
        found = milp(
            costs,
            integrality=np.array(self.whole, dtype=int),
            bounds=Bounds(0, self.most),
            constraints=bounds,
            # Its own presolve finds little here, and costs a third more time than it saves.
            options={"mip_rel_gap": GAP, "time_limit": TIME_LIMIT_S, "presolve": False},
        )
        if found.status == 2:
            return None
        if found.status != 0:
            raise SegplanError(
                f"no best plan was proven within {TIME_LIMIT_S:.0f} s: leave out offers or servers "
                "that are no serious candidates, and try again."
            )
        return found.x

    def read(
        self, values: Any
    ) -> tuple[
        Counter[str],
        dict[int, tuple[str, Counter[Pool]]],
        dict[tuple[str, Pool], float],
        dict[tuple[str, str], float],
    ]:
        """Servers in use, groups in each bin, and experiments; whole numbers rounded."""
        counts: Counter[str] = Counter()
        groups: dict[int, tuple[str, Counter[Pool]]] = {}
        for at, (name, count) in enumerate(self.bins):
            counts[name] += round(values[count])
            held = Counter({p: round(values[v]) for (b, p), v in self.placed.items() if b == at})
            groups[at] = (name, +held)
        runs, rents = self._shares(values)
        return counts, groups, runs, rents

    def _shares(
        self, values: Any
    ) -> tuple[dict[tuple[str, Pool], float], dict[tuple[str, str], float]]:
        """Experiments without the crumbs that a solver's tolerance leaves."""
        runs: dict[tuple[str, Pool], float] = {}
        rents: dict[tuple[str, str], float] = {}
        for demand in self.problem.demands:
            share = values[self.factor] if self.factor >= 0 else 1.0
            least = demand.per_month * share * _CRUMB
            here = {k: float(values[v]) for k, v in self.runs.items() if k[0] == demand.name}
            away = {k: float(values[v]) for k, v in self.rents.items() if k[0] == demand.name}
            kept = sum(n for n in (*here.values(), *away.values()) if n > least)
            scale = demand.per_month * share / kept if kept > 0 else 0.0
            runs |= {k: n * scale for k, n in here.items() if n > least}
            rents |= {k: n * scale for k, n in away.items() if n > least}
        return runs, rents


def _pools(problem: Problem, deadlines: bool) -> tuple[Pool, ...]:
    """Kinds of groups that some demand could use and some server could hold."""
    sizes = sorted({d.gpus for d in problem.demands})
    found: list[Pool] = []
    for offer in problem.offers:
        for size in sizes:
            useful = any(
                d.gpus <= size and rules.serves(problem, d, offer.card, deadlines=deadlines)
                for d in problem.demands
            )
            there = offer.most is None or offer.most >= size
            if (
                useful
                and there
                and any(
                    s.most != 0 and rules.most_groups(problem, s, offer, size)
                    for s in problem.servers
                )
            ):
                found.append((offer.card, size))
    return tuple(found)


def _enough(problem: Problem, pools: Iterable[Pool], deadlines: bool) -> dict[Pool, int]:
    """Groups of each pool beyond which more would stand idle."""
    most: dict[Pool, int] = {}
    for pool in pools:
        card, size = pool
        hours = sum(
            d.per_month * group_hours(problem, d, pool)
            for d in problem.demands
            if d.gpus <= size and rules.serves(problem, d, card, deadlines=deadlines)
        )
        groups = math.ceil(hours / capacity(problem) - 1e-9)
        limit = problem.offer(card).most
        most[pool] = max(1, groups if limit is None else min(groups, limit // size))
    return most


def _enough_servers(problem: Problem, pools: Iterable[Pool], enough: Mapping[Pool, int]) -> int:
    """Servers beyond which more would stand idle: one for each group, of which at most one a
    pool is not full."""
    hours = 0.0
    for demand in problem.demands:
        there = [
            group_hours(problem, demand, p)
            for p in pools
            if p[1] >= demand.gpus and rules.hours_of(problem, demand, p[0]) is not None
        ]
        hours += demand.per_month * max(there, default=0.0)
    return min(sum(enough.values()), math.ceil(hours / capacity(problem)) + len(enough))


def _needed(
    problem: Problem,
    groups: dict[int, tuple[str, Counter[Pool]]],
    runs: Mapping[tuple[str, Pool], float],
) -> dict[int, tuple[str, Counter[Pool]]]:
    """The groups without those that would stand idle (cards that are owned cost nothing)."""
    hours: dict[Pool, float] = {}
    for (name, pool), count in runs.items():
        work = count * group_hours(problem, problem.demand(name), pool)
        hours[pool] = hours.get(pool, 0.0) + work
    left = {p: math.ceil(h / capacity(problem) - 1e-5) for p, h in hours.items()}
    kept: dict[int, tuple[str, Counter[Pool]]] = {}
    for at, (name, held) in groups.items():
        trimmed: Counter[Pool] = Counter()
        for pool in sorted(held):
            trimmed[pool] = min(held[pool], left.get(pool, 0))
            left[pool] = left.get(pool, 0) - trimmed[pool]
        kept[at] = (name, +trimmed)
    return kept


def _lay_out(
    problem: Problem,
    counts: Counter[str],
    groups: dict[int, tuple[str, Counter[Pool]]],
    apart: frozenset[str],
) -> tuple[tuple[tuple[str, tuple[Pool, ...]], ...], frozenset[str]]:
    """Groups server by server, and the models for which that was not possible."""
    racks: list[tuple[str, tuple[Pool, ...]]] = []
    failed: set[str] = set()
    for name, held in groups.values():
        if not held:
            continue
        if name in apart:
            racks.append((name, tuple(sorted(held.elements()))))
            continue
        laid = pack(problem, name, held, counts[name])
        if laid is None:
            failed.add(name)
        else:
            racks += [(name, groups_in) for groups_in in laid]
    return tuple(racks), frozenset(failed)


def pack(
    problem: Problem, server: str, groups: Counter[Pool], count: int
) -> list[tuple[Pool, ...]] | None:
    """Groups laid out in at most `count` servers of one model; None where that is impossible.

    Largest first into the first server with room, which usually works; the program decides
    where it does not.
    """
    model = problem.server(server)
    have = rules.limits(model)
    need = {
        (card, size): tuple(size * n for n in rules.needs(problem, model, problem.offer(card)))
        for card, size in groups
    }

    def share(pool: Pool) -> float:
        return max(
            n / h for n, h in zip(need[pool], have, strict=True) if h > 0 and math.isfinite(h)
        )

    for key in (share, lambda p: need[p][2], lambda p: need[p][0]):
        laid: list[list[Pool]] = []
        for pool in sorted(groups.elements(), key=lambda p: (-key(p), p)):
            for held in laid:
                if _fits(have, [need[p] for p in (*held, pool)]):
                    held.append(pool)
                    break
            else:
                laid.append([pool])
        if len(laid) <= count:
            return [tuple(sorted(held)) for held in laid]
    return None


def _fits(have: tuple[float, ...], needs: list[tuple[float, ...]]) -> bool:
    sums = (sum(column) for column in zip(*needs, strict=True))
    return all(total <= limit * (1 + 1e-9) for total, limit in zip(sums, have, strict=True))
