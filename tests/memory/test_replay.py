"""The replay of requests, with optional ones and plans that are kept, and the least limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from segplan.memory import replay as module
from segplan.memory.allocator import MIB, Allocator
from segplan.memory.replay import least_limit, replay
from tests.memory.requests import ANY_SETTINGS, LIMITS, drive, programs


@given(programs(), LIMITS, ANY_SETTINGS)
@hypothesis_settings(max_examples=150, deadline=None)
def test_replay_equals_the_interface_and_itself(program, limit, settings):
    allocator = Allocator(limit, settings)
    failed = drive(allocator, *program)
    result = replay(*program, limit, settings)
    assert result == replay(*program, limit, settings)
    assert result.out_of_memory_at == failed
    assert result.trains == (failed is None)
    for name in ("peak_allocated", "peak_reserved", "peak_requested", "allocated", "reserved",
                 "retries", "ooms"):  # fmt: skip
        assert getattr(result, name) == getattr(allocator, name), name


@given(programs())
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_limit_at_peak_reserved_changes_nothing(program):
    free = replay(*program)
    assert replay(*program, free.peak_reserved) == free


def test_a_buffer_may_be_allocated_again():
    assert replay([0, 0, 0, 0], [5 * MIB]).peak_reserved == 20 * MIB
    assert replay([0, 0, 0], [5 * MIB]).allocated == 5 * MIB


def test_optional_allocations_fall_back():
    # 60 MiB held, limit 100: 80 fails, 50 fails, 30 fits.
    result = replay([0, 1, 1], [60 * MIB, 80 * MIB], 100 * MIB, optional={1: (50 * MIB, 30 * MIB)})
    assert result.trains
    assert (result.fallbacks, result.ooms, result.retries) == (2, 2, 2)
    assert result.peak_allocated == 90 * MIB


def test_optional_allocations_may_do_without():
    result = replay([0, 1, 1], [60 * MIB, 80 * MIB], 100 * MIB, optional={1: (0,)})
    assert result.trains
    assert result.peak_allocated == 60 * MIB
    assert result.fallbacks == 1


def test_optional_allocations_may_fail():
    result = replay([0, 1, 1], [60 * MIB, 80 * MIB], 100 * MIB, optional={1: (50 * MIB,)})
    assert result.out_of_memory_at == 1
    assert (result.fallbacks, result.ooms) == (1, 2)


def test_a_plan_that_worked_is_kept():
    sizes = [60 * MIB, 80 * MIB, 80 * MIB]
    optional = {1: (30 * MIB,), 2: (30 * MIB,)}
    ops = [0, 1, 1, 0, 2, 2]  # the second time there is room for 80 MiB
    forgetful = replay(ops, sizes, 100 * MIB, optional=optional)
    assert (forgetful.peak_allocated, forgetful.fallbacks) == (90 * MIB, 1)
    kept = replay([*ops, 1, 1], sizes, 100 * MIB, optional=optional, plans={1: "a", 2: "a"})
    assert kept.fallbacks == 1
    assert kept.peak_requested == 90 * MIB
    # A kept plan that fails sends the search back to the start of the list.
    again = replay([0, 1, 1, 3, 2], [*sizes, 20 * MIB], 100 * MIB, optional=optional,
                   plans={1: "a", 2: "a"})  # fmt: skip
    assert again.out_of_memory_at == 4
    assert again.fallbacks == 1 + 2


def test_least_limit_of_a_single_buffer():
    assert least_limit([0, 0], [40 * MIB]) == (40 * MIB, 40 * MIB)
    assert least_limit([], []) == (0, 0)
    assert least_limit([0], [0]) == (0, 0)


def test_least_limit_between_allocated_and_reserved():
    # A 30 MiB segment is cached when 50 MiB are asked for: 80 without a limit, 50 with.
    ops, sizes = [0, 0, 1], [30 * MIB, 50 * MIB]
    assert replay(ops, sizes).peak_reserved == 80 * MIB
    assert least_limit(ops, sizes) == (50 * MIB, 50 * MIB)


@pytest.mark.parametrize("low", [50 * MIB, 500 * MIB, 1])
@pytest.mark.parametrize("high", [51 * MIB, 79 * MIB, 80 * MIB, 900 * MIB, 10 * MIB])
def test_low_and_high_are_only_hints(low, high):
    ops, sizes = [0, 0, 1], [30 * MIB, 50 * MIB]
    least, lowest = least_limit(ops, sizes, low=low, high=high, tolerance=0)
    assert least == lowest == 50 * MIB


def test_least_limit_looks_above_the_crossing(monkeypatch):
    # Trains from 100 MiB on, but for 110 to 112: a boundary that is not monotone.
    calls: list[int] = []

    def served(allocator, *_program):
        at = (allocator.limit or 2**60) // MIB
        allocator._granted, allocator._denied = at * MIB, (at + 1) * MIB
        allocator.peak_reserved = 200 * MIB
        calls.append(at)
        return 0, None if at >= 100 and at not in (110, 111, 112) else 0

    monkeypatch.setattr(module, "_serve", served)
    least, lowest = least_limit([0], [10 * MIB])
    assert lowest == 100 * MIB
    assert least in (100 * MIB, 114 * MIB)
    least, lowest = least_limit([0], [10 * MIB], tolerance=10 * MIB, scan=4)
    assert lowest <= 110 * MIB
    calls.clear()
    least_limit([0], [10 * MIB], max_replays=25)
    assert len(calls) <= 25


@given(programs(), ANY_SETTINGS, st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_limits_that_are_said_to_be_the_same_are(program, settings, data):
    ops, sizes = program
    most = replay(ops, sizes, None, settings).peak_reserved
    limit = data.draw(st.integers(0, most + 4 * MIB))
    allocator = Allocator(limit, settings)
    _, failed_at = module._serve(allocator, ops, sizes, {}, {})
    same = allocator.same_limits
    assert limit in same
    for other in (same.start, min(same.stop, most + 8 * MIB) - 1):
        again = replay(ops, sizes, other, settings)
        assert again.out_of_memory_at == failed_at
        assert again.peak_reserved == allocator.peak_reserved


@given(programs(), ANY_SETTINGS)
@hypothesis_settings(max_examples=60, deadline=None)
def test_least_limit_trains(program, settings):
    least, lowest = least_limit(*program, settings)
    assert lowest <= least
    if settings.garbage_collection_threshold == 0:
        assert replay(*program, least, settings).trains
        assert replay(*program, lowest, settings).trains
    if not settings.expandable_segments:
        assert least <= -(-replay(*program, None, settings).peak_reserved // (2 * MIB)) * 2 * MIB
