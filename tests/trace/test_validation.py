"""A validation's trace: what is allocated, and that leaving windows out changes nothing."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import nn

from segplan.errors import NetworkError
from segplan.memory.kernels import Architecture
from segplan.memory.program import activations_by_module, compile_program, holdings, peak
from segplan.memory.replay import least_limit
from segplan.networks import build, resolve
from segplan.step.validate import Validation
from segplan.trace import tracer
from segplan.trace.job import handle
from segplan.trace.tape import GRADIENT, OPTIMIZER, PARAMETER, trace_from_json
from segplan.trace.tracer import SCORING, STITCHING, trace_validation
from segplan.workload import Workload

CLASSES = 5
VOLUME = (64, 48, 32)
POINTWISE = Workload(
    model="anywhere:net", out_channels=CLASSES, patch=(16, 16, 16), precision="fp32", loss="ce"
)
SMALL = resolve(
    Workload(
        model="unet",
        model_args={"channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 1},
        out_channels=CLASSES,
        patch=(32, 32, 32),
    )
)


class Pointwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv3d(1, CLASSES, 1)

    def forward(self, x):
        return self.head(x)


def small_trace(**values):
    return trace_validation(SMALL, build(SMALL), Validation(**{"volume": (96, 96, 64), **values}))


def numbers(trace):
    program = compile_program(trace, Architecture((8, 6), 82))
    least = least_limit(program.ops, program.sizes, optional=program.optional)
    most, where = peak(program)
    return most, holdings(program, where), least


@pytest.fixture(scope="module")
def pointwise():
    return trace_validation(POINTWISE, Pointwise(), Validation(VOLUME))


def test_the_peak_is_that_of_the_metric_on_the_whole_volume(pointwise):
    program = compile_program(pointwise, None)
    most, where = peak(program)
    # A voxel: one-hot prediction and label (float32 for each class), the image (float32), and
    # for a class's overlap its mask (bool), positions (three int64) and selection (float32).
    each = 2 * 4 * CLASSES + 4 + 1 + 3 * 8 + 4
    assert most == pytest.approx(each * prod(VOLUME), rel=0.002)
    mark = [mark for mark in program.marks if mark.at <= where][-1]
    assert mark.phase == "metric"
    assert set(activations_by_module(program, where)) >= {SCORING}


def test_stitching_holds_the_output_the_count_map_and_the_volume_before(pointwise):
    program = compile_program(pointwise, None)
    ends = [m.at for m in program.marks if m.phase == "inference"]
    held = activations_by_module(program, max(ends) - 1)
    # Second volume: logits, count map, image and label; the first one's one-hot prediction.
    # Of the last pass: four windows, their logits and the map of a window's weights.
    last = (4 * (1 + CLASSES) + 1) * 4 * 16**3
    assert held[STITCHING] == (4 * CLASSES + 4 + 4 + 4) * prod(VOLUME) + last
    assert held[SCORING] == pytest.approx(4 * CLASSES * prod(VOLUME), rel=1e-3)


def test_the_trainings_state_stays():
    trace = small_trace()
    begin = trace.step_starts[0]
    parameters = sum(s for s, k in zip(trace.sizes, trace.kinds, strict=True) if k == PARAMETER)
    for kind, times in ((GRADIENT, 1), (OPTIMIZER, 2)):
        held = [i for i, k in enumerate(trace.kinds) if k == kind]
        assert sum(trace.sizes[i] for i in held) == times * parameters
        assert all(i in trace.events[:begin] and -i not in trace.events for i in held)


@pytest.mark.parametrize("stitch", ["gpu", "cpu"])
def test_two_passes_and_windows_side_by_side_tell_what_all_of_them_do(monkeypatch, stitch):
    values = {"volume": (64, 64, 64), "sw_batch_size": 2, "stitch": stitch}
    few = numbers(small_trace(**values))
    monkeypatch.setattr(tracer, "REAL_PASSES", 10**6)
    monkeypatch.setattr(tracer, "_with_few_windows", lambda workload, validation: validation)
    every = numbers(small_trace(**values))
    assert every == few


def test_stitched_on_the_cpu_the_volume_does_not_matter():
    small, large = (small_trace(volume=(64, 64, 64 * n), stitch="cpu") for n in (1, 2))
    assert numbers(small) == numbers(large)
    assert max(large.sizes) < 4 * CLASSES * 64 * 64 * 128
    assert not [op for op in large.ops if op.phase == "metric"]


def test_more_windows_at_a_time_need_more():
    assert numbers(small_trace(stitch="cpu", sw_batch_size=8))[0] > (
        1.5 * numbers(small_trace(stitch="cpu", sw_batch_size=4))[0]
    )


def test_a_gaussian_map_and_windows_larger_than_the_volume():
    assert numbers(small_trace(mode="gaussian"))[0] > 0
    trace = small_trace(volume=(20, 40, 32), roi_size=(32, 32, 32))
    assert trace.ops


def test_a_real_validation_allocates_what_the_trace_says(pointwise):
    """Tensors of a real run on the CPU, where nothing is left out, against the trace's."""
    sizes = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not out._is_view():
                sizes.append((str(func), out.untyped_storage().nbytes()))
            return out

    step = tracer.ValidationStep(
        POINTWISE,
        Validation(VOLUME),
        tracer.predictor(Pointwise()),
        torch.device("cpu"),
        torch.device("cpu"),
        "cpu",
    )
    label = torch.randint(0, CLASSES, (1, 1, *VOLUME)).float()
    with Count():
        step.run([(torch.randn(1, 1, *VOLUME), label)] * tracer.VOLUMES)
    whole = 4 * CLASSES * prod(VOLUME)
    begin = max(pointwise.events[: pointwise.step_starts[0]])
    real = len({i for i, (name, size) in enumerate(sizes) if size == whole and "zeros" in name})
    assert real == 3 * tracer.VOLUMES  # output, one-hot prediction, one-hot label
    assert sum(size == whole for size in pointwise.sizes[begin + 1 :]) == real


def test_a_window_the_network_refuses_is_named():
    request = {
        "workload": SMALL.to_dict(),
        "validation": Validation((96, 96, 96), roi_size=(30, 32, 32)).to_dict(),
    }
    with pytest.raises(NetworkError, match="unet cannot validate with windows of 30x32x32"):
        handle(request, lambda _: None)
    request["validation"] = Validation((96, 96, 96)).to_dict()
    assert trace_from_json(handle(request, lambda _: None)["trace"]).ops
