"""What keeps a card from a demand or out of a server."""

from __future__ import annotations

import dataclasses

import pytest

from segplan.errors import RequestError
from segplan.purchase import Cannot, Demand, Hours, Offer, Reason, Server, rules
from tests.purchase.lab import FAST, GIB, SLOW, TOWER, lab


def reasons(server: Server, offer: Offer, size: int = 1, **changes) -> set[Reason]:
    return {o.reason for o in rules.obstacles(lab(**changes), server, offer, size)}


@pytest.mark.parametrize(
    ("width", "places", "cards"),
    [(1, 1, 4), (2, 1, 4), (2.5, 2, 2), (3, 2, 2), (4, 2, 2), (5, 3, 1), (None, 1, 4)],
)
def test_a_card_takes_the_places_its_width_covers(width, places, cards):
    offer = dataclasses.replace(SLOW, width=width)
    assert rules.places_of(offer, TOWER) == places
    assert rules.most_groups(lab(), TOWER, offer, 1) == cards


def test_seven_slots_one_apart_take_three_cards_two_wide():
    tower = dataclasses.replace(TOWER, slots=7, slot_spacing=1)
    assert rules.most_groups(lab(), tower, dataclasses.replace(FAST, power_w=100), 1) == 3


def test_the_power_supply_leaves_a_share_for_the_rest():
    # 1600 W less a quarter are 1200 W: three boards of 400 W.
    assert rules.most_groups(lab(), TOWER, FAST, 1) == 3
    assert rules.most_groups(lab(), TOWER, dataclasses.replace(FAST, power_w=401), 1) == 2
    strong = dataclasses.replace(FAST, power_w=1300)
    assert reasons(TOWER, strong) == {Reason.POWER}
    assert reasons(dataclasses.replace(TOWER, power_supply_w=None), strong) == set()


def test_every_reason_is_named():
    passive = dataclasses.replace(FAST, passive=True)
    assert reasons(TOWER, passive) == {Reason.PASSIVE}
    assert reasons(dataclasses.replace(TOWER, workstation=False), passive) == set()
    assert reasons(dataclasses.replace(TOWER, widest=2), SLOW) == {Reason.WIDTH}
    assert reasons(dataclasses.replace(TOWER, slots=1), SLOW) == {Reason.SLOTS}
    assert reasons(dataclasses.replace(TOWER, max_cards=1), FAST, size=2) == {Reason.SLOTS}
    assert reasons(TOWER, dataclasses.replace(FAST, module=True)) == {Reason.MODULE}
    assert reasons(dataclasses.replace(TOWER, modules=True), FAST) == {Reason.MODULE}
    assert reasons(TOWER, FAST, cpu_cores_per_gpu=33) == {Reason.CPU}
    assert reasons(TOWER, FAST, ram_gib_per_gpu=257) == {Reason.RAM}


def test_cores_and_memory_limit_the_cards():
    assert rules.most_groups(lab(cpu_cores_per_gpu=16), TOWER, FAST, 1) == 2
    assert rules.most_groups(lab(ram_gib_per_gpu=200), TOWER, FAST, 1) == 1


def test_what_is_ruled_out_says_for_whom_and_by_how_much():
    problem = lab(
        demands=(Demand("a", 1, 1.5), Demand("b", 1, 9)),
        offers=(FAST, dataclasses.replace(SLOW, price=None), Offer("huge", 1, width=12)),
        times={
            ("a", "fast"): Hours(20, 24, 30),
            ("a", "slow"): Hours(40, 48, 60),
            ("b", "fast"): Cannot(Reason.MEMORY, 30 * GIB, 24 * GIB),
            ("b", "slow"): Hours(1, 1, 1),
            ("a", "huge"): Hours(1, 1, 1),
        },
    )
    found = {(o.card, o.where, o.reason): (o.need, o.limit) for o in rules.ruled_out(problem)}
    assert found == {
        ("fast", "b", Reason.MEMORY): (30 * GIB, 24 * GIB),
        ("slow", "a", Reason.DEADLINE): (2.0, 1.5),
        ("slow", None, Reason.NOT_FOR_SALE): (None, None),
        ("huge", "b", Reason.UNKNOWN_TIME): (None, None),
        ("huge", "tower", Reason.SLOTS): (6, 4),
        ("huge", None, Reason.NO_SERVER): (None, None),
    }


def test_confidence_asks_more_of_a_card():
    hours = Hours(40, 48, 60)  # log-normal: 90 % within 48 × (60 / 40) ^ 0.5 = 58.8 h
    demand = Demand("a", 1, 57 / 24)
    assert rules.quick_enough(lab(), demand, hours)
    assert not rules.quick_enough(lab(confidence=0.9), demand, hours)
    assert rules.quick_enough(lab(confidence=0.9), Demand("a", 1, 59 / 24), hours)


@pytest.mark.parametrize(
    "changes",
    [
        {"demands": ()},
        {"demands": (Demand("a", 1, 1), Demand("a", 2, 2))},
        {"demands": (Demand("a", 0, 1),)},
        {"offers": (FAST, FAST)},
        {"servers": (TOWER, TOWER)},
        {"utilisation": 1.1},
        {"years": 0},
        {"confidence": 1.0},
    ],
)
def test_nonsense_is_refused(changes):
    with pytest.raises(RequestError):
        lab(**changes)
