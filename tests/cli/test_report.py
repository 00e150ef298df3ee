"""`segplan report` and `segplan export`, and how a report is composed."""

from __future__ import annotations

import csv
import dataclasses
import json
import types

import pytest

from segplan.api import exporting, reporting
from segplan.api.choosing import named_cards
from segplan.api.experiments import Experiment
from segplan.api.report_nouns import ChangeKind
from segplan.api.report_reading import read_report
from segplan.api.reporting import make_report
from segplan.errors import CardError, RequestError
from segplan.results import (
    Basis,
    BatchOption,
    Cell,
    Environment,
    LimitedBy,
    Measurement,
    MemoryEstimate,
    Outcome,
    Plan,
    StepTime,
)
from segplan.store import Store
from segplan.units import GIB, MIB
from segplan.workload import Workload
from tests.cli.fakes import estimate_of
from tests.report.test_json import validator
from tests.report.test_page import SAVED

PIXELS = 96**3


class FakePredictor:
    """96³ takes 1 GiB and 2 for each patch (1 with checkpointing), other sizes in proportion."""

    def __init__(self, workload, card=None, progress=None):
        self.workload, self.target, self.card = workload, card, card

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def aim(self, card):
        self.target = self.card = card

    def trace(self, wanted):
        assert all(batch >= 1 for _, batch in wanted)

    def estimate(self, patch, batch):
        each = 1 if self.workload.checkpointing else 2
        voxels = patch[0] * patch[1] * patch[2]
        least = GIB + int(each * GIB * batch * voxels / PIXELS)
        return MemoryEstimate(least, least, least, least - MIB, least + MIB, 600 * MIB)

    def peak_allocated(self, patch, batch):
        return self.estimate(patch, batch).peak_allocated

    def has_line(self, patch):
        return True

    def fits(self, patch, batch, limit):
        return self.estimate(patch, batch).least_memory <= limit

    def kernel_limit(self, patch, batch):
        return "a kernel" if patch[0] >= 224 and batch > 1 else None

    def step_time(self, patch, batch):
        return StepTime(batch * 0.1, batch * 0.09, batch * 0.12, Basis.PREDICTED)


def fake_planner(experiments, gpus, *, make_predictor, progress):
    """Days in proportion to the card's memory, so that each plan can be told apart."""
    plans = []
    for experiment in experiments:
        with make_predictor(experiment.workload, progress) as predictor:
            assert isinstance(predictor, FakePredictor)
        for _, card in named_cards(gpus, "days are predicted").values():
            plans.append(
                Plan(experiment.name, experiment.workload, card.slug, True, notes=(card.name,))
            )
    return tuple(plans)


@pytest.fixture
def no_store(monkeypatch, tmp_path):
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "none.sqlite"))


@pytest.fixture
def predicted(monkeypatch, no_store):
    monkeypatch.setattr(reporting, "Predictor", FakePredictor)

    def make(*gpus, batch=4, patch=(96, 96, 96), planner=fake_planner, **options):
        workload = Workload(patch=patch, batch=batch)
        return make_report([Experiment("mine", workload)], gpus, planner=planner, **options)

    return make


def test_a_report_is_composed(predicted):
    report = predicted("rtx-3090,rtx-2080-ti", "a40", "rtx-3090")
    assert [card.slug for card in report.cards] == ["rtx-3090", "rtx-2080-ti", "a40"]
    (part,) = report.workloads
    assert part.workload.model_args["feature_size"] == 48  # defaults filled
    for card, entry in zip(report.cards, part.entries, strict=True):
        assert entry.card == entry.fit.card == entry.plan.card == card.slug
        room = card.memory_visible - entry.fit.context - 512 * MIB
        assert entry.fit.budget == room
        most = int((room - GIB) / (2 * GIB))
        assert entry.asked.max_batch == most
        assert entry.fits == (most >= 4)
        assert entry.memory.least_memory == 9 * GIB
        assert entry.plan.notes == (card.name,)
        sizes = [cell.patch[0] for cell in entry.fit.cells]
        assert sizes == sorted(sizes)
    assert (report.store, report.measurements, report.baselines) == (None, 0, {})
    assert set(report.versions) == {"segplan", "torch", "monai", "python"}


def changes_of(entry):
    return {change.kind: change for change in entry.changes}


