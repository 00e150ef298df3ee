"""`buy`: what to buy for a lab's experiments, from a YAML file of demands, offers and servers."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from segplan.api.config import read_text, refuse_bombs, to_patch
from segplan.api.experiments import Experiment, load_experiment
from segplan.api.fitting import DEFAULT_RESERVE
from segplan.api.planning import plan_days
from segplan.api.predicting import Progress, silent
from segplan.errors import ConfigError, RequestError
from segplan.gpus import Card, find_card
from segplan.purchase import (
    SUPPLY_REST,
    UTILISATION,
    Cannot,
    Demand,
    Hours,
    Offer,
    Problem,
    PurchasePlan,
    Reason,
    Server,
    plan,
)
from segplan.results import Plan
from segplan.units import Patch

OLD_PRICE_DAYS = 180
"""Older prices are named: cards lose, or gain, a tenth of their price in half a year."""

MOST = {"demands": 40, "offers": 60, "servers": 40}
"""Entries of a file; a larger problem is no lab's."""

_Path = tuple[str | int, ...]


def _to_name(value: Any) -> Any:
    """Text, or a number that stands for itself (`card: 3090`); printable, not too long."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    if not text or len(text) > 60 or not text.isprintable():
        raise RequestError("must be 1 to 60 printable characters.")
    return text


_Name = Annotated[str, BeforeValidator(_to_name)]
_Patch = Annotated[Patch, BeforeValidator(to_patch)]
_Count = Annotated[int, Field(ge=0, le=10_000)]
_Positive = Annotated[int, Field(ge=1, le=10_000)]
_Money = Annotated[float, Field(ge=0, le=1e9)]
_Above0 = Annotated[float, Field(gt=0, le=1e6)]
_AtLeast0 = Annotated[float, Field(ge=0, le=1e6)]
_Share = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class DemandSection(_Section):
    """One kind of experiment: a preset or configuration file, how often, and how soon."""

    name: _Name
    config: str
    per_month: _Above0
    deadline_days: _Above0
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    patch: _Patch | None = None
    batch: _Positive | None = None
    checkpointing: bool | None = None
    precision: Literal["fp32", "tf32", "fp16", "bf16"] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """What replaces values of the configuration's workload."""
        keys = ("patch", "batch", "checkpointing", "precision")
        return {k: getattr(self, k) for k in keys if getattr(self, k) is not None}


class OfferSection(_Section):
    """One model of card. What is left out of width, power and cooling is the catalogue's."""

    card: _Name
    price: _Money | None = None
    currency: _Name | None = None
    date: datetime.date | None = None
    owned: _Count = 0
    available: _Count | None = None
    rent_per_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None
    power_w: _Above0 | None = None
    width: Annotated[float, Field(gt=0, le=16)] | None = None
    cooling: Literal["passive", "active"] | None = None
    source: _Name | None = None


class ServerSection(_Section):
    """One model of server or workstation, without cards."""

    name: _Name
    slots: Annotated[int, Field(ge=1, le=32)]
    slot_spacing: Annotated[float, Field(gt=0, le=16)] = 2.0
    widest: Annotated[float, Field(gt=0, le=16)] | None = None
    max_cards: Annotated[int, Field(ge=1, le=32)] | None = None
    power_supply_w: _Above0 | None = None
    power_for_rest: _Share = SUPPLY_REST
    power_w: _AtLeast0 = 0.0
    cooling: Literal["workstation", "server"]
    takes: Literal["pcie", "modules"] = "pcie"
    cpu_cores: _Positive | None = None
    ram_gib: _Above0 | None = None
    price: _Money | None = None
    currency: _Name | None = None
    date: datetime.date | None = None
    owned: _Count = 0
    available: _Count | None = None
    source: _Name | None = None


class LoaderSection(_Section):
    """What one working card needs of its server to be fed."""

    cpu_cores_per_gpu: _AtLeast0 = 0.0
    ram_gib_per_gpu: _AtLeast0 = 0.0


class BuyFile(_Section):
    """What a file for `segplan buy` holds."""

    currency: _Name = "EUR"
    years: Annotated[float, Field(gt=0, le=50)] = 3.0
    budget: _Money | None = None
    power_price: _AtLeast0 = 0.0
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0
    utilisation: Annotated[float, Field(gt=0, le=1)] = UTILISATION
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    loader: LoaderSection = LoaderSection()
    demands: Annotated[list[DemandSection], Field(min_length=1, max_length=MOST["demands"])]
    offers: Annotated[list[OfferSection], Field(min_length=1, max_length=MOST["offers"])]
    servers: Annotated[list[ServerSection], Field(max_length=MOST["servers"])] = []


