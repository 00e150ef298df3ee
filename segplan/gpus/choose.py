"""Choosing a card of this machine, and what the catalogue knows about it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from segplan.errors import CardError
from segplan.gpus.card import Card, card_key, slugify
from segplan.gpus.catalog import catalogue
from segplan.gpus.local import LocalCard, MigSlice
from segplan.gpus.nvml import local_cards, no_gpu_message

_LEAST_SHARE = 0.90
_MOST_SHARE = 1.02
"""NVML's total against the nominal size: ECC on GDDR6 takes a sixteenth, firmware a little."""


def select(text: str, cards: Sequence[LocalCard] | None = None) -> LocalCard:
    """The card of this machine that `text` names.

    Args:
        text: torch's number ("0" is the first card CUDA_VISIBLE_DEVICES leaves), or the UUID of a
            card or MIG slice, or the beginning of one that no other shares.
        cards: as from `local_cards`, which is called where they are left out.

    Raises:
        NvmlUnavailable: NVML cannot be used.
        CardError: there is no such card, or it is cut into MIG slices; the message names the fix.
    """
    text = text.strip()
    here = local_cards() if cards is None else tuple(cards)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not here:
        hidden = visible is not None
        raise CardError(
            no_gpu_message(
                f"CUDA_VISIBLE_DEVICES={_cut(visible or '')} leaves none"
                if hidden
                else "the driver shows no card"
            )
        )
    found = _by_number(text, here) if text.isdecimal() else _by_uuid(text, here)
    if found.mig == "parent":
        slices = [c for c in here if isinstance(c.mig, MigSlice) and _parent(c) == found.uuid]
        if not slices:
            raise CardError(
                f"{found.name} is in MIG mode but has no slice: create one with "
                "`nvidia-smi mig -cgi`, or switch MIG off."
            )
        listed = ", ".join(f"--gpu {c.uuid} ({_profile(c)})" for c in slices)
        raise CardError(f"{found.name} is cut into MIG slices: name one of them: {listed}.")
    return found


def _by_number(text: str, here: Sequence[LocalCard]) -> LocalCard:
    numbered = [card for card in here if card.index is not None]
    for card in numbered:
        if str(card.index) == text.lstrip("0") or (card.index == 0 and not text.strip("0")):
            return card
    count = len(numbered)
    what = "1 GPU is" if count == 1 else f"{count} GPUs are"
    known = "--gpu 0" if count == 1 else f"--gpu 0 to --gpu {count - 1}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limit = f" (CUDA_VISIBLE_DEVICES={_cut(visible)})" if visible is not None else ""
    raise CardError(f"there is no GPU {_cut(text)}: {what} usable here{limit}: use {known}.")


def _by_uuid(text: str, here: Sequence[LocalCard]) -> LocalCard:
    wanted = text.lower()
    exact = [card for card in here if card.uuid.lower() == wanted]
    found = exact or [
        card
        for card in here
        if wanted
        and (
            card.uuid.lower().startswith(wanted)
            or card.uuid.lower().partition("-")[2].startswith(wanted)
        )
    ]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(card.uuid for card in found)
        raise CardError(f"'{_cut(text)}' is the beginning of {listed}: write more of one of them.")
    listed = ", ".join(card.uuid for card in here)
    raise CardError(f"no GPU here has a UUID beginning with '{_cut(text)}': here are {listed}.")


def only_visible(card: LocalCard) -> dict[str, str]:
    """The variable that lets a child process see this card alone, as its number 0.

    A UUID means the same in any order of the cards; the number is for drivers that tell none.
    """
    return {"CUDA_VISIBLE_DEVICES": card.uuid or str(card.index or 0)}


def match_catalogue(local: LocalCard) -> Card | None:
    """The catalogue's card of the same product name and memory, or None.

    A MIG slice matches nothing: its speed is no fixed share of the whole card's.
    """
    if isinstance(local.mig, MigSlice) or local.total_bytes is None:
        return None
    key = card_key(local.name)
    for card in catalogue():
        if key in {card_key(spelling) for spelling in (card.name, *card.aliases)}:
            share = local.total_bytes / card.memory_nominal
            if _LEAST_SHARE <= share <= _MOST_SHARE:
                return card
    return None


def as_card(local: LocalCard) -> Card:
    """A `Card` for a card that is here: the catalogue's facts, with the memory of this very one.

    Where the catalogue does not know it (or it is a MIG slice), only what NVML tells.

    Raises:
        CardError: NVML does not tell its memory.
    """
    visible = local.visible_bytes
    if local.total_bytes is None or visible is None:
        raise CardError(
            f"the driver does not tell the memory of {local.name}: describe the card in a YAML "
            "file (name, memory_gib) and give that to --gpu."
        )
    known = match_catalogue(local)
    if local.reserved_bytes is not None:
        source = "NVML: total less reserved"
    else:
        source = "NVML: total"
        if known is not None:  # older drivers count what they reserve as theirs to give
            visible = min(visible, known.memory_visible)
    if known is not None:
        return dataclasses.replace(
            known,
            memory_visible=visible,
            visible_basis="driver",
            visible_source=source,
            power_w=local.power_limit_w or known.power_w,
        )
    part = local.mig if isinstance(local.mig, MigSlice) else None
    return Card(
        slug=slugify(local.name.removeprefix("NVIDIA ")) or "unknown",
        name=local.name,
        memory_nominal=local.total_bytes,
        memory_visible=visible,
        compute_capability=local.compute_capability,
        sm_count=part.sm_count if part else None,
        power_w=None if part else local.power_limit_w,
        visible_basis="driver",
        visible_source=source,
        source="NVML",
        verification="a MIG slice: its rates are not known" if part else "not in the catalogue",
    )


def _parent(card: LocalCard) -> str | None:
    return card.mig.parent_uuid if isinstance(card.mig, MigSlice) else None


def _profile(card: LocalCard) -> str:
    return card.mig.profile if isinstance(card.mig, MigSlice) else ""


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
