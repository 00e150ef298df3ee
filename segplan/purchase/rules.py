"""Which card serves which demand, and which card goes into which server."""

from __future__ import annotations

import math
from collections.abc import Iterator

from segplan.purchase.chances import quantile
from segplan.purchase.problem import Cannot, Demand, Hours, Offer, Problem, Reason, Server
from segplan.purchase.result import RuledOut

_NEAR = 1e-9
"""Sums of decimals may be off by this share: 3 × 0.1 still fits into 0.3."""


def hours_of(problem: Problem, demand: Demand, card: str) -> Hours | None:
    """What an experiment takes on a card; None where it cannot run there."""
    found = problem.times.get((demand.name, card))
    return found if isinstance(found, Hours) else None


def quick_enough(problem: Problem, demand: Demand, hours: Hours) -> bool:
    """Whether an experiment meets its deadline, with the problem's confidence."""
    return quantile(hours, problem.confidence) <= demand.deadline_days * 24 * (1 + _NEAR)


def serves(problem: Problem, demand: Demand, card: str, *, deadlines: bool = True) -> bool:
    """Whether a card may run a demand's experiments."""
    hours = hours_of(problem, demand, card)
    return hours is not None and (not deadlines or quick_enough(problem, demand, hours))


def kwh(demand: Demand, offer: Offer, hours: Hours) -> float:
    """Energy of one experiment on a card, all its GPUs."""
    if hours.energy_kwh is not None:
        return hours.energy_kwh
    return hours.mid * demand.gpus * (offer.power_w or 0.0) / 1000


def watts_for_cards(server: Server) -> float | None:
    """What a server's power supply leaves for the boards; None: not known."""
    if server.power_supply_w is None:
        return None
    return server.power_supply_w * (1 - server.supply_rest)


def places_of(offer: Offer, server: Server) -> int:
    """Places a card takes in a server; one where its width is not known."""
    if offer.width is None or server.modules:
        return 1
    return max(1, math.ceil(offer.width / server.slot_spacing - _NEAR))


def limits(server: Server) -> tuple[float, ...]:
    """What one server offers: places, cards, watts, cores, GiB; infinite where not checked."""
    watts = watts_for_cards(server)
    return (
        server.slots,
        server.slots if server.max_cards is None else server.max_cards,
        math.inf if watts is None else watts,
        math.inf if server.cpu_cores is None else server.cpu_cores,
        math.inf if server.ram_gib is None else server.ram_gib,
    )


def needs(problem: Problem, server: Server, offer: Offer) -> tuple[float, ...]:
    """What one card takes of a server, in the order of `limits`."""
    return (
        places_of(offer, server),
        1,
        offer.power_w or 0.0,
        problem.cpu_cores_per_gpu,
        problem.ram_gib_per_gpu,
    )


def most_groups(problem: Problem, server: Server, offer: Offer, size: int) -> int:
    """How many groups of `size` equal cards one server holds, with nothing else in it."""
    if any(True for _ in _misfits(server, offer)):
        return 0
    pairs = zip(limits(server), needs(problem, server, offer), strict=True)
    room = [have * (1 + _NEAR) / (size * need) for have, need in pairs if need > 0]
    return int(min(room))


def obstacles(problem: Problem, server: Server, offer: Offer, size: int = 1) -> list[RuledOut]:
    """Every reason why `size` equal cards do not go into a server; empty where they do."""
    found = list(_misfits(server, offer))
    reasons = (Reason.SLOTS, Reason.SLOTS, Reason.POWER, Reason.CPU, Reason.RAM)
    rows = zip(reasons, limits(server), needs(problem, server, offer), strict=True)
    for reason, have, need in rows:
        if need * size > have * (1 + _NEAR) and reason not in {f.reason for f in found}:
            found.append(RuledOut(offer.card, server.name, reason, need * size, have))
    return found


def _misfits(server: Server, offer: Offer) -> Iterator[RuledOut]:
    """Reasons that no number of places would mend."""
    if offer.module != server.modules:
        yield RuledOut(offer.card, server.name, Reason.MODULE)
        return
    if server.widest is not None and offer.width is not None and offer.width > server.widest:
        yield RuledOut(offer.card, server.name, Reason.WIDTH, offer.width, server.widest)
    if offer.passive and server.workstation:
        yield RuledOut(offer.card, server.name, Reason.PASSIVE)


def ruled_out(problem: Problem) -> tuple[RuledOut, ...]:
    """Everything that keeps a card from a demand, a server or the lab.

    Servers are only asked about cards that could be there at all and are not only rented.
    """
    found: list[RuledOut] = []
    smallest = min(d.gpus for d in problem.demands)
    for offer in problem.offers:
        for demand in problem.demands:
            found += _unserved(problem, demand, offer)
        if offer.most == 0:
            if offer.rent_per_hour is None:
                found.append(RuledOut(offer.card, None, Reason.NOT_FOR_SALE))
            continue
        there = [server for server in problem.servers if server.most != 0]
        inside = [obstacles(problem, server, offer, smallest) for server in there]
        for reasons in inside:
            found += reasons
        if all(inside):
            found.append(RuledOut(offer.card, None, Reason.NO_SERVER))
    return tuple(found)


def _unserved(problem: Problem, demand: Demand, offer: Offer) -> list[RuledOut]:
    known = problem.times.get((demand.name, offer.card))
    if not isinstance(known, Hours):
        known = known or Cannot(Reason.UNKNOWN_TIME)
        return [RuledOut(offer.card, demand.name, known.reason, known.need, known.limit)]
    if quick_enough(problem, demand, known):
        return []
    days = quantile(known, problem.confidence) / 24
    return [RuledOut(offer.card, demand.name, Reason.DEADLINE, days, demand.deadline_days)]
