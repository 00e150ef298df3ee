"""Seconds from work and rates: which resource decides, and what a better card changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from segplan.gpus import catalogue, find_card
from segplan.gpus.card import Card
from segplan.timing.model import (
    BOUNDS,
    NotTimeable,
    Steps,
    forward_seconds,
    rates_of,
    seconds,
    shipped_calibration,
    step_total,
)
from segplan.timing.prediction import predict_step, spread_of
from segplan.timing.work import DTYPES, INDEX, WorkTable, merged
from segplan.workload import Workload


def table(
    kind: str, *, flops=0.0, moved=0.0, tiles=0.0, inner=0.0, count=1, launches=(1, 0, 0),
    dtype="float16", turned=0.0, unaligned=0.0,
) -> WorkTable:  # fmt: skip
    def column(value: float) -> np.ndarray:
        return np.full(count, value)

    return WorkTable(
        kind=np.full(count, INDEX[kind]),
        dtype=np.full(count, DTYPES.index(dtype)),
        phase=np.zeros(count, dtype=int),
        flops=column(flops),
        moved=column(moved),
        turned=column(turned),
        tiles=column(tiles),
        inner=column(inner),
        variant=np.zeros(count, dtype=int),
        run=column(0.0),
        unaligned=column(unaligned),
        count=column(1.0),
        launches=launches,
    )


PRODUCT = table("matmul", flops=1e13, moved=1e6, tiles=1e6, inner=1e4)
STREAM = table("elementwise", moved=1e11)


@pytest.fixture(scope="module")
def shipped():
    return shipped_calibration()


def time_on(work: WorkTable, name: str, precision: str = "fp16"):
    return seconds(work, rates_of(find_card(name), precision), shipped_calibration())


def test_a_stream_takes_its_bytes_over_the_bandwidth(shipped):
    parts = time_on(STREAM, "h200")
    share = shipped.factors["bandwidth.elementwise"]
    bandwidth = find_card("h200").memory_bandwidth
    assert parts.by_bound["bandwidth"] == pytest.approx(1e11 / (bandwidth * share), rel=0.01)


def test_a_product_is_limited_by_the_peak_and_by_what_feeds_it(shipped):
    f, card = shipped.factors, find_card("h200")
    parts = time_on(PRODUCT, "h200")
    rates = rates_of(card, "fp16")
    fed = f["half.matmul"] * rates.sm_count * rates.clock
    reached = 1 / (1 / (card.rate("fp16") * f["peak"]) + 1 / fed)
    assert reached < card.rate("fp16")
    assert parts.by_bound["arithmetic"] == pytest.approx(1e13 / reached, rel=0.1)
    assert parts.by_bound["arithmetic"] > 0.9 * sum(parts.gpu)


def test_more_bandwidth_speeds_up_streams_and_a_higher_rate_products():
    # RTX 3090: 936 GB/s, 71 TFLOP/s; A40: 696 GB/s, 150 TFLOP/s (both GA102).
    assert time_on(STREAM, "rtx-3090").total < time_on(STREAM, "a40").total
    assert time_on(PRODUCT, "rtx-3090").total > time_on(PRODUCT, "a40").total


def test_a_norm_with_few_channels_waits_for_its_blocks():
    few = table("channel_norm_backward", moved=1e10, tiles=16)
    many = table("channel_norm_backward", moved=1e10, tiles=100_000)
    assert time_on(few, "h200").by_bound["blocks"] > 0
    assert time_on(many, "h200").by_bound["blocks"] == 0
    assert time_on(few, "h200").total > time_on(many, "h200").total


def test_a_step_of_many_small_kernels_waits_for_the_host():
    small = table("elementwise", moved=1e3, count=2000, launches=(2000, 0, 0))
    parts = time_on(small, "h200")
    assert parts.host_bound
    assert parts.total == pytest.approx(time_on(small, "rtx-3090").total, rel=0.02)


def test_without_tensor_cores_autocast_computes_in_fp32():
    single = table("matmul", flops=1e13, moved=1e6, tiles=1e6, inner=1e4, dtype="float32")
    assert time_on(PRODUCT, "titan-xp").total >= time_on(single, "titan-xp", "fp32").total


def test_turing_has_no_bfloat16_and_computes_it_in_fp32():
    assert rates_of(find_card("rtx-2080-ti"), "bf16").tensor["half"] is False
    assert rates_of(find_card("rtx-2080-ti"), "fp16").tensor["half"] is True


def test_validation_is_the_forward_pass_alone():
    parts = time_on(PRODUCT, "h200")
    assert forward_seconds(parts) <= parts.total


def test_every_bound_is_told(shipped):
    parts = time_on(STREAM, "h200")
    assert tuple(parts.by_bound) == BOUNDS
    assert sum(parts.by_bound.values()) == pytest.approx(sum(parts.gpu))


def test_a_card_of_which_too_little_is_known_is_refused():
    card = dataclasses.replace(find_card("rtx-3090"), memory_bandwidth=None)
    with pytest.raises(NotTimeable, match="memory bandwidth"):
        rates_of(card, "fp16")


def test_every_catalogue_card_with_its_figures_can_be_timed():
    known = [c for c in catalogue() if c.memory_bandwidth and c.sm_count and c.rates["fp32"]]
    assert len(known) >= 30
    for card in known:
        assert time_on(STREAM, card.slug).total > 0


def test_steps_computed_together_take_what_each_takes_alone(shipped):
    cards = [("h200", "fp16"), ("rtx-2080-ti", "fp16"), ("titan-xp", "fp32")]
    works = [PRODUCT, STREAM, table("channel_norm_backward", moved=1e10, tiles=16, count=3)]
    rates = [rates_of(find_card(name), precision) for name, precision in cards]
    together = Steps(works, rates, [False, True, False])
    totals = step_total(together.gpu(shipped), together.host(shipped))
    alone = [
        seconds(work, rate, shipped, channels_last=last).total
        for work, rate, last in zip(works, rates, (False, True, False), strict=True)
    ]
    assert totals.tolist() == pytest.approx(alone)


def test_equal_entries_counted_together_take_as_long(shipped):
    work = table("elementwise", moved=1e7, count=40)
    less = merged(work)
    assert (len(less.kind), less.count.tolist()) == (1, [40.0])
    rates = rates_of(find_card("a40"), "fp16")
    assert seconds(less, rates, shipped).gpu == pytest.approx(seconds(work, rates, shipped).gpu)


def spread_on(card: Card, precision: str = "fp16") -> float:
    calibration = shipped_calibration()
    workload = Workload(precision=precision)
    rates = rates_of(card, precision)
    parts = seconds(PRODUCT, rates, calibration)
    return spread_of(card, workload, rates, calibration, parts)


def test_the_interval_widens_with_what_is_not_known():
    h200, a100, titan, ada = (
        spread_on(find_card(n)) for n in ("h200", "a100-sxm4-40gb", "titan-xp", "rtx-4090")
    )
    assert h200 < a100 < ada
    assert a100 < titan


def test_the_interval_holds_the_value():
    step, parts = predict_step(PRODUCT, Workload(), find_card("rtx-3090"), shipped_calibration())
    assert step.low < step.seconds < step.high
    assert step.seconds == parts.total


def test_rows_that_begin_off_16_bytes_cost_tensor_cores_more_and_other_units_nothing():
    odd = table("matmul", flops=1e13, moved=1e6, tiles=1e6, inner=1e4, unaligned=1.0)
    slower = shipped_calibration().factors["unaligned"]
    assert time_on(odd, "h200").gpu[0] == pytest.approx(
        time_on(PRODUCT, "h200").gpu[0] / slower, rel=1e-3
    )
    assert time_on(odd, "titan-xp").gpu[0] == time_on(PRODUCT, "titan-xp").gpu[0]


def test_only_tensor_cores_have_tensors_turned_around():
    turned = table("conv_forward", flops=1e10, moved=1e6, turned=1e10, tiles=1e6, inner=1e4)
    plain = table("conv_forward", flops=1e10, moved=1e6, tiles=1e6, inner=1e4)
    assert time_on(turned, "h200").gpu[0] > 2 * time_on(plain, "h200").gpu[0]
    assert time_on(turned, "titan-xp").gpu[0] == time_on(plain, "titan-xp").gpu[0]


def test_short_rows_of_a_layer_norm_wait_for_blocks_and_long_ones_for_bytes():
    short = table("layer_norm", moved=1e9, tiles=1e8)
    long = table("layer_norm", moved=1e9, tiles=1e4)
    assert time_on(short, "h200").by_bound["blocks"] > 0
    assert time_on(long, "h200").by_bound["blocks"] == 0
    assert time_on(short, "h200").gpu[0] > time_on(long, "h200").gpu[0]


def test_multiprocessors_with_64_fp32_units_have_issue_slots_to_spare():
    assert rates_of(find_card("v100-sxm2-32gb"), "fp32").spare
    assert not rates_of(find_card("rtx-3090"), "fp32").spare
