"""Workspaces of convolutions: the rule of layout, and what was recorded."""

from __future__ import annotations

import pytest

from segplan.memory import plans
from segplan.memory.convolution import Convolution, layout_copies, workspaces
from segplan.memory.plans import Plan, Seen, nearest
from segplan.trace.tape import Op, TensorMeta

HALF = "float16"
ON = {"tf32": True, "capability": (9, 0)}


def dense(*shape: int, dtype: str = HALF) -> TensorMeta:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return TensorMeta(shape, dtype, tuple(strides))


def conv(
    c_in: int, c_out: int, side: int, kernel: int = 3, samples: int = 2, dtype: str = HALF
) -> Convolution:
    return Convolution(
        dense(samples, c_in, side, side, side, dtype=dtype),
        dense(samples, c_out, side, side, side, dtype=dtype),
        dense(c_out, c_in, kernel, kernel, kernel, dtype=dtype),
        (1, 1, 1), False, 1,
    )  # fmt: skip


@pytest.fixture
def table(monkeypatch):
    known = {}
    monkeypatch.setattr(plans, "recorded", lambda: known)
    return known


def test_copies_are_padded_to_16_bytes():
    image, weight = 2 * 16**3, 27
    half = layout_copies("wgrad", conv(14, 32, 16), True)
    assert half == 2 * (image * (16 + 32) + weight * 14 * 32)
    single = layout_copies("wgrad", conv(14, 33, 16, dtype="float32"), False)
    assert single == 4 * (image * (16 + 36) + weight * 14 * 33)


def test_one_channel_has_nothing_to_turn_around():
    one = conv(1, 32, 16)
    assert layout_copies("fprop", one, True) == 2 * 2 * 16**3 * 32
    assert layout_copies("fprop", conv(1, 32, 16, dtype="bfloat16"), True) == 0


def test_the_nearest_record_of_the_same_weights_counts(table):
    plan = Plan(HALF, "wgrad", (64, 64, 3, 3, 3), (1, 1, 1), False, 2)
    table[plan.key()] = (Seen(10_000, 100), Seen(100_000, 200), Seen(50_000, 0, 0.1, 2))
    assert nearest(plan, 20_000) == Seen(10_000, 100)
    assert nearest(plan, 45_000) == Seen(50_000, 0, 0.1, 2)
    assert nearest(plan._replace(samples=3), 45_000) == Seen(100_000, 200)  # copies may be made
    assert nearest(plan, 81_000) == Seen(100_000, 200)
    assert nearest(plan, 900_000) is None
    assert nearest(plan._replace(precision="bfloat16"), 10_000) == Seen(10_000, 100)
    assert nearest(plan._replace(precision="tf32"), 10_000) is None
    assert nearest(plan._replace(samples=1), 10_000) is None


def test_a_record_is_what_an_operator_is_given(table):
    case = conv(64, 64, 32)
    op = Op(
        "convolution.default", "forward", 0, 0, 1, (case.image, case.weight), (case.result,),
        (None, None, None, (1, 1, 1), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), 1),
    )  # fmt: skip
    copies = layout_copies("fprop", case, True)
    assert workspaces(op, **ON) == ((1, copies),)
    plan = Plan(HALF, "fprop", case.weight.shape, (1, 1, 1), False, 2)
    table[plan.key()] = (Seen(2 * 32**3, 4096),)
    assert workspaces(op, **ON) == ((1, copies + 4096),)
    table[plan.key()] = (Seen(2 * 32**3, 0, 0.0, 2),)
    assert workspaces(op, **ON) == ()
    assert workspaces(op, tf32=True, capability=(6, 1)) == ()  # no tensor cores


def test_the_shipped_table_reads():
    table = plans.recorded()
    assert len(table) > 500
    for key, rows in table.items():
        assert key.split()[1] in ("fprop", "dgrad", "wgrad")
        assert all(row.voxels > 0 for row in rows)
