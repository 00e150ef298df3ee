"""Operators of a tape run by themselves; how many calls a sample takes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from segplan.baseline.operator_job import handle
from segplan.baseline.operators import (
    SAMPLE_S,
    SAMPLES,
    SMALL_BYTES,
    NotReplayable,
    Prepared,
    measure,
    prepare,
    time_operator,
)
from segplan.networks import resolve
from segplan.timing.operators import Operator, operators_request
from segplan.trace.job import handle as trace
from segplan.trace.tape import Op, trace_from_json
from segplan.workload import Workload
from tests.timing.timed import convolution, meta, stream


@pytest.fixture(scope="module", params=["unet", "swinunetr", "segresnet"])
def step(request):
    """The operators of a small step."""
    arguments = {
        "unet": {"channels": (4, 8), "strides": (2,), "num_res_units": 1},
        "swinunetr": {"feature_size": 12, "depths": (2, 2, 2, 2)},
        "segresnet": {"init_filters": 8, "blocks_down": (1, 1), "blocks_up": (1,)},
    }[request.param]
    workload = resolve(
        Workload(
            model=request.param, model_args=arguments, patch=(64, 64, 64), batch=2,
            precision="fp16", out_channels=3,
        )
    )  # fmt: skip
    reply = trace({"workload": workload.to_dict()}, lambda _: None)
    return [op for op in trace_from_json(reply["trace"]).ops if op.step == 1]


SKIPPED = ("empty", "new_empty", "profiler", "index_put", "reciprocal")


def test_what_a_step_runs_can_be_run_again_and_gives_the_same_shapes(step):
    refused = []
    for op in dict.fromkeys(step):
        if op.name.startswith(SKIPPED) or not op.outputs:
            continue
        with FakeTensorMode(allow_non_fake_inputs=True):
            try:
                made = prepare(op, "cpu").call()
            except NotReplayable as error:
                refused.append(str(error))
                continue
        made = made if isinstance(made, (tuple, list)) else [made]
        shapes = [tuple(t.shape) for t in made if t is not None]
        assert shapes[0] == op.outputs[0].shape, op
    assert len(refused) < 0.02 * len(step), refused


def test_optional_tensors_are_where_they_belong():
    # grad, self, target, no weight, reduction, ignored, total weight
    op = Op(
        "nll_loss2d_backward.default", "backward", 0, 0, 0,
        (meta(dtype="float32"), meta(2, 3, 4, 4, dtype="float32"), meta(2, 4, 4, dtype="int64"),
         meta(dtype="float32")),
        (meta(2, 3, 4, 4, dtype="float32"),), (None, None, None, None, 1, -100, None),
    )  # fmt: skip
    assert prepare(op, "cpu").call().shape == (2, 3, 4, 4)


def test_positions_among_the_inputs_are_valid():
    op = Op(
        "scatter_.value", "forward", 0, 0, 0,
        (meta(2, 5, 4, dtype="float32"), meta(2, 1, 4, dtype="int64")),
        (meta(2, 5, 4, dtype="float32"),), (None, 1, None, 1),
    )  # fmt: skip
    for _ in range(5):
        prepare(op, "cpu").call()


@pytest.mark.parametrize("op", [
    Op("no_such_thing.default", "forward", 0, 0, 0, (meta(2),), (meta(2),), (None,)),
    Op("add.Tensor", "forward", 0, 0, 0, (meta(2),), (meta(2),), (None, None)),
    Op("relu.default", "forward", 0, 0, 0, (meta(2), meta(2)), (meta(2),), (None,)),
    Op("relu.default", "forward", 0, 0, 0, (meta(2, dtype="nn"),), (meta(2),), (None,)),
])  # fmt: skip
def test_what_cannot_be_run_is_told_in_words(op):
    with pytest.raises(NotReplayable):
        prepare(op, "cpu")


class FakeTimer:
    """A device that takes so long for a call, and waits for the host unless it is held.

    With a cold cache a call takes ten times as long.
    """

    def __init__(self, device_s, host_s=0.0):
        self.device_s, self.host_s = device_s, host_s
        self.runs, self.cold = [], False

    def together(self, call, count, hold_s):
        for _ in range(count):
            call()
        self.runs.append((count, hold_s))
        hidden = hold_s >= self.host_s * count
        return count * (self.device_s if hidden else max(self.device_s, self.host_s)), (
            count * self.host_s
        )

    def apart(self, call, before, count, hold_s):
        took = []
        for _ in range(count):
            self.cold = False
            before()
            call()
            hidden = hold_s >= self.host_s * count
            device_s = self.device_s * (10 if self.cold else 1)
            took.append(device_s if hidden else max(device_s, self.host_s))
        return took, count * self.host_s

    def forget(self):
        self.cold = True


def prepared(call=lambda: None, fresh=None):
    return Prepared(call, fresh)


@pytest.mark.parametrize(("device_s", "host_s"), [(3e-6, 2e-5), (2e-4, 2e-5), (0.01, 2e-5)])
@pytest.mark.parametrize(("size", "times"), [(1, 1), (SMALL_BYTES + 1, 10), (2**40, 1)])
def test_the_host_does_not_count_and_the_cache_is_as_in_a_step(device_s, host_s, size, times):
    found = measure(prepared(), FakeTimer(device_s, host_s), size)
    assert len(found) >= SAMPLES
    assert found == pytest.approx([times * device_s] * len(found))


def test_what_the_operator_before_has_made_is_made_again():
    seen = []
    fresh = torch.arange(4.0)

    def call():  # in place, as many are
        seen.append(fresh.tolist())
        fresh.mul_(2)

    measure(prepared(call, fresh), FakeTimer(1e-5), SMALL_BYTES + 1)
    assert len(set(map(tuple, seen[2:]))) == 1


def test_a_long_operator_is_called_once_a_sample_and_a_short_one_often():
    long, short = FakeTimer(2 * SAMPLE_S), FakeTimer(1e-6)
    measure(prepared(), long, 1)
    measure(prepared(), short, 1)
    assert {count for count, _ in long.runs} == {1}
    assert short.runs[-1][0] == 20


def test_too_large_and_failing_operators_say_why():
    timer = FakeTimer(1e-5)
    assert time_operator(stream(2**20), "fp16", timer, "cpu", 2**20).why_not == "too large"
    odd = Op("mm.default", "forward", 0, 0, 0, (meta(2, 3, dtype="float32"),) * 2,
             (meta(2, 2, dtype="float32"),), (None, None))  # fmt: skip
    assert "multiplied" in time_operator(odd, "fp32", timer, "cpu", 2**20).why_not


def test_a_broken_context_ends_the_process():
    class Broken(FakeTimer):
        def together(self, call, count, hold_s):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError):
        time_operator(stream(8), "fp16", Broken(1), "cpu", 2**20)


def test_tf32_is_as_the_operator_asks():
    before = torch.backends.cudnn.allow_tf32
    seen = []

    class Looking(FakeTimer):
        def together(self, call, count, hold_s):
            seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return super().together(call, count, hold_s)

    for precision in ("tf32", "fp32"):
        time_operator(stream(8), precision, Looking(1e-5), "cpu", 2**20)
    torch.backends.cudnn.allow_tf32 = before
    assert seen[0] == (True, True)
    assert seen[-1] == (False, False)


OPERATORS = [
    Operator(convolution(2, 2, 8, dtype="float32"), "fp32"),
    Operator(stream(2**30), "fp16"),
    Operator(stream(2, 8, 8, dtype="float32"), "tf32"),
]


def test_the_child_answers_for_each_operator_as_it_goes(monkeypatch):
    monkeypatch.setattr("segplan.baseline.operator_job.MOST_BYTES", 2**20)
    told = []
    request = {**operators_request(OPERATORS), "first": 1, "seconds": 60, "device": "cpu"}
    answer = handle(request, told.append)
    assert answer["next"] == 3
    assert told[:3] == [{"at": 1}, {"at": 1, "why_not": "too large"}, {"at": 2}]
    assert len(told[3]["seconds"]) == SAMPLES
    assert min(told[3]["seconds"]) > 0


def test_no_operator_is_begun_when_the_time_is_over():
    request = {**operators_request(OPERATORS), "first": 0, "seconds": 0, "device": "cpu"}
    assert handle(request, lambda _: None)["next"] == 0
