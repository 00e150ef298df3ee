"""Windows are counted as MONAI counts them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monai.data.utils import dense_patch_slices
from monai.inferers.utils import _get_scan_interval

from segplan.errors import RequestError
from segplan.schedule import calls_per_volume, windows_per_volume

sides = st.integers(1, 400)
volume = st.tuples(sides, sides, st.integers(1, 200))
window = st.tuples(*[st.integers(8, 256)] * 3)


def monai_windows(shape, roi, overlap):
    """What `sliding_window_inference` does before its first forward pass."""
    padded = tuple(max(s, r) for s, r in zip(shape, roi, strict=True))
    interval = _get_scan_interval(padded, roi, 3, (overlap,) * 3)
    return len(dense_patch_slices(padded, roi, interval, return_slice=False))


# Small strides in a large volume make a million windows: MONAI lists them all, the count does not.
@settings(max_examples=300, deadline=None)
@given(volume, window, st.floats(0, 0.75))
@example((240, 240, 155), (128, 128, 128), 0.5)
@example((96, 96, 96), (96, 96, 96), 0.6)
@example((97, 96, 95), (96, 96, 96), 0.7)
@example((287, 287, 397), (96, 96, 96), 0.4)
@example((400, 400, 200), (8, 8, 8), 0.25)
def test_as_many_as_monai(shape, roi, overlap):
    assert windows_per_volume(shape, roi, overlap) == monai_windows(shape, roi, overlap)


def test_a_stride_is_never_zero():
    assert windows_per_volume((12, 10, 10), (10, 10, 10), 0.99) == 3
    assert monai_windows((12, 10, 10), (10, 10, 10), 0.99) == 3


def test_a_window_larger_than_the_volume_is_one():
    assert windows_per_volume((64, 64, 20), (96, 96, 96), 0.5) == 1


@pytest.mark.parametrize("overlap", [-0.1, 1.0, 1.5, float("nan")])
def test_an_overlap_out_of_range(overlap):
    with pytest.raises(RequestError, match="overlap"):
        windows_per_volume((96, 96, 96), (96, 96, 96), overlap)


def test_calls_count_the_last_incomplete_one():
    assert [calls_per_volume(n, 4) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]
