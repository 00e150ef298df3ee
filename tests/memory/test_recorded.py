"""The rules of what kernels allocate, against a recorded real run."""

import gzip
import json
from pathlib import Path

import pytest

from segplan.memory.kernels import Architecture
from segplan.memory.program import compile_program
from segplan.memory.reduction import staging_bytes
from segplan.memory.replay import replay
from segplan.networks import build, resolve
from segplan.trace import autocast
from segplan.trace.tape import TensorMeta
from segplan.trace.tracer import trace_step
from segplan.workload import Workload

RECORDED = Path(__file__).parent / "recorded" / "h200_allocations.jsonl.gz"
H200_SMS = 132


@pytest.fixture(scope="module")
def recorded():
    with gzip.open(RECORDED, "rt") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if "ops" in line]


def dense(shape, dtype):
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return TensorMeta(tuple(shape), dtype, tuple(strides))


def test_reductions_stage_what_the_card_was_seen_to_stage(recorded):
    seen = set()
    for line in recorded:
        for name, _phase, start, end, arguments in line["ops"]:
            if name != "sum.dim_IntList":
                continue
            events = line["opseq"][start:end]
            sizes = {start + i + 1: e for i, e in enumerate(events) if e > 0}
            freed = [sizes[-e] for e in events if -e in sizes]
            if sum(freed) < 2**18:
                continue
            (shape, dtype), dims = arguments[0], arguments[1]
            predicted = staging_bytes(dense(shape, dtype), tuple(dims), H200_SMS)
            assert predicted == pytest.approx(max(freed), rel=0.01), (shape, dims)
            seen.add((tuple(shape), tuple(dims)))
    assert len(seen) > 40


@pytest.mark.parametrize(
    ("model", "precision"),
    [("unet", "fp16"), ("dynunet", "bf16"), ("segresnet", "tf32"), ("attentionunet", "fp32")],
)
def test_the_peak_of_a_step_is_what_the_card_allocated(recorded, model, precision):
    wanted = Workload(model=model, precision=precision, batch=2, zero_grad="before_backward")
    line = next(
        line for line in recorded if Workload.from_dict(line["workload"]).key() == wanted.key()
    )
    workload = resolve(wanted)
    program = compile_program(
        trace_step(workload, build(workload)), Architecture((9, 0), H200_SMS, precision != "fp32")
    )
    peak = replay(program.ops, program.sizes).peak_allocated
    assert peak == pytest.approx(max(line["peak2"], line["peak3"]), rel=0.005)


def test_the_cast_list_is_the_one_torch_registers_for_cuda():
    assert autocast.registered("AutocastCUDA") == autocast.ALL
