"""What a prediction says its bytes are."""

from __future__ import annotations

import dataclasses

from segplan.memory.prediction import (
    Target,
    _breakdown,
    modules_at_peak,
    predict,
    predict_validation,
)
from segplan.memory.program import WORKSPACE, Program, peak
from segplan.trace.tape import ACTIVATION, GRADIENT, PARAMETER, Op, Tape, Trace
from segplan.units import MIB


def program_of() -> Program:
    """A peak of 24 MiB in a convolution; without its workspace the peak is 16 MiB, later."""
    program = Program()
    weight = program.new(4 * MIB, PARAMETER)
    first = program.new(8 * MIB, ACTIVATION, "encoder")
    scratch = program.new(12 * MIB, WORKSPACE)
    second = program.new(4 * MIB, ACTIVATION, "decoder")
    program.optional[scratch] = (0,)
    program.ops += [weight, first, scratch, scratch, second, second, first]
    return program


def test_parts_add_up_where_there_is_room():
    program = program_of()
    _, where = peak(program)
    parts = _breakdown(program, where, 30 * MIB)
    assert parts.workspaces == 12 * MIB
    assert parts.fragmentation == 6 * MIB
    assert sum(dataclasses.astuple(parts)) == 30 * MIB
    assert modules_at_peak(program, 30 * MIB) == {"encoder": 8 * MIB}


def test_parts_add_up_where_workspaces_were_done_without():
    program = program_of()
    _, where = peak(program)
    parts = _breakdown(program, where, 18 * MIB)
    assert parts.workspaces == 0
    assert parts.activations == 12 * MIB
    assert sum(dataclasses.astuple(parts)) == 18 * MIB
    modules = modules_at_peak(program, 18 * MIB)
    assert modules == {"encoder": 8 * MIB, "decoder": 4 * MIB}


def test_a_prediction_is_consistent():
    trace = Trace(batch=1)
    trace.sizes += [4 * MIB, 8 * MIB, 3 * MIB]
    trace.kinds += [PARAMETER, ACTIVATION, ACTIVATION]
    trace.modules += ["", "encoder", "decoder"]
    trace.events += [1, 2, 3, -3, -2]
    trace.step_starts += [1]
    m = predict(Tape({1: trace}), 1, Target())
    assert m.breakdown is not None
    assert sum(dataclasses.astuple(m.breakdown)) == m.least_memory
    assert m.peak_allocated <= m.least_memory
    assert m.least_memory_low <= m.least_memory <= m.least_memory_high
    assert m.context is None


def trace_of(activations: list[int], *, gradient: bool) -> Trace:
    """A parameter and perhaps its gradient, then activations one at a time."""
    trace = Trace(batch=1)
    for size, kind in [
        (4 * MIB, PARAMETER),
        *([(4 * MIB, GRADIENT)] if gradient else []),
        *((size, ACTIVATION) for size in activations),
    ]:
        trace.sizes.append(size)
        trace.kinds.append(kind)
        trace.modules.append("")
    state = 2 if gradient else 1
    trace.events += range(1, state + 1)
    trace.step_starts.append(state)
    for ident in range(state + 1, len(trace.sizes)):
        at = len(trace.events)
        trace.ops.append(Op("relu.default", "forward", 0, at, at + 1, (), (), ()))
        trace.events += [ident, -ident]
    return trace


def test_validation_needs_its_peak_and_the_process_the_larger_one():
    training, small, large = (
        trace_of([20 * MIB, 30 * MIB], gradient=False),
        trace_of([10 * MIB], gradient=True),
        trace_of([100 * MIB], gradient=True),
    )
    trained = predict(Tape({1: training}), 1, Target())
    for validation, size in ((small, 10), (large, 100)):
        alone, together = predict_validation(training, validation, Target())
        assert alone.peak_allocated == (4 + 4 + size) * MIB
        assert together.peak_allocated == (4 + max(30, size)) * MIB
        assert alone.least_memory <= together.least_memory
        assert together.least_memory >= trained.least_memory
        for m in (alone, together):
            assert m.breakdown is not None
            assert sum(dataclasses.astuple(m.breakdown)) == m.least_memory
            assert m.least_memory_low <= m.least_memory <= m.least_memory_high


def test_data_parallel_adds_the_gradients_again():
    training = trace_of([20 * MIB], gradient=True)
    validation = trace_of([100 * MIB], gradient=True)
    plain, several = Target(), Target(data_parallel=True)
    tape = Tape({1: training})
    added = predict(tape, 1, several).peak_allocated - predict(tape, 1, plain).peak_allocated
    assert added == 4 * MIB
    pairs = (predict_validation(training, validation, t) for t in (plain, several))
    for one, more in zip(*pairs, strict=True):
        assert more.peak_allocated - one.peak_allocated == 4 * MIB
        assert more.breakdown is not None
        assert one.breakdown is not None
        assert more.breakdown.gradients - one.breakdown.gradients == 4 * MIB