def test_what_would_change_where_it_fits(predicted):
    (entry,) = predicted("rtx-3090").workloads[0].entries
    found = changes_of(entry)
    assert entry.asked.max_batch == 10
    assert found[ChangeKind.CHECKPOINTING].batch == 21
    larger = found[ChangeKind.CARD_FOR_BATCH]
    assert (larger.batch, larger.patch, larger.least_memory) == (11, (96, 96, 96), 23 * GIB)
    assert larger.card is not None
    # 128³ takes 4.74 GiB a patch: four of them and 1 GiB are 19.96 GiB, and fit. 160³ takes 9.26.
    wider = found[ChangeKind.CARD_FOR_PATCH]
    assert (wider.patch, wider.batch) == ((160, 160, 160), 4)
    assert set(found) == {
        ChangeKind.CHECKPOINTING, ChangeKind.CARD_FOR_BATCH, ChangeKind.CARD_FOR_PATCH
    }  # fmt: skip


def test_what_would_change_where_it_does_not(predicted):
    (entry,) = predicted("rtx-3090", batch=12).workloads[0].entries
    found = changes_of(entry)
    assert entry.fits is False
    assert found[ChangeKind.CHECKPOINTING].batch == 21
    assert found[ChangeKind.SMALLER_BATCH].batch == 10
    assert found[ChangeKind.SMALLER_PATCH].patch == (64, 64, 64)
    assert found[ChangeKind.CARD].card is not None
    assert found[ChangeKind.CARD].batch == 12

    def planner(*arguments, **options):
        (plan,) = fake_planner(*arguments, **options)
        other = BatchOption(6, 2, 12, 1, 1, 1)
        return (dataclasses.replace(plan, fits=False, options=(other,), smallest_card="a40"),)

    (entry,) = predicted("rtx-3090", batch=12, planner=planner).workloads[0].entries
    assert ChangeKind.SMALLER_BATCH not in changes_of(entry)  # the plan's option says it better
    assert changes_of(entry)[ChangeKind.CARD].card_name == "A40"


def test_no_card_helps_against_a_kernel(predicted):
    (entry,) = predicted("h200", patch=(224, 224, 224), batch=2).workloads[0].entries
    assert entry.asked.limited_by is LimitedBy.KERNEL
    assert set(changes_of(entry)) <= {ChangeKind.SMALLER_BATCH, ChangeKind.SMALLER_PATCH}


def measured(workload, batch, outcome, card, limit, **more):
    return Measurement(
        workload=workload.replace(batch=batch), outcome=outcome, allocator_limit=limit,
        environment=Environment(card_name=card, card_uuid="GPU-1"), **more,
    )  # fmt: skip


def with_measurements(predicted, tmp_path, *rows, gpu="rtx-3090"):
    """The entry of 96³, asked at batch 4, with what was measured of it."""
    plain = predicted(gpu).workloads[0]
    budget = plain.entries[0].fit.budget
    workload = plain.workload
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        for batch, outcome, card, limit, more in rows:
            store.add(
                measured(
                    workload,
                    batch,
                    outcome,
                    card,
                    None if limit is None else int(limit * budget),
                    **more,
                )
            )
    report = predicted(gpu, store=str(path))
    return report, report.workloads[0].entries[0]


RAN = {
    "step_seconds": (0.5, 0.4, 0.6, 0.45, 0.55), "peak_allocated": 20 * GIB,
    "peak_reserved": 21 * GIB,
}  # fmt: skip
OOM = Outcome.OUT_OF_MEMORY
OWN, OTHER = "NVIDIA GeForce RTX 3090", "NVIDIA H200"


def test_a_measured_boundary_takes_the_predictions_place(predicted, tmp_path):
    report, entry = with_measurements(
        predicted, tmp_path, (8, Outcome.FITS, OWN, None, RAN), (9, OOM, OWN, None, {})
    )
    cell = entry.asked
    assert (cell.max_batch, cell.basis, cell.limited_by) == (8, Basis.MEASURED, LimitedBy.MEMORY)
    assert cell.step == StepTime(0.5, 0.4, 0.6, Basis.MEASURED)
    assert cell.memory.peak_reserved == 21 * GIB
    assert entry.fits
    assert (report.measurements, report.store) == (2, str(tmp_path / "store.sqlite"))
    others = [c for c in entry.fit.cells if c.patch != (96, 96, 96)]
    assert {c.basis for c in others} == {Basis.PREDICTED}