_SECTIONS: dict[str, type[_Section]] = {
    "demands": DemandSection,
    "offers": OfferSection,
    "servers": ServerSection,
    "loader": LoaderSection,
}


class Planner(Protocol):
    """Days of experiments on cards, as `segplan.api.planning.plan_days` tells them."""

    def __call__(
        self,
        experiments: Sequence[Experiment],
        gpus: Sequence[str],
        *,
        gpus_per_job: int = 1,
        progress: Progress = silent,
    ) -> tuple[Plan, ...]:
        """A plan for each experiment and card."""


def buy(
    problem_file: str | Path,
    progress: Progress = silent,
    *,
    budget: float | None = None,
    years: float | None = None,
    planner: Planner = plan_days,
    load: Callable[[str], Experiment] = load_experiment,
    today: datetime.date | None = None,
) -> PurchasePlan:
    """What to buy: the cheapest plan that meets the deadlines, the fastest for the budget.

    Each demand's experiment is predicted on each offered card (memory, days, energy); a card
    counts for those it holds. Then both plans are proven optimal.

    Args:
        problem_file: YAML, see `docs/how-to/buy.md`.
        progress: called as traces and optima are done.
        budget: instead of the file's.
        years: instead of the file's.
        planner: instead of `plan_days`.
        load: instead of `load_experiment`.
        today: from which the age of prices is counted.

    Raises:
        ConfigError: the file cannot be read, or holds something it should not.
        RequestError: a card, a configuration or a number makes no sense.
        SegplanError: no optimum was proven in time.
    """
    asked = read_file(problem_file)
    where = str(problem_file)
    cards = _cards(asked, where)
    experiments = [_experiment(d, load, where) for d in asked.demands]
    plans = _plans(asked, experiments, planner, progress)
    demands = tuple(
        Demand(d.name, d.per_month, d.deadline_days, d.gpus, e.workload)
        for d, e in zip(asked.demands, experiments, strict=True)
    )
    problem = Problem(
        demands=demands,
        offers=tuple(_offer(o, c) for o, c in zip(asked.offers, cards, strict=True)),
        servers=tuple(_server(s) for s in asked.servers),
        times=_times(asked, cards, plans),
        currency=asked.currency,
        years=asked.years if years is None else years,
        budget=asked.budget if budget is None else budget,
        power_price=asked.power_price,
        pue=asked.pue,
        utilisation=asked.utilisation,
        confidence=asked.confidence,
        cpu_cores_per_gpu=asked.loader.cpu_cores_per_gpu,
        ram_gib_per_gpu=asked.loader.ram_gib_per_gpu,
    )
    found = plan(problem, progress)
    notes = price_notes(asked, today or datetime.date.today())
    return dataclasses.replace(found, notes=(*notes, *found.notes))


def read_file(problem_file: str | Path) -> BuyFile:
    """The demands, offers and servers in a YAML file.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or holds something it should not; the
            message names the line, the key and the fix.
    """
    path = Path(problem_file)
    where = str(problem_file)
    if not path.is_file():
        raise ConfigError(f"there is no file '{where}': segplan buy takes a YAML file.")
    return parse_file(read_text(path), where)


def parse_file(text: str, where: str) -> BuyFile:
    """The same from a YAML text; `where` names it in messages.

    Raises:
        ConfigError: as `read_file`.
    """
    try:
        refuse_bombs(text, where)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(tree, yaml.MappingNode):
            raise ConfigError(f"{where} holds no keys: write demands, offers and servers.")
        lines = _lines(tree, where, ())
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{where}{line} is broken YAML: {error.problem}.") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise ConfigError(f"{where} is broken YAML: {str(error).splitlines()[0]}.") from error
    try:
        found = BuyFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where, lines)) from error
    _check(found, where, lines)
    return found


def _lines(node: yaml.Node, where: str, path: _Path) -> dict[_Path, int]:
    """The line of every key and list entry; a key twice, or no text, is an error."""
    lines = {path: node.start_mark.line + 1 if node.start_mark is not None else 1}
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines |= _lines(item, where, (*path, i))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
                raise ConfigError(f"{where} line {line}: a key must be text, like card or price.")
            below = (*path, key.value)
            if below in lines:
                raise ConfigError(f"{where} line {line}: {_shown(below)} is given twice.")
            lines |= _lines(value, where, below)
            lines[below] = line
    return lines


