"""Tapes on demand: traces run in child processes, several at a time, and are kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from segplan.api.calibrations import in_use, timed_card_for, timed_here
from segplan.errors import SegplanError, WorkerError
from segplan.gpus import Card
from segplan.memory.alloc_conf import settings_from_environment
from segplan.memory.allocator import Settings
from segplan.memory.context import context_bytes
from segplan.memory.kernels import Architecture
from segplan.memory.limits import kernel_limit
from segplan.memory.prediction import Target, predict_trace, program_of, trains
from segplan.memory.program import peak
from segplan.results import MemoryEstimate, StepTime
from segplan.timing.model import Calibration, NotTimeable, Seconds, shipped_calibration
from segplan.timing.prediction import TimedCard, predict_forward, predict_step
from segplan.timing.work import WorkTable, work_table
from segplan.trace import cache
from segplan.trace.job import TARGET
from segplan.trace.tape import AFFINE_BATCHES, Tape, Trace, trace_from_json
from segplan.units import Patch
from segplan.worker import WorkerPool
from segplan.workload import Workload

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what) as work goes on."""

MOST_WORKERS = 4
"""Each holds torch and a network's tapes: about 1 GiB of the host's memory."""

TRACE_TIMEOUT_S = 300.0
"""A trace takes seconds; a network that takes longer than this is given up."""

KEPT_TRACES = 32
"""Traces at batches in between that are kept: a few MiB each."""

_NEUTRAL_CAPABILITY = (8, 0)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_at_a_time(progress: Progress) -> Progress:
    """A progress that several threads may call."""
    lock = threading.Lock()

    def guarded(done: int, total: int, text: str) -> None:
        with lock:
            progress(done, total, text)

    return guarded


def silent(_done: int, _total: int, _text: str) -> None:
    """A `Progress` that says nothing."""


def target_for(workload: Workload, card: Card | None, settings: Settings | None = None) -> Target:
    """What a card means for a prediction; None: tensors and allocator only."""
    settings = settings or settings_from_environment()
    if card is None:
        return Target(None, None, settings)
    capability = card.compute_capability or _NEUTRAL_CAPABILITY
    context, _measured = context_bytes(card.compute_capability)
    architecture = Architecture(
        capability=capability,
        sm_count=card.sm_count or 80,
        tf32=workload.precision != "fp32" and capability >= (8, 0),
    )
    return Target(architecture, context, settings)


