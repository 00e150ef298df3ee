"""Memory over one training step: live bytes by what they hold, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segplan.memory.program import WORKSPACE, Program, block_size
from segplan.trace.tape import (
    ACTIVATION,
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    PARAMETER,
    TEMPORARY,
)

STEADY_STEP = 1
"""The second step: optimizer state is there, and all later steps are like it."""

_LAYERS = {
    "parameters": (PARAMETER, BUFFER),
    "optimizer_state": (OPTIMIZER,),
    "gradients": (GRADIENT,),
    "activations": (ACTIVATION, INPUT),
    "temporaries": (TEMPORARY,),
    "workspaces": (WORKSPACE,),
}
_LAYER_OF = {kind: i for i, kinds in enumerate(_LAYERS.values()) for kind in kinds}


@dataclass(frozen=True)
class Phase:
    """A stretch of operators [start, end): "forward", "backward" or "optimizer"."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Live bytes over the operators of one step, allocator blocks rounded to 512 B.

    Attributes:
        operators: aten names in order.
        phases: in order; they cover all operators.
        layers: by what is held (the names of `MemoryBreakdown`, what stays first): bytes at
            the moment within each operator when most was allocated.
        peak: most bytes at one time.
        peak_at: index of the operator in which that is.
    """

    operators: tuple[str, ...]
    phases: tuple[Phase, ...]
    layers: Mapping[str, tuple[int, ...]]
    peak: int
    peak_at: int

    @property
    def peak_phase(self) -> str:
        """The phase in which the peak is."""
        return next(p.name for p in self.phases if p.start <= self.peak_at < p.end)


def timeline(program: Program, step: int = STEADY_STEP) -> Timeline:
    """The memory of one step of a program.

    Args:
        program: of a trace that has the step.
        step: 0 for the first.

    Raises:
        ValueError: the program has no operators in that step.
    """
    marks = [mark for mark in program.marks if mark.step == step]
    if not marks:
        raise ValueError(f"the program has no step {step}")
    begin = program.step_starts[step]
    end = [*program.step_starts, len(program.ops)][step + 1]
    bounds = [*(mark.at for mark in marks[1:]), end]

    live = [0] * len(_LAYERS)
    seen: set[int] = set()

    def run(start: int, stop: int) -> list[int]:
        """Follow ops[start:stop]; what was live when it was most."""
        best, most = live.copy(), sum(live)
        total = most
        for ident in program.ops[start:stop]:
            size = block_size(program.sizes[ident])
            if ident in seen:
                seen.discard(ident)
                size = -size
            else:
                seen.add(ident)
            live[_LAYER_OF[program.kinds[ident]]] += size
            total += size
            if total > most:
                best, most = live.copy(), total
        return best

    run(0, begin)
    samples = []
    for stop in bounds:
        samples.append(run(begin, stop))
        begin = stop
    totals = [sum(sample) for sample in samples]
    peak = max(totals)
    return Timeline(
        operators=tuple(mark.name for mark in marks),
        phases=_phases([mark.phase for mark in marks]),
        layers={name: tuple(sample[i] for sample in samples) for i, name in enumerate(_LAYERS)},
        peak=peak,
        peak_at=totals.index(peak),
    )


def _phases(names: Sequence[str]) -> tuple[Phase, ...]:
    """Stretches of the same name; what comes before the first forward pass counts to it."""
    first = names.index("forward") if "forward" in names else 0
    names = [*["forward"] * first, *names[first:]]
    found: list[Phase] = []
    for i, name in enumerate(names):
        start = i
        if found and found[-1].name == name:
            start = found.pop().start
        found.append(Phase(name, start, i + 1))
    return tuple(found)
