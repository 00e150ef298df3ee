from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.results import Basis, Duration, StepTime
from segplan.schedule import (
    FORWARD_SPREAD,
    CasesPerEpoch,
    FixedIterations,
    LoaderPace,
    Schedule,
    StepSize,
    Validation,
    add,
    checkpoint_seconds,
    epoch_seconds,
    forward_seconds,
    paced_by,
    scale,
    training_seconds,
    validation_seconds,
)

STEP = StepTime(0.4, 0.3, 0.5, Basis.SCALED)
PATCH = (96, 96, 96)


def test_training_scales_the_step_with_its_interval():
    schedule = Schedule(100, CasesPerEpoch(10, 4), folds=2)
    time = training_seconds(schedule, STEP, StepSize(3))  # ceil(40 / 3) = 14 steps
    assert time.seconds == pytest.approx(2800 * 0.4)
    assert (time.low, time.high) == pytest.approx((2800 * 0.3, 2800 * 0.5))
    assert time.basis is Basis.SCALED


@given(st.floats(1e-3, 1e3), st.floats(1, 3), st.floats(1, 3), st.floats(1, 5))
def test_an_independent_factor_only_widens(seconds, down, up, spread):
    time = Duration(seconds, seconds / down, seconds * up, Basis.MEASURED)
    wider = scale(time, 2.0, spread)
    assert wider.seconds == pytest.approx(2 * seconds)
    assert wider.low <= 2 * time.low * (1 + 1e-9)
    assert wider.high >= 2 * time.high * (1 - 1e-9)
    # In quadrature: never as wide as if both erred fully to one side.
    assert wider.high <= 2 * time.high * spread * (1 + 1e-9)
    assert wider.low >= 2 * time.low / spread * (1 - 1e-9)


def test_quadrature_of_logarithms():
    time = scale(Duration(1, 1 / 2, 2, Basis.MEASURED), 1, 2.0)
    assert time.high == pytest.approx(2 ** math.sqrt(2))
    assert time.low == pytest.approx(2 ** -math.sqrt(2))


def test_sums_add_their_ends_and_take_the_weakest_basis():
    total = add([STEP, Duration(1, 1, 1, Basis.MEASURED)])
    assert (total.seconds, total.low, total.high) == pytest.approx((1.4, 1.3, 1.5))
    assert total.basis is Basis.SCALED


def test_the_forward_pass_is_a_third_or_with_checkpointing_a_quarter():
    plain = forward_seconds(StepTime(1.2, 1.2, 1.2, Basis.MEASURED), 4)
    assert plain.seconds == pytest.approx(0.1)
    assert plain.high == pytest.approx(0.1 * FORWARD_SPREAD)
    assert plain.basis is Basis.PREDICTED
    again = forward_seconds(StepTime(1.2, 1.2, 1.2, Basis.MEASURED), 4, checkpointing=True)
    assert again.seconds == pytest.approx(0.075)


def test_validation_counts_windows_and_their_size():
    forward = Duration(0.1, 0.05, 0.2, Basis.PREDICTED)
    v = Validation(3, every=10, roi=(96, 96, 192), overlap=0.5, passes=2)
    schedule = Schedule(100, CasesPerEpoch(10), validation=v)
    # 144 = one stride of 48 behind the first window: 2 x 2 windows of twice a patch's voxels.
    time = validation_seconds(schedule, forward, StepSize(1), PATCH, (144, 144, 100))
    assert time.seconds == pytest.approx(10 * 3 * 4 * 2 * 2 * 0.1)
    assert time.high == pytest.approx(2 * time.seconds)


def test_gpus_share_the_volumes():
    forward = Duration(0.1, 0.1, 0.1, Basis.PREDICTED)
    schedule = Schedule(1, CasesPerEpoch(10), validation=Validation(5))
    alone = validation_seconds(schedule, forward, StepSize(1), PATCH, PATCH)
    four = validation_seconds(schedule, forward, StepSize(1, gpus=4), PATCH, PATCH)
    assert four.seconds / alone.seconds == pytest.approx(2 / 5)  # ceil(5 / 4) = 2 of 5


def test_a_measured_volume_is_taken_as_it_is():
    v = Validation(6, every=100, seconds_per_volume=20.0)
    schedule = Schedule(1000, CasesPerEpoch(10), validation=v)
    time = validation_seconds(
        schedule, Duration(9, 9, 9, Basis.PREDICTED), StepSize(1), PATCH, None
    )
    assert (time.seconds, time.low, time.high) == (1200, 1200, 1200)
    assert time.basis is Basis.MEASURED


