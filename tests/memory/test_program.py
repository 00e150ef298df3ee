"""Programs, by hand: what is live when, and where operators begin."""

from __future__ import annotations

import pytest

from segplan.memory.kernels import Architecture
from segplan.memory.limits import kernel_limit, most_elements
from segplan.memory.program import (
    INPUTS,
    OUTSIDE,
    WORKSPACE,
    Program,
    activations_by_module,
    compile_program,
    holdings,
    peak,
    then_validate,
    with_another_step,
)
from segplan.trace.tape import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    PARAMETER,
    TEMPORARY,
    Op,
    TensorMeta,
    Trace,
)


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


def trace_of(*buffers: tuple[int, int, str], events: list[int], starts: list[int]) -> Trace:
    trace = Trace(batch=1, events=events, step_starts=starts)
    for size, kind, module in buffers:
        trace.sizes.append(size)
        trace.kinds.append(kind)
        trace.modules.append(module)
    return trace


def test_validation_follows_the_training_on_its_state():
    training = trace_of(
        (1024, PARAMETER, ""), (2048, INPUT, ""), (4096, ACTIVATION, "a"), (1024, GRADIENT, ""),
        events=[1, 2, 3, 4, -3], starts=[2],
    )  # fmt: skip
    training.ops.append(Op("relu.default", "forward", 0, 2, 3, (), (), ()))
    validation = trace_of(
        (1024, PARAMETER, ""), (1024, GRADIENT, ""), (512, TEMPORARY, ""), (8192, ACTIVATION, "b"),
        events=[1, 2, 3, -3, 4, -4], starts=[4],
    )  # fmt: skip
    validation.ops.append(Op("add.Tensor", "optimizer", -1, 2, 3, (), (), ()))
    validation.ops.append(Op("relu.default", "inference", 0, 4, 5, (), (), ()))
    both = then_validate(training, validation)
    assert both.events == [1, 2, 3, 4, -3, 5, -5]
    assert both.sizes == [0, 1024, 2048, 4096, 1024, 8192]
    assert (both.kinds[5], both.modules[5]) == (ACTIVATION, "b")
    assert both.step_starts == [2, 5]
    assert [(op.phase, op.step, op.at, op.end) for op in both.ops] == [
        ("forward", 0, 2, 3),
        ("inference", 1, 5, 6),
    ]
    program = compile_program(both, None)
    assert peak(program) == (1024 + 2048 + 1024 + 8192, 5)
    assert program.step_starts == [2, 5]
    validation.events.append(-1)
    with pytest.raises(ValueError, match="frees"):
        then_validate(training, validation)


def test_another_step_frees_what_the_last_one_left():
    program = Program()
    weight = program.new(1000, PARAMETER)
    program.ops.append(weight)
    gradients: list[int] = []
    for _ in range(3):
        program.step_starts.append(len(program.ops))
        scratch = program.new(5000, WORKSPACE)
        program.optional[scratch] = (0,)
        gradient = program.new(1000, GRADIENT)
        program.ops += [*gradients, scratch, gradient, scratch]
        gradients = [gradient]
    longer = with_another_step(program)
    fresh = len(program.sizes)
    assert longer.ops == [*program.ops, *gradients, fresh, fresh + 1, fresh]
    assert longer.sizes[fresh:] == [5000, 1000]
    assert longer.optional[fresh] == (0,)
    assert peak(longer)[0] == peak(program)[0]
    program.sizes[gradients[0]] = 2000  # steps that differ are not repeated
    assert with_another_step(program) is program


def test_a_gradient_of_a_view_is_copied_into_its_bases_storage():
    # 1 holds a concatenation's gradient of which a slice comes here; 2 and 3 are what CopySlices
    # makes, 4096 bytes as their base.
    trace = trace_of(
        *((size, TEMPORARY, "") for size in (16384, 4096, 4096)),
        events=[1, 2, -1, 3, -2], starts=[0],
    )  # fmt: skip
    trace.ops += [
        Op("constant_pad_nd.default", "backward", 0, 0, 1, (), (), ()),
        Op("new_empty_strided.default", "backward", 0, 1, 2, (), (), ()),
        Op("copy_.default", "backward", 0, 2, 2, (), (), ()),
        Op("copy_.default", "backward", 0, 2, 2, (), (), ()),
        Op("new_empty_strided.default", "backward", 0, 3, 4, (), (), ()),
        Op("copy_.default", "backward", 0, 4, 4, (), (), ()),
        Op("copy_.default", "backward", 0, 4, 4, (), (), ()),
    ]
    assert compile_program(trace, None).ops == [1, 2, 1, 3, 2]
    # The gradient 1 gives way to storage 4; what the first CopySlices made lies in one already.
    program = compile_program(trace, Architecture())
    assert program.ops == [1, 4, 1, 2, 4, 3, 2]
    assert program.sizes[4] == 4096


def test_a_gradient_that_is_needed_elsewhere_gives_way_to_nothing():
    trace = trace_of(*((4096, TEMPORARY, "") for _ in range(2)), events=[1, 2, -1], starts=[0])
    trace.ops += [
        Op("add.Tensor", "backward", 0, 0, 1, (), (), ()),
        Op("new_empty_strided.default", "backward", 0, 1, 2, (), (), ()),
        Op("copy_.default", "backward", 0, 2, 2, (), (), ()),
        Op("copy_.default", "backward", 0, 2, 2, (), (), ()),
        Op("add.Tensor", "backward", 0, 2, 2, (), (), ()),  # its last use: freed after it
    ]
    assert compile_program(trace, Architecture()).ops == [1, 2, 1]


@pytest.mark.parametrize("side", [1024, 2048])
def test_a_kernels_limit_names_operator_and_module(side):
    large = TensorMeta((1, 2, side, side, 512), "float16", (1, 1, 1, 1, 1))
    small = TensorMeta((1, 2, side // 2, side // 2, 256), "float16", (1, 1, 1, 1, 1))
    trace = trace_of((8, ACTIVATION, "decoder1"), events=[1], starts=[0])
    trace.ops += [
        Op("upsample_trilinear3d.vec", "forward", 0, 0, 1, (small,), (large,), ()),
        Op("upsample_trilinear3d_backward.vec", "backward", 0, 1, 1, (large,), (small,), ()),
        Op("upsample_trilinear3d_backward.default", "backward", 0, 1, 1, (large,), (small,), ()),
    ]
    assert most_elements(trace) == 2 * side * side * 512
    if side == 1024:  # 2^30 elements
        assert kernel_limit(trace) is None
    else:
        assert kernel_limit(trace) == (
            "the gradient of trilinear upsampling (upsample_trilinear3d_backward in decoder1)"
        )
