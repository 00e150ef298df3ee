"""One series of a baseline check on a card, with what is seen of the card meanwhile."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from segplan.api.measuring import BUSY_BYTES
from segplan.baseline.health import Health
from segplan.baseline.results import Method, Mode, Series
from segplan.errors import SegplanError
from segplan.gpus import LocalCard, MigSlice
from segplan.probe.watch import CardState, CardWatch, energy_per_step, held_back

SERIES_TIMEOUT_S = 1800.0
"""Seconds a series may take. The slowest figure of the tables is a T4's 99 images/s (ViT-B/16 in
fp32): training at a third of that, 9,600 images take about five minutes."""

SAMPLE_S = 0.2
"""Seconds between two looks at the card."""

IterationTold = Callable[[str, str, int, float, float], None]
"""Called with network, precision, iteration from 1, images per second and seconds."""


class CardWorker(Protocol):
    """What measuring a card needs of a worker; a test gives another."""

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""

    @property
    def pid(self) -> int | None:
        """The process's number."""

    def start(self) -> Any:
        """Begin to import; returns at once."""

    def call(
        self,
        request: dict[str, Any],
        timeout_s: float,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """One answer."""

    def close(self) -> None:
        """End it."""


def measure_series(
    worker: CardWorker,
    request: dict[str, Any],
    watch: CardWatch,
    health: HealthSeen,
    on_iteration: IterationTold,
) -> Series:
    """Have a worker measure one series.

    Args:
        worker: runs `segplan.baseline.job`.
        request: as that takes it.
        watch: reads the card.
        health: told of what is seen.
        on_iteration: called after each iteration.

    Raises:
        SegplanError: the worker's answer makes no sense, or what the worker raises.
    """
    sampler = _Sampler(watch)

    def heard(news: dict[str, Any]) -> None:
        if "build" in news:
            health.build = str(news["build"])
        if "iteration" not in news:
            return
        number, seconds = int(news["iteration"]), float(news["seconds"])
        sampler.mark(begin=number == 0)
        if number:
            rate = request["images"] / seconds
            on_iteration(request["network"], request["precision"], number, rate, seconds)

    with sampler:
        reply = worker.call(request, SERIES_TIMEOUT_S, heard)
    try:
        series = Series(
            **{
                **reply,
                "mode": Mode(reply["mode"]),
                "method": Method(reply["method"]),
                "seconds": tuple(float(s) for s in reply["seconds"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SegplanError(f"The child process's answer makes no sense ({error!r}).") from error
    states = sampler.counted
    health.states += states
    images = len(series.seconds) * series.images
    energy = None
    if len(states) > 1:
        first, last = states[0], states[-1]
        energy = energy_per_step(first.energy_j, last.energy_j, images, last.at_s - first.at_s)
    draws = [s.power_w for s in states if s.power_w is not None]
    clocks = [s.sm_mhz for s in states if s.sm_mhz is not None]
    return dataclasses.replace(
        series,
        energy_j_per_image=energy,
        throttled=held_back(states),
        power_w=statistics.fmean(draws) if draws else None,
        temperature_c=max((s.temperature_c for s in states if s.temperature_c), default=None),
        sm_mhz=round(statistics.median(clocks)) if clocks else None,
        made_at=datetime.now(UTC).isoformat(),
    )


class _Sampler:
    """Looks at the card every now and then, in a thread, while the count goes on."""

    def __init__(self, watch: CardWatch) -> None:
        self._watch = watch
        self._states: list[CardState] = []
        self._marks: list[float] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, *, begin: bool) -> None:
        """A look at the beginning of the count, or at the end of an iteration."""
        with self._lock:
            if begin:  # of the batch that fits: what was seen before counts no more
                self._states.clear()
                self._marks.clear()
            self._states.append(self._watch.read())
            self._marks.append(self._states[-1].at_s)

    @property
    def counted(self) -> list[CardState]:
        """What was seen from the beginning of the count to the end of its last iteration."""
        if not self._marks:
            return []
        return [s for s in self._states if self._marks[0] <= s.at_s <= self._marks[-1]]

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with self._lock:
                self._states.append(self._watch.read())


class HealthSeen:
    """Gathers what is seen of a card over the series of a check."""

    def __init__(self, local: LocalCard, power_limit_w: float | None) -> None:
        self._local, self._power_limit_w = local, power_limit_w
        self.earlier = Health()
        """Of the same check before it was interrupted."""
        self.build: str | None = None
        self.states: list[CardState] = []

    @property
    def others(self) -> int | None:
        """Other processes that held memory of the card when the check began."""
        if self._local.processes is None:
            return None
        return sum((p.used_bytes or 0) >= BUSY_BYTES for p in self._local.processes)

    def seen(self) -> Health:
        """All of it together; links and limits as they were under load."""
        states, local, earlier = self.states, self._local, self.earlier
        last = states[-1] if states else CardState(0.0)
        told = [r for r in (earlier.throttled, held_back(states)) if r is not None]
        return Health(
            throttled=tuple(dict.fromkeys(x for r in told for x in r)) if told else None,
            power_limit_w=last.power_limit_w or self._power_limit_w,
            power_default_w=last.power_default_w or earlier.power_default_w,
            temperature_c=_most([earlier.temperature_c, *(s.temperature_c for s in states)]),
            pcie_gen=_most([earlier.pcie_gen, *(s.pcie_gen for s in states)]),
            pcie_gen_max=local.pcie_gen_max,
            pcie_width=_most([earlier.pcie_width, *(s.pcie_width for s in states)]),
            pcie_width_max=local.pcie_width_max,
            others=self.others,
            build=self.build or earlier.build,
            is_slice=isinstance(local.mig, MigSlice),
        )


def _most(values: list[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)
