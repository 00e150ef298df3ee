"""`study`, the timeline and the ladder on a small network, traced for real."""

from __future__ import annotations

import dataclasses

import pytest

from segplan.api.estimating import (
    _validated,
    _validation_warnings,
    _ways,
    budget_of,
    estimate,
    named_card,
    study,
)
from segplan.api.ladder import (
    ORDER,
    Question,
    Tracer,
    climb,
    ladder,
    narrower,
    smaller_batches,
    smaller_patch,
)
from segplan.api.predicting import target_for
from segplan.api.timeline import timeline
from segplan.errors import CardError, NetworkError, RequestError
from segplan.memory.program import compile_program, peak
from segplan.networks import resolve
from segplan.step.validate import Validation
from segplan.trace.tape import Op, TensorMeta, Trace
from segplan.units import MIB
from segplan.workload import Workload

SMALL = Workload(
    model="unet",
    model_args={"channels": (16, 32, 64), "strides": (2, 2), "num_res_units": 1},
    out_channels=3,
    patch=(64, 64, 64),
    batch=3,
    precision="fp32",
)


@pytest.fixture(scope="module")
def tracer():
    with Tracer() as tracer:
        yield tracer


@pytest.fixture(scope="module")
def question():
    return Question(resolve(SMALL), named_card("rtx-3090"), 22 * 2**30)


@pytest.fixture(scope="module")
def climbed(tracer, question):
    return climb(question, tracer)


@pytest.fixture(scope="module")
def studied():
    return study(SMALL, "rtx-3090")


def test_the_estimate_is_that_of_estimate(studied):
    assert studied.memory == estimate(SMALL, "rtx-3090")


def test_parts_add_up(studied):
    m = studied.memory
    assert sum(dataclasses.astuple(m.breakdown)) == m.least_memory
    assert sum(studied.modules.values()) == m.breakdown.activations
    assert m.breakdown.parameters > 0
    assert m.breakdown.optimizer_state >= 2 * m.breakdown.parameters * 0.8


def test_fits_and_what_of_the_card_is_left(studied):
    assert studied.fits is True
    assert studied.ladder is None  # not asked for, and it fits
    assert studied.budget == studied.visible - studied.memory.context - studied.reserve


@pytest.mark.parametrize("card", ["rtx-3090", None])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_timeline_peaks_where_the_program_does(tracer, card, accumulation):
    w = resolve(SMALL.replace(grad_accumulation=accumulation))
    target = target_for(w, named_card(card) if card else None)
    program = compile_program(tracer.tape(w).at(w.batch), target.architecture)
    line = timeline(program)
    totals = [sum(column) for column in zip(*line.layers.values(), strict=True)]
    assert line.peak == max(totals) == totals[line.peak_at] == peak(program)[0]
    names = [phase.name for phase in line.phases]
    assert names == ["forward", "backward"] * accumulation + ["optimizer"]
    assert [p.start for p in line.phases] == [0, *(p.end for p in line.phases[:-1])]
    assert line.phases[-1].end == len(line.operators) == len(totals)
    assert line.peak_phase in names
    with pytest.raises(ValueError, match="no step 7"):
        timeline(program, 7)


def test_rungs_are_ordered_and_each_is_computed(climbed, tracer, question):
    names = [name for rung in climbed.rungs for name in rung.names]
    assert names == sorted(names, key=ORDER.index)
    assert set(names) | set(climbed.left_out) == set(ORDER)
    for rung in climbed.rungs:
        assert rung.saved == climbed.least_memory - rung.least_memory
        assert rung.saved_share == pytest.approx(rung.saved / climbed.least_memory)
        assert rung.fits is True
        if not rung.expandable_segments:
            w, changes = question.workload, dict(rung.changes)
            changes["model_args"] = {**w.model_args, **changes.get("model_args", {})}
            changed = dataclasses.replace(question, workload=resolve(w.replace(**changes)))
            assert rung.least_memory == changed.answer(tracer)[0].least_memory
    assert [r.changes["batch"] for r in climbed.rungs if r.names == ("batch",)] == [2, 1]
    assert climbed.together is None


def test_expandable_segments_are_never_worse(climbed):
    for rung in climbed.rungs:
        if rung.expandable_segments:
            assert rung.saved > 0
            break
    else:
        assert "expandable_segments" in climbed.left_out


