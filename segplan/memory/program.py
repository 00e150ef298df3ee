"""Tape to program: the allocations of a step on a card, kernels' temporaries included."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from segplan.memory.kernels import Architecture, Temporary, temporaries, uses_cublas
from segplan.trace.tape import ACTIVATION, INPUT, TEMPORARY, Op, Trace
from segplan.units import MIB

WORKSPACE = 7
"""Kind of a buffer that is a library's workspace, beside the tape's kinds."""


OUTSIDE, INPUTS = "(outside modules)", "(input)"
"""Names for activations that no top-level module made: the network's own arithmetic and the loss;
and for the images and labels."""


class Mark(NamedTuple):
    """Where an operator begins: index into `Program.ops`, its aten name, phase and step."""

    at: int
    name: str
    phase: str
    step: int


@dataclass
class Program:
    """What the allocator is asked for, in order.

    Attributes:
        ops: buffer ids; the first occurrence allocates, the second frees.
        sizes: bytes by id (index 0 unused).
        kinds: what each buffer holds (the tape's kinds, or WORKSPACE).
        modules: top-level module by id.
        optional: ids of cuDNN workspaces, with the sizes to fall back to.
        step_starts: index into `ops` where each step begins.
        marks: where each operator begins, in order.
    """

    ops: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])
    kinds: list[int] = field(default_factory=lambda: [0])
    modules: list[str] = field(default_factory=lambda: [""])
    optional: dict[int, tuple[int, ...]] = field(default_factory=dict)
    step_starts: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def new(self, size: int, kind: int, module: str = "") -> int:
        """A further buffer; it is not allocated yet."""
        self.sizes.append(size)
        self.kinds.append(kind)
        self.modules.append(module)
        return len(self.sizes) - 1


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Bytes of one cuBLAS workspace (CublasHandlePool.cpp, `parseChosenWorkspaceSize`)."""
    return 32 * MIB if capability[0] in (9, 10, 12) else 8_519_680


def compile_program(trace: Trace, on: Architecture | None) -> Program:
    """The allocations of a trace, with the temporaries of a card's kernels (None: without).

    The parameters stay where they are; cuBLAS workspaces are allocated at the first call of the
    forward and of the backward thread, and kept.
    """
    program = Program(sizes=list(trace.sizes), kinds=list(trace.kinds), modules=list(trace.modules))
    ops = program.ops
    starts = iter([*trace.step_starts, None])
    next_start = next(starts)
    have_cublas: set[bool] = set()
    position = 0
    scattered = _scattered_gradients(trace) if on is not None else {}
    stands_for: dict[int, int] = {}
    idents = [abs(event) for event in trace.events]
    known: dict[tuple[object, ...], tuple[Temporary, ...]] = {}

    def needs(op: Op, on: Architecture) -> tuple[Temporary, ...]:
        # Steps repeat their operators, and operators share their tensors' descriptions.
        key = (op.name, id(op.inputs), id(op.outputs), op.args)
        if key not in known:
            known[key] = temporaries(op, on)
        return known[key]

    def copy(until: int) -> None:
        nonlocal position, next_start
        if not stands_for and (next_start is None or next_start >= until):
            ops.extend(idents[position:until])
            position = until
            return
        for i in range(position, until):
            if i == next_start:
                program.step_starts.append(len(ops))
                next_start = next(starts)
            ident = idents[i]
            ops.append(stands_for.pop(ident, ident))
        position = until

    for op in trace.ops:
        copy(op.at)
        gradient = scattered.get(op.at)
        if gradient is not None:
            base = next(e for e in trace.events[op.at : op.end] if e > 0)
            storage = program.new(program.sizes[base], TEMPORARY)
            ops += [storage, gradient]
            stands_for[gradient] = storage
        program.marks.append(Mark(len(ops), op.name, op.phase, op.step))
        if on is None:
            copy(op.end)
            continue
        if uses_cublas(op) and (op.phase == "backward") not in have_cublas:
            have_cublas.add(op.phase == "backward")
            copy(op.end)  # the output comes first
            ops.append(program.new(cublas_workspace(on.capability), WORKSPACE))
        needed = needs(op, on)
        if not needed:
            copy(op.end)
            continue
        held: list[int] = []
        made = 0
        for temporary in needed:
            while made < temporary.after and position < op.end:
                copy(position + 1)
                made += 1
            kind = WORKSPACE if temporary.workspace else TEMPORARY
            ident = program.new(temporary.size, kind)
            ops.append(ident)
            if temporary.workspace:
                program.optional[ident] = (0,)
            if temporary.until_end:
                held.append(ident)
            else:
                ops.append(ident)
        copy(op.end)
        ops.extend(held)
    copy(len(trace.events))
    return program


def with_another_step(program: Program) -> Program:
    """The program with its last step once more; itself where steps differ.

    The pool may go on breaking up after the third step: near the limit some steps train three
    times and fail at the fourth, and the fifth is as the fourth (read off replays of recorded
    runs). Buffers of the further step are new ones of the same sizes; what the last step frees of
    the one before it, the further one frees of the last.
    """
    if len(program.step_starts) < 2:
        return program
    *_, before, last = program.step_starts
    alive = set(_alive(program.ops, before - 1)) if before else set()
    made_before = _allocated(program.ops[before:last], alive)
    alive_last = set(_alive(program.ops, last - 1))
    made = _allocated(program.ops[last:], alive_last)
    if [program.sizes[i] for i in made_before] != [program.sizes[i] for i in made]:
        return program
    following = dict(zip(made_before, made, strict=True))
    longer = Program(
        ops=list(program.ops), sizes=list(program.sizes), kinds=list(program.kinds),
        modules=list(program.modules), optional=dict(program.optional),
        step_starts=[*program.step_starts, len(program.ops)], marks=program.marks,
    )  # fmt: skip
    for ident in made:
        following[ident] = longer.new(
            program.sizes[ident], program.kinds[ident], program.modules[ident]
        )
        if ident in program.optional:
            longer.optional[following[ident]] = program.optional[ident]
    for ident in program.ops[last:]:
        if ident not in following:  # something from before both steps
            return program
        longer.ops.append(following[ident])
    return longer


def _allocated(ops: Sequence[int], alive: set[int]) -> list[int]:
    """What a piece of a program allocates, in order."""
    alive = set(alive)
    made = []
    for ident in ops:
        if ident in alive:
            alive.remove(ident)
        else:
            alive.add(ident)
            made.append(ident)
    return made


def _scattered_gradients(trace: Trace) -> dict[int, int]:
    """Gradients that the real step copies into a storage of their base: {index of event: id}.

    An operator in place on a view (an activation on the output of instance norm, which is a view
    of a batch norm's) gives the view a new gradient function. On CUDA that is
    `AsStridedBackward0`: `as_strided_backward` (FunctionsManual.cpp) allocates zeros of the
    base's size, copies the gradient there and lets go of it; only then `CopySlices` begins
    (`new_empty_strided`). Fake tensors replay the view instead, which allocates nothing, or a
    `clone` where the gradient is a slice of several samples. Where the gradient comes from another
    `CopySlices`, it lies in such a storage already.
    """
    found: dict[int, int] = {}
    copied: set[int] = set()
    begin = next((op.at for op in trace.ops if op.phase == "backward"), 0)
    mine: set[int] = set()  # made by the backward pass
    position = begin
    for index, op in enumerate(trace.ops):
        if op.phase != "backward":
            mine.clear()
            position = op.end
            continue
        mine.update(e for e in trace.events[position : op.at] if e > 0)
        position = op.at
        if op.name == "clone.default":
            copied.update(e for e in trace.events[op.at : op.end] if e > 0)
        if op.name == "new_empty_strided.default":
            made = [e for e in trace.events[op.at : op.end] if e > 0]
            gradient = next((e for e in _freed_with(trace, index) if e in mine), None)
            if made and gradient is not None and gradient not in copied:
                found[op.at] = gradient
            copied.update(made)
    return found


def _freed_with(trace: Trace, index: int) -> list[int]:
    """What is let go of when the `CopySlices` ends whose first operator is at `index`.

    It copies twice (`CopySlices::apply`, autograd/functions/tensor.cpp): the gradient into its
    storage, and the slice's gradient into that.
    """
    copies = 0
    for at in range(index + 1, len(trace.ops)):
        op = trace.ops[at]
        copies += op.name == "copy_.default"
        if copies == 2:
            end = trace.ops[at + 1].at if at + 1 < len(trace.ops) else len(trace.events)
            return [-event for event in trace.events[op.at : end] if event < 0]
    return []


def then_validate(training: Trace, validation: Trace) -> Trace:
    """One process that trains and then validates: the training's steps, the validation behind.

    What the validation's trace allocates before its first step is the training's state, which
    here is there already.

    Raises:
        ValueError: the validation frees some of that state.
    """
    begin = validation.step_starts[0]
    state = max((e for e in validation.events[:begin]), default=0)
    later = validation.events[begin:]
    if any(abs(event) <= state for event in later):
        raise ValueError("the validation frees what the training needs")
    shift = len(training.sizes) - 1 - state
    moved = len(training.events) - begin
    steps = len(training.step_starts)
    return Trace(
        batch=training.batch,
        events=[*training.events, *(e + shift if e > 0 else e - shift for e in later)],
        sizes=[*training.sizes, *validation.sizes[state + 1 :]],
        kinds=[*training.kinds, *validation.kinds[state + 1 :]],
        modules=[*training.modules, *validation.modules[state + 1 :]],
        ops=[
            *training.ops,
            *(
                dataclasses.replace(op, at=op.at + moved, end=op.end + moved, step=op.step + steps)
                for op in validation.ops
                if op.at >= begin
            ),
        ],
        step_starts=[*training.step_starts, *(at + moved for at in validation.step_starts)],
    )


def block_size(size: int) -> int:
    """Bytes of the block that serves a request: the allocator rounds up to 512."""
    return -(-size // 512) * 512


def peak(program: Program, without: Collection[int] = ()) -> tuple[int, int]:
    """(most bytes allocated at one time, index into `ops` where), blocks rounded to 512 B.

    `without`: ids that count as nothing, like workspaces that were done without.
    """
    live = most = where = 0
    seen: set[int] = set()
    for i, ident in enumerate(program.ops):
        if ident in without:
            continue
        size = block_size(program.sizes[ident])
        if ident in seen:
            live -= size
        else:
            seen.add(ident)
            live += size
            if live > most:
                most, where = live, i
    return most, where


def holdings(program: Program, where: int, without: Collection[int] = ()) -> dict[int, int]:
    """Bytes by kind that are allocated just after `ops[where]` (`without` as in `peak`)."""
    by_kind: dict[int, int] = {}
    for ident in _alive(program.ops, where):
        if ident not in without:
            kind = program.kinds[ident]
            by_kind[kind] = by_kind.get(kind, 0) + block_size(program.sizes[ident])
    return by_kind


def activations_by_module(program: Program, where: int) -> dict[str, int]:
    """Bytes of activations by the top-level module that made them, just after `ops[where]`.

    The input is listed too: the parts add up to the activations of a breakdown. Largest first.
    """
    by_module: dict[str, int] = {}
    for ident in _alive(program.ops, where):
        if program.kinds[ident] not in (ACTIVATION, INPUT):
            continue
        made_in = program.modules[ident] or OUTSIDE
        name = INPUTS if program.kinds[ident] == INPUT else made_in
        by_module[name] = by_module.get(name, 0) + block_size(program.sizes[ident])
    return dict(sorted(by_module.items(), key=lambda item: (-item[1], item[0])))


def _alive(ops: Sequence[int], where: int) -> set[int]:
    alive: set[int] = set()
    for ident in ops[: where + 1]:
        alive.symmetric_difference_update((ident,))
    return alive
