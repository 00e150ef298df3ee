"""Which networks exist, how each is built, which patches it accepts."""

from segplan.networks.building import build
from segplan.networks.registry import NETWORKS, Network
from segplan.networks.resolving import (
    arguments_of,
    check,
    check_window,
    network_of,
    next_valid,
    resolve,
    rule_for,
    smallest_valid,
    workload_arguments,
)
from segplan.networks.rules import PatchRule

__all__ = [
    "NETWORKS",
    "Network",
    "PatchRule",
    "arguments_of",
    "build",
    "check",
    "check_window",
    "network_of",
    "next_valid",
    "resolve",
    "rule_for",
    "smallest_valid",
    "workload_arguments",
]
