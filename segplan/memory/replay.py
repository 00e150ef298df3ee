"""A step's requests, served by the replicated allocator: peaks, and the least limit that trains."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from segplan.memory.allocator import (
    DEFAULTS,
    ROUND_LARGE,
    Allocator,
    OutOfMemory,
    Settings,
    Trace,
    round_size,
    segment_size,
)


@dataclass(frozen=True)
class ReplayResult:
    """What a sequence of requests did to the allocator (bytes).

    Attributes:
        peak_allocated, peak_reserved, peak_requested: as torch reports them.
        allocated, reserved: at the end.
        retries: times the whole cache was released to make room.
        ooms: out-of-memory errors, those answered by a fallback included.
        fallbacks: tries of optional allocations that failed and were answered by the
            next size.
        out_of_memory_at: index into `ops` of the request that failed; None: it trains.
    """

    peak_allocated: int
    peak_reserved: int
    peak_requested: int
    allocated: int
    reserved: int
    retries: int
    ooms: int
    fallbacks: int
    out_of_memory_at: int | None

    @property
    def trains(self) -> bool:
        """Whether every request was served."""
        return self.out_of_memory_at is None


def replay(
    ops: Sequence[int],
    sizes: Sequence[int],
    limit: int | None = None,
    settings: Settings = DEFAULTS,
    optional: Mapping[int, Sequence[int]] | None = None,
    *,
    plans: Mapping[int, Hashable] | None = None,
    capacity: int | None = None,
    trace: Trace | None = None,
) -> ReplayResult:
    """Runs a sequence of requests through a fresh `Allocator`.

    Args:
        ops: buffer numbers; the first occurrence of a number allocates `sizes[number]`
            bytes, the second frees them, a third would allocate again: a step that
            frees all it allocates can be repeated by repeating its ops.
        sizes: bytes of each buffer; 0 asks for nothing.
        limit: as in `Allocator`.
        settings: as in `Allocator`.
        optional: for a buffer, the sizes to try in turn when it cannot be had; 0 as the
            last means "do without". So cuDNN's heuristic mode picks its plan
            (`try_plans` in `aten/src/ATen/native/cudnn/Conv_v8.cpp` catches the
            out-of-memory error of a workspace and goes on): every failed try has
            released the cache and counts as a retry and an out-of-memory error.
        plans: for optional buffers, which convolution they belong to. `run_single_conv`
            keeps the plan that ran (`benchmark_cache`): once a buffer fell back, later
            buffers of the same convolution start with the size that worked, and go
            through all sizes again only if that fails. None: every buffer on its own.
        capacity: as in `Allocator`.
        trace: as in `Allocator`.
    """
    allocator = Allocator(limit, settings, capacity=capacity, trace=trace)
    fallbacks, failed_at = _serve(allocator, ops, sizes, optional or {}, plans or {})
    return ReplayResult(
        allocator.peak_allocated,
        allocator.peak_reserved,
        allocator.peak_requested,
        allocator.allocated,
        allocator.reserved,
        allocator.retries,
        allocator.ooms,
        fallbacks,
        failed_at,
    )


def _serve(
    allocator: Allocator,
    ops: Sequence[int],
    sizes: Sequence[int],
    optional: Mapping[int, Sequence[int]],
    plans: Mapping[int, Hashable],
) -> tuple[int, int | None]:
    """`replay` with an allocator; (tries that fell back, index of the request that failed)."""
    malloc, free = allocator.malloc, allocator.free
    held: list[int | None] = [None] * len(sizes)
    chosen: dict[Hashable, int] = {}
    now = sizes  # copied when the first plan falls back
    fallbacks = 0
    failed_at: int | None = None
    for index, number in enumerate(ops):
        handle = held[number]
        if handle is not None:
            held[number] = None
            free(handle)
            continue
        try:
            held[number] = malloc(now[number])
        except OutOfMemory:
            choices = optional.get(number, ())
            if plans.get(number) in chosen:
                choices = (sizes[number], *choices)
            for size in choices:
                fallbacks += 1
                try:
                    held[number] = malloc(size)
                    break
                except OutOfMemory:
                    pass
            else:
                failed_at = index
                break
            if number in plans:
                now = list(now)
                chosen[plans[number]] = size
                for other, plan in plans.items():
                    if plan == plans[number]:
                        now[other] = size
    return fallbacks, failed_at


class LeastLimit(NamedTuple):
    """The soft boundary between limits that train and limits that do not (bytes).

    Attributes:
        least: the lowest limit that trains above the highest limit seen to fail: from
            here on every limit that was tried trains.
        lowest_that_trains: the lowest limit seen to train; below `least` where the
            boundary is not monotone.
    """

    least: int
    lowest_that_trains: int


def least_limit(
    ops: Sequence[int],
    sizes: Sequence[int],
    settings: Settings = DEFAULTS,
    optional: Mapping[int, Sequence[int]] | None = None,
    *,
    plans: Mapping[int, Hashable] | None = None,
    low: int | None = None,
    high: int | None = None,
    tolerance: int | None = None,
    scan: int = 6,
    max_replays: int = 25,
) -> LeastLimit:
    """The smallest limit from which on every limit trains, to a tolerance.

    A lower limit changes when the cache is released and with it all that follows, so
    a limit may fail although a lower one trains. Bisection finds one crossing; then
    `scan` limits above it are tried (1, 2, 4, 8 ... tolerances above), and where one
    fails the search goes on above it. Without expandable segments reserved memory is
    a multiple of 2 MiB, so limits are too. A failure between tried limits is missed.

    Args:
        ops: as in `replay`.
        sizes: as in `replay`.
        settings: as in `Allocator`.
        optional: as in `replay`.
        plans: as in `replay`.
        low: limits below this are thought to fail (tried before it is believed); None:
            the most bytes in use at once, optional buffers at their smallest.
        high: a limit thought to train (also tried); None: peak reserved without a limit,
            with which the run is the same as without one.
        tolerance: bytes to which the boundary is found; None: 0.25 %, at least 2 MiB.
        scan: limits to try above the crossing.
        max_replays: replays to spend at most; the tolerance suffers first.
    """
    optional = optional or {}
    known: dict[int, bool] = {}  # in units of 2 MiB
    same: list[tuple[range, bool]] = []  # limits that go the same way

    def trains(at: int) -> bool:
        if at not in known:
            limit = at * ROUND_LARGE
            told = next((way for limits, way in same if limit in limits), None)
            known[at] = run(limit) if told is None else told
        return known[at]

    def run(limit: int) -> bool:
        allocator = Allocator(limit, settings)
        _, failed_at = _serve(allocator, ops, sizes, optional, plans or {})
        same.append((allocator.same_limits, failed_at is None))
        return failed_at is None

    # With expandable segments the limit is compared with more, or less, than gets mapped.
    expandable = settings.expandable_segments
    if high is None or not trains(-(-high // ROUND_LARGE)):
        high = replay(ops, sizes, None, settings, optional).peak_reserved
        if expandable:
            high += max((segment_size(round_size(s, settings), settings) for s in sizes), default=0)
    top = -(-high // ROUND_LARGE)
    known[top] = True
    bottom = -1 if low is None else (low - 1) // ROUND_LARGE
    if low is None or (bottom >= 0 and trains(bottom)):
        bottom = _peak_in_use(ops, sizes, optional) - 1
        bottom = (bottom - (settings.large_segment_size if expandable else 0)) // ROUND_LARGE
    bottom = max(min(bottom, top - 1), -1)
    known[bottom] = False
    step = max(int(0.0025 * high) if tolerance is None else tolerance, ROUND_LARGE) // ROUND_LARGE

    failing, training = bottom, top
    while True:
        while training - failing > step and len(known) < max_replays:
            middle = (failing + training) // 2
            if trains(middle):
                training = middle
            else:
                failing = middle
        for exponent in range(scan):
            if training + step * 2**exponent < top and len(known) < max_replays:
                trains(training + step * 2**exponent)
        highest = max(at for at in known if not known[at])
        if highest == failing:
            break
        failing = highest
        training = min(at for at in known if at > failing)
    lowest = min(at for at in known if known[at])
    return LeastLimit(training * ROUND_LARGE, lowest * ROUND_LARGE)


def _peak_in_use(
    ops: Sequence[int], sizes: Sequence[int], optional: Mapping[int, Sequence[int]]
) -> int:
    """The most bytes in use at once, optional buffers at their smallest."""
    live: set[int] = set()
    now = peak = 0
    for number in ops:
        size = min((sizes[number], *optional.get(number, ())))
        if number in live:
            live.remove(number)
            now -= size
        else:
            live.add(number)
            now += size
            peak = max(peak, now)
    return peak
