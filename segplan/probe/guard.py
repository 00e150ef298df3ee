"""Whether the card still is as free as it was when the probes began."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence

from segplan.errors import CardError
from segplan.gpus.local import GpuProcess, LocalCard
from segplan.gpus.nvml import local_cards
from segplan.units import GIB, MIB

_PATIENCE_S = 5.0  # the driver takes a moment to return a dead process's memory


class CardGuard:
    """Compares the card's free memory with what it was when the guard was made.

    Args:
        card: the card.
        free_bytes: what is free now, or None where nobody knows; by default NVML's answer.
        processes: who holds the card's memory now; by default NVML's answer.
        clock: seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        card: LocalCard,
        free_bytes: Callable[[], int | None] | None,
        processes: Callable[[], Sequence[GpuProcess]] | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._card = card
        self.free_bytes = free_bytes or (lambda: _look(card).free_bytes)
        self._processes = processes or (lambda: _look(card).processes or ())
        self._clock, self._sleep = clock, sleep
        self.free_at_start = self.free_bytes()
        self._there_before = {process.pid for process in self._processes()}

    def check(self, held: int, own: Iterable[int | None]) -> None:
        """Make sure that nobody took the card's memory since the start.

        Args:
            held: bytes that this program's own process holds now.
            own: this program's own processes.

        Raises:
            CardError: somebody did: more than 256 MiB and 2 % are missing, and do not come back.
        """
        start = self.free_at_start
        if start is None:
            return
        expected = start - held - max(256 * MIB, start // 50)
        patience = self._clock() + _PATIENCE_S
        while True:
            free = self.free_bytes()
            if free is None or free >= expected:
                return
            if self._clock() >= patience:
                break
            self._sleep(0.1)
        known = self._there_before.union(pid for pid in own if pid is not None)
        others = [process for process in self._processes() if process.pid not in known]
        names = [f"PID {p.pid}{f' ({os.path.basename(p.name)})' if p.name else ''}" for p in others]
        card = self._card.uuid if self._card.index is None else self._card.index
        raise CardError(
            f"Card {card} is now used by {' and '.join(names) or 'another process'}: "
            f"{(start - held - free) / GIB:.1f} GiB less is free than at the start, and probes "
            "would measure that. What was measured is kept: run again when the card is free."
        )


def _look(card: LocalCard) -> LocalCard:
    """The card as it is now; without these facts where NVML does not tell."""
    try:
        cards = local_cards()
    except CardError:
        cards = ()
    blank = dataclasses.replace(card, free_bytes=None, processes=None)
    return next((now for now in cards if now.uuid == card.uuid), blank)
