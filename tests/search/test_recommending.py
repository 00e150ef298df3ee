from __future__ import annotations

from segplan.results import Basis, Cell, LimitedBy, StepTime
from segplan.search import recommend


def cell(side, batch, *, patch=None, seconds=None, status="ok"):
    step = None if seconds is None else StepTime(seconds, seconds, seconds, Basis.MEASURED)
    return Cell(patch or (side,) * 3, batch, LimitedBy.MEMORY, None, step, status=status)


def test_the_largest_patch_that_trains_two():
    index, reason = recommend([cell(64, 17), cell(96, 4), cell(128, 1), cell(160, 0)])
    assert index == 1
    assert reason == "the largest patch that trains at least 2 a step"


def test_a_single_patch_only_where_no_size_trains_two():
    index, reason = recommend([cell(96, 1), cell(128, 1), cell(160, 0)])
    assert index == 1
    assert "no size here trains two" in reason


def test_order_does_not_matter():
    assert recommend([cell(160, 0), cell(96, 4), cell(64, 17)])[0] == 1


def test_equal_volumes_are_told_apart_by_throughput_where_known():
    slab = (128, 128, 64)
    other = (64, 128, 128)
    by_batch = [cell(0, 3, patch=slab), cell(0, 4, patch=other)]
    assert recommend(by_batch)[0] == 1
    # 3 / 0.2 s = 15 patches a second against 4 / 0.4 s = 10
    by_rate = [cell(0, 3, patch=slab, seconds=0.2), cell(0, 4, patch=other, seconds=0.4)]
    assert recommend(by_rate)[0] == 0
    # One step is not known: the batch decides.
    assert recommend([by_rate[0], by_batch[1]])[0] == 1


def test_one_cell_is_recommended_for_what_it_trains():
    assert recommend([cell(96, 1)]) == (0, "it trains 1 patch a step")
    assert recommend([cell(96, 4)]) == (0, "it trains 4 patches a step")


def test_nothing_fits_and_nothing_known_are_told_apart():
    assert recommend([cell(64, 0), cell(96, 0)]) == (None, "nothing fits at any of these sizes")
    assert recommend([cell(64, 0, status="failed")]) == (None, "no cell has an answer")
    assert recommend([]) == (None, "no cell has an answer")
    index, reason = recommend([cell(64, 0), cell(96, 0, status="timed_out")])
    assert index is None
    assert "1 of 2 have none" in reason
