"""Tracing without detours says what tracing step by step says, and sums gradients as autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from segplan.networks import build, resolve
from segplan.trace import outcomes
from segplan.trace.accumulation import IN_PLACE, SUM, dense, sum_in_place
from segplan.trace.tape import Op, TensorMeta, Trace
from segplan.trace.tracer import trace_step
from segplan.workload import Workload

WORKLOADS = (
    Workload(model="unet", patch=(32, 32, 32), batch=2, precision="bf16", grad_accumulation=2),
    Workload(model="segresnet", patch=(32, 32, 32), batch=2, checkpointing=True, optimizer="sgd"),
    Workload(model="swinunetr", patch=(64, 64, 64), batch=2, model_args={"feature_size": 12}),
    Workload(
        model="basicunetplusplus", patch=(32, 32, 32), batch=2, memory_format="channels_last_3d"
    ),
)


def traced(workload, **how):
    workload = resolve(workload)
    return trace_step(workload, build(workload), **how)


def what_happens(trace):
    """All of a trace but the numbers that optimizers hand to their operators."""
    ops = [op if op.phase != "optimizer" else (op.name, op.at, op.end, op.step) for op in trace.ops]
    return ops, trace.events, trace.sizes, trace.kinds, trace.modules, trace.step_starts


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.model)
def test_what_is_remembered_and_repeated_is_what_would_have_been_seen(workload, monkeypatch):
    quick = traced(workload, repeats=True)
    monkeypatch.setattr(outcomes, "PLAIN", frozenset())
    monkeypatch.setattr(outcomes.Outcomes, "key", lambda *_call: None)
    slow = traced(workload)
    assert what_happens(quick) == what_happens(slow)
    assert len(slow.step_starts) == 3


class Counting(nn.Module):
    """A network that does more in its third step."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv3d(1, 2, 3, padding=1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x) + (x.exp() if self.calls > 2 else 0.0)


def test_a_network_that_may_change_runs_every_step():
    workload = Workload(model="counting", patch=(8, 8, 8), out_channels=2, model_args={})
    trace = trace_step(workload, Counting())
    exps = [op.step for op in trace.ops if op.name == "exp.default" and op.phase == "forward"]
    assert exps == [2]


class Branches(nn.Module):
    """A tensor of three channels that three branches use, whose gradients the engine sums."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(1, 3, 3, padding=1)
        self.branches = nn.ModuleList(nn.Conv3d(3, 2, 3, padding=1) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        return sum(branch(x) for branch in self.branches)


def test_gradients_of_branches_are_summed_in_the_first():
    workload = Workload(
        model="branches", patch=(8, 8, 8), out_channels=2, precision="fp32", model_args={}
    )
    trace = trace_step(workload, Branches())
    sums = [
        op for op in trace.ops
        if op.phase == "backward" and op.name in (SUM, IN_PLACE) and op.inputs[0].shape[1:2] == (3,)
    ]  # fmt: skip
    assert [op.name for op in sums] == [IN_PLACE, IN_PLACE] * 3
    assert all(op.at == op.end for op in sums)
    assert len(trace.events) == len(set(trace.events))
    held = set()
    for event in trace.events:
        assert (abs(event) in held) == (event < 0)
        held ^= {abs(event)}


def metas(*strides):
    return tuple(TensorMeta((2, 2), "float32", s) for s in strides)


def small_trace(first_strides=(2, 1), kept=False):
    """Buffers 1 and 2 are added to 3; 1 is freed right after, or (`kept`) after another one."""
    add = Op(SUM, "backward", 0, 2, 3, metas(first_strides, (2, 1)), metas((2, 1)), ())
    after = Op("relu.default", "backward", 0, 4 if kept else 5, 5 + (not kept), (), (), ())
    tail = [-2, 4, -1, -3, -4] if kept else [-1, -2, 4, -3, -4]
    return Trace(1, [1, 2, 3, *tail], [0, 16, 16, 16, 8], [0] * 5, [""] * 5, [add, after], [0])


def test_a_sum_reuses_what_would_be_freed():
    trace = small_trace()
    sum_in_place(trace, {0: 1})
    assert trace.events == [1, 2, -2, 4, -1, -4]
    assert [(op.name, op.at, op.end) for op in trace.ops] == [
        (IN_PLACE, 2, 2), ("relu.default", 3, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("trace", [small_trace(kept=True), small_trace(first_strides=(4, 1))])
def test_a_sum_stays_apart_where_others_hold_the_first_or_it_has_gaps(trace):
    before = list(trace.events)
    sum_in_place(trace, {0: 1})
    assert trace.events == before
    assert trace.ops[0].name == SUM


def test_dense_is_what_torch_says_of_it():
    base = torch.empty(2, 3, 4, 5)
    parts = base[:, :2], base[:1], base[:, :, :1], base[..., ::2], torch.empty(1, 3).expand(4, 3)
    for tensor in (base, base.permute(3, 1, 0, 2), *parts):
        meta = TensorMeta(tuple(tensor.shape), "float32", tensor.stride())
        assert dense(meta) == torch.ops.aten.is_non_overlapping_and_dense(tensor)
