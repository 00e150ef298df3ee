"""Traces of earlier runs: found again, never stale, never a reason to fail."""

from __future__ import annotations

import gzip

import pytest

from segplan.api.estimating import study
from segplan.api.predicting import Predictor
from segplan.networks import resolve
from segplan.trace import cache
from segplan.workload import Workload

W = Workload(model="basicunet", model_args={"features": [8, 8, 16, 16, 32, 8]}, patch=(32, 32, 32))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path


def test_the_second_run_traces_nothing_and_says_the_same(folder, monkeypatch):
    w = resolve(W)
    with Predictor(w) as first:
        said = first.estimate(w.patch, 1)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr("segplan.api.predicting.WorkerPool", None)
    with Predictor(w) as second:
        assert second.estimate(w.patch, 1) == said


def test_a_study_takes_what_was_traced_before(folder, monkeypatch):
    first = study(W, "rtx-3090", ladder=False)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr("segplan.api.ladder.WorkerPool", None)
    assert study(W, "rtx-3090", ladder=False).memory == first.memory


def test_other_code_or_another_workload_finds_nothing(folder, monkeypatch):
    cache.keep(W, {"batch": 1})
    assert cache.load(W) == {"batch": 1}
    assert cache.load(W.replace(precision="fp32")) is None
    monkeypatch.setattr(cache, "_code", lambda: "another version")
    assert cache.load(W) is None


def test_a_broken_file_counts_as_none(folder):
    cache.keep(W, {"batch": 1})
    (path,) = folder.iterdir()
    for broken in (b"", b"no gzip", path.read_bytes()[:-6], gzip.compress(b"[1, 2]")):
        path.write_bytes(broken)
        assert cache.load(W) is None


def test_a_trace_that_lacks_something_is_made_again(folder):
    w = resolve(W)
    cache.keep(w.replace(batch=1), {"batch": 1})
    with Predictor(w) as predictor:
        assert predictor.estimate(w.patch, 1).peak_allocated > 0


def test_networks_of_ones_own_are_not_kept(folder):
    cache.keep(W.replace(model="mine.nets:make"), {"batch": 1})
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(file / "below"))
    cache.keep(W, {"batch": 1})
    assert cache.load(W) is None


def test_the_oldest_go_first(folder, monkeypatch):
    monkeypatch.setattr(cache, "MOST_FILES", 2)
    for batch in (1, 2, 3):
        cache.keep(W.replace(batch=batch), {"batch": batch})
    assert len(list(folder.iterdir())) == 2
    assert cache.load(W.replace(batch=3)) == {"batch": 3}


def test_what_makes_no_trace_counts_as_none(folder):
    cache.keep(W, {"batch": 1})
    assert cache.load_trace(W) is None
