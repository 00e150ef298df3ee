"""Cards: which are here and which the catalogue knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segplan.gpus import (
    Card,
    GpuKind,
    LocalCard,
    NvmlUnavailable,
    as_card,
    catalogue,
    find_card,
    load_cards,
    local_cards,
    match_catalogue,
    parse_gpus,
    select,
)


@dataclass(frozen=True)
class CardListing:
    """What `segplan gpus` shows.

    Attributes:
        here: the cards of this machine (slices of a card in MIG mode follow it).
        here_slugs: for each of them the catalogue's slug, or None.
        unavailable: why nobody can tell which cards are here, or None.
        catalogue: the user's cards, then the catalogue; empty where one card was asked for.
        card: the card that was asked for, or None.
        local: that card as NVML reports it, where it is one of this machine.
    """

    here: tuple[LocalCard, ...]
    here_slugs: tuple[str | None, ...]
    unavailable: str | None
    catalogue: tuple[Card, ...]
    card: Card | None = None
    local: LocalCard | None = None


def list_cards(name: str | None = None, cards_file: Path | None = None) -> CardListing:
    """The cards here and in the catalogue, or all that is known about one.

    Args:
        name: a card's name, alias or YAML file, or the number or UUID of a card of this machine;
            None for all.
        cards_file: a YAML file with the user's cards, put before the catalogue.

    Raises:
        CardError: there is no card of that name.
        ConfigError: the YAML file cannot be read.
    """
    mine = load_cards(cards_file) if cards_file is not None else ()
    if name is not None and not name.strip():
        name = None
    if name is not None and parse_gpus(name)[0].kind is GpuKind.NAMED:
        return CardListing((), (), None, (), card=find_card(name.strip(), mine))
    if name is not None and parse_gpus(name)[0].kind is GpuKind.LOCAL:
        local = select(name)
        return CardListing((), (), None, (), card=as_card(local), local=local)
    here: tuple[LocalCard, ...] = ()
    unavailable = None
    try:
        here = local_cards()
    except NvmlUnavailable as error:
        unavailable = error.reason
    matches = tuple(match_catalogue(card) for card in here)
    taken = {card.slug for card in mine}
    return CardListing(
        here=here,
        here_slugs=tuple(card.slug if card else None for card in matches),
        unavailable=unavailable,
        catalogue=mine + tuple(card for card in catalogue() if card.slug not in taken),
    )