def test_the_first_rungs_together_as_far_as_it_takes(climbed, tracer, question):
    # Below the best rung alone: only a combination can fit.
    best = min(rung.peak_allocated for rung in climbed.rungs)
    found = climb(dataclasses.replace(question, budget=best // 2), tracer)
    assert found.fits is False
    assert not any(rung.fits for rung in found.rungs)
    together = found.together
    assert together is not None
    assert together.fits
    assert len(together.names) > 1
    assert list(together.names) == sorted(together.names, key=ORDER.index)
    assert together.saved > max(rung.saved for rung in found.rungs)
    nothing = climb(dataclasses.replace(question, budget=MIB), tracer)
    assert nothing.fits is False
    assert nothing.together is None


def test_a_rung_alone_is_preferred_to_a_combination_as_long(climbed, tracer, question):
    found = climb(dataclasses.replace(question, budget=climbed.least_memory * 3 // 4), tracer)
    assert found.fits is False
    first = next(i for i, rung in enumerate(found.rungs) if rung.fits)
    if found.together is not None:
        assert set(found.together.names) <= {n for r in found.rungs[:first] for n in r.names}


def test_many_patches_have_halves_and_the_largest_that_fits(tracer, question):
    w = question.workload.replace(batch=12)
    many = dataclasses.replace(question, workload=w)
    limit = dataclasses.replace(question, workload=w.replace(batch=4)).answer(tracer)[0]
    found = climb(dataclasses.replace(many, budget=limit.least_memory_high), tracer)
    batches = [r.changes["batch"] for r in found.rungs if r.names == ("batch",)]
    assert found.fits is False
    assert batches == sorted(batches, reverse=True)
    assert batches[0] == 6  # the first half, too large
    assert [r.fits for r in found.rungs if r.names == ("batch",)] == [False, True]
    assert batches[1] >= 4


VOLUME = Validation((160, 160, 128))


@pytest.fixture(scope="module")
def whole():
    return study(SMALL, "rtx-3090", validation=VOLUME, gpus_per_job=2, ladder=False)


def validated(tracer, question, validation=VOLUME):
    """The validation's study alone, by traces that are there already where possible."""
    w = question.workload
    ways = _ways(validation, w)
    tracer.trace([w], [(w, way) for way in ways])
    memory, _ = question.answer(tracer)
    traces = [tracer.validation(w, way) for way in ways]
    return _validated(question, (memory, None), tracer.tape(w).at(w.batch), ways, traces)


def test_validation_counts_the_trainings_state(tracer, question):
    found = validated(tracer, question)
    m = found.memory
    assert sum(dataclasses.astuple(m.breakdown)) == m.least_memory
    assert sum(found.modules.values()) == m.breakdown.activations
    training = question.answer(tracer)[0].breakdown
    for part in ("parameters", "optimizer_state"):
        assert getattr(m.breakdown, part) == getattr(training, part)
    assert m.breakdown.gradients == pytest.approx(m.breakdown.optimizer_state / 2, rel=0.02)
    assert found.validation.roi_size == (64, 64, 64)
    assert found.windows == 27  # strides of 48: from 0, 48 and 96; from 0, 48 and 64
    assert not any("padded" in warning for warning in found.warnings)


def test_windows_and_volumes_of_odd_sizes(tracer, question):
    # A volume of any size will do: it is padded to the window. A window will not.
    found = validated(tracer, question, Validation((10, 160, 128)))
    assert "it is padded to 64x160x128" in found.warnings[0]
    with pytest.raises(NetworkError, match=r"windows of 10: .* Nearest valid: 8 and 12"):
        _ways(Validation((160, 160, 128), roi_size=(10, 10, 10)), question.workload)


def test_who_decides(tracer, question):
    found = validated(tracer, question)
    needs = {"training": question.answer(tracer)[0], "validation": found.memory}
    assert found.decides == max(needs, key=lambda name: needs[name].least_memory)
    assert found.together.least_memory >= max(m.least_memory for m in needs.values()) * 0.995
    assert found.fits is True
    large = validated(tracer, question, dataclasses.replace(VOLUME, volume=(256, 256, 256)))
    assert large.decides == "validation"
    assert large.memory.least_memory > found.memory.least_memory


def test_stitching_on_the_cpu(tracer, question):
    found = validated(tracer, question)
    other = found.cpu_stitching
    assert other.saved == found.memory.least_memory - other.least_memory
    # At least the logits and a one-hot copy of them are not on the card.
    assert other.saved > 2 * 4 * SMALL.out_channels * 160 * 160 * 128
    assert (other.fits, other.needed) == (True, False)
    cpu = dataclasses.replace(VOLUME, stitch="cpu")
    asked = validated(tracer, dataclasses.replace(question, budget=None), cpu)
    assert asked.cpu_stitching is None
    assert asked.fits is None
    assert asked.memory.least_memory == other.least_memory


def test_stitching_on_the_cpu_is_needed_where_only_that_fits(tracer, question):
    large = dataclasses.replace(VOLUME, volume=(256, 256, 256))
    found = validated(tracer, question, large)
    room = (found.together.least_memory + found.cpu_stitching.together) // 2
    tight = validated(tracer, dataclasses.replace(question, budget=room), large)
    assert tight.fits is False
    assert (tight.cpu_stitching.fits, tight.cpu_stitching.needed) == (True, True)
    none = validated(tracer, dataclasses.replace(question, budget=MIB), large)
    assert (none.cpu_stitching.fits, none.cpu_stitching.needed) == (False, False)


def test_more_than_2_to_the_31_elements_are_told(tracer, question):
    m = question.answer(tracer)[0]
    for side, told in ((1023, False), (1024, True)):
        output = TensorMeta((1, 2, side, 1024, 1024), "float32", (1, 1, 1, 1, 1))
        trace = Trace(1, ops=[Op("zeros", "inference", 0, 0, 0, (), (output,), ())])
        warnings = _validation_warnings(trace, m, None, None)
        assert any("2^31" in warning for warning in warnings) is told


def test_several_gpus_and_validation(whole, tracer, question):
    several = whole.data_parallel
    alone = question.answer(tracer)[0]
    assert several.gpus == 2
    assert sum(several.buckets) == pytest.approx(alone.breakdown.parameters, rel=0.05)
    for more, less in (
        (whole.memory, alone),
        (whole.validation.memory, validated(tracer, question).memory),
    ):
        added = more.breakdown.gradients - less.breakdown.gradients
        assert added == pytest.approx(sum(several.buckets), rel=0.01)
    context = whole.memory.context
    assert whole.budget == whole.visible - whole.reserve - context - several.communicator
    assert any("NCCL" in warning for warning in whole.warnings)
    assert whole.validation.windows == 27


def test_without_a_card_nothing_is_said_about_fitting():
    found = ladder(SMALL.replace(batch=1))
    assert found.fits is None
    assert found.together is None
    assert all(rung.fits is None for rung in found.rungs)
    assert "batch" not in {name for rung in found.rungs for name in rung.names}


def test_what_is_open():
    assert smaller_batches(1) == []
    assert smaller_batches(4) == [3, 2, 1]
    assert smaller_batches(12) == [6, 3, 1]
    swin = resolve(Workload())
    assert smaller_patch(swin) == (64, 64, 64)
    assert smaller_patch(swin.replace(patch=(128, 128, 64))) == (96, 96, 64)
    assert smaller_patch(swin.replace(patch=(32, 32, 32))) is None
    assert smaller_patch(resolve(Workload(model="highresnet"))) == (80, 80, 80)
    assert narrower(swin) == {"feature_size": 24}
    assert narrower(resolve(Workload(model="unet"))) == {"channels": (16, 32, 64, 128, 256)}
    basic = resolve(Workload(model="basicunet"))
    assert narrower(basic) == {"features": (16, 16, 32, 64, 128, 16)}
    assert narrower(resolve(Workload(model="mednexts"))) is None
    assert narrower(Workload(model="my.nets:make")) is None
    with pytest.raises(NetworkError):
        narrower(Workload(model="nothing"))


def test_bad_requests():
    with pytest.raises(CardError):
        study(SMALL, "rtx-9999")
    with pytest.raises(CardError, match="lower --reserve"):
        budget_of(named_card("rtx-3090"), 2**40)
    with pytest.raises(RequestError, match="reserve"):
        budget_of(None, -1)
    with pytest.raises(RequestError, match="gpus_per_job"):
        study(SMALL, gpus_per_job=0)
    with pytest.raises(CardError, match="NCCL"):
        budget_of(named_card("rtx-3090"), 2**40, 2)
