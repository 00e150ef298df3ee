"""Tape to `MemoryEstimate`: replay of a step's allocations as the caching allocator makes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from segplan.memory.allocator import DEFAULTS, Settings
from segplan.memory.distributed import with_buckets
from segplan.memory.kernels import Architecture
from segplan.memory.program import (
    WORKSPACE,
    Program,
    activations_by_module,
    compile_program,
    holdings,
    peak,
    then_validate,
    with_another_step,
)
from segplan.memory.replay import least_limit, replay
from segplan.results import Basis, MemoryBreakdown, MemoryEstimate
from segplan.trace.tape import (
    ACTIVATION,
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    PARAMETER,
    TEMPORARY,
    Tape,
    Trace,
)

LEAST_INTERVAL = (0.985, 1.02)
"""80 % interval of the least memory as factors of the prediction (`docs/accuracy.md`)."""

VALIDATION_INTERVAL = (0.95, 1.1)
"""The same for a validation: wider, because only peaks were measured, in few rows, and those of
training's pool remain."""


@dataclass(frozen=True)
class Target:
    """What a prediction is for: an architecture, or tensors alone (`architecture` None).

    Attributes:
        architecture: decides kernels' temporaries; None leaves them out.
        context: bytes outside the allocator, or None.
        settings: of the caching allocator.
        data_parallel: whether gradients have a second copy in the buckets of
            DistributedDataParallel.
    """

    architecture: Architecture | None = None
    context: int | None = None
    settings: Settings = DEFAULTS
    data_parallel: bool = False


def predict(tape: Tape, batch: int, target: Target) -> MemoryEstimate:
    """What a step at this batch needs on the target.

    Limitations: see the modules of kernels' temporaries and of workspaces; the boundary of what
    trains is soft (the order in which a process asked before moves it by a few percent), which
    `least_memory_low` and `least_memory_high` express. What fits a limit is asked of
    `least_memory`, not of one replay at that limit: the boundary's middle meets measured
    frontiers better (`docs/accuracy.md`).

    Raises:
        ValueError: the tape lacks a trace (`Tape.missing`).
    """
    return predict_trace(tape.at(batch), target)


def predict_trace(trace: Trace, target: Target) -> MemoryEstimate:
    """`predict` for a trace at its own batch."""
    program = program_of(trace, target)
    return _estimate(program, target, LEAST_INTERVAL, run=with_another_step(program))


def trains(trace: Trace, target: Target, limit: int) -> bool:
    """Whether a step gets along with so many bytes, by one replay.

    Many times quicker than `predict_trace`; where the boundary is soft the two need not agree.
    """
    run = with_another_step(program_of(trace, target))
    found = replay(run.ops, run.sizes, limit, target.settings, run.optional)
    return found.trains


def predict_validation(
    training: Trace, validation: Trace, target: Target
) -> tuple[MemoryEstimate, MemoryEstimate]:
    """What a validation needs, and what a process needs that trains and then validates.

    The first counts the training's state (parameters, gradients, optimizer), which stays where
    it is. The second replays both one after the other: the pool that the training leaves is
    released where the validation needs it, as far as nothing holds on to it. Where that process
    gets along with less than the validation in a pool of its own, the least memory is the same.

    Args:
        training: of the step.
        validation: of the same network.
        target: as for `predict`.
    """
    trained = with_buckets(training) if target.data_parallel else training
    program = compile_program(then_validate(trained, validation), target.architecture)
    begin = program.step_starts[len(training.step_starts)]
    peaks_in_training = peak(program)[1] < begin
    interval = LEAST_INTERVAL if peaks_in_training else VALIDATION_INTERVAL
    together = _estimate(program, target, interval)
    alone = _estimate(
        program_of(validation, target), target, VALIDATION_INTERVAL, together.least_memory
    )
    return alone, together


def program_of(trace: Trace, target: Target) -> Program:
    """What the allocator is asked for on a target."""
    if target.data_parallel:
        trace = with_buckets(trace)
    return compile_program(trace, target.architecture)


def _estimate(
    program: Program,
    target: Target,
    interval: tuple[float, float],
    at_most: int | None = None,
    run: Program | None = None,
) -> MemoryEstimate:
    """Replay a program.

    `at_most`: bytes in which it is known to run; `run`: the program as it is replayed, where it
    goes on longer than what is broken down.
    """
    run = run or program
    free = replay(run.ops, run.sizes, None, target.settings)
    _, where = peak(program)
    boundary = least_limit(
        run.ops, run.sizes, target.settings, run.optional, high=free.peak_reserved
    )
    least = (boundary.lowest_that_trains + boundary.least) // 2
    low, high = interval
    lowest, highest = boundary.lowest_that_trains, boundary.least
    if at_most is not None and at_most < least:
        least = at_most
        lowest, highest = min(lowest, least), least
    return MemoryEstimate(
        peak_allocated=free.peak_allocated,
        peak_reserved=free.peak_reserved,
        least_memory=least,
        least_memory_low=min(lowest, int(least * low)),
        least_memory_high=max(highest, int(least * high)),
        context=target.context,
        basis=Basis.PREDICTED,
        breakdown=_breakdown(program, where, least),
    )


def modules_at_peak(program: Program, least: int) -> dict[str, int]:
    """The breakdown's activations by top-level module, largest first; they add up to it."""
    at, _ = _standing(program, peak(program)[1], least)
    return activations_by_module(program, at)


def _standing(program: Program, where: int, least: int) -> tuple[int, Collection[int]]:
    """(where a breakdown of the least memory looks, ids it leaves out).

    That is the peak, unless more is allocated there than the least memory: then the step runs
    in it because cuDNN does without its workspaces, and the peak is that without them.
    """
    if sum(holdings(program, where).values()) <= least:
        return where, ()
    return peak(program, program.optional)[1], program.optional


def _breakdown(program: Program, where: int, least: int) -> MemoryBreakdown:
    at, without = _standing(program, where, least)
    held = holdings(program, at, without)
    parts = {
        "parameters": held.get(PARAMETER, 0) + held.get(BUFFER, 0),
        "gradients": held.get(GRADIENT, 0),
        "optimizer_state": held.get(OPTIMIZER, 0),
        "activations": held.get(ACTIVATION, 0) + held.get(INPUT, 0),
        "workspaces": held.get(WORKSPACE, 0),
        "temporaries": held.get(TEMPORARY, 0),
    }
    return MemoryBreakdown(**parts, fragmentation=max(least - sum(parts.values()), 0))
