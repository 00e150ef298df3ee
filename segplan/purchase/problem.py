"""What a purchase is decided from: demands, offers, servers, and the hours between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from segplan.errors import RequestError
from segplan.workload import Workload

HOURS_PER_MONTH = 730.0
"""Hours of an average month: 365 days of 24 hours, a twelfth of them."""

UTILISATION = 0.8
"""Share of those hours in which a card trains, unless the problem says otherwise: an assumption
that leaves a fifth for gaps between jobs, failed runs, updates and holidays."""

SUPPLY_REST = 0.25
"""Share of a power supply kept for processors, disks, fans and peaks, unless a server says
otherwise: an assumption."""


class Reason(StrEnum):
    """Why a card does not serve a demand or does not go into a server."""

    MEMORY = "memory"
    KERNEL = "kernel"
    UNKNOWN_TIME = "unknown_time"
    DEADLINE = "deadline"
    SLOTS = "slots"
    WIDTH = "width"
    POWER = "power"
    PASSIVE = "passive_cooling"
    MODULE = "module"
    CPU = "cpu_cores"
    RAM = "ram"
    NOT_FOR_SALE = "not_for_sale"
    NO_SERVER = "no_server"


@dataclass(frozen=True)
class Demand:
    """Experiments of one kind that the lab runs.

    Attributes:
        name: of the kind of experiment.
        per_month: experiments a month, on average.
        deadline_days: one experiment, once started, may take so many days.
        gpus: GPUs one experiment uses at a time, equal ones in one server.
        workload: what a step trains on one GPU; only shown.
    """

    name: str
    per_month: float
    deadline_days: float
    gpus: int = 1
    workload: Workload | None = None


@dataclass(frozen=True)
class Offer:
    """One model of card: what it costs, how many there are, and what it asks of a server.

    None is "not known": that rule is then not checked.

    Attributes:
        card: slug.
        price: of one card; None where it is not for sale.
        owned: cards the lab has already.
        available: cards that can be bought; None for any number.
        rent_per_hour: of one GPU rented by the hour, power included; None where there is none.
        power_w: the board's power limit.
        width: PCIe slots it covers.
        passive: needs the air stream of a server.
        module: plugs into a board of its own kind (SXM), not into a PCIe slot.
    """

    card: str
    price: float | None = None
    owned: int = 0
    available: int | None = None
    rent_per_hour: float | None = None
    power_w: float | None = None
    width: float | None = None
    passive: bool | None = None
    module: bool = False

    @property
    def most(self) -> int | None:
        """Cards the lab can have: None for any number."""
        return _most(self.price, self.owned, self.available)


@dataclass(frozen=True)
class Server:
    """One model of server or workstation.

    Attributes:
        name: of the model.
        slots: places for cards.
        slot_spacing: from one place to the next, in PCIe slots: a card takes as many places
            as its width covers, so that with a spacing of 2 a card three slots wide takes two.
        widest: the widest card the case takes, in PCIe slots; None for any.
        max_cards: most cards, whatever their width (risers, connectors); None for as many as
            there are places.
        power_supply_w: of the power supply; None: not checked.
        supply_rest: share of it kept for everything that is no graphics card.
        workstation: whether it lacks the air stream that passive cards need.
        modules: takes modules (SXM) instead of PCIe cards.
        cpu_cores: physical cores; None: not checked.
        ram_gib: memory; None: not checked.
        power_w: drawn without the cards, all the time.
        price: of one, without cards; None where it is not for sale.
        owned: servers the lab has already.
        available: servers that can be bought; None for any number.
    """

    name: str
    slots: int
    slot_spacing: float = 2.0
    widest: float | None = None
    max_cards: int | None = None
    power_supply_w: float | None = None
    supply_rest: float = SUPPLY_REST
    workstation: bool = False
    modules: bool = False
    cpu_cores: int | None = None
    ram_gib: float | None = None
    power_w: float = 0.0
    price: float | None = None
    owned: int = 0
    available: int | None = None

    @property
    def most(self) -> int | None:
        """Servers the lab can have: None for any number."""
        return _most(self.price, self.owned, self.available)


@dataclass(frozen=True)
class Hours:
    """What one experiment takes on a card.

    Attributes:
        low: hours by the clock, 80 % interval.
        mid: the expected hours.
        high: hours by the clock, 80 % interval.
        energy_kwh: of all its cards; None: the board's power for the whole time.
    """

    low: float
    mid: float
    high: float
    energy_kwh: float | None = None


@dataclass(frozen=True)
class Cannot:
    """Why a card cannot run an experiment at all.

    Attributes:
        reason: `MEMORY`, `KERNEL` (tensors larger than kernels can index) or `UNKNOWN_TIME`.
        need: bytes the card must have: the step, its context and the reserve.
        limit: bytes the card offers.
    """

    reason: Reason
    need: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Problem:
    """Everything a purchase is decided from.

    Attributes:
        demands: kinds of experiments; names are unique.
        offers: cards; slugs are unique.
        servers: models of servers; names are unique.
        times: hours, or why not, for each (demand's name, card's slug); a missing pair counts
            as unknown.
        currency: of every price; only shown.
        years: over which costs are added up.
        budget: all that may be spent in those years, power and rent included; or None.
        power_price: of one kWh.
        pue: power drawn by the room for each watt of the machines (power usage effectiveness).
        utilisation: share of a month in which a card trains.
        confidence: a card is quick enough for a deadline where an experiment meets it with
            this probability, and has hours enough for its work with this probability; 0.5
            counts the expected hours.
        cpu_cores_per_gpu: cores that feed one working card; 0: not checked.
        ram_gib_per_gpu: memory that feeds one working card; 0: not checked.

    Raises:
        RequestError: a name is used twice, or a number is out of its range.
    """

    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]
    servers: tuple[Server, ...]
    times: Mapping[tuple[str, str], Hours | Cannot] = field(default_factory=dict)
    currency: str = "EUR"
    years: float = 3.0
    budget: float | None = None
    power_price: float = 0.0
    pue: float = 1.0
    utilisation: float = UTILISATION
    confidence: float = 0.5
    cpu_cores_per_gpu: float = 0.0
    ram_gib_per_gpu: float = 0.0

    def __post_init__(self) -> None:
        _unique("demand", [d.name for d in self.demands])
        _unique("offered card", [o.card for o in self.offers])
        _unique("server", [s.name for s in self.servers])
        if not self.demands:
            raise RequestError("there is no demand: name at least one experiment to run.")
        for demand in self.demands:
            if not (demand.per_month > 0 and demand.deadline_days > 0 and demand.gpus >= 1):
                raise RequestError(
                    f"demand {demand.name}: experiments a month and the deadline must be above 0, "
                    "GPUs at least 1."
                )
        if not (self.years > 0 and 0 < self.utilisation <= 1 and 0 < self.confidence < 1):
            raise RequestError(
                "years must be above 0, utilisation above 0 and at most 1, confidence between "
                "0 and 1."
            )

    @property
    def months(self) -> float:
        """Months over which costs are added up."""
        return 12 * self.years

    @property
    def kwh_cost(self) -> float:
        """What one kWh at the machines costs, the room's share included."""
        return self.power_price * self.pue

    def offer(self, card: str) -> Offer:
        """The offer of a card."""
        return next(o for o in self.offers if o.card == card)

    def demand(self, name: str) -> Demand:
        """The demand of that name."""
        return next(d for d in self.demands if d.name == name)

    def server(self, name: str) -> Server:
        """The server of that name."""
        return next(s for s in self.servers if s.name == name)

    def with_offer(self, card: str, **changes: object) -> Problem:
        """A copy with some values of one offer changed."""
        offers = tuple(
            dataclasses.replace(o, **changes) if o.card == card else o  # type: ignore[arg-type]
            for o in self.offers
        )
        return dataclasses.replace(self, offers=offers)

    def with_server(self, name: str, **changes: object) -> Problem:
        """A copy with some values of one server changed."""
        servers = tuple(
            dataclasses.replace(s, **changes) if s.name == name else s  # type: ignore[arg-type]
            for s in self.servers
        )
        return dataclasses.replace(self, servers=servers)

    def with_deadlines(self, days: Mapping[str, float]) -> Problem:
        """A copy with other deadlines for the demands named."""
        demands = tuple(
            dataclasses.replace(d, deadline_days=days.get(d.name, d.deadline_days))
            for d in self.demands
        )
        return dataclasses.replace(self, demands=demands)

    def scaled(self, factor: float) -> Problem:
        """A copy with `factor` times the experiments of every demand."""
        demands = tuple(
            dataclasses.replace(d, per_month=d.per_month * factor) for d in self.demands
        )
        return dataclasses.replace(self, demands=demands)


def _most(price: float | None, owned: int, available: int | None) -> int | None:
    if price is None:
        return owned
    return None if available is None else owned + available


def _unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"there are two of the same {what}: '{name}'; rename or merge them.")
