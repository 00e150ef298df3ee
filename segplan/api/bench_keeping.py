"""A baseline check goes to the store as it grows, and goes on where one was interrupted.

Memory that a step needs is the same tomorrow; how fast a card is today is what a check asks. So a
check that ended is never used again, and one that was interrupted only for a day.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from segplan.baseline.documents import bench_from_dict, bench_to_dict
from segplan.baseline.results import Bench, Mode, Series
from segplan.errors import StoreError
from segplan.results import Environment
from segplan.store import FallbackLog, Store

GOES_ON_FOR = timedelta(days=1)
"""A series measured before that is measured again."""

_VERSIONS = ("card_uuid", "driver", "cuda", "cudnn", "torch", "segplan")
"""What must be known and the same, as for a probe; segplan's own version instead of MONAI's, as
the two networks are its own."""


class BenchKeeper:
    """Writes a check to the store after each series; each write takes the place of the last.

    Where the store cannot be written, a file beside it takes the rest (`FallbackLog`): a disk that
    is full or a store that is locked costs the going on, not what was measured.

    Args:
        path: the store; None: the default one.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._kept: Mapping[str, Any] | None = None
        self._earlier: Mapping[str, Any] | None = None
        self._log: FallbackLog | None = None
        self._error: StoreError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """That the check is not in the store, why, and where it is."""
        if self._error is None:
            return ()
        told = f"The check was not stored: {self._error}"
        if self._log is not None:
            told += (
                f" It is kept in {self._log.path}: read it back with "
                f"`segplan results --import {self._log.path}`."
            )
        return (told,)

    def keep(self, found: Bench) -> None:
        """Write it, durably where anything can be written."""
        document = bench_to_dict(found)
        if self._error is None:  # else each try may wait for a lock
            try:
                with Store.open(self._path) as store:
                    store.add_bench(document, replaces=self._kept)
                self._kept = document
                return
            except StoreError as error:
                self._error = error
                with contextlib.suppress(StoreError):
                    self._log = FallbackLog(self._path)
        if self._log is not None:
            try:
                self._log.add_bench(document)
            except StoreError:
                self._log = None

    def unfinished(
        self,
        mode: Mode,
        flags: tuple[bool, bool],
        environment: Environment,
        power_limit_w: float | None,
        others: int | None,
    ) -> Bench | None:
        """The newest check of the very same, where it was interrupted; else None.

        Args:
            mode: inference or training.
            flags: channels_last and zeros.
            environment: card and software as they are now.
            power_limit_w: as it is now.
            others: other processes on the card now.
        """
        if any(getattr(environment, name) is None for name in _VERSIONS):
            return None
        try:
            with Store.open(self._path) as store:
                documents = store.benches(environment.card_uuid)
        except StoreError:  # `keep` will tell
            return None
        for document in documents:
            try:
                found = bench_from_dict(document)
            except StoreError:  # of an older segplan, or damaged: it is left alone
                continue
            same = (
                found.mode is mode
                and all(getattr(found.environment, n) == getattr(environment, n) for n in _VERSIONS)
                and all((s.channels_last, s.zeros) == flags for s in found.series)
            )
            if not same:
                continue
            shared = bool(found.health.others) != bool(others)
            if not found.interrupted or shared or found.health.power_limit_w != power_limit_w:
                return None
            self._earlier = document
            return found
        return None

    def replace_unfinished(self) -> None:
        """The next write removes what `unfinished` found: it holds all of its series."""
        self._kept = self._earlier


def usable(series: Series, request: Mapping[str, Any], now: datetime) -> bool:
    """Whether a series of an interrupted check is what a request asks for, and young enough.

    Args:
        series: as it was kept.
        request: to `segplan.baseline.job`.
        now: with a time zone.
    """
    if series.made_at is None:
        return False
    made = datetime.fromisoformat(series.made_at)
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    whole = request["images"] & -request["images"]
    return (
        (series.network, series.precision) == (request["network"], request["precision"])
        and series.images == request["images"]
        and len(series.seconds) == request["iterations"]
        and (series.asked_batch or whole) == (request["batch"] or whole)
        and timedelta(0) <= now - made < GOES_ON_FOR
    )
