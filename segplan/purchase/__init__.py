"""What to buy: the cheapest plan that meets the deadlines, the fastest for a budget; pure."""

from __future__ import annotations

from segplan.purchase.planning import cheapest, fastest, plan
from segplan.purchase.problem import (
    HOURS_PER_MONTH,
    SUPPLY_REST,
    UTILISATION,
    Cannot,
    Demand,
    Hours,
    Offer,
    Problem,
    Reason,
    Server,
)
from segplan.purchase.result import (
    Change,
    ChangeKind,
    Choice,
    Costs,
    Flip,
    FlipKind,
    Load,
    OrderLine,
    ParetoPoint,
    Placement,
    PurchasePlan,
    RuledOut,
    Run,
    Service,
)

__all__ = [
    "HOURS_PER_MONTH",
    "SUPPLY_REST",
    "UTILISATION",
    "Cannot",
    "Change",
    "ChangeKind",
    "Choice",
    "Costs",
    "Demand",
    "Flip",
    "FlipKind",
    "Hours",
    "Load",
    "Offer",
    "OrderLine",
    "ParetoPoint",
    "Placement",
    "Problem",
    "PurchasePlan",
    "Reason",
    "RuledOut",
    "Run",
    "Server",
    "Service",
    "cheapest",
    "fastest",
    "plan",
]