def test_validation_iterations_are_forward_passes_of_a_batch():
    schedule = Schedule(10, FixedIterations(250, 50), folds=2)
    forward = Duration(0.1, 0.1, 0.1, Basis.PREDICTED)
    time = validation_seconds(schedule, forward, StepSize(2), PATCH, None)
    assert time.seconds == pytest.approx(10 * 2 * 50 * 2 * 0.1)


def test_no_validation_and_an_unknown_one():
    forward = Duration(0.1, 0.1, 0.1, Basis.PREDICTED)
    assert (
        validation_seconds(Schedule(1, CasesPerEpoch(9)), forward, StepSize(1), PATCH, None) is None
    )
    unknown = Schedule(1, CasesPerEpoch(9), validation=Validation(3))
    assert validation_seconds(unknown, forward, StepSize(1), PATCH, None) is None


def test_checkpoints():
    schedule = Schedule(100, CasesPerEpoch(1), folds=5, checkpoint_every=30)
    time = checkpoint_seconds(schedule, 10**9)
    assert time.seconds == pytest.approx(3 * 5 * 5)  # 3 a fold, 1 GB at 200 MB/s each
    assert time.low < time.seconds < time.high
    assert checkpoint_seconds(Schedule(100, CasesPerEpoch(1)), 10**9) is None


def test_the_slower_of_gpu_and_loader():
    alone = Duration(0.4, 0.3, 0.5, Basis.SCALED)
    assert paced_by(STEP, None) == alone
    fast = Duration(0.1, 0.1, 0.1, Basis.MEASURED)
    assert paced_by(STEP, fast) == alone
    slow = paced_by(STEP, Duration(2, 1.5, 3, Basis.MEASURED))
    assert (slow.seconds, slow.low, slow.high, slow.basis) == (2, 1.5, 3, Basis.MEASURED)
    near = paced_by(STEP, Duration(0.35, 0.32, 0.6, Basis.MEASURED))
    assert (near.seconds, near.low, near.high, near.basis) == (0.4, 0.32, 0.6, Basis.SCALED)


def exactly(seconds: float) -> Duration:
    return Duration(seconds, seconds, seconds, Basis.MEASURED)


TEN_CASES = Schedule(5, CasesPerEpoch(10, 4), validation=Validation(6, seconds_per_volume=2.0))
STARTING = LoaderPace(
    patch=exactly(0.05), case=exactly(0.2), start=exactly(3), patches_at_once=8, cases_at_once=2
)


def test_every_epoch_waits_for_its_first_batch():
    # 40 patches in 10 steps of 0.4 s; loading the 32 after the first 8 takes 1.6 s beside them.
    time = training_seconds(TEN_CASES, STEP, StepSize(4), STARTING)
    assert time.seconds == pytest.approx(5 * (3 + 10 * 0.4))
    assert time.basis is Basis.SCALED


def test_the_first_batches_of_all_workers_come_together():
    slow = dataclasses.replace(STARTING, patch=exactly(0.5))
    time = epoch_seconds(TEN_CASES, STEP, StepSize(4), slow)
    assert time.seconds == pytest.approx(3 + 32 * 0.5)
    few = dataclasses.replace(slow, patches_at_once=100)
    assert epoch_seconds(TEN_CASES, STEP, StepSize(4), few).seconds == pytest.approx(3 + 4)


def test_without_workers_loading_and_computing_take_turns():
    turns = LoaderPace(exactly(0.05), exactly(0.2), beside_steps=False)
    time = epoch_seconds(TEN_CASES, STEP, StepSize(4), turns)
    assert time.seconds == pytest.approx(10 * 0.4 + 40 * 0.05)


def test_validation_waits_for_volumes_too():
    forward = exactly(0.1)
    fast = validation_seconds(TEN_CASES, forward, StepSize(4), PATCH, None, STARTING)
    assert fast.seconds == pytest.approx(5 * (3 + 6 * 2.0))
    slow = dataclasses.replace(STARTING, case=exactly(5))
    time = validation_seconds(TEN_CASES, forward, StepSize(4), PATCH, None, slow)
    assert time.seconds == pytest.approx(5 * (3 + 4 * 5))  # two of six came with the first


def test_a_slow_loader_holds_validation_iterations_up():
    schedule = Schedule(10, FixedIterations(250, 50))
    slow = LoaderPace(exactly(1.0))
    time = validation_seconds(schedule, exactly(0.1), StepSize(2), PATCH, None, slow)
    assert time.seconds == pytest.approx(10 * 50 * 2 * 1.0)
