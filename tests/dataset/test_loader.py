"""The loader's arithmetic without MONAI, and the real pipeline on very small volumes."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import os
import signal
import threading
import time
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segplan.api import loading
from segplan.api.loading import measure_loader, read_loader
from segplan.api.scanning import open_dataset
from segplan.dataset import loader
from segplan.dataset.nouns import CacheMode, ProblemKind, sampled
from segplan.dataset.pipeline import Recipe, Visit
from segplan.errors import RequestError, WorkerError
from segplan.report import loader as report
from segplan.units import GIB
from tests.dataset.making import decathlon, nnunet, volume, write

SMALL = {"patch": (8, 8, 8), "num_samples": 2, "seconds": 1.0}
RECIPE = Recipe((8, 8, 8), 2, (1.0, 1.0, 1.0))
REQUEST = loader.LoaderRequest(RECIPE, 2, 1, CacheMode.NONE, None, 10.0, 16)


@pytest.fixture(scope="module", autouse=True)
def _monai_is_loaded():
    importlib.import_module("monai.transforms")


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by 0.05 s whenever the loader looks: a busy machine changes nothing."""
    ticks = itertools.count()
    fake = types.SimpleNamespace(perf_counter=lambda: 0.05 * next(ticks), sleep=time.sleep)
    monkeypatch.setattr(loader, "time", fake)


def test_percentiles_of_samples():
    found = sampled(5.0, [float(n) for n in range(11)])
    assert (found.low, found.high) == (1.0, 9.0)
    assert sampled(5.0, []).low == 5.0
    assert sampled(5.0, [6.0, 7.0]).low == 5.0  # the interval always holds the value


def test_throughput_of_a_steady_stream():
    visits = [(0.5 * (n + 1), Visit(n, 0.9, patches=2)) for n in range(20)]
    found = loader._throughput(visits, 0.0, REQUEST)
    # Two patches every half second.
    assert found.value == pytest.approx(4.0)
    assert found.low == pytest.approx(4.0)
    assert found.high == pytest.approx(4.0)
    assert len(found.samples) == 10


