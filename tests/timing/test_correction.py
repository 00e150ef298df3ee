"""Timed operators correct the model near them, less far away, and on other cards too."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from segplan.gpus import find_card
from segplan.results import Basis
from segplan.timing.correction import Correction, residuals
from segplan.timing.model import kernel_seconds, rates_of, shipped_calibration
from segplan.timing.operators import PRECISIONS
from segplan.timing.prediction import TimedCard, predict_step
from segplan.timing.work import KINDS, work_table
from segplan.trace.tape import Op
from segplan.workload import Workload
from tests.timing.timed import convolution, meta, stream, timed

H200 = find_card("h200")
RATES = {p: rates_of(H200, p) for p in PRECISIONS}


def modelled(op, precision="fp16"):
    return float(kernel_seconds(work_table([op]), RATES[precision], shipped_calibration())[0])


def correction(*pairs, precision="fp16"):
    """Of operators that take so many times as long as modelled."""
    found = [timed(op, times * modelled(op, precision), precision=precision) for op, times in pairs]
    return Correction(found, RATES, shipped_calibration())


def factor(of, op, precision="fp16"):
    return float(of.factors(work_table([op]), precision)[0])


SLOW = convolution(32, 32, 96)
SIZES = [convolution(32, 32, side) for side in (48, 64, 80, 96, 112, 128)]


def test_an_operator_that_was_timed_takes_what_it_took():
    of = correction(*((op, 1.5) for op in SIZES))
    assert factor(of, SLOW) == pytest.approx(1.5, rel=0.05)


def test_its_neighbours_take_over_most_of_it_and_others_of_its_kind_less():
    # Small ones are slow, wide ones as modelled: what lies between is in between.
    wide = [convolution(512, 512, side) for side in (6, 8, 10, 12)]
    of = correction(*((op, 2.0) for op in SIZES), *((op, 1.0) for op in wide))
    near, between, far = (
        factor(of, op) for op in (convolution(40, 32, 96), convolution(128, 128, 32), wide[1])
    )
    assert near == pytest.approx(2.0, rel=0.15)
    assert far == pytest.approx(1.0, abs=0.1)
    assert far < between < near


def norm(samples=2):
    image = meta(samples, 32, 96, 96, 96, dtype="float32")
    args = (None, None, None, samples, 32, 96**3, 8, 1e-5)
    return Op("native_group_norm.default", "forward", 0, 0, 0, (image,), (image,), args)


def test_an_operators_error_is_that_of_the_longest_of_its_pieces():
    works = work_table([norm()])
    parts = kernel_seconds(works, RATES["fp16"], shipped_calibration())
    assert [KINDS[k] for k in works.kind] == ["moments", "norm_apply"]
    assert parts[0] > 2 * parts[1]
    of = Correction([timed(norm(), 2.0 * parts.sum())], RATES, shipped_calibration())
    assert of.factors(works, "fp16") == pytest.approx([2.0, 1.0], rel=0.2)


def test_each_operator_that_does_anything_has_one_error():
    nothing = Op("empty_like.default", "forward", 0, 0, 0, (meta(8),), (meta(8),), (None,))
    last = convolution(32, 32, 48)
    image = last.inputs[0]
    strides = (image.numel, 1, 48 * 48 * 32, 48 * 32, 32)
    last = dataclasses.replace(
        last, inputs=(dataclasses.replace(image, strides=strides), *last.inputs[1:])
    )
    roll = Op(
        "roll.default", "forward", 0, 0, 0, (meta(64, 64),), (meta(64, 64),),
        (None, [1] * 50, [0] * 50),
    )  # fmt: skip
    ops = [nothing, norm(), roll, last, stream(2, 8, 64, 64, 64)]
    seconds = [
        kernel_seconds(
            work_table([o]), RATES["fp16"], shipped_calibration(), channels_last=o is last
        ).sum()
        for o in ops
    ]
    found = [
        timed(o, n * s if s else 1.0) for n, (o, s) in enumerate(zip(ops, seconds, strict=True))
    ]
    table, errors, single = residuals(found, RATES, shipped_calibration())
    assert [KINDS[k] for k in table.kind] == ["moments", "strided", "conv_forward", "elementwise"]
    assert np.exp(errors) == pytest.approx([1, 2, 3, 4])
    assert not single.any()


def test_other_kinds_and_other_arithmetic_are_left_alone():
    of = correction(*((op, 2.0) for op in SIZES))
    assert factor(of, stream(2, 32, 96, 96, 96)) == 1.0
    single = convolution(32, 32, 96, dtype="float32")
    assert factor(of, single, "tf32") == 1.0
    single_of = correction((single, 2.0), precision="fp32")
    assert factor(single_of, single, "fp32") > 1.3
    assert factor(single_of, single, "tf32") == 1.0


def test_beyond_what_was_timed_the_nearest_stands_in():
    of = correction(*((op, 1.5) for op in SIZES))
    assert factor(of, convolution(32, 32, 512, batch=4)) == pytest.approx(
        factor(of, SIZES[-1]), rel=0.1
    )


def test_one_odd_measurement_says_little_of_its_kind():
    of = correction((SLOW, 10.0))
    assert factor(of, convolution(512, 512, 8)) < 3.0


def test_what_is_left_over_is_carried_to_another_card():
    table = work_table([SLOW])
    of = correction(*((op, 1.5) for op in SIZES))
    workload = Workload()
    a100 = find_card("a100-sxm4-80gb")
    calibration = shipped_calibration()
    plain, _ = predict_step(table, workload, a100, calibration)
    shipped, parts = predict_step(table, workload, a100, calibration, TimedCard(H200, of, False))
    here, _ = predict_step(table, workload, a100, calibration, TimedCard(H200, of, True))
    own, _ = predict_step(table, workload, H200, calibration, TimedCard(H200, of, True))
    alone = predict_step(table, workload, a100, calibration)[1]
    assert sum(parts.gpu) == pytest.approx(sum(alone.gpu) * factor(of, SLOW))
    assert plain.basis is shipped.basis is own.basis is Basis.PREDICTED
    assert here.basis is Basis.SCALED
    assert here.high / here.seconds > own.high / own.seconds


def test_the_interval_is_that_of_timed_operators():
    calibration = shipped_calibration()
    narrower = dataclasses.replace(
        calibration, spread={**calibration.spread, "network.timed": 0.05}
    )
    table = work_table([SLOW] * 100)
    of = TimedCard(H200, correction(*((op, 1.5) for op in SIZES)), False)
    without, _ = predict_step(table, Workload(), H200, narrower)
    step, _ = predict_step(table, Workload(), H200, narrower, of)
    assert step.high / step.seconds < without.high / without.seconds


def test_factors_of_a_whole_step_are_finite():
    more = [(stream(64), 1.2), (stream(1, 8, 64, 64, 64), 1.1)]
    of = correction(*((op, 1.5) for op in SIZES), *more)
    table = work_table([stream(0, 4), stream(1), *SIZES])
    assert np.isfinite(of.factors(table, "fp16")).all()
