"""Plans: which batch, how long, and what to do where it does not fit."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest

from segplan.api.config import parse_config, preset_names
from segplan.api.experiments import Experiment, experiment, experiment_of, load_experiment
from segplan.api.planning import plan_days
from segplan.dataset.nouns import CacheMode, LoaderRate, Sampled
from segplan.errors import CardError, ConfigError, RequestError
from segplan.gpus import catalogue, find_card
from segplan.memory.context import context_bytes
from segplan.networks import resolve
from segplan.results import (
    Basis,
    BoundBy,
    Environment,
    Measurement,
    MemoryBreakdown,
    MemoryEstimate,
    Outcome,
    StepTime,
)
from segplan.schedule import CasesPerEpoch, DatasetFacts, FixedIterations, Schedule, Validation
from segplan.store import Store
from segplan.units import GIB
from segplan.workload import Workload
from tests.gpus.fake_pynvml import FakeGpu, FakeNvml

FIXED, PER_PATCH = 1 * GIB, 4 * GIB
START_S, PATCH_S = 0.1, 0.1


class FakePredictor:
    """Memory and time on a line in the batch; remembers what it was asked."""

    def __init__(self, workload: Workload, start_s: float = START_S) -> None:
        self.workload, self.start_s = workload, start_s
        self.card = self.target = None
        self.traced: list[tuple] = []
        self.estimated: list[tuple] = []
        self.refuses: str | None = None
        self.unknown = False
        self.forward_s: float | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def aim(self, card):
        self.card = card

    def trace(self, wanted):
        self.traced += wanted

    def estimate(self, patch, batch):
        self.estimated.append((self.card.slug, batch))
        least = FIXED + PER_PATCH * batch
        parts = MemoryBreakdown(FIXED // 4, 0, FIXED * 3 // 4, PER_PATCH * batch)
        return MemoryEstimate(least, least, least, least, least + GIB // 4, breakdown=parts)

    def fits(self, patch, batch, limit):
        return self.estimate(patch, batch).least_memory <= limit

    def kernel_limit(self, _patch, _batch):
        return self.refuses

    def step_time(self, _patch, batch):
        if self.unknown:
            return None
        seconds = (self.start_s + PATCH_S * batch) * self.workload.grad_accumulation
        return StepTime(seconds, 0.8 * seconds, 1.25 * seconds, Basis.PREDICTED)

    def forward_time(self, _patch, batch):
        seconds = self.forward_s
        return None if seconds is None else StepTime(*(seconds * batch,) * 3, Basis.PREDICTED)


class Maker:
    def __init__(self, **changes):
        self.changes, self.made = changes, []

    def __call__(self, workload, _progress):
        fake = FakePredictor(workload, self.changes.get("start_s", START_S))
        fake.refuses = self.changes.get("refuses")
        fake.forward_s = self.changes.get("forward_s")
        fake.unknown = self.changes.get("unknown", False)
        self.made.append(fake)
        return fake


MONAI = Experiment(
    "monai",
    Workload(batch=4),
    Schedule(100, CasesPerEpoch(24, 4), validation=Validation(6, every=10, overlap=0.5)),
    DatasetFacts(shape=(144, 96, 96), bytes_per_case=50_000_000),
)
NNUNET = Experiment("nnunet", Workload(batch=2), Schedule(1000, FixedIterations(250, 50), folds=5))
# 4 patches take 17 GiB, 2 take 9, 1 takes 5: an RTX 3090 holds five, an RTX 2080 Ti two.


def one(experiment, gpu="rtx-3090", maker=None, **options):
    (plan,) = plan_days([experiment], [gpu], make_predictor=maker or Maker(), **options)
    return plan


def test_a_plan_adds_training_and_validation():
    plan = one(MONAI)
    assert plan.fits
    assert (plan.steps, plan.steps_per_epoch, plan.patches) == (2400, 24, 9600)
    assert plan.patches_per_gpu == 4
    assert plan.training.seconds == pytest.approx(2400 * 0.5)
    assert (plan.training.low, plan.training.high) == pytest.approx((2400 * 0.4, 2400 * 0.625))
    assert plan.epoch.seconds == pytest.approx(24 * 0.5)
    # 144 = a window and one stride of 48: two windows; 60 volumes; a third of 0.5 s / 4 patches.
    assert (plan.windows_per_volume, plan.calls_per_volume) == (2, 2)
    assert plan.validation.seconds == pytest.approx(60 * 2 * 0.5 / 4 / 3)
    assert plan.total.seconds == pytest.approx(plan.training.seconds + plan.validation.seconds)
    assert plan.total.low < plan.total.seconds < plan.total.high
    assert plan.bound_by is BoundBy.GPU
    assert plan.energy_kwh == pytest.approx(0.35 * plan.total.seconds / 3600)
    assert plan.loader_patches_per_s == pytest.approx(8)
    assert plan.loader_mb_per_s == pytest.approx(8 / 4 * 50)


def test_the_network_is_traced_once_for_all_cards():
    maker = Maker()
    plans = plan_days([MONAI, NNUNET], ["catalog"], make_predictor=maker)
    cards = catalogue()
    assert [(p.name, p.card) for p in plans] == [
        (name, card.slug) for name in ("monai", "nnunet") for card in cards
    ]
    assert len(maker.made) == 2
    patch = resolve(MONAI.workload).patch
    assert maker.made[0].traced == [(patch, 2), (patch, 3)]


def test_batch_1_has_a_trace_of_its_own():
    maker = Maker()
    one(dataclasses.replace(MONAI, workload=Workload(batch=1)), maker=maker)
    assert [batch for _, batch in maker.made[0].traced] == [1, 2, 3]


def test_a_sooner_batch_is_recommended_by_time():
    plan = one(MONAI, "h100")  # 80 GB hold 19 patches: 16 is the largest multiple
    (option,) = plan.options
    assert plan.recommended_batch == option.batch == 16
    # Starting a step costs as much as a patch: 6 steps of 1.7 s instead of 24 of 0.5 s.
    assert (option.steps_per_epoch, option.steps, option.patches) == (6, 600, 9600)
    assert option.step.seconds == pytest.approx(1.7)
    assert option.total.seconds < plan.total.seconds
    assert plan.steps == 2400  # the plan itself is of the configured batch


def test_fuller_memory_is_not_sooner():
    plan = one(MONAI, "h100", Maker(start_s=0.001))
    assert plan.options == ()
    assert plan.recommended_batch == 4


def test_a_batch_beyond_the_epoch_is_not_looked_at():
    few = dataclasses.replace(MONAI, schedule=Schedule(100, CasesPerEpoch(2, 4)))
    plan = one(few, "b200", Maker(start_s=10.0))
    assert plan.options[0].batch == 8  # all of an epoch's patches


def test_the_largest_sooner_batch_that_fits_is_taken():
    maker = Maker(start_s=5.0)
    plan = one(MONAI, "a100-pcie-40gb", maker)
    assert plan.options[0].batch == 8  # 33 GiB; 16 would be sooner and need 65
    assert ("a100-pcie-40gb", 32) not in maker.made[0].estimated


def test_fixed_iterations_keep_their_batch_and_show_what_a_larger_one_costs():
    plan = one(NNUNET)
    (option,) = plan.options
    assert plan.recommended_batch == 2
    assert option.batch == 4
    assert (option.steps, option.patches) == (plan.steps, 2 * plan.patches)
    assert option.total.seconds > plan.total.seconds
    # 50 forward passes of a third for 250 steps: 1,250,000 steps become 1,333,333.
    assert plan.total.seconds == pytest.approx(0.3 * (1_250_000 + 250_000 / 3))


def test_where_it_does_not_fit_a_smaller_batch_accumulates():
    plan = one(MONAI, "rtx-2080-ti")
    assert not plan.fits
    assert (plan.step, plan.training, plan.total, plan.steps) == (None, None, None, 0)
    assert plan.memory.least_memory == 17 * GIB
    (option,) = plan.options
    assert (option.batch, option.accumulation, option.patches_per_gpu) == (2, 2, 4)
    assert plan.recommended_batch == 2
    assert option.steps == 2400  # as many updates as configured
    assert option.step.seconds == pytest.approx(2 * 0.3)
    assert option.total.seconds > 2400 * 0.6
    assert plan.smallest_card is not None


def test_accumulation_keeps_gradients_alive():
    # 9 GiB for batch 2 and a quarter for its gradients: a reserve that leaves 9.1 refuses it.
    card = find_card("rtx-2080-ti")
    context, _ = context_bytes(card.compute_capability)
    left = card.memory_visible - context
    roomy, tight = left - int(9.3 * GIB), left - int(9.1 * GIB)
    assert one(MONAI, "rtx-2080-ti", reserve=roomy).options[0].batch == 2
    assert one(MONAI, "rtx-2080-ti", reserve=tight).options[0].batch == 1


def test_the_smallest_card_that_holds_it():
    plan = one(MONAI, "rtx-2080-ti")
    (there,) = plan_days([MONAI], [plan.smallest_card], make_predictor=Maker())
    assert there.fits
    smaller = [
        c.slug
        for c in catalogue()
        if c.memory_visible < find_card(plan.smallest_card).memory_visible
    ]
    assert not any(p.fits for p in plan_days([MONAI], smaller, make_predictor=Maker()))


def test_nothing_fits_anywhere():
    huge = dataclasses.replace(MONAI, workload=Workload(batch=61))  # a prime: only batch 1 is left
    plan = one(huge, "rtx-3090")
    assert (plan.fits, plan.smallest_card) == (False, None)
    assert plan.options[0].batch == 1
    plan = one(huge, "rtx-3090", reserve=23 * GIB)
    assert (plan.options, plan.recommended_batch) == ((), None)


def test_a_kernel_that_refuses_the_tensors():
    plan = one(MONAI, maker=Maker(refuses="max_pool3d"))
    assert not plan.fits
    assert plan.notes == ("max_pool3d refuses tensors of 2^31 elements.",)
    assert (plan.options, plan.smallest_card) == ((), None)


def test_a_card_of_unknown_rates_still_fits():
    plan = one(MONAI, maker=Maker(unknown=True))
    assert plan.fits
    assert plan.total is None
    assert plan.notes[0].startswith("Too little is known of the card")


def test_a_predicted_forward_pass_is_taken_for_validation():
    plan = one(MONAI, maker=Maker(forward_s=0.01))
    assert plan.validation.seconds == pytest.approx(60 * 2 * 0.01)


def test_a_slow_loader_decides():
    plan = one(MONAI, loader=4.0)
    assert plan.bound_by is BoundBy.LOADER
    assert plan.training.seconds == pytest.approx(9600 / 4)
    assert plan.loader_patches_per_s == pytest.approx(8)  # what the GPU could take
    fast = one(MONAI, loader=1000.0)
    assert fast.training == one(MONAI).training
    # Waiting takes a quarter of the power.
    busy, waiting = 2400 * 0.5 + plan.validation.seconds, 2400 * 0.5
    assert plan.energy_kwh == pytest.approx(0.35 * (busy + waiting / 4) / 3600)


def test_a_slow_loader_makes_a_larger_batch_no_faster():
    assert one(MONAI, "h100", loader=4.0).options == ()


RATE = LoaderRate(
    "data", 24, 24, 48, 4, CacheMode.NONE, (96, 96, 96), 4, 1, (1.0, 1.0, 1.0),
    Sampled(4.0, 2.0, 5.0), None, 50.0, None, None, 1, 1, 1, 1, 1,
)  # fmt: skip


def test_a_measured_loader_brings_its_interval():
    training = one(MONAI, loader=RATE).training
    # Of an epoch's 96 patches the first 16, one case of each worker, come together.
    assert (training.low, training.high) == pytest.approx((8000 / 5, 8000 / 2))
    assert training.basis is Basis.MEASURED


def test_a_measured_start_is_part_of_every_epoch_and_validation():
    fast = dataclasses.replace(RATE, patches_per_s=Sampled(1000.0, 1000.0, 1000.0))
    without, with_start = (
        one(MONAI, loader=dataclasses.replace(fast, start_s=start))
        for start in (None, Sampled(2.0, 1.0, 3.0))
    )
    assert with_start.epoch.seconds == pytest.approx(without.epoch.seconds + 2)
    assert with_start.training.seconds == pytest.approx(without.training.seconds + 100 * 2)
    assert with_start.validation.seconds == pytest.approx(without.validation.seconds + 10 * 2)
    assert with_start.total.high > without.total.high


def test_a_loader_measured_with_other_crops_is_told():
    other = dataclasses.replace(RATE, num_samples=2)
    assert one(MONAI, loader=RATE).notes == ()
    assert "measured with 2 crops of 96x96x96" in one(MONAI, loader=other).notes[0]


@pytest.mark.parametrize("changes", [
    {"patches_per_s": Sampled(1e-300, 1e-320, 1.0)},
    {"patches_per_s": Sampled(math.inf, 1.0, math.inf)},
    {"patches_per_s": Sampled(5.0, 1.0, math.inf)},
    {"patches_per_s": Sampled(5.0, 6.0, 7.0)},
    {"start_s": Sampled(math.nan, math.nan, math.nan)},
    {"start_s": Sampled(math.inf, 1.0, math.inf)},
    {"start_s": Sampled(-3.0, -3.0, 1.0)},
])  # fmt: skip
def test_a_loader_that_cannot_be(changes):
    with pytest.raises(RequestError, match="a loader"):
        one(MONAI, loader=dataclasses.replace(RATE, **changes))


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A store with a measured step of MONAI's workload on the RTX 3090 that is here."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    path = str(tmp_path / "store.sqlite")
    here = Environment(card_uuid=FakeGpu().uuid)
    step = Measurement(
        resolve(MONAI.workload), Outcome.FITS, step_seconds=(0.9, 1.0, 1.2), environment=here
    )
    refused = dataclasses.replace(step, outcome=Outcome.OUT_OF_MEMORY, step_seconds=(9.0,))
    elsewhere = dataclasses.replace(step, step_seconds=(9.0,), environment=Environment())
    with Store.open(path) as store:
        for measurement in (step, refused, elsewhere):
            store.add(measurement)
    return path


def test_the_measured_step_of_a_card_that_is_here_is_taken(measured):
    plan = one(MONAI, "0", store=measured)
    assert (plan.step.seconds, plan.step.low, plan.step.high) == (1.0, 0.9, 1.2)
    assert plan.step.basis is plan.training.basis is Basis.MEASURED
    assert plan.training.seconds == pytest.approx(2400)
    assert plan.notes == ()


def test_a_step_that_waited_for_memory_is_the_last_choice(measured):
    """It is the newest, but its allocator gave memory back and took it again."""
    with Store.open(measured) as store:
        first = store.find(outcome=Outcome.FITS, card_uuid=FakeGpu().uuid)[0]
        store.add(dataclasses.replace(first, step_seconds=(3.0, 3.1, 3.2), allocator_retries=4))
    assert one(MONAI, "0", store=measured).step.seconds == 1.0


def test_everything_else_is_scaled_by_the_measured_step(measured):
    maker = Maker(forward_s=0.01, start_s=2.0)  # predicted 2.4 s, measured 1 s
    plan = one(dataclasses.replace(MONAI, workload=Workload(batch=4)), "0", maker, store=measured)
    assert plan.validation.seconds == pytest.approx(60 * 2 * 0.01 / 2.4)
    assert plan.validation.basis is Basis.SCALED
    two = dataclasses.replace(MONAI, workload=Workload(batch=2))
    assert one(two, "0", maker, store=measured).step.basis is Basis.PREDICTED


def test_a_step_that_was_not_measured_is_predicted_and_told(measured):
    plan = one(dataclasses.replace(MONAI, workload=Workload(batch=2)), "0", store=measured)
    assert plan.step.basis is Basis.PREDICTED
    assert "No step of this workload was measured on this card" in plan.notes[0]
    assert one(MONAI, "rtx-3090", store=measured).step.basis is Basis.PREDICTED


def test_a_store_that_is_not_there(measured, monkeypatch, tmp_path):
    with pytest.raises(RequestError, match="there is no store"):
        one(MONAI, "0", store=f"{measured}x")
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "none.sqlite"))
    assert one(MONAI, "0").step.basis is Basis.PREDICTED
    assert not (tmp_path / "none.sqlite").exists()


def test_several_gpus():
    alone, four = one(MONAI, "a100-sxm4-80gb"), one(MONAI, "a100-sxm4-80gb", gpus_per_job=4)
    assert (four.gpus, four.steps, four.patches) == (4, 600, alone.patches)
    assert 0.9 < four.efficiency < 1
    assert four.step.seconds == pytest.approx(alone.step.seconds / four.efficiency)
    assert four.training.seconds == pytest.approx(alone.training.seconds / 4 / four.efficiency)
    assert four.loader_patches_per_s == pytest.approx(4 * 8 * four.efficiency)
    assert four.energy_kwh > alone.energy_kwh
    assert four.link == "NVLink (SXM4)"
    assert (alone.efficiency, alone.link) == (None, None)


def test_several_gpus_leave_less_of_each():
    # 17 GiB and a quarter are left of each without NCCL's buffers, which take half a GiB.
    card = find_card("rtx-3090")
    context, _ = context_bytes(card.compute_capability)
    reserve = card.memory_visible - context - int(17.25 * GIB)
    assert one(MONAI, reserve=reserve).fits
    two = one(MONAI, reserve=reserve, gpus_per_job=2)
    assert not two.fits
    there = one(MONAI, two.smallest_card, reserve=reserve, gpus_per_job=2)
    assert there.fits


def test_several_gpus_shorten_no_epoch_of_fixed_iterations():
    alone, four = one(NNUNET), one(NNUNET, gpus_per_job=4)
    assert four.steps == alone.steps
    assert four.patches == 4 * alone.patches
    assert four.training.seconds > alone.training.seconds


def test_without_a_schedule_the_step_is_told():
    plan = one(dataclasses.replace(MONAI, schedule=None, dataset=None))
    assert plan.fits
    assert plan.step.seconds == pytest.approx(0.5)
    assert (plan.total, plan.steps) == (None, 0)
    assert "No schedule" in plan.notes[-1]


def test_validation_of_unknown_shape_leaves_the_total_open():
    plan = one(dataclasses.replace(MONAI, dataset=None))
    assert plan.training is not None
    assert (plan.validation, plan.total, plan.windows_per_volume) == (None, None, None)
    assert "needs a shape" in plan.notes[-1]


def test_a_tight_fit_says_so():
    card = find_card("rtx-3090")
    context, _ = context_bytes(card.compute_capability)
    tight = card.memory_visible - context - 17 * GIB
    assert "less than the uncertainty" in one(MONAI, reserve=tight).notes[0]
    assert not one(MONAI, reserve=tight + 1).fits


@pytest.mark.parametrize(
    "options",
    [
        {"gpus_per_job": 0},
        {"loader": 0.0},
        {"loader": float("nan")},
        {"reserve": -1},
        {"max_batch": 0},
    ],
)
def test_bad_options(options):
    with pytest.raises(RequestError):
        one(MONAI, **options)


@pytest.mark.parametrize("gpus", [["rtx-309"], ["all"], [""], []])
def test_bad_cards(gpus):
    with pytest.raises(CardError):
        plan_days([MONAI], gpus, make_predictor=Maker())


def test_no_experiment():
    with pytest.raises(RequestError, match="no experiment"):
        plan_days([], ["rtx-3090"], make_predictor=Maker())


def test_a_mistake_in_the_last_experiment_costs_no_trace():
    maker = Maker()
    wrong = dataclasses.replace(MONAI, workload=Workload(patch=(97, 96, 96)))
    with pytest.raises(RequestError):
        plan_days([MONAI, wrong], ["rtx-3090"], make_predictor=maker)
    assert maker.made == []


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_is_complete(name):
    found = load_experiment(name)
    assert found.name == name
    assert found.source
    assert found.schedule is not None
    assert found.schedule.validation is not None
    facts = found.dataset
    assert None not in (facts.cases, facts.channels, facts.classes, facts.shape, facts.spacing)
    assert facts.bytes_per_case > 10**6
    workload = resolve(found.workload)
    assert (workload.in_channels, workload.out_channels) == (facts.channels, facts.classes)
    plan = one(found, "h200")
    assert plan.fits
    assert plan.total.seconds > plan.training.seconds > 0


def config(text):
    return experiment_of(parse_config(text, "c.yaml"), "folder/mine.yaml")


def test_a_configuration_becomes_an_experiment():
    found = config(
        "patch: 96\nbatch: 2\nsource: [one, two]\n"
        "schedule:\n  epochs: 10\n  num_samples: 2\n  validation: {cases: 4, every: 5}\n"
        "dataset: {cases: 24, channels: 3, classes: 5, shape: [100, 90, 80], bytes_per_case: 5MB}\n"
    )
    assert (found.name, found.source) == ("mine", "one; two")
    assert (found.workload.in_channels, found.workload.out_channels) == (3, 5)
    assert found.schedule.epoch == CasesPerEpoch(20, 2)  # 24 less the 4 validated
    assert found.schedule.validation == Validation(4, every=5)
    assert found.dataset == DatasetFacts(
        cases=24, channels=3, classes=5, shape=(100, 90, 80), bytes_per_case=5_000_000
    )


def test_folds_leave_a_part_of_the_cases_for_validation():
    text = "schedule: {epochs: 10, folds: 5, validation: {every: 10}}\ndataset: {cases: 42}\n"
    schedule = config(text).schedule
    assert schedule.epoch.cases == 34
    assert schedule.validation.cases == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedule: {cases: 3}", "no epochs"),
        ("schedule: {epochs: 3}", "what an epoch is"),
        ("schedule: {epochs: 3, iterations: 250, num_samples: 4}", "iterations and num_samples"),
        ("schedule: {epochs: 3, cases: 4, validation_iterations: 50}", "goes with"),
        ("schedule: {epochs: 3, cases: 4, validation: {every: 2}}", "needs cases"),
        ("schedule: {epochs: 3, cases: 4, validation: {every: 4, cases: 1}}", "never happens"),
        ("schedule: {epochs: 3, validation: {cases: 5}}\ndataset: {cases: 5}", "what an epoch is"),
    ],
)
def test_schedules_that_make_no_sense(text, message):
    with pytest.raises(RequestError, match=message):
        config(text)


def test_the_command_line_wins_over_the_schedule_of_a_file():
    found = load_experiment("btcv-swinunetr", {"epochs": 10, "folds": None, "cases": 12})
    assert (found.schedule.epochs, found.schedule.epoch) == (10, CasesPerEpoch(12, 4))
    assert found.schedule.validation.every == 10  # every 100 would never come


def test_a_validation_at_the_end_stays_there():
    found = load_experiment("msd-dynunet-heart", {"epochs": 2000})
    assert found.schedule.validation.every == 2000
    assert load_experiment("btcv-unetr", {"epochs": 6000}).schedule.validation.every == 100


def test_the_command_line_changes_what_an_epoch_is():
    found = load_experiment("btcv-swinunetr", {"iterations": 250})
    assert found.schedule.epoch == FixedIterations(250)
    found = load_experiment("msd-dynunet-heart", {"cases": 16})
    assert found.schedule.epoch == CasesPerEpoch(16)


def test_an_experiment_of_the_command_line_alone():
    found = experiment(None, Workload(model="unet"), {"epochs": 3, "cases": 7, "num_samples": 2})
    assert (found.name, found.schedule) == ("unet", Schedule(3, CasesPerEpoch(7, 2)))
    with pytest.raises(RequestError, match="there is no schedule"):
        experiment(None, Workload(), {"epochs": None})


def test_an_unknown_preset():
    with pytest.raises(ConfigError, match="did you mean btcv-swinunetr"):
        load_experiment("btcv-swinuntr")
