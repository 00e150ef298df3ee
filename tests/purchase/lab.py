"""A small lab whose answers can be worked out by hand."""

from __future__ import annotations

from typing import Any

from segplan.purchase import Demand, Hours, Offer, Problem, Server

GIB = 2**30

FAST = Offer("fast", price=2000, power_w=400, width=2, passive=False)
SLOW = Offer("slow", price=800, power_w=300, width=3, passive=False)
TOWER = Server(
    "tower", slots=4, power_supply_w=1600, workstation=True, owned=1, cpu_cores=32, ram_gib=256
)  # room for two cards three slots wide: 4 places of 2


def lab(**changes: Any) -> Problem:
    """Ten experiments a month; 48 h on the slow card, 24 h on the fast one; no power price.

    480 h on slow cards fill 480 / 584 of one.
    """
    values: dict[str, Any] = {
        "demands": (Demand("a", 10, 3),),
        "offers": (FAST, SLOW),
        "servers": (TOWER,),
        "times": {("a", "fast"): Hours(20, 24, 30), ("a", "slow"): Hours(40, 48, 60)},
        "years": 1,
    }
    return Problem(**(values | changes))
