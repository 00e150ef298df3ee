"""Which cards exist (the catalogue) and which are here (NVML)."""

from __future__ import annotations

from segplan.gpus.card import Card, card_key
from segplan.gpus.catalog import GpuKind, GpuRequest, catalogue, find_card, parse_gpus
from segplan.gpus.choose import as_card, match_catalogue, only_visible, select
from segplan.gpus.local import GpuProcess, LocalCard, MigSlice
from segplan.gpus.nvml import NvmlUnavailable, local_cards
from segplan.gpus.user_cards import load_cards

__all__ = [
    "Card",
    "GpuKind",
    "GpuProcess",
    "GpuRequest",
    "LocalCard",
    "MigSlice",
    "NvmlUnavailable",
    "as_card",
    "card_key",
    "catalogue",
    "find_card",
    "load_cards",
    "local_cards",
    "match_catalogue",
    "only_visible",
    "parse_gpus",
    "select",
]