def test_a_part_of_a_measurement_holds_a_batch_of_each_worker():
    visits = [(float(1 + n // 8), Visit(n, 1.0, patches=1)) for n in range(16)]
    request = dataclasses.replace(REQUEST, workers=4, batch=2)
    # Bursts of eight: parts of two would have rates of nought and infinity.
    assert loader._throughput(visits, 0.0, request).samples == (8.0, 8.0)


def test_the_order_of_visits():
    faults: dict = {}
    order = iter(loader._Endless([0, 1, 2], faults))
    assert [next(order) for _ in range(3)] == [0, 1, 2]
    assert sorted(next(order) for _ in range(3)) == [0, 1, 2]
    faults[1] = Visit(1, 0.1)
    assert sorted(next(order) for _ in range(4)) == [0, 0, 2, 2]
    faults.update({0: Visit(0, 0.1), 2: Visit(2, 0.1)})
    assert list(order) == []


def test_bytes_that_wait_and_that_are_prepared(tmp_path):
    # 8 x 8 x 8 voxels, image and label, 4 bytes, two crops; two batches for each of two
    # workers and one in use.
    assert loader._prefetch_bytes(1, REQUEST) == 8**3 * 2 * 4 * 2 * 5
    (case,) = open_dataset(decathlon(tmp_path, 1)).cases
    # 12 x 10 x 8 mm at 2 mm is 6 x 5 x 4, padded to the patch.
    assert loader._prepared_bytes(case, Recipe((8, 4, 4), 2, (2.0,) * 3)) == 8 * 5 * 4 * 8


def test_what_does_not_fit_is_refused_first(tmp_path, monkeypatch):
    cases = open_dataset(decathlon(tmp_path, 1)).cases
    loader._check_room(cases, REQUEST)
    huge = dataclasses.replace(REQUEST, recipe=Recipe((4000,) * 3, 2, (1.0,) * 3))
    with pytest.raises(RequestError, match="of the host's memory"):
        loader._check_room(cases, huge)
    fine = dataclasses.replace(REQUEST, recipe=Recipe((8, 8, 8), 2, (0.01,) * 3))
    monkeypatch.setattr(loader, "_available_memory", lambda: 8 * GIB)
    # 1,200 x 1,000 x 800 voxels of 8 bytes are 7.2 GiB, for each worker.
    with pytest.raises(RequestError, match="coarser --spacing"):
        loader._check_room(cases, fine)
    monkeypatch.setattr(loader, "_free_space", lambda _: 1000)
    with pytest.raises(RequestError, match="/dev/shm"):
        loader._check_room(cases, REQUEST)
    disk = dataclasses.replace(REQUEST, workers=0, cache=CacheMode.DISK, cache_dir=tmp_path)
    with pytest.raises(RequestError, match="--cache-dir"):
        loader._check_room(cases, disk)


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_the_real_pipeline(tmp_path, clock, cache):
    root = decathlon(tmp_path / "set", 4, spacing=(1.0, 1.0, 2.0), orientation="LPS")
    (tmp_path / "cache").mkdir()
    found = measure_loader(
        root, workers=0, cache=cache, cases=3, cache_dir=tmp_path / "cache", **SMALL
    )
    assert (found.cases, found.measured) == (4, 3)
    assert found.visits > 3
    assert found.spacing == (1.0, 1.0, 2.0)
    # 12 x 10 x 8 voxels, image and label, 4 bytes.
    assert found.case_bytes == 12 * 10 * 8 * 2 * 4
    assert found.cache_bytes == 4 * found.case_bytes
    assert found.host_bytes > (found.cache_bytes if cache == "memory" else 0)
    for rate in (found.patches_per_s, found.first_patches_per_s, found.cold_s, found.warm_s):
        assert 0 < rate.low <= rate.value <= rate.high
    assert len(found.cold_s.samples) == 3
    assert len(found.warm_s.samples) == found.visits - 3
    assert (found.mb_per_s == 0) == (cache == "memory")
    assert found.environment.monai
    assert list((tmp_path / "cache").iterdir()) == []
    assert not found.interrupted
    assert found.problems == found.notes == ()


def test_channels_in_files_and_small_volumes(tmp_path, clock):
    found = measure_loader(
        nnunet(tmp_path, 2, channels=2, shape=(6, 5, 4)), workers=0, intensity=(-100, 100), **SMALL
    )
    # Padded to the patch: 8 x 8 x 8, two channels and the label.
    assert found.case_bytes == 8**3 * 3 * 4


def test_workers(tmp_path, clock):
    found = measure_loader(decathlon(tmp_path, 4), workers=2, batch=2, **SMALL)
    assert found.workers == 2
    assert found.visits > 4
    assert found.prefetch_bytes == 8**3 * 2 * 4 * 2 * 2 * 5
    # Three short epochs: from their start to the first batch, and from the last one to the end.
    assert len(found.start_s.samples) == loader.STARTS
    assert 0 < found.start_s.low <= found.start_s.value <= found.start_s.high


def test_short_epochs_give_each_worker_one_batch(tmp_path, monkeypatch):
    orders = []

    def fake(_inner, request, order):
        orders.append(order)
        return iter([object()] * request.workers)

    monkeypatch.setattr(loader, "_loader", fake)
    log = loader._Log(0.0, seen={0, 1, 2}, faults={1: Visit(1, 0.1)})
    request = dataclasses.replace(REQUEST, workers=3, batch=1)
    loader._restart(None, request, log, lambda *_: None)
    assert orders == [[0, 2, 0]] * loader.STARTS  # nothing that cannot be loaded
    loader._restart(None, dataclasses.replace(REQUEST, workers=0), log, lambda *_: None)
    assert len(orders) == len(log.starts) == loader.STARTS


def test_without_workers_an_epoch_has_no_start(tmp_path, clock):
    assert measure_loader(decathlon(tmp_path, 2), workers=0, **SMALL).start_s is None


def test_a_written_measurement_is_read_back(tmp_path, clock):
    found = measure_loader(decathlon(tmp_path / "set", 2), workers=1, **SMALL)
    path = tmp_path / "loader.json"
    document = report.document(found)
    path.write_text(json.dumps(document))
    assert read_loader(path) == found
    del document["start_s"]  # written before there was one
    path.write_text(json.dumps(document))
    assert read_loader(path) == dataclasses.replace(found, start_s=None)


@pytest.fixture
def document():
    rate = {"value": 4.0, "low": 3.0, "high": 5.0, "samples": [3.0, 5.0]}
    return {
        "schema_version": 1, "path": "d", "cases": 2, "measured": 2, "visits": 9, "workers": 2,
        "cache": "none",
        "patch": [8, 8, 8], "num_samples": 2, "batch": 1, "spacing": [1.0, 1.0, 1.0],
        "patches_per_s": rate, "first_patches_per_s": None, "mb_per_s": 1.0, "cold_s": None,
        "warm_s": None, "case_bytes": 1, "cache_bytes": 1, "worker_bytes": 1, "prefetch_bytes": 1,
        "host_bytes": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"patches_per_s": {"value": 0.0, "low": 0.0, "high": 0.0}}, "patches_per_s is 0 to 0"),
        ({"patches_per_s": {"value": 9.0, "low": 1.0, "high": 2.0}}, "patches_per_s is 1 to 2"),
        ({"start_s": {"value": 1.0, "low": -1.0, "high": 2.0}}, "start_s is -1"),
        ({"patches_per_s": {"value": float("nan"), "low": 1.0, "high": 2.0}}, "is no JSON"),
        ({"cache": "tape"}, "cache"),
        ({"patch": [8, 8]}, "patch.2: field required"),
    ],
)
def test_a_document_that_cannot_be(tmp_path, document, change, message):
    path = tmp_path / "loader.json"
    path.write_text(json.dumps(document))
    assert read_loader(path).patches_per_s.value == 4.0
    path.write_text(json.dumps({**document, **change}))
    with pytest.raises(RequestError, match="segplan loader --json") as caught:
        read_loader(path)
    assert message in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b"{}") | st.just(b"[1]"))
