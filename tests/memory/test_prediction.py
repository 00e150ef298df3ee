"""What a prediction says its bytes are."""

from __future__ import annotations

import dataclasses

from segplan.memory.prediction import Target, _breakdown, modules_at_peak, predict
from segplan.memory.program import WORKSPACE, Program, peak
from segplan.trace.tape import ACTIVATION, PARAMETER, Tape, Trace
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
