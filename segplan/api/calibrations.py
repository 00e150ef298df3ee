"""Which calibration a prediction rests on: of a card that is here, or the one that is shipped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from segplan.api.json_files import read_json
from segplan.errors import CardError, RequestError
from segplan.gpus import as_card, find_card
from segplan.gpus.card import Card
from segplan.gpus.nvml import local_cards
from segplan.store import store_path
from segplan.timing.correction import Correction
from segplan.timing.model import GENERATIONS, NotTimeable, Rates, rates_of, shipped_calibration
from segplan.timing.operators import PRECISIONS, OperatorTimes, shipped_times, times_from_plain
from segplan.timing.prediction import TimedCard
from segplan.units import MIB

MOST_FILE_BYTES = 16 * MIB

SWITCH = "SEGPLAN_CALIBRATIONS"
"""Environment variable; "use" lets predictions rest on timed operators. Off without it: on the one
card where that was tried, steps of networks whose operators had been left out were predicted no
better, and some worse (docs/method.md)."""


def in_use() -> bool:
    """Whether predictions shall rest on timed operators."""
    return os.environ.get(SWITCH) == "use"


def calibrations_folder(store: str | None = None) -> Path | None:
    """Where calibrations of this machine's cards are kept: beside the store; None: nowhere."""
    path = store_path(store)
    return None if path == ":memory:" else Path(path).parent / "calibrations"


def read_calibration(path: str | Path) -> OperatorTimes:
    """A calibration from a file.

    Raises:
        RequestError: it cannot be read, or is none.
    """
    hint = "a calibration is what `segplan calibrate` writes"
    data = read_json(path, MOST_FILE_BYTES, "calibration", hint)
    try:
        return times_from_plain(data)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"{path} is no calibration ({error}): {hint}.") from error


def rates_by_precision(card: Card) -> dict[str, Rates]:
    """A card's rates for each arithmetic.

    Raises:
        NotTimeable: a figure of the card is not known.
    """
    return {precision: rates_of(card, precision) for precision in PRECISIONS}


def timed_card_for(card: Card, own: Sequence[TimedCard]) -> TimedCard | None:
    """The timed operators that a step on this card is predicted from; None where there are none.

    The card's own, timed here or shipped; else those of a card that is here, of the same
    generation if there is one; else those that are shipped.

    Args:
        card: where the step runs.
        own: `timed_here()`.
    """
    shipped = _shipped()
    for timed in (*own, *([shipped] if shipped is not None else [])):
        if timed.card.slug == card.slug:
            return timed
    kin = [t for t in own if _generation(t.card) == _generation(card)]
    return next(iter((*kin, *own)), shipped)


def _generation(card: Card) -> str | None:
    return GENERATIONS.get(card.compute_capability or (0, 0))


def timed_here() -> Sequence[TimedCard]:
    """The calibrated cards of this machine, the latest calibration first.

    A file that is damaged, or of a card that is not here, counts as none.
    """
    folder = calibrations_folder()
    files = sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []
    if not files:
        return ()
    try:
        here = {local.uuid: as_card(local) for local in local_cards()}
    except CardError:
        return ()
    found = []
    for path in files:
        timed = _read(path, path.stat().st_mtime_ns)
        if timed is not None and timed.card_uuid in here:
            known = _timed(timed, here[timed.card_uuid], here=True)
            if known is not None:
                found.append((timed.made_at, known))
    return [known for _, known in sorted(found, key=lambda pair: pair[0], reverse=True)]


@lru_cache(maxsize=16)
def _read(path: Path, _changed_ns: int) -> OperatorTimes | None:
    try:
        return read_calibration(path)
    except RequestError:
        return None


@lru_cache(maxsize=1)
def _shipped() -> TimedCard | None:
    times = shipped_times()
    return None if times is None else _timed(times, find_card(times.card), here=False)


_MADE: dict[tuple[str, str, bool], TimedCard | None] = {}


def _timed(times: OperatorTimes, card: Card, here: bool) -> TimedCard | None:
    key = (times.card_uuid or times.card, times.made_at, here)
    if key not in _MADE:
        try:
            rates = rates_by_precision(card)
        except NotTimeable:
            _MADE[key] = None
        else:
            correction = Correction(times.times, rates, shipped_calibration())
            _MADE[key] = TimedCard(card, correction, here)
    return _MADE[key]
