"""The validation step itself, run for real on the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monai.data.meta_obj import get_track_meta
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval
from torch import nn

from segplan.errors import WorkloadError
from segplan.step.validate import (
    Validation,
    ValidationStep,
    call_count,
    main_output,
    predictor,
    window_count,
)
from segplan.workload import Workload

CPU = torch.device("cpu")


class Threshold(nn.Module):
    """Says class 1 where the image is positive; refuses to run in train mode."""

    def forward(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.windows = (*getattr(self, "windows", ()), tuple(x.shape))
        return [torch.cat([torch.zeros_like(x), x], dim=1), None]


def dice(prediction, label):
    return 2 * (prediction & label).sum() / (prediction.sum() + label.sum())


@pytest.mark.parametrize("stitch", ["gpu", "cpu"])
@pytest.mark.parametrize("mode", ["constant", "gaussian"])
def test_volumes_are_scored_whole(stitch, mode):
    torch.manual_seed(0)
    workload = Workload(out_channels=2, patch=(8, 8, 8), precision="fp32")
    validation = Validation((20, 16, 11), sw_batch_size=3, mode=mode, stitch=stitch)
    network = Threshold().train()
    phases = []
    step = ValidationStep(
        workload, validation, predictor(network), CPU, CPU, "cpu", on_phase=phases.append
    )
    volumes = [
        (torch.randn(1, 1, 20, 16, 11), torch.randint(0, 2, (1, 1, 20, 16, 11)).float())
        for _ in range(2)
    ]
    score = step.run(volumes)
    wanted = [
        (dice(x > 0, y > 0) + dice(x <= 0, y == 0)) / 2 for x, y in volumes
    ]  # both classes, background included
    assert float(score) == pytest.approx(float(sum(wanted) / 2))
    assert phases == ["inference", "metric"] * 2
    count = window_count(validation.volume, (8, 8, 8), 0.25)
    assert sum(shape[0] for shape in network.windows) == 2 * count
    assert {shape[2:] for shape in network.windows} == {(8, 8, 8)}
    assert max(shape[0] for shape in network.windows) == 3
    assert get_track_meta() is True


def test_one_class_is_a_threshold():
    workload = Workload(out_channels=1, patch=(8, 8, 8), precision="fp32")
    step = ValidationStep(workload, Validation((8, 8, 8)), lambda x: x, CPU, CPU, "cpu")
    image = torch.randn(1, 1, 8, 8, 8)
    label = (torch.rand_like(image) < 0.5).float()
    wanted = float(dice(image > 0, label > 0))
    assert float(step.run([(image, label)])) == pytest.approx(wanted)


sides = st.integers(1, 400)


def monai_windows(volume, window, overlap):
    """What `sliding_window_inference` does before its first forward pass."""
    padded = tuple(map(max, volume, window))
    stride = _get_scan_interval(padded, window, 3, (overlap,) * 3)
    return len(dense_patch_slices(padded, window, stride, return_slice=False))


# Small strides in a large volume make a million windows: MONAI lists them all, the count does not.
@settings(max_examples=300, deadline=None)
@given(
    st.tuples(sides, sides, st.integers(1, 200)),
    st.tuples(*[st.integers(8, 256)] * 3),
    st.floats(0, 0.75),
)
@example((240, 240, 155), (128, 128, 128), 0.5)
@example((96, 96, 96), (96, 96, 96), 0.6)
@example((97, 200, 64), (96, 64, 32), 0.8)
@example((287, 287, 397), (96, 96, 96), 0.4)
@example((400, 400, 200), (8, 8, 8), 0.25)
@example((12, 10, 10), (10, 10, 10), 0.99)  # a stride is never 0
def test_windows_are_counted_as_monai_places_them(volume, window, overlap):
    assert window_count(volume, window, overlap) == monai_windows(volume, window, overlap)


def test_forward_passes_count_the_last_incomplete_one():
    assert [call_count(n, 4) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]


def test_the_main_output():
    full, half = torch.zeros(1, 2, 4, 4, 4), torch.zeros(1, 2, 2, 2, 2)
    assert main_output(full) is full
    assert main_output((full, None)) is full
    assert main_output([[full, half], half]) is full
    assert main_output({"main": full}) is full
    assert main_output(torch.stack([full, full], 1)).shape == full.shape
    with pytest.raises(TypeError, match="no tensor"):
        main_output([torch.zeros(3)])


def test_a_validation_is_checked_and_travels():
    v = Validation(96, roi_size=[64, 64, 32], overlap=0)
    assert v.volume == (96, 96, 96)
    assert v.window((1, 2, 3)) == (64, 64, 32)
    assert Validation(96).window((1, 2, 3)) == (1, 2, 3)
    assert Validation.from_dict(v.to_dict()) == v
    assert len({v, Validation.from_dict(v.to_dict())}) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"volume": (96, 96)}, "volume must be three"),
        ({"volume": (96, 96, 0)}, "volume must be three"),
        ({"roi_size": (96, True, 1)}, "roi_size must be three"),
        ({"sw_batch_size": 0}, "sw_batch_size"),
        ({"sw_batch_size": 1.5}, "sw_batch_size"),
        ({"overlap": 1.0}, "overlap"),
        ({"overlap": float("nan")}, "overlap"),
        ({"overlap": "half"}, "overlap"),
        ({"mode": "gausian"}, "did you mean gaussian"),
        ({"stitch": "disk"}, "gpu, cpu"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(WorkloadError, match=message):
        Validation(**{"volume": (96, 96, 96), **values})
