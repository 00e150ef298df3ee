"""Prober: one card's probes, one at a time, each in a child process that may die."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from segplan.errors import RequestError, SegplanError, WorkerError
from segplan.gpus.choose import only_visible
from segplan.gpus.local import GpuProcess, LocalCard
from segplan.probe.guard import CardGuard
from segplan.probe.job import STARTUP, TARGET
from segplan.probe.outcomes import spilled
from segplan.probe.watch import WatchedRequest, facts_of
from segplan.results import Environment, Measurement, Outcome
from segplan.units import GIB
from segplan.worker import Nursery, Worker, WorkerCrashed, WorkerGarbled, WorkerTimedOut
from segplan.workload import Workload

TIMEOUT_S = 300.0
"""Seconds a probe may take before it counts as hanging."""
BUDGET_S = 6.0
"""Seconds after which a probe runs no step that is not needed."""
_LARGEST_CONTEXT = 3 * GIB // 2


class Prober:
    """Runs workloads on one card that is here.

    A process is reused while it is provably clean; else the next one takes its place, forked
    from one that has already imported torch and MONAI but not touched the card.

    Args:
        card: the card.
        allocator_limit: bytes the allocator may hold, or None for all there is.
        share: accept that other processes use the card meanwhile.
        timeout_s: seconds a probe may take before it counts as hanging.
        target, startup: the job's handler and imports, as for `Worker`.
        environment: variables added to the processes' environment.
        free_bytes: what is free on the card now, or None; asked before each probe.
        processes: who holds the card's memory now; asked when it is taken.
        clock: seconds, for `wall_s` and patience.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        card: LocalCard,
        *,
        allocator_limit: int | None = None,
        share: bool = False,
        timeout_s: float = TIMEOUT_S,
        target: str = TARGET,
        startup: str = STARTUP,
        environment: Mapping[str, str] | None = None,
        free_bytes: Callable[[], int | None] | None = None,
        processes: Callable[[], Sequence[GpuProcess]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.card = card
        self.allocator_limit = allocator_limit
        self.timeout_s = timeout_s
        self.probes = 0
        self.context_bytes: int | None = None
        """Most bytes a process needed outside the allocator so far; None until known."""
        self._share = share
        self._target, self._startup = target, startup
        self._variables = {**(environment or {}), **only_visible(card)}
        self._nursery = Nursery(startup, env=environment)
        self._clock = clock
        self._guard = CardGuard(card, free_bytes, processes, clock, sleep)
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._used = False
        self._held = 0
        self._environment = Environment(
            card_name=card.name, card_uuid=card.uuid, driver=card.driver
        )
        self._pace: dict[str, tuple[int, float]] = {}

    def start(self) -> Self:
        """Let the first process begin to import while the caller does something else."""
        if self._worker is None:
            self._worker = self._new()
        return self

    def probe(
        self,
        workload: Workload,
        *,
        fresh: bool = False,
        timeout_s: float | None = None,
        timed_steps: int = 5,
        warmup: int = 3,
        budget_s: float = BUDGET_S,
        stable_of: int = 0,
    ) -> Measurement:
        """Run a workload; whatever happens to the process is the measurement's outcome.

        Args:
            workload: resolved; its batch is what runs.
            fresh: only a process that has run nothing will do.
            timeout_s: seconds before it counts as hanging; by default the prober's.
            timed_steps: samples to take; 0 only asks whether it trains.
            warmup: steps before, at least; more until two take the same time.
            budget_s: seconds after which no step is run that is not needed.
            stable_of: warm up until the medians of so many steps agree to 2 %; 0: until two do.

        Raises:
            RequestError: the network cannot be built, or torch cannot use the card.
            CardError: another process took the card's memory meanwhile.
        """
        with self._lock:
            self._check_card()
            began = self._clock()
            worker, is_fresh = self._take(fresh)
            request: WatchedRequest = {
                "workload": workload.to_dict(),
                "allocator_limit": self.allocator_limit,
                "warmup": warmup,
                "steps": timed_steps,
                "budget_s": budget_s,
                "stable_of": stable_of,
                "free_before": self._guard.free_bytes() if is_fresh else None,
            }
            self.probes += 1
            reply = self._ask(worker, dict(request), timeout_s or self.timeout_s)
            measurement = self._measurement(workload, reply, is_fresh, began)
            if measurement.outcome is not Outcome.FITS or not reply.get("clean"):
                self._drop()
            if measurement.outcome in (Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT):
                self._check_card()  # was it the workload, or somebody else?
            return measurement

    def close(self) -> None:
        """End all processes."""
        self._drop()
        self._nursery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _ask(self, worker: Worker, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The child's reply, or one made up for a child that gave none."""
        try:
            return worker.call(request, timeout_s, self._news)
        except RequestError:
            self._drop()
            raise
        except WorkerTimedOut as error:
            return _no_reply(Outcome.TIMED_OUT, error)
        except (WorkerCrashed, WorkerGarbled) as error:
            return _no_reply(Outcome.CRASHED, error)
        except WorkerError as error:
            return _no_reply(Outcome.FAILED, error)
        except BaseException:  # Ctrl-C above all
            self.close()
            raise

    def _news(self, news: dict[str, Any]) -> None:
        known = news.get("environment")
        if not isinstance(known, dict):
            return
        names = {field.name for field in dataclasses.fields(Environment)}
        told = {k: v for k, v in known.items() if k in names and v is not None}
        self._environment = dataclasses.replace(self._environment, **told)

    def _take(self, fresh: bool) -> tuple[Worker, bool]:
        """A worker, and whether it has run nothing before."""
        if self._worker is not None and (not self._worker.alive or (fresh and self._used)):
            self._drop()
        if self._worker is None:
            self._worker = self._new()
        is_fresh, self._used = not self._used, True
        return self._worker, is_fresh

    def _new(self) -> Worker:
        return Worker(
            self._target, env=self._variables, startup=self._startup, nursery=self._nursery
        ).start()

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker, self._used, self._held = None, False, 0

    def _check_card(self) -> None:
        if not self._share:
            own = [self._worker.pid] if self._worker is not None else []
            self._guard.check(self._held, own)

    def _measurement(
        self, workload: Workload, reply: dict[str, Any], fresh: bool, began: float
    ) -> Measurement:
        try:
            outcome = Outcome(reply["outcome"])
            samples = tuple(float(s) for s in reply["step_seconds"])
            numbers: dict[str, Any] = {name: _whole(reply[name]) for name in _NUMBERS}
            numbers |= facts_of(reply)
            context, held = _whole(reply["context_bytes"]), _whole(reply["held_bytes"])
            message = None if reply["message"] is None else str(reply["message"])
        except (KeyError, TypeError, ValueError) as error:
            strange = SegplanError(f"The child process's answer makes no sense ({error!r}).")
            reply.clear()
            reply.update(_no_reply(Outcome.FAILED, strange))
            return self._measurement(workload, reply, fresh, began)
        if context is not None:
            self.context_bytes = max(context, self.context_bytes or 0)
        if held is None and context is not None:
            held = min(context, _LARGEST_CONTEXT)
        self._held = self._held if held is None else held
        if outcome is Outcome.FITS and self.card.spills:
            outcome, message = self._if_spilled(workload, samples, numbers["peak_reserved"])
        return Measurement(
            workload=workload,
            outcome=outcome,
            allocator_limit=self.allocator_limit,
            fresh=fresh,
            step_seconds=samples,
            environment=self._environment,
            message=message,
            wall_s=self._clock() - began,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            **numbers,
        )

    def _if_spilled(
        self, workload: Workload, samples: tuple[float, ...], peak_reserved: int | None
    ) -> tuple[Outcome, str | None]:
        """What a step without an error was, on a card that spills into the host's memory."""
        pace = statistics.median(samples) / workload.batch if samples else None
        key = workload.replace(batch=1).key()
        batch, reference = self._pace.get(key, (workload.batch, None))
        if spilled(
            peak_reserved=peak_reserved,
            context_bytes=self.context_bytes,
            capacity_bytes=self._guard.free_at_start or self.card.visible_bytes,
            seconds_per_patch=pace,
            reference_seconds_per_patch=reference if batch < workload.batch else None,
        ):
            return Outcome.SPILLED, "The step used the host's memory: it does not fit the card."
        if pace is not None and (reference is None or workload.batch < batch):
            self._pace[key] = (workload.batch, pace)
        return Outcome.FITS, None


_NUMBERS = ("peak_allocated", "peak_reserved", "process_bytes", "allocator_retries")


def _no_reply(outcome: Outcome, error: SegplanError) -> dict[str, Any]:
    return {
        "outcome": outcome.value,
        "message": str(error),
        "step_seconds": [],
        "context_bytes": None,
        "held_bytes": None,
        "clean": False,
        **dict.fromkeys(_NUMBERS),
    }


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
