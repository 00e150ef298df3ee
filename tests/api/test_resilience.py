"""A fit that is killed, interrupted, or cannot use its store."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import segplan.api.fitting as fitting
from segplan.cli.main import main
from segplan.errors import StoreError
from segplan.store import Store
from segplan.units import GIB
from tests.api.measured import SMALL, FakePredictor, W, asked, cells_of, install, make_card
from tests.worker.conftest import gone

BIG = (64, 64, 64)
ROOT = Path(__file__).parents[2]
WORDS = "fit --model unet --gpu 0 --patch 32 --patch 64 --allocator-limit 1024 --json".split()


def start(folder, store, **settings):
    """A command line of its own over a fake card with these settings."""
    (folder / "settings.json").write_text(json.dumps(settings))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.api.measured", str(folder), *WORDS, "--store", str(store)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until(condition, within_s=20.0):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def entries(folder):
    log = folder / "fake_card.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def probes(folder):
    return [(tuple(e["patch"]), e["batch"]) for e in entries(folder) if "batch" in e]


def pids(folder):
    return {e.get("pid", e.get("imported")) for e in entries(folder)}


def answer(out):
    document = json.loads(out)
    for cell in document["cells"]:
        del cell["probes"]
    return document["cells"], document["recommended"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_in_between_and_started_again(tmp_path, how):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    out, err = start(whole, whole / "s.db").communicate(timeout=60)
    expected = answer(out)
    order = probes(whole)
    assert order == [(SMALL, 19), (SMALL, 20), (BIG, 2), (BIG, 3)], err

    child = start(broken, broken / "s.db", behaviours={"64x64x64b2": "hang"})
    until(lambda: len(probes(broken)) == 3)
    child.send_signal(how)
    _, err = child.communicate(timeout=20)
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert "what was measured is kept" in err
        assert "Traceback" not in err
    else:
        assert child.returncode != 0
    assert all(gone(pid) for pid in pids(broken))
    with Store.open(broken / "s.db") as store:
        assert len(store) == 2

    again = start(broken, broken / "s.db")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert probes(broken) == [*order[:3], *order[2:]]  # only the one that had not ended is repeated
    assert answer(out) == expected


@pytest.fixture
def card(tmp_path, monkeypatch):
    card = make_card(tmp_path)
    install(monkeypatch, card, FakePredictor(card))
    return card


def fit(store, **options):
    options = {"allocator_limit": GIB} | options
    return fitting.fit(W, gpu="0", patches=[SMALL, BIG], store=str(store), **options)


def read_back(path, into):
    """Batches that the fallback file holds."""
    with Store.open(into) as store:
        report = store.import_file(path)
        assert report.skipped == ()
        return sorted(m.workload.batch for m in store.find())


def test_a_damaged_store(tmp_path, card):
    store = tmp_path / "s.db"
    store.write_bytes(b"this was a database once" * 100)
    found = fit(store)
    assert [c.max_batch for c in found.cells] == [19, 2]
    (warning,) = found.warnings[-1:]
    log = tmp_path / "s.db.unsaved.jsonl"
    assert "is damaged" in warning
    assert f"segplan results --import {log}" in warning
    assert store.read_bytes().startswith(b"this was")
    assert read_back(log, tmp_path / "new.db") == [2, 3, 19, 20]


def test_a_locked_store(tmp_path, card, monkeypatch):
    monkeypatch.setattr("segplan.store.database.BUSY_S", 0.2)
    monkeypatch.setattr(Store.open.__func__, "__kwdefaults__", {"busy_s": 0.2})
    store = tmp_path / "s.db"
    Store.open(store).close()
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    found = fit(store)
    assert time.monotonic() - began < 10  # not a wait for each probe
    other.close()
    assert [c.max_batch for c in found.cells] == [19, 2]
    assert "is locked by another process" in found.warnings[-1]
    assert "s.db.unsaved.jsonl" in found.warnings[-1]


def test_a_disk_that_fills_up(tmp_path, card, monkeypatch):
    add, written = Store.add, []

    def full_after_one(self, measurement):
        if written:
            raise StoreError("the store s.db cannot be written because its disk is full.")
        written.append(measurement)
        return add(self, measurement)

    monkeypatch.setattr(Store, "add", full_after_one)
    found = fit(tmp_path / "s.db")
    monkeypatch.undo()
    assert [c.max_batch for c in found.cells] == [19, 2]
    assert "disk is full" in found.warnings[-1]
    assert sum("disk is full" in w for w in found.warnings) == 1
    log = tmp_path / "s.db.unsaved.jsonl"
    assert read_back(log, tmp_path / "s.db") == [2, 3, 19, 20]


def test_no_place_to_write_at_all(tmp_path, card, monkeypatch):
    def nowhere(path):
        raise StoreError("measurements can be written nowhere: free some space.")

    monkeypatch.setattr("segplan.api.recording.FallbackLog", nowhere)
    (tmp_path / "s.db").mkdir()
    found = fit(tmp_path / "s.db")
    assert [c.max_batch for c in found.cells] == [19, 2]
    assert "written nowhere" in found.warnings[-1]


def test_a_store_that_breaks_while_reading(tmp_path, card, monkeypatch):
    def broken(self, *arguments, **options):
        raise StoreError("the store s.db is damaged.")

    monkeypatch.setattr(Store, "reusable", broken)
    found = fit(tmp_path / "s.db")
    assert [c.max_batch for c in found.cells] == [19, 2]
    assert len(asked(card)) == 4
    assert "is damaged" in found.warnings[-1]


def test_what_was_kept_beside_the_store_is_reused_once_imported(tmp_path, card):
    store = tmp_path / "s.db"
    store.write_bytes(b"nonsense" * 1000)
    first = fit(store)
    store.unlink()
    with Store.open(store) as fresh:
        fresh.import_file(tmp_path / "s.db.unsaved.jsonl")
    second = fit(store)
    assert len(asked(card)) == 4
    assert cells_of(second) == cells_of(first)


def test_an_interrupt_ends_every_process(tmp_path, card):
    def interrupt(done, total, what):
        if "64x64x64" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "s.db", progress=interrupt)
    started = {entry["pid"] for entry in card.log()} | set(card.imported())
    assert all(gone(pid) for pid in started)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu 3", "there is no GPU 3: 1 GPU is usable here"),
        ("--gpu 0 --as h200", "predict it with --gpu h200"),
        ("--gpu 0 --reserve 30000", "lower --reserve"),
        ("--gpu 0 --allocator-limit 30000", "lower --allocator-limit"),
    ],
)
def test_exit_2_with_the_fix_named(card, capsys, words, message):
    assert main(["fit", "--model", "unet", "--patch", "32", *words.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_table_of_a_measured_fit(card, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    words = [w for w in WORDS if w != "--json"]
    assert main([*words, "--store", str(tmp_path / "s.db")]) == 0
    out = capsys.readouterr().out
    assert "measured on Fake Card" in out
    assert "19" in out


def test_folders_of_the_store_are_made(card, tmp_path):
    store = tmp_path / "a" / "b" / "s.db"
    fit(store)
    assert os.path.getsize(store) > 0
