"""The catalogue: which cards exist, and finding one by whatever it is called."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from pathlib import Path

from segplan.errors import CardError
from segplan.gpus.card import Card, card_key, slugify
from segplan.gpus.user_cards import is_card_file, load_cards
from segplan.units import GIB, MIB

MAX_INDEX_DIGITS = 2
"""Longer numbers are names: "3090" is a card, "12" the thirteenth card of this machine."""


class GpuKind(StrEnum):
    """What one entry of `--gpu` or `--gpus` refers to."""

    LOCAL = "local"
    ALL = "all"
    CATALOG = "catalog"
    NAMED = "named"


@dataclass(frozen=True)
class GpuRequest:
    """One entry of `--gpu` or `--gpus`.

    Attributes:
        kind: a card here (`LOCAL`), every card here (`ALL`), the whole catalogue (`CATALOG`), or
            a card by name or file (`NAMED`).
        text: as written.
    """

    kind: GpuKind
    text: str


def parse_gpus(text: str) -> tuple[GpuRequest, ...]:
    """The entries of "0", "all", "rtx-3090,a40", "catalog", or a mixture, each once.

    Numbers of one or two digits and texts that begin with "GPU-" or "MIG-" are cards of this
    machine; everything else is a name (or a YAML file) for `find_card`.

    Raises:
        CardError: nothing is named.
    """
    requests: list[GpuRequest] = []
    for part in text.split(","):
        entry = part.strip()
        lower = entry.lower()
        if not entry:
            continue
        if lower in ("all", "catalog", "catalogue"):
            kind = GpuKind.ALL if lower == "all" else GpuKind.CATALOG
        elif (lower.isdecimal() and len(lower) <= MAX_INDEX_DIGITS) or re.match(
            "(gpu|mig)-[0-9a-f]", lower
        ):
            kind = GpuKind.LOCAL
        else:
            kind = GpuKind.NAMED
        request = GpuRequest(kind, entry)
        if request not in requests:
            requests.append(request)
    if not requests:
        raise CardError("no card is named: write --gpu 0, --gpu rtx-3090 or --gpus catalog.")
    return tuple(requests)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Card, ...]:
    """Every card segplan ships, in the order of `catalog.csv` (by compute capability)."""
    text = resources.files("segplan.gpus").joinpath("catalog.csv").read_text(encoding="utf-8")
    return tuple(_card(row) for row in csv.DictReader(text.splitlines()))


def find_card(text: str, extra: Iterable[Card] = ()) -> Card:
    """The card called `text`.

    Punctuation, case and the words NVIDIA, GeForce and Tesla do not matter, and a card's memory
    may follow its name ("RTX 3090 24GB"). A short name that several cards share means the one
    with the least memory, so that it never promises memory the card may lack: "a100" is the
    A100 SXM4 40GB ("a100-80gb" the other), "v100" the V100 SXM2 16GB.

    Args:
        text: slug, alias, product name, or the path of a YAML file that describes one card.
        extra: the user's cards; where names clash, these win.

    Raises:
        CardError: no card is called that; the message suggests the nearest.
        ConfigError: the YAML file cannot be read.
    """
    if is_card_file(text):
        cards = load_cards(Path(text))
        if len(cards) == 1:
            return cards[0]
        names = ", ".join(card.slug for card in cards[:8])
        raise CardError(f"{text} describes {len(cards)} cards: name one of {names}, with --cards.")
    names_to_cards = _index(catalogue())
    mine = tuple(extra)
    if mine:
        names_to_cards = {**names_to_cards, **_index(mine)}
    key = card_key(text)
    card = names_to_cards.get(key)
    if card is None:
        close = difflib.get_close_matches(key, names_to_cards, 1, cutoff=0.6)
        hint = f": did you mean {names_to_cards[close[0]].slug}?" if close else "."
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise CardError(f"no card is called '{shown}'{hint} `segplan gpus` lists them.")
    return card


def _index(cards: Iterable[Card]) -> dict[str, Card]:
    """Cards by the key of every spelling; spellings with the memory size never hide another."""
    cards = tuple(cards)
    index: dict[str, Card] = {}
    for card in cards:
        for spelling in (card.slug, card.name, *card.aliases):
            index[card_key(spelling)] = card
    for card in cards:
        size = f"{round(card.memory_nominal / GIB)}gb"
        for spelling in (card.slug, card.name, *card.aliases):
            index.setdefault(card_key(spelling) + size, card)
    return index


def _card(row: dict[str, str]) -> Card:
    def number(column: str, scale: float = 1.0) -> float | None:
        return round(float(row[column]) * scale, 1) if row[column] else None

    def whole(column: str, scale: int = 1) -> int | None:
        return round(float(row[column]) * scale) if row[column] else None

    major, minor = row["compute_capability"].split(".")
    fp32 = number("fp32_tflops", 1e12)
    return Card(
        slug=slugify(row["name"]),
        name=row["name"],
        memory_nominal=int(row["memory_gb"]) * GIB,
        memory_visible=int(row["visible_mib"]) * MIB,
        aliases=tuple(row["aliases"].split("|")) if row["aliases"] else (),
        memory_bandwidth=number("bandwidth_gbs", 1e9),
        rates={
            "fp32": fp32,
            "tf32": number("tf32_tflops", 1e12),
            # No tensor cores: PyTorch keeps the fp16 tensors and computes on the fp32 units.
            "fp16": number("fp16_tflops", 1e12) or fp32,
            "bf16": number("bf16_tflops", 1e12),
        },
        fp16_acc16=number("fp16_acc16_tflops", 1e12),
        compute_capability=(int(major), int(minor)),
        sm_count=whole("sm_count"),
        l2_bytes=whole("l2_mib", MIB),
        power_w=number("power_w"),
        slot_width=number("slot_width"),
        form_factor=row["form_factor"] or None,
        memory_type=row["memory_type"] or None,
        launch=row["launch"] or None,
        visible_basis=row["visible_basis"],
        visible_source=row["visible_source"],
        source=row["source"],
        verification=row["verification"],
    )