def _shown(path: _Path) -> str:
    """ "offers[2].price" """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text if len(text) <= 80 else text[:77] + "..."


_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "keys below it, one 'key: value' a line",
}


def _sentence(error: ValidationError, where: str, lines: Mapping[_Path, int]) -> str:
    """The first problem pydantic found, as one sentence with line, key and fix."""
    problems = error.errors(include_url=False)
    # A mistyped key is also a missing one: the first says more.
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path: _Path = tuple(problem["loc"])
    known = path
    while known not in lines:
        known = known[:-1]
    start = f"{where} line {lines[known]}: {_shown(path)} "
    kind, message = problem["type"], problem["msg"]
    if kind == "extra_forbidden":
        keys = list(_SECTIONS.get(str(path[0]), BuyFile).model_fields if len(path) > 1 else ())
        keys = keys or list(BuyFile.model_fields)
        close = difflib.get_close_matches(str(path[-1]), keys, 1, cutoff=0.5)
        hint = f": did you mean {close[0]}?" if close else f"; known are {', '.join(keys)}."
        return f"{start}is no key{hint}"
    if kind == "missing":
        return f"{start}is missing: write it."
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return f"{start}{cause}"
    if kind.startswith("date"):
        return f"{start}must be a date like 2026-01-31."
    message = _KINDS.get(kind, message.removeprefix("Input should be "))
    hint = ""
    if kind == "literal_error":
        choices = str(problem["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        close = difflib.get_close_matches(str(problem["input"])[:60], choices, 1, cutoff=0.5)
        message = f"one of {', '.join(choices)}"
        hint = f": did you mean {close[0]}?" if close else ""
    if kind in ("too_long", "too_short"):
        return f"{start}has the wrong number of entries: {message[0].lower()}{message[1:]}."
    return f"{start}must be {message}, not {_value(problem['input'])}" + (hint or ".")


def _value(value: Any) -> str:
    """A value as it may stand in a message: short, without control characters."""
    return repr(value)[:60] if not isinstance(value, (dict, list)) else "a list or mapping"


def _check(found: BuyFile, where: str, lines: Mapping[_Path, int]) -> None:
    """What one section alone does not tell."""
    for key in ("demands", "offers", "servers"):
        label = "card" if key == "offers" else "name"
        seen: set[str] = set()
        for i, section in enumerate(getattr(found, key)):
            name = getattr(section, label)
            if name in seen:
                line = lines[(key, i, label)]
                raise ConfigError(f"{where} line {line}: {name} is there twice; merge them.")
            seen.add(name)
    for key in ("offers", "servers"):
        for i, section in enumerate(getattr(found, key)):
            if section.currency not in (None, found.currency):
                line = lines[(key, i, "currency")]
                raise ConfigError(
                    f"{where} line {line}: the price is in {section.currency}, the file counts in "
                    f"{found.currency}: convert it."
                )
    for i, server in enumerate(found.servers):
        if server.price is None and not server.owned:
            line = lines[("servers", i)]
            raise ConfigError(
                f"{where} line {line}: server {server.name} has no price and none is owned: write "
                "price, or owned."
            )


def _cards(asked: BuyFile, where: str) -> tuple[Card, ...]:
    """The catalogue's (or the user's) card for each offer.

    Raises:
        RequestError: there is no such card, or two offers mean the same one.
    """
    cards: dict[str, Card] = {}
    for i, offer in enumerate(asked.offers):
        try:
            if "," in offer.card:
                raise RequestError(f"'{offer.card}' names several cards: give each its own entry.")
            card = find_card(offer.card)
        except RequestError as error:
            raise type(error)(f"{where}: offers[{i}]: {error}") from error
        if card.slug in cards:
            raise RequestError(f"{where}: offers[{i}]: {card.slug} is offered twice; merge them.")
        cards[card.slug] = card
    return tuple(cards.values())


def _experiment(demand: DemandSection, load: Callable[[str], Experiment], where: str) -> Experiment:
    try:
        found = load(demand.config)
        workload = found.workload.replace(**demand.changes)
    except RequestError as error:
        raise type(error)(f"{where}: demand {demand.name}: {error}") from error
    if found.schedule is None:
        raise RequestError(
            f"{where}: demand {demand.name}: {demand.config} has no schedule, so nothing says how "
            "long an experiment is: add a schedule, or name a preset that has one."
        )
    return dataclasses.replace(found, name=demand.name, workload=workload)


def _plans(
    asked: BuyFile, experiments: Sequence[Experiment], planner: Planner, progress: Progress
) -> dict[str, tuple[Plan, ...]]:
    """Plans of each demand, in the order of the offers; equal experiments are asked once."""
    found: dict[str, tuple[Plan, ...]] = {}
    gpus = [offer.card for offer in asked.offers]
    for size in sorted({d.gpus for d in asked.demands}):
        groups: dict[str, list[Experiment]] = {}
        for demand, experiment in zip(asked.demands, experiments, strict=True):
            if demand.gpus == size:
                same = f"{demand.config}\n{experiment.workload.key()}"
                groups.setdefault(same, []).append(experiment)
        firsts = [group[0] for group in groups.values()]
        plans = planner(firsts, gpus, gpus_per_job=size, progress=progress)
        for i, group in enumerate(groups.values()):
            for experiment in group:
                found[experiment.name] = plans[i * len(gpus) : (i + 1) * len(gpus)]
    return found


def _times(
    asked: BuyFile, cards: Sequence[Card], plans: Mapping[str, tuple[Plan, ...]]
) -> dict[tuple[str, str], Hours | Cannot]:
    return {
        (demand.name, card.slug): hours_of(found, card)
        for demand in asked.demands
        for card, found in zip(cards, plans[demand.name], strict=True)
    }


def hours_of(plan: Plan, card: Card) -> Hours | Cannot:
    """A plan as hours, or why there are none."""
    if not plan.fits:
        memory = plan.memory
        if memory is None:
            return Cannot(Reason.MEMORY)
        need = memory.least_memory + (memory.context or 0) + DEFAULT_RESERVE
        if need <= card.memory_visible:
            return Cannot(Reason.KERNEL)
        return Cannot(Reason.MEMORY, need, card.memory_visible)
    if plan.total is None:
        return Cannot(Reason.UNKNOWN_TIME)
    total = plan.total
    return Hours(total.low / 3600, total.seconds / 3600, total.high / 3600, plan.energy_kwh)


def _offer(offer: OfferSection, card: Card) -> Offer:
    form = (card.form_factor or "").lower()
    passive = offer.cooling == "passive" if offer.cooling else None
    if passive is None and ("passive" in form or "active" in form):
        passive = "passive" in form
    return Offer(
        card=card.slug,
        price=offer.price,
        owned=offer.owned,
        available=offer.available,
        rent_per_hour=offer.rent_per_hour,
        power_w=offer.power_w or card.power_w,
        width=offer.width or card.slot_width,
        passive=passive,
        module="module" in form,
    )


def _server(server: ServerSection) -> Server:
    return Server(
        name=server.name,
        slots=server.slots,
        slot_spacing=server.slot_spacing,
        widest=server.widest,
        max_cards=server.max_cards,
        power_supply_w=server.power_supply_w,
        supply_rest=server.power_for_rest,
        workstation=server.cooling == "workstation",
        modules=server.takes == "modules",
        cpu_cores=server.cpu_cores,
        ram_gib=server.ram_gib,
        power_w=server.power_w,
        price=server.price,
        owned=server.owned,
        available=server.available,
    )


def price_notes(asked: BuyFile, today: datetime.date) -> tuple[str, ...]:
    """Sentences about prices that are missing, undated, old, or from the future."""
    said: list[str] = []
    for offer in asked.offers:
        if offer.price is None and offer.rent_per_hour is None:
            owned = f"only the {offer.owned} owned count" if offer.owned else "it is left out"
            said.append(f"{offer.card} has no price: {owned}.")
    priced: list[tuple[str, datetime.date | None]] = [
        (o.card, o.date) for o in asked.offers if o.price is not None or o.rent_per_hour is not None
    ]
    priced += [(s.name, s.date) for s in asked.servers if s.price]
    for name, date in priced:
        if date is None:
            said.append(f"The price of {name} has no date: ask again before you order.")
        elif date > today:
            said.append(f"The price of {name} is dated {date}, which lies ahead.")
        elif (today - date).days > OLD_PRICE_DAYS:
            age = (today - date).days
            said.append(f"The price of {name} is {age} days old ({date}): ask again.")
    if not asked.power_price:
        said.append("Power costs nothing here: the file has no power_price.")
    return tuple(said)
