from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.errors import RequestError
from segplan.schedule import (
    CasesPerEpoch,
    FixedIterations,
    Schedule,
    StepSize,
    Validation,
)

BTCV = Schedule(
    5000, CasesPerEpoch(24, 4), validation=Validation(6, every=100), checkpoint_every=100
)
NNUNET = Schedule(1000, FixedIterations(250, 50), folds=5, validation=Validation(26, every=1000))


def test_monai():
    size = StepSize(4)
    assert BTCV.steps_per_epoch(size) == 24  # 24 cases x 4 crops / 4
    assert BTCV.steps(size) == 120_000
    assert BTCV.patches(size) == 5000 * 96
    assert (BTCV.validations, BTCV.volumes, BTCV.checkpoints) == (50, 300, 50)
    assert not BTCV.fixed


def test_nnunet():
    for batch in (2, 8):
        assert NNUNET.steps(StepSize(batch)) == 1_250_000
        assert NNUNET.patches(StepSize(batch)) == 1_250_000 * batch
    assert NNUNET.validation_iterations == 250_000
    assert NNUNET.volumes == 130
    assert NNUNET.patches(StepSize(2, gpus=4)) == 1_250_000 * 8
    assert NNUNET.fixed


@pytest.mark.parametrize(
    ("batch", "drop_last", "steps"), [(5, False, 20), (5, True, 19), (96, True, 1), (97, False, 1)]
)
def test_the_last_batch(batch, drop_last, steps):
    epoch = CasesPerEpoch(24, 4, drop_last)  # 96 patches
    assert epoch.steps(StepSize(batch)) == steps
    assert epoch.patches(StepSize(batch)) == (batch * steps if drop_last else 96)


def test_nothing_is_left_to_train_on():
    with pytest.raises(RequestError, match="drop_last leaves none"):
        CasesPerEpoch(24, 4, True).steps(StepSize(97))


def test_gpus_share_the_cases():
    # ceil(25 / 4) = 7 cases each, as DistributedSampler repeats three of them.
    assert CasesPerEpoch(25, 2).steps(StepSize(2, gpus=4)) == 7
    assert CasesPerEpoch(25, 2).patches(StepSize(2, gpus=4)) == 56


def test_accumulation_takes_several_batches_a_step():
    assert CasesPerEpoch(24, 4).steps(StepSize(4, accumulation=5)) == 5
    assert StepSize(4, 5, 2).per_gpu == 20
    assert StepSize(4, 5, 2).patches == 40


counts = st.integers(1, 200)


@given(counts, st.integers(1, 8), counts, st.integers(1, 8), st.integers(1, 8))
def test_steps_hold_all_patches_and_no_empty_step(cases, samples, batch, accumulation, gpus):
    epoch, size = CasesPerEpoch(cases, samples), StepSize(batch, accumulation, gpus)
    steps, patches = epoch.steps(size), epoch.patches(size)
    assert patches >= cases * samples
    assert (steps - 1) * size.patches < patches <= steps * size.patches


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepSize(0),
        lambda: StepSize(1, gpus=0),
        lambda: StepSize(True),
        lambda: CasesPerEpoch(0),
        lambda: FixedIterations(0),
        lambda: FixedIterations(1, -1),
        lambda: Schedule(0, FixedIterations(1)),
        lambda: Schedule(1, FixedIterations(1), folds=0),
        lambda: Schedule(1, FixedIterations(1), checkpoint_every=0),
        lambda: Validation(0),
        lambda: Validation(1, overlap=1.0),
        lambda: Validation(1, seconds_per_volume=0.0),
        lambda: Validation(1, seconds_per_volume=float("inf")),
        lambda: Schedule(10, FixedIterations(1), validation=Validation(1, every=11)),
    ],
)
def test_bad_values_are_refused(make):
    with pytest.raises(RequestError):
        make()
