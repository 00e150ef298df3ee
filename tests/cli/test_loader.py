from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from segplan.api import loading
from segplan.dataset.nouns import CacheMode, LoaderRate, Problem, ProblemKind, Sampled
from segplan.errors import WorkerError
from segplan.units import GIB, MIB
from tests.report.test_json import validator

RATE = LoaderRate(
    path="Task09_Spleen",
    cases=41,
    measured=16,
    visits=120,
    workers=4,
    cache=CacheMode.NONE,
    patch=(96, 96, 96),
    num_samples=4,
    batch=1,
    spacing=(1.5, 1.5, 2.0),
    patches_per_s=Sampled(12.3, 10.1, 13.9, (10.0, 12.0, 14.0)),
    first_patches_per_s=Sampled(8.4, 8.0, 9.0, (8.0, 9.0)),
    mb_per_s=51.2,
    cold_s=Sampled(1.9, 1.5, 2.4, (1.5, 1.9, 2.4)),
    warm_s=Sampled(1.3, 1.2, 1.5, (1.2, 1.3, 1.5)),
    case_bytes=180 * MIB,
    cache_bytes=41 * 180 * MIB,
    worker_bytes=900 * MIB,
    prefetch_bytes=250 * MIB,
    host_bytes=5 * GIB,
)


class FakeMeasure:
    def __init__(self) -> None:
        self.calls = []
        self.answer = RATE
        self.error = None

    def __call__(self, data, *, progress, **options):
        self.calls.append({"data": data, **options})
        progress(3, 60, "loading, 12 patches")
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def measured(monkeypatch):
    fake = FakeMeasure()
    monkeypatch.setattr(sys.modules["segplan.api.loading"], "measure_loader", fake)
    return fake


def test_a_rate_and_its_memory(run, measured):
    ran = run("loader", "--data", "Task09_Spleen", "--workers", "4")
    assert ran.status == 0
    assert measured.calls == [{"data": "Task09_Spleen", "workers": 4}]
    assert "loading, 12 patches" in ran.err
    for text in (
        "Task09_Spleen · 4 workers · no cache", "4 crops of 96³ a case at 1.5×1.5×2 mm",
        "12 (10–14)", "8.4 (8.0–9.0)", "51", "1.9 s (1.5–2.4)", "1.3 s (1.2–1.5)",
        "16 of 41 cases", "5.0 GiB", "900 MiB", "7.2 GiB", "all 41 cases, were it held",
    ):  # fmt: skip
        assert text in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_every_option(run, measured):
    ran = run(
        "loader", "--data", "d", "--workers", "0", "--patch", "64x64x32", "--num-samples", "2",
        "--batch", "3", "--spacing", "1", "--intensity=-175,250", "--cache", "disk",
        "--cache-dir", "c", "--cases", "5", "--seconds", "9.5",
    )  # fmt: skip
    assert ran.status == 0
    assert measured.calls == [
        {
            "data": "d", "workers": 0, "patch": (64, 64, 32), "num_samples": 2, "batch": 3,
            "spacing": (1, 1, 1), "intensity": (-175, 250), "cache": "disk", "cache_dir": "c",
            "cases": 5, "seconds": 9.5,
        }
    ]  # fmt: skip


def test_a_configuration_and_the_command_line_above_it(run, measured):
    run("loader", "--data", "D", "--config", "btcv-swinunetr")
    preset = {"patch": (96, 96, 96), "num_samples": 4, "spacing": (1.5, 1.5, 2.0)}
    assert measured.calls[0] == {"data": "D", **preset}
    run("loader", "--data", "D", "--config", "btcv-swinunetr", "--num-samples", "2")
    assert measured.calls[1] == {"data": "D", **preset, "num_samples": 2}


def test_json(run, measured):
    ran = run("loader", "--data", "d", "--json")
    document = json.loads(ran.out)
    validator("loader.schema.json").validate(document)
    assert document["patches_per_s"]["value"] == 12.3
    assert document["cache"] == "none"


def test_an_interrupted_measurement_is_shown(run, measured):
    bad = Problem("imagesTr/a.nii.gz", ProblemKind.TRUNCATED, "Its voxels end too early.")
    measured.answer = dataclasses.replace(
        RATE, interrupted=True, warm_s=None, first_patches_per_s=None, problems=(bad,),
        notes=("4 workers share 2 cores.",),
    )  # fmt: skip
    ran = run("loader", "--data", "d")
    assert ran.status == 130
    assert "this is what was measured until then" in ran.out
    assert "first visits" in ran.out
    assert "Note: 4 workers share 2 cores." in ran.out
    assert "imagesTr/a.nii.gz: Its voxels end too early." in ran.out
    document = json.loads(run("loader", "--data", "d", "--json").out)
    validator("loader.schema.json").validate(document)
    assert document["warm_s"] is None


def test_a_dead_worker_is_one_sentence(run, measured):
    measured.error = WorkerError("a loader worker was killed.")
    ran = run("loader", "--data", "d")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == "segplan: a loader worker was killed."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "data"),
        (["--data", "d", "--patch", "0"], "no patch size"),
        (["--data", "d", "--workers", "-1"], "--workers must be at least 0"),
        (["--data", "d", "--intensity", "250"], "no range"),
        (["--data", "d", "--intensity", "250,10"], "no range"),
        (["--data", "d", "--spacing", "x"], "no spacing"),
    ],
)
def test_bad_requests(run, measured, words, message):
    ran = run("loader", *words)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert measured.calls == []


def test_the_fake_stands_where_the_command_looks(measured):
    assert loading.measure_loader is measured