def test_an_emulated_boundary(predicted, tmp_path):
    _, entry = with_measurements(
        predicted, tmp_path, (3, Outcome.FITS, OTHER, 0.995, RAN), (4, OOM, OTHER, 1.005, {})
    )
    cell = entry.asked
    assert (cell.max_batch, cell.basis) == (3, Basis.EMULATED)
    assert cell.step.basis is Basis.PREDICTED  # the other card's time is not this one's
    assert entry.fits is False


def test_a_kernel_limit_holds_on_every_card(predicted, tmp_path):
    _, entry = with_measurements(
        predicted, tmp_path,
        (6, Outcome.FITS, OWN, None, RAN), (7, Outcome.KERNEL_LIMIT, OTHER, None, {}),
    )  # fmt: skip
    assert (entry.asked.max_batch, entry.asked.limited_by) == (6, LimitedBy.KERNEL)


@pytest.mark.parametrize(
    "rows",
    [
        [(8, Outcome.FITS, OWN, None, RAN)],  # nobody tried 9
        [(8, Outcome.FITS, OWN, None, RAN), (9, OOM, OTHER, 0.5, {})],  # under half of it
        [(8, Outcome.FITS, OTHER, None, RAN), (9, OOM, OWN, None, {})],  # with more memory
        [(8, Outcome.FITS, OTHER, 1.1, RAN), (9, OOM, OWN, None, {})],
        [(8, Outcome.FITS, OWN, None, RAN), (9, Outcome.TIMED_OUT, OWN, None, {})],
        [(8, Outcome.FITS, OWN, None, {**RAN, "fresh": False}), (9, OOM, OWN, None, {})],
    ],
)
def test_measurements_that_do_not_answer_are_left_aside(predicted, tmp_path, rows):
    report, entry = with_measurements(predicted, tmp_path, *rows)
    assert (entry.asked.max_batch, entry.asked.basis) == (10, Basis.PREDICTED)
    assert report.measurements == 0


def test_baseline_checks_come_from_the_store(predicted, tmp_path):
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        for made_at, sentence in (("2026-01-01T00:00:00", "old"), ("2026-02-01T00:00:00", "new")):
            store.add_bench(
                {"made_at": made_at, "environment": {"card_name": OWN},
                 "verdict": {"sentence": sentence}}
            )  # fmt: skip
        store.add_bench({"made_at": "2026-03-01T00:00:00", "environment": {"card_name": OWN},
                         "verdict": ["?"]})  # fmt: skip
    report = predicted("rtx-3090,a40", store=str(path))
    assert report.baselines == {"rtx-3090": "new"}


