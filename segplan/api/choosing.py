"""Cards that predictions are asked for by name."""

from __future__ import annotations

from collections.abc import Sequence

from segplan.errors import CardError
from segplan.gpus import Card, GpuKind, as_card, catalogue, find_card, parse_gpus, select


def named_cards(gpus: Sequence[str], what: str) -> dict[str, tuple[str, Card]]:
    """The cards that names mean, each once, in the order asked for.

    Args:
        gpus: names, YAML files, "catalog", or cards that are here ("0": with the memory of this
            very one); each may be several with commas between.
        what: is predicted, as a message begins with it ("days are predicted").

    Returns:
        By slug: a text that names the card to other functions, and the card.

    Raises:
        CardError: none is named, there is no such card, or all cards here are asked for.
    """
    found: dict[str, tuple[str, Card]] = {}
    for request in parse_gpus(",".join(gpus)):
        if request.kind is GpuKind.ALL:
            raise CardError(f"{what}: name cards, like rtx-3090,a40, or catalog.")
        if request.kind is GpuKind.CATALOG:
            chosen = [(card.slug, card) for card in catalogue()]
        elif request.kind is GpuKind.LOCAL:
            chosen = [(request.text, as_card(select(request.text)))]
        else:
            chosen = [(request.text, find_card(request.text))]
        for text, card in chosen:
            found.setdefault(card.slug, (text, card))
    return found
