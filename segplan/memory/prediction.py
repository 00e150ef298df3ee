"""Tape to `MemoryEstimate`: replay of a step's allocations as the caching allocator makes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from segplan.memory.allocator import DEFAULTS, Settings, least_limit, replay
from segplan.memory.kernels import Architecture
from segplan.memory.program import (
    WORKSPACE,
    Program,
    activations_by_module,
    compile_program,
    holdings,
    peak,
)
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
)

LEAST_INTERVAL = (0.97, 1.04)
"""80 % interval of the least memory as factors of the prediction (`docs/accuracy.md`)."""


@dataclass(frozen=True)
class Target:
    """What a prediction is for: an architecture, or tensors alone (`architecture` None).

    Attributes:
        architecture: decides kernels' temporaries; None leaves them out.
        context: bytes outside the allocator, or None.
        settings: of the caching allocator.
    """

    architecture: Architecture | None = None
    context: int | None = None
    settings: Settings = DEFAULTS


def predict(tape: Tape, batch: int, target: Target) -> MemoryEstimate:
    """What a step at this batch needs on the target.

    Limitations: see the modules of kernels' temporaries and of workspaces; the boundary of what
    trains is soft (the order in which a process asked before moves it by a few percent), which
    `least_memory_low` and `least_memory_high` express.

    Raises:
        ValueError: the tape lacks a trace (`Tape.missing`).
    """
    program = compile_program(tape.at(batch), target.architecture)
    free = replay(program.ops, program.sizes, None, target.settings)
    _, where = peak(program)
    boundary = least_limit(
        program.ops, program.sizes, target.settings, program.optional, high=free.peak_reserved
    )
    least = (boundary.lowest_that_trains + boundary.least) // 2
    low, high = LEAST_INTERVAL
    return MemoryEstimate(
        peak_allocated=free.peak_allocated,
        peak_reserved=free.peak_reserved,
        least_memory=least,
        least_memory_low=min(boundary.lowest_that_trains, int(least * low)),
        least_memory_high=max(boundary.least, int(least * high)),
        context=target.context,
        basis=Basis.PREDICTED,
        breakdown=_breakdown(program, where, least),
    )


def fits(tape: Tape, batch: int, target: Target, limit: int) -> bool:
    """Whether the least memory of a step is within that many bytes (raises as `predict`).

    Not one replay at this limit: the boundary is soft, and its middle meets measured frontiers
    better (`docs/accuracy.md`).
    """
    return predict(tape, batch, target).least_memory <= limit


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