def test_a_file_that_is_something_else(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("loader") / "loader.json"
    path.write_bytes(raw)
    with pytest.raises(RequestError, match=r"is no document|is no JSON"):
        read_loader(path)
    with pytest.raises(RequestError, match="is no regular file"):
        read_loader(path.parent)


def test_a_document_of_another_version(tmp_path, document):
    path = tmp_path / "loader.json"
    path.write_text(json.dumps({**document, "schema_version": 99}))
    with pytest.raises(RequestError, match="of this version"):
        read_loader(path)


def test_cases_that_cannot_be_loaded_are_named(tmp_path, clock):
    root = decathlon(tmp_path, 3)
    path = write(root / "imagesTr" / "case_1.nii.gz", volume())
    path.write_bytes(path.read_bytes()[:-200])
    for cache in ("none", "memory"):
        found = measure_loader(root, workers=0, cache=cache, **SMALL)
        assert found.measured == 2
        (problem,) = found.problems
        assert problem.file == "imagesTr/case_1.nii.gz"
        assert problem.kind is ProblemKind.TRUNCATED
        assert "1 of the visited cases cannot be loaded." in found.notes
    for name in ("case_0", "case_2"):
        other = root / "imagesTr" / f"{name}.nii.gz"
        other.write_bytes(other.read_bytes()[:-200])
    with pytest.raises(RequestError, match="none of 3 cases can be loaded"):
        measure_loader(root, workers=0, **SMALL)


def test_an_interrupt_keeps_what_was_measured(tmp_path, monkeypatch):
    tell = loader._tell

    def interrupt(progress, request, elapsed, text):
        tell(progress, request, elapsed, text)
        if interrupt.calls == 5:
            raise KeyboardInterrupt
        interrupt.calls += 1

    interrupt.calls = 0
    monkeypatch.setattr(loader, "_tell", interrupt)
    found = measure_loader(decathlon(tmp_path, 2), workers=0, **{**SMALL, "seconds": 60.0})
    assert found.interrupted
    assert found.visits == 6
    monkeypatch.setattr(loader, "_drop_from_page_cache", lambda _: None)
    monkeypatch.setattr(loader, "_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        measure_loader(tmp_path, workers=0, **SMALL)


def test_a_worker_that_dies_is_one_sentence(tmp_path):
    def kill() -> None:
        own = os.getpid()
        for task in Path(f"/proc/{own}/task").iterdir():
            for child in (task / "children").read_text().split():
                if "python" in Path(f"/proc/{child}/cmdline").read_text():
                    os.kill(int(child), signal.SIGKILL)

    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs /proc")
    timer = threading.Timer(2.0, kill)
    timer.start()
    try:
        with pytest.raises(WorkerError, match="a loader worker was killed") as caught:
            measure_loader(decathlon(tmp_path, 2), workers=1, **{**SMALL, "seconds": 30.0})
    finally:
        timer.cancel()
    assert len(str(caught.value).splitlines()) == 1


def test_a_loader_without_labels(tmp_path):
    write(tmp_path / "a.nii.gz", volume())
    with pytest.raises(RequestError, match="no labelled case"):
        measure_loader(tmp_path, **SMALL)


@pytest.mark.parametrize(
    "bad",
    [
        {"workers": -1}, {"workers": 10_000}, {"num_samples": 0}, {"batch": 0}, {"cases": 0},
        {"seconds": 0.0}, {"seconds": float("nan")}, {"cache": "tape"},
        {"intensity": (2.0, 1.0)}, {"intensity": (0.0, float("inf"))},
        {"spacing": (0.0, 1.0, 1.0)}, {"cache_dir": "nowhere"},
    ],
)  # fmt: skip
def test_bad_requests(tmp_path, monkeypatch, bad):
    monkeypatch.setattr(loading, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(RequestError):
        measure_loader(decathlon(tmp_path, 1), **{**SMALL, **bad})


def test_a_summary_has_no_images(tmp_path):
    (tmp_path / "dataset_fingerprint.json").write_text("{}")
    with pytest.raises(RequestError, match="summary"):
        measure_loader(tmp_path, **SMALL)


def test_room_is_told_in_gibibytes(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "_available_memory", lambda: GIB)
    cases = open_dataset(decathlon(tmp_path, 1)).cases
    huge = dataclasses.replace(REQUEST, recipe=Recipe((512,) * 3, 2, (1.0,) * 3))
    # Two workers with 1 GiB prepared, five batches of 2 GiB waiting.
    with pytest.raises(RequestError, match=r"12\.0 GiB .* 1\.0 GiB are free"):
        loader._check_room(cases, huge)
