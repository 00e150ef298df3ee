"""What a purchase plan says: orders, loads, costs, days, and where the answer would change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from segplan.purchase.problem import Problem, Reason


@dataclass(frozen=True)
class OrderLine:
    """Something the plan uses.

    Attributes:
        kind: "card" or "server".
        name: the card's slug or the server's name.
        used: pieces at work.
        owned: of these, pieces the lab has already.
        buy: of these, pieces to order.
        price: of one; None where none is bought.
    """

    kind: str
    name: str
    used: int
    owned: int
    buy: int
    price: float | None


@dataclass(frozen=True)
class Placement:
    """Servers that are filled alike.

    Attributes:
        server: name of the model.
        count: servers filled like this.
        cards: cards in one of them, by slug; each once, in the order of the offers.
        numbers: how many of each.
    """

    server: str
    count: int
    cards: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """What the cards of one model do in an average month.

    Attributes:
        card: slug.
        rented: by the hour, or in the lab's servers.
        cards: cards at work; None where rented.
        job_gpus: cards that work on one experiment together (or on as many smaller ones side
            by side); 1 unless a demand asks for more.
        gpu_hours: GPU-hours a month, expected.
        capacity: GPU-hours a month the cards offer; None where rented.
        chance: probability that the cards have hours enough; 1 where rented.
    """

    card: str
    rented: bool
    cards: int | None
    job_gpus: int
    gpu_hours: float
    capacity: float | None
    chance: float


@dataclass(frozen=True)
class Run:
    """Experiments of one demand on one kind of card.

    Attributes:
        demand: its name.
        card: slug.
        rented: by the hour, or in the lab's servers.
        per_month: experiments of the demand that run there.
        days: what one takes there, expected.
        days_low: 80 % interval.
        days_high: 80 % interval.
        chance: probability that one ends within the deadline.
    """

    demand: str
    card: str
    rented: bool
    per_month: float
    days: float
    days_low: float
    days_high: float
    chance: float


@dataclass(frozen=True)
class Service:
    """How one demand fares.

    Attributes:
        demand: its name.
        deadline_days: as asked.
        days: mean over its experiments, expected.
        slowest_days: on the slowest card it runs on, expected.
        chance: probability that an experiment ends within the deadline, over all its runs.
    """

    demand: str
    deadline_days: float
    days: float
    slowest_days: float
    chance: float


@dataclass(frozen=True)
class Costs:
    """Money over all the years."""

    purchase: float
    power: float
    rent: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.purchase + self.power + self.rent


@dataclass(frozen=True)
class Choice:
    """One optimal answer.

    Attributes:
        order: cards and servers it uses, those to buy among them.
        placements: which cards go into which server.
        loads: work per kind of card.
        runs: which experiments run where.
        services: one for each demand.
        costs: over the years.
        days: mean days of an experiment, all demands weighted by their experiments a month.
        meets_deadlines: whether every experiment runs on a card that is quick enough.
        chance_common: probability that every demand meets its deadline if all predictions are
            off by one common error: the least of the single chances.
        chance_independent: the same if each is off on its own: their product.
    """

    order: tuple[OrderLine, ...]
    placements: tuple[Placement, ...]
    loads: tuple[Load, ...]
    runs: tuple[Run, ...]
    services: tuple[Service, ...]
    costs: Costs
    days: float
    meets_deadlines: bool
    chance_common: float
    chance_independent: float


@dataclass(frozen=True)
class RuledOut:
    """A card that does not serve a demand, or does not go into a server, and why.

    Attributes:
        card: slug.
        where: the demand's or the server's name; None where it is the card alone.
        reason: what rules it out.
        need: what it would take: bytes (memory), days (deadline), places (slots), slots
            (width), watts (power), cores (CPU), GiB (RAM); None where there is no number.
        limit: what there is, in the same unit.
    """

    card: str
    where: str | None
    reason: Reason
    need: float | None = None
    limit: float | None = None


class FlipKind(StrEnum):
    """What would have to change for another order to be the cheapest."""

    PRICE = "price"
    RENT = "rent"
    DEMAND = "demand"


@dataclass(frozen=True)
class Flip:
    """Where the cheapest order stops being the cheapest.

    Attributes:
        kind: a card's price, its rent by the hour, or the experiments of all demands.
        card: slug; None for the demands.
        now: the value asked about: money, or 1 for the demands.
        at: the value at which another order becomes cheaper.
        order: that order; empty where no order is possible beyond it.
        rented: cards rented beside it, by slug.
    """

    kind: FlipKind
    card: str | None
    now: float
    at: float
    order: tuple[OrderLine, ...]
    rented: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParetoPoint:
    """The least cost at which experiments take no more than so many days on average."""

    cost: float
    days: float
    order: tuple[OrderLine, ...]
    rented: tuple[str, ...] = ()


class ChangeKind(StrEnum):
    """What could be changed to make an impossible request possible."""

    DEADLINE = "deadline"
    DEMAND = "demand"
    MORE_CARDS = "more_cards"
    MORE_SERVERS = "more_servers"
    CARD = "card"
    SERVER = "server"
    BUDGET = "budget"


@dataclass(frozen=True)
class Change:
    """The smallest change of one kind that makes the request possible.

    Changes of kind `DEADLINE` belong together: all of them are needed. Otherwise each is enough
    by itself, unless `CARD` or `SERVER` names a demand that nothing offered can serve.

    Attributes:
        kind: what changes.
        subject: the demand's (`DEADLINE`, `CARD`), card's (`MORE_CARDS`, `SERVER`) or server's
            name; None for all demands and for the budget.
        before: days, experiments (1), pieces, or money, as asked.
        after: the least that is enough; for `CARD`, bytes of memory.
    """

    kind: ChangeKind
    subject: str | None
    before: float | None
    after: float | None


@dataclass(frozen=True)
class PurchasePlan:
    """The answer to "what should we buy?".

    Attributes:
        problem: as asked.
        cheapest: the cheapest plan that meets the deadlines; None where there is none.
        fastest: the plan with the fewest days within the budget; None without a budget, or
            where the budget does not pay for the experiments at all.
        pareto: cost against days, from the cheapest to the fastest at any price.
        flips: where the cheapest order stops being the cheapest.
        ruled_out: cards that do not serve a demand or do not go into a server.
        changes: where the request is impossible, what would make it possible; also where only
            the budget is too small for the deadlines.
        unchecked: sentences about rules that were not checked, for want of a number.
        notes: sentences a reader should know.
    """

    problem: Problem
    cheapest: Choice | None
    fastest: Choice | None
    pareto: tuple[ParetoPoint, ...] = ()
    flips: tuple[Flip, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    changes: tuple[Change, ...] = ()
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
