"""What need not be bought, because something else on offer is at least as good in everything.

Dropping it keeps every optimum's value: whatever a plan buys of it can be exchanged, piece for
piece, for the better one, at no more cost and no more days.
"""

from __future__ import annotations

import dataclasses

from segplan.purchase import rules
from segplan.purchase.chances import quantile
from segplan.purchase.problem import Hours, Offer, Problem, Server


def without_dominated(problem: Problem) -> Problem:
    """The problem in which dominated cards and servers are not for sale (those owned stay)."""
    offers = list(problem.offers)
    for i, offer in enumerate(offers):
        if any(
            k != i and _better_card(problem, other, offer, k < i) for k, other in enumerate(offers)
        ):
            offers[i] = dataclasses.replace(offer, price=None)
    problem = dataclasses.replace(problem, offers=tuple(offers))
    servers = list(problem.servers)
    for i, server in enumerate(servers):
        if any(
            k != i and _better_server(problem, other, server, k < i)
            for k, other in enumerate(servers)
        ):
            servers[i] = dataclasses.replace(server, price=None)
    return dataclasses.replace(problem, servers=tuple(servers))


def _better_card(problem: Problem, this: Offer, than: Offer, first: bool) -> bool:
    """Whether `this` replaces every piece of `than` that would be bought.

    `first` decides between equals: the earlier one stays.
    """
    if this.price is None or than.price is None or this.available is not None:
        return False
    pairs = [(this.price, than.price), (this.power_w or 0.0, than.power_w or 0.0)]
    pairs.append((_width(this), _width(than)))
    pairs.append((bool(this.passive), bool(than.passive)))
    if this.module != than.module:
        return False
    for demand in problem.demands:
        theirs = problem.times.get((demand.name, than.card))
        if not isinstance(theirs, Hours):
            continue
        mine = problem.times.get((demand.name, this.card))
        if not isinstance(mine, Hours):
            return False
        pairs.append((mine.mid, theirs.mid))
        late = problem.confidence
        pairs.append((quantile(mine, late), quantile(theirs, late)))
        pairs.append((rules.kwh(demand, this, mine), rules.kwh(demand, than, theirs)))
    return _at_most(pairs, first)


def _width(offer: Offer) -> float:
    """A width that is not known takes one place, and any case takes it."""
    return offer.width or 0.0


def _better_server(problem: Problem, this: Server, than: Server, first: bool) -> bool:
    """Whether `this` replaces every piece of `than` that would be bought, whatever is in it."""
    if this.price is None or than.price is None or this.available is not None:
        return False
    if this.modules != than.modules:
        return False
    widest = [s.widest if s.widest is not None else 1e9 for s in (than, this)]
    pairs = [(this.price, than.price), (this.power_w, than.power_w)]
    pairs += [(widest[0], widest[1]), (this.workstation, than.workstation)]
    pairs += list(zip(rules.limits(than), rules.limits(this), strict=True))
    pairs += [(rules.places_of(o, this), rules.places_of(o, than)) for o in problem.offers]
    return _at_most(pairs, first)


def _at_most(pairs: list[tuple[float, float]], equal: bool) -> bool:
    """Whether every first number is at most the second; and all the same only where allowed."""
    if any(a > b for a, b in pairs):
        return False
    return equal or any(a < b for a, b in pairs)
