"""DDP's buckets: as torch assigns them, and where they stand in a trace."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segplan.memory.distributed import (
    FIRST_BUCKET,
    bucket_sizes,
    communicator_bytes,
    data_parallel,
    with_buckets,
)
from segplan.memory.program import compile_program, holdings, peak
from segplan.trace.tape import ACTIVATION, BUFFER, GRADIENT, INPUT, PARAMETER, Op, Trace
from segplan.units import MIB


@given(st.lists(st.integers(1, 8 * 2**20), min_size=1, max_size=40))
def test_buckets_are_those_of_torch(elements):
    assign = getattr(torch.distributed, "_compute_bucket_assignment_by_size", None)
    if assign is None:
        pytest.skip("torch was built without distributed")
    parameters = [torch.empty(n, device="meta") for n in elements]
    order = parameters[::-1]
    indices, _ = assign(order, [FIRST_BUCKET, 25 * MIB])
    wanted = [sum(4 * order[i].numel() for i in bucket) for bucket in indices]
    assert sorted(bucket_sizes([4 * n for n in elements])) == sorted(wanted)


def test_buckets_in_order():
    sizes = [10 * MIB, 20 * MIB, MIB // 2, MIB // 2, 1024]
    # From the last: 1 MiB and a little fill the first; 20 + 10 MiB make the second.
    assert bucket_sizes(sizes) == [MIB + 1024, 30 * MIB]
    assert bucket_sizes([]) == []


def steps() -> Trace:
    """Two parameters, a buffer and an image; two steps with an activation and a gradient each."""
    trace = Trace(batch=1)
    for size, kind in (
        (4 * MIB, PARAMETER),
        (2 * MIB, PARAMETER),
        (512, BUFFER),
        (MIB, INPUT),
        (8 * MIB, ACTIVATION),
        (6 * MIB, GRADIENT),
        (8 * MIB, ACTIVATION),
        (6 * MIB, GRADIENT),
    ):
        trace.sizes.append(size)
        trace.kinds.append(kind)
        trace.modules.append("")
    #                0  1  2  3  4  5  6   7   8  9  10
    trace.events += [1, 2, 3, 4, 5, 6, -5, -6, 7, 8, -7]
    trace.step_starts += [4, 7]
    trace.ops += [
        Op("relu.default", "forward", 0, 4, 5, (), (), ()),
        Op("threshold_backward.default", "backward", 0, 5, 6, (), (), ()),
        Op("relu.default", "forward", 1, 8, 9, (), (), ()),
        Op("threshold_backward.default", "backward", 1, 9, 10, (), (), ()),
    ]
    return trace


def test_one_bucket_at_first_and_the_usual_ones_from_the_second_step_on():
    plain = steps()
    found = with_buckets(plain)
    assert found.events[:5] == [1, 2, 3, 9, 4]  # behind parameters and buffers
    assert found.sizes[9:] == [6 * MIB, 2 * MIB, 4 * MIB]
    assert found.kinds[9:] == [GRADIENT] * 3
    # Zeroed gradients are gone when the second forward pass begins.
    at = found.events.index(-6)
    assert found.events[at : at + 5] == [-6, -9, 10, 11, 7]
    assert found.step_starts == [5, 8]
    for old, new in zip(plain.ops, found.ops, strict=True):
        assert found.events[new.at : new.end] == plain.events[old.at : old.end]


def test_the_peak_grows_by_all_gradients():
    before, after = (compile_program(t, None) for t in (steps(), with_buckets(steps())))
    assert peak(after)[0] - peak(before)[0] == 6 * MIB
    held = [holdings(p, peak(p)[1])[GRADIENT] for p in (before, after)]
    assert held[1] - held[0] == 6 * MIB


def test_a_trace_without_a_second_step_keeps_one_bucket():
    trace = steps()
    trace.events = trace.events[:6]
    trace.step_starts, trace.ops = [4], trace.ops[:2]
    assert with_buckets(trace).sizes[9:] == [6 * MIB]


def test_one_gpu_adds_nothing():
    assert data_parallel(steps(), 1) is None
    assert communicator_bytes(1) == 0
    found = data_parallel(steps(), 4)
    assert found is not None
    assert (found.gpus, sum(found.buckets)) == (4, 6 * MIB)
    assert found.communicator == communicator_bytes(4) > communicator_bytes(2) > 0
