from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.errors import RequestError
from segplan.gpus import Card, catalogue, find_card
from segplan.results import Basis, BoundBy, Duration, StepTime
from segplan.schedule import (
    CasesPerEpoch,
    FixedIterations,
    Link,
    Schedule,
    StepSize,
    bound_by,
    data_parallel,
    energy_kwh,
    link_of,
    loader_need,
    ring_seconds,
)

STEP = StepTime(0.4, 0.3, 0.5, Basis.SCALED)
SLOW = Link("slow", 10e9)


def test_a_ring_sends_twice_the_bytes_but_one_nth():
    assert ring_seconds(1e9, 2, 1e9) == pytest.approx(1.0)
    assert ring_seconds(1e9, 4, 1e9) == pytest.approx(1.5)
    assert ring_seconds(1e9, 1, 1e9) == 0


def test_one_gpu_exchanges_nothing():
    assert data_parallel(STEP, 10**9, 1, SLOW) is STEP
    with pytest.raises(RequestError):
        data_parallel(STEP, 10**9, 0, SLOW)


def test_an_exchange_that_the_backward_pass_hides_leaves_the_last_bucket():
    step = data_parallel(STEP, 200 * 2**20, 4, SLOW)
    exchange, bucket = ring_seconds(200 * 2**20, 4, 10e9), ring_seconds(25 * 2**20, 4, 10e9)
    assert step.seconds == pytest.approx(0.4 + bucket)
    assert (step.low, step.high) == pytest.approx((0.3 + bucket, 0.5 + exchange))
    assert step.basis is Basis.PREDICTED


def test_an_exchange_longer_than_what_hides_it():
    step = data_parallel(STEP, 4 * 10**9, 4, SLOW)  # 0.6 s, of which 0.4 x 2/3 x 1/2 is hidden
    assert step.seconds == pytest.approx(0.4 + 0.6 - 0.4 / 3)


def test_accumulated_passes_exchange_once_behind_the_last_of_them():
    once = data_parallel(STEP, 4 * 10**9, 4, SLOW)
    last = data_parallel(STEP, 4 * 10**9, 4, SLOW, accumulation=4)
    assert last.seconds == pytest.approx(once.seconds + 0.4 / 3 * 3 / 4)


@given(st.integers(1, 10**10), st.integers(2, 64), st.floats(1e8, 1e12))
def test_more_gpus_never_make_a_step_faster(size, gpus, rate):
    step = data_parallel(STEP, size, gpus, Link("any", rate))
    assert STEP.seconds < step.seconds
    assert step.low <= step.seconds <= step.high


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("rtx-2080-ti", "PCIe 3"), ("rtx-3090", "PCIe 4"), ("h100-pcie", "PCIe 5"),
        ("v100-sxm2-32gb", "NVLink"), ("a100-sxm4-80gb", "NVLink"), ("b200", "NVLink"),
    ],
)  # fmt: skip
def test_links(name, link):
    assert link_of(find_card(name)).name.startswith(link)


def test_every_card_has_a_link_and_modules_the_faster():
    rates = {card.slug: link_of(card).bytes_per_s for card in catalogue()}
    assert rates["a100-sxm4-80gb"] > 5 * rates["a100-pcie-80gb"]
    assert link_of(Card("x", "X", 1, 1)).name == "PCIe 3 x16"


PATCH = (96, 96, 96)


def test_a_case_is_read_for_its_patches():
    schedule = Schedule(1, CasesPerEpoch(24, 4))
    need = loader_need(
        schedule, STEP, StepSize(4, gpus=2), bytes_per_case=50_000_000, patch=PATCH, channels=1
    )
    assert need.patches_per_s == pytest.approx(20)  # 8 patches in 0.4 s
    assert need.mb_per_s == pytest.approx(20 / 4 * 50)


def test_iterations_read_patches_of_mapped_arrays():
    schedule = Schedule(1, FixedIterations(250))
    need = loader_need(schedule, STEP, StepSize(2), bytes_per_case=None, patch=PATCH, channels=4)
    assert need.mb_per_s == pytest.approx(5 * 96**3 * 5 * 4 / 1e6)


def test_unknown_bytes_stay_unknown():
    schedule = Schedule(1, CasesPerEpoch(24, 4))
    need = loader_need(schedule, STEP, StepSize(4), bytes_per_case=None, patch=PATCH, channels=1)
    assert need.mb_per_s is None


def test_bound_by():
    slow, fast = (Duration(s, s, s, Basis.MEASURED) for s in (0.5, 0.1))
    hosted = StepTime(0.4, 0.3, 0.5, Basis.SCALED, host_bound=True)
    assert bound_by(STEP, None) is BoundBy.GPU
    assert bound_by(STEP, fast) is BoundBy.GPU
    assert bound_by(STEP, slow) is BoundBy.LOADER
    assert bound_by(hosted, fast) is BoundBy.HOST
    assert bound_by(hosted, slow) is BoundBy.LOADER


def test_energy():
    day = Duration(86400, 86400, 86400, Basis.PREDICTED)
    assert energy_kwh(350, day, 0, 1) == pytest.approx(8.4)  # 0.35 kW x 24 h
    assert energy_kwh(350, day, 0, 4) == pytest.approx(33.6)
    assert energy_kwh(350, day, 86400, 1) == pytest.approx(8.4 * 1.25)