class Predictor:
    """Predicts memory for one workload at any patch and batch.

    Use as a context manager: it holds child processes while open.
    """

    def __init__(
        self, workload: Workload, card: Card | None = None, progress: Progress = silent
    ) -> None:
        """`workload` is resolved; its patch and batch are placeholders."""
        self.workload = workload
        self.card = card
        self.target = target_for(workload, card)
        self.progress = progress
        self._tapes: dict[Patch, Tape] = {}
        self._failed: dict[tuple[Patch, int], SegplanError] = {}
        self._estimates: dict[tuple[object, ...], MemoryEstimate] = {}
        self._limits: dict[tuple[Patch, int], str | None] = {}
        self._traces: dict[tuple[Patch, int], Trace] = {}
        self._work: dict[tuple[Patch, int], WorkTable] = {}
        self._own: Sequence[TimedCard] | None = None
        self._timed_cards: dict[str, TimedCard | None] = {}
        self._pool: WorkerPool | None = None
        self._stopped = False
        self._done = self._total = 0

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def stop(self) -> None:
        """Have traces that run in another thread end soon; nothing more can be traced."""
        self._stopped = True
        if self._pool is not None:
            self._pool.stop()

    def aim(self, card: Card | None) -> None:
        """Predict for another card from now on; traces are kept."""
        self.card = card
        self.target = target_for(self.workload, card)

    def trace(self, wanted: Iterable[tuple[Patch, int]]) -> None:
        """Trace so that every (patch, batch) of `wanted` can be answered, side by side.

        A trace that fails is remembered, and raised when what needs it is asked about.
        """
        wanted = list(dict.fromkeys(wanted))
        while jobs := self._jobs(wanted):  # twice where sequences differ: then each batch itself
            self._run(jobs)

    def _jobs(self, wanted: Iterable[tuple[Patch, int]]) -> list[tuple[Patch, int]]:
        """Traces that are missing and have not failed."""
        jobs = [
            (patch, batch)
            for patch, asked in wanted
            for batch in self._tape(patch).missing(asked)
            if self._failure(patch, asked) is None
        ]
        return list(dict.fromkeys(jobs))

    def _failure(self, patch: Patch, batch: int) -> SegplanError | None:
        """Why a step cannot be predicted, if a trace it needs has failed."""
        needed = self._tape(patch).missing(batch)
        return next((self._failed[patch, b] for b in needed if (patch, b) in self._failed), None)

    def _run(self, jobs: Sequence[tuple[Patch, int]]) -> None:
        self._total += len(jobs)
        jobs = [job for job in jobs if not self._found(*job)]
        if not jobs:
            return
        if self._pool is None:
            self._pool = WorkerPool(TARGET, size=min(_cores(), MOST_WORKERS))
        if self._stopped:  # asked once there is a pool that `stop` would have stopped
            raise WorkerError("The work was stopped.")
        requests = [
            {"workload": self.workload.replace(patch=patch, batch=batch).to_dict()}
            for patch, batch in jobs
        ]
        name = self.workload.model
        self.progress(self._done, self._total, f"tracing {name}")
        for index, result in self._pool.map_unordered(requests, TRACE_TIMEOUT_S):
            patch, batch = jobs[index]
            self._done += 1
            size = "x".join(map(str, patch))
            self.progress(self._done, self._total, f"traced {name} {size} batch {batch}")
            if isinstance(result, Exception):
                if not isinstance(result, SegplanError):
                    raise result
                self._failed[patch, batch] = result
            else:
                self._tape(patch).traces[batch] = trace_from_json(result["trace"])
                cache.keep(self.workload.replace(patch=patch, batch=batch), result["trace"])

    def _found(self, patch: Patch, batch: int) -> bool:
        """Take a trace from an earlier run, if there is one."""
        trace = cache.load_trace(self.workload.replace(patch=patch, batch=batch))
        if trace is None:
            return False
        self._tape(patch).traces[batch] = trace
        self._done += 1
        return True

    def estimate(self, patch: Patch, batch: int) -> MemoryEstimate:
        """Bytes of a step at this patch and batch.

        Raises:
            NetworkError: the network refuses the patch.
            WorkerError: the trace died.
        """
        key = (patch, batch, self.target.architecture, self.target.context)
        if key not in self._estimates:
            self._estimates[key] = predict_trace(self._trace(patch, batch), self.target)
        return self._estimates[key]

    def peak_allocated(self, patch: Patch, batch: int) -> int:
        """Most bytes in tensors at one time, without a replay (raises as `estimate`)."""
        return peak(program_of(self._trace(patch, batch), self.target))[0]

    def trains(self, patch: Patch, batch: int, limit: int) -> bool:
        """As `fits` by one replay: quicker, and now and then of another mind (raises as above)."""
        return trains(self._trace(patch, batch), self.target, limit)

    def fits(self, patch: Patch, batch: int, limit: int) -> bool:
        """Whether a step's least memory is within that many bytes (raises as above)."""
        return self.estimate(patch, batch).least_memory <= limit

    def kernel_limit(self, patch: Patch, batch: int) -> str | None:
        """What cannot work on tensors this large, in words; None if all can (raises as above)."""
        if (patch, batch) not in self._limits:
            self._limits[patch, batch] = kernel_limit(self._trace(patch, batch))
        return self._limits[patch, batch]

    def has_line(self, patch: Patch) -> bool:
        """Whether the traces that give all larger batches of a patch are there."""
        return patch in self._tapes and not self._tapes[patch].missing(max(AFFINE_BATCHES) + 1)

    def lines(self) -> list[Patch]:
        """The patches of which that is so."""
        return [patch for patch in self._tapes if self.has_line(patch)]

    def step_time(self, patch: Patch, batch: int) -> StepTime | None:
        """Seconds of a step on the card aimed at; None where its figures do not allow it.

        Raises:
            NetworkError: the network refuses the patch.
            WorkerError: the trace died.
        """
        found = self.step_parts(patch, batch)
        return found[0] if found is not None else None

    def step_parts(self, patch: Patch, batch: int) -> tuple[StepTime, Seconds] | None:
        """`step_time` and what it is made of (raises as above)."""
        if self.card is None:
            return None
        workload = self.workload.replace(patch=patch, batch=batch)
        try:
            return predict_step(
                self._table(patch, batch), workload, self.card, self.calibration, self._timed
            )
        except NotTimeable:
            return None

    def forward_time(self, patch: Patch, batch: int) -> StepTime | None:
        """Seconds of the forward pass alone, as in validation (as `step_time`)."""
        if self.card is None:
            return None
        workload = self.workload.replace(patch=patch, batch=batch)
        try:
            return predict_forward(
                self._table(patch, batch), workload, self.card, self.calibration, self._timed
            )
        except NotTimeable:
            return None

    @property
    def calibration(self) -> Calibration:
        """What step times rest on."""
        return shipped_calibration()

    @property
    def _timed(self) -> TimedCard | None:
        """Operators timed one by one that step times on this card rest on, if there are any."""
        if self.card is None or not in_use():
            return None
        if self._own is None:
            self._own = timed_here()
        if self.card.slug not in self._timed_cards:
            self._timed_cards[self.card.slug] = timed_card_for(self.card, self._own)
        return self._timed_cards[self.card.slug]

    def _table(self, patch: Patch, batch: int) -> WorkTable:
        if (patch, batch) not in self._work:
            ops = self._trace(patch, batch).ops
            self._work[patch, batch] = work_table([op for op in ops if op.step == 1])
        return self._work[patch, batch]

    def _trace(self, patch: Patch, batch: int) -> Trace:
        """The trace at a batch; the last few are kept, as several things are asked of each."""
        if (patch, batch) not in self._traces:
            self._ready(patch, batch)
            while len(self._traces) >= KEPT_TRACES:
                del self._traces[next(iter(self._traces))]
            self._traces[patch, batch] = self._tape(patch).at(batch)
        return self._traces[patch, batch]

    def _tape(self, patch: Patch) -> Tape:
        return self._tapes.setdefault(patch, Tape())

    def _ready(self, patch: Patch, batch: int) -> None:
        self.trace([(patch, batch)])
        failure = self._failure(patch, batch)
        if failure is not None:
            raise failure
