"""Programs, by hand: what is live when, and where operators begin."""

from __future__ import annotations

import pytest

from segplan.memory.program import (
    INPUTS,
    OUTSIDE,
    WORKSPACE,
    Program,
    activations_by_module,
    compile_program,
    holdings,
    peak,
)
from segplan.trace.tape import ACTIVATION, INPUT, PARAMETER, Op, Trace


@pytest.fixture
def program() -> Program:
    program = Program()
    weight = program.new(1000, PARAMETER)
    image = program.new(100, INPUT)
    first = program.new(2000, ACTIVATION, "encoder")
    scratch = program.new(5000, WORKSPACE)
    second = program.new(3000, ACTIVATION, "decoder")
    loss = program.new(4, ACTIVATION)
    program.optional[scratch] = (0,)
    program.ops += [weight, image, first, scratch, scratch, second, loss, second, loss, first]
    return program


def test_peak_counts_blocks_of_512(program):
    assert peak(program) == (1024 + 512 + 2048 + 5120, 3)


def test_peak_without_workspaces(program):
    assert peak(program, program.optional) == (1024 + 512 + 2048 + 3072 + 512, 6)


def test_holdings_add_up_to_the_peak(program):
    most, where = peak(program)
    assert sum(holdings(program, where).values()) == most
    assert holdings(program, where)[WORKSPACE] == 5120
    assert WORKSPACE not in holdings(program, where, program.optional)


def test_modules_add_up_to_the_activations(program):
    held = holdings(program, 6)
    modules = activations_by_module(program, 6)
    assert modules == {"decoder": 3072, "encoder": 2048, INPUTS: 512, OUTSIDE: 512}
    assert list(modules)[:2] == ["decoder", "encoder"]
    assert sum(modules.values()) == held[ACTIVATION] + held[INPUT]


def test_operators_are_marked_with_and_without_an_architecture():
    trace = Trace(batch=1)
    trace.sizes += [512, 1024]
    trace.kinds += [PARAMETER, ACTIVATION]
    trace.modules += ["", ""]
    trace.events += [1, 2, -2]
    trace.step_starts += [1]
    trace.ops += [Op("relu.default", "forward", 0, 1, 2, (), (), ())]
    program = compile_program(trace, None)
    assert program.ops == [1, 2, 2]
    assert program.step_starts == [1]
    assert [(m.at, m.name, m.phase, m.step) for m in program.marks] == [
        (1, "relu.default", "forward", 0)
    ]