def test_a_store_that_cannot_be_read_costs_the_measurements_only(predicted, tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database, but long enough to be looked at" * 100)
    report = predicted("rtx-3090", store=str(path))
    assert "Measurements were not read" in report.warnings[0]
    assert report.workloads[0].entries[0].fits


@pytest.mark.parametrize(
    ("gpus", "words"),
    [((), "no card is named"), (("",), "no card is named"), (("all",), "a report predicts")],
)
def test_cards_that_make_no_report(predicted, gpus, words):
    with pytest.raises(RequestError, match=words):
        predicted(*gpus)


def test_requests_are_refused_before_the_first_trace(predicted, tmp_path):
    with pytest.raises(CardError):
        predicted("rtx-309")
    with pytest.raises(RequestError, match="there is no store"):
        predicted("rtx-3090", store=str(tmp_path / "nowhere.sqlite"))
    with pytest.raises(RequestError, match="no workload"):
        make_report([], ["rtx-3090"])


@pytest.fixture
def command(monkeypatch):
    """`make_report` answers with the saved report."""
    made = []

    def answer(experiments, gpus, **options):
        made.append(types.SimpleNamespace(experiments=experiments, gpus=gpus, **options))
        options["progress"](1, 2, "traced")
        return read_report(SAVED)

    monkeypatch.setattr(reporting, "make_report", answer)
    return made


def test_the_command_writes_each_form(run, command, tmp_path):
    for ending, start in ((".html", "<!doctype html>"), (".md", "# GPU"), (".csv", "workload,")):
        file = tmp_path / f"report{ending}"
        words = ["--config", "spleen-unet", "btcv-unetr", "--gpus", "rtx-3090,a40"]
        ran = run("report", *words, "--out", str(file))
        assert (ran.status, file.read_text(encoding="utf-8").startswith(start)) == (0, True)
        assert "Fastest:" in ran.out
        assert f"wrote {file}".replace(" ", "") in ran.err.replace("\n", "").replace(" ", "")
        assert max(map(len, ran.out.splitlines())) <= 80
    call = command[0]
    assert [e.name for e in call.experiments] == ["spleen-unet", "btcv-unetr"]
    assert (call.gpus, call.store) == (["rtx-3090,a40"], None)
    assert list(csv.DictReader((tmp_path / "report.csv").open()))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.csv", "report.html", "report.md"]


def test_a_saved_report_in_another_form(run, tmp_path):
    file = tmp_path / "again.json"
    assert run("report", "--from", str(SAVED), "--out", str(file)).status == 0
    assert read_report(file) == read_report(SAVED)
    ran = run("report", "--from", str(SAVED), "--json")
    document = json.loads(ran.out)
    validator("report.schema.json").validate(document)
    assert document == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --out"),
        (["--out", "report.pdf"], "end it in .html"),
        (["--out", "no/where.html"], "there is no folder no"),
        (["--out", "r.html"], "no workload is named"),
        (["--out", "r.html", "--config", "spleen-unet"], "no card is named"),
        (["--out", "r.html", "--config", "spleen-unett", "--gpus", "a40"], "did you mean"),
        (["--out", "r.html", "--from", "none.json"], "none.json cannot be read"),
        (["--out", "r.html", "--from", str(SAVED), "--gpus", "a40"], "leave --config"),
    ],
)
def test_requests_that_make_no_report(run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    ran = run("report", *words)
    assert ran.status == 2
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(run, command, tmp_path, monkeypatch):
    file = tmp_path / "report.html"
    file.write_text("old")
    import segplan.report.page

    def broken(report, stream):
        stream.write("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(segplan.report.page, "render", broken)
    ran = run("report", "--from", str(SAVED), "--out", str(file))
    assert ran.status == 130
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def recommendation(monkeypatch):
    calls = []

    def answer(workload, gpu, **options):
        calls.append(types.SimpleNamespace(workload=workload, gpu=gpu, **options))
        options["progress"](1, 2, "traced")
        cell = Cell(workload.patch, 4, LimitedBy.MEMORY, estimate_of(20.0))
        w = workload.replace(batch=4)
        code = exporting.network_code(w)
        return exporting.Recommendation(options["name"], w, gpu, 22 * GIB, cell, "so", code)

    monkeypatch.setattr(exporting, "recommend_for", answer)
    return calls


def test_export(run, recommendation, tmp_path):
    words = ["--config", "btcv-swinunetr", "--gpu", "rtx-3090"]
    ran = run("export", *words)
    assert ran.status == 0
    compile(ran.out, "out.py", "exec")
    assert "# btcv-swinunetr on the rtx-3090: 96³ at batch 4, fp16." in ran.out
    assert recommendation[0].workload.zero_grad == "before_forward"
    lightning = run("export", *words, "--to", "lightning")
    assert "precision='16-mixed'" in lightning.out
    assert recommendation[1].workload.zero_grad == "before_backward"
    file = tmp_path / "override.json"
    ran = run("export", *words, "--to", "monai", "--batch", "8", "--out", str(file))
    assert (ran.status, ran.out) == (0, "")
    assert json.loads(file.read_text())["train#random_transforms#0#spatial_size"] == [96, 96, 96]
    assert recommendation[2].batch == 8
    document = json.loads(run("export", *words, "--json").out)
    assert (document["schema_version"], document["workload"]["batch"]) == (1, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no card is named"),
        (["--gpu", "a40", "--to", "keras"], "--to must be one of monai"),
        (["--gpu", "a40", "--bundle", "x.json"], "--bundle goes with"),
        (["--gpu", "a40", "--to", "monai", "--bundle", "x.json"], "cannot be read"),
        (["--gpu", "a40", "--out", "no/where.py"], "there is no folder"),
        (["--gpu", "a40", "--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_requests_that_export_nothing(run, recommendation, words, message):
    ran = run("export", *words)
    assert ran.status == 2
    assert message in ran.err
    assert recommendation == []
