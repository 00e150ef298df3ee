"""A store that cannot be used says so in one sentence, and nothing measured is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from segplan.errors import StoreError
from segplan.store import FallbackLog, Store
from segplan.store.paths import explain
from segplan.store.schema import MIGRATIONS
from tests.store.samples import failure, sample

ROOT = Path(__file__).parents[2]


def one_sentence(error, path, *words):
    text = str(error.value)
    assert str(path) in text
    assert "--store" in text or "update segplan" in text
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_full_disk(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add(sample())
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        many = (store.add(sample(wall_s=float(number))) for number in range(100))
        with pytest.raises(StoreError) as error:
            list(many)
        one_sentence(error, path, "disk is full")
        before = len(store)
        store._connection.execute("PRAGMA max_page_count = 100000")
        store.add(failure())  # space again: goes on
        assert len(store) == before + 1
        store._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_in_the_middle_of_an_import_adds_nothing(tmp_path):
    with Store.open(":memory:") as many:
        for number in range(100):
            many.add(sample(wall_s=float(number)))
        many.export(tmp_path / "many.json")
    with Store.open(tmp_path / "s.db") as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(StoreError, match="disk is full"):
            store.import_file(tmp_path / "many.json")
        assert len(store) == 0
        store._connection.execute("PRAGMA max_page_count = 100000")
        assert store.import_file(tmp_path / "many.json").added == 100


def test_locked_by_another_process(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path, busy_s=0.05) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as error:
            store.add(sample())
        one_sentence(error, path, "locked by another process")
        with pytest.raises(StoreError, match="locked"):
            store.find()
        with pytest.raises(StoreError, match="locked"):
            Store.open(path, busy_s=0.05)
        other.execute("COMMIT")
        other.close()
        store.add(sample())
        assert store.find() == [sample()]


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    path = tmp_path / "s.db"
    path.write_text("my thesis, the only copy\n" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError) as error:
        Store.open(path)
    one_sentence(error, path, "damaged or no database", "left as it is")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_database_is_left_as_it_is(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        for number in range(200):
            store.add(sample(wall_s=float(number)))
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    data[3 * page :] = b"\xa5" * (len(data) - 3 * page)
    path.write_bytes(data)
    with pytest.raises(StoreError) as error, Store.open(path) as store:
        store.find()
    one_sentence(error, path, "damaged")
    assert path.read_bytes() == data


def test_another_programs_database(tmp_path):
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE schema_version (version INTEGER)")
        other.execute("INSERT INTO schema_version VALUES (1)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as error:
        Store.open(path)
    one_sentence(error, path, "another program")
    assert path.read_bytes() == before


def test_a_newer_segplans_database(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add(sample())
        store._connection.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(StoreError) as error:
        Store.open(path)
    one_sentence(error, path, "newer segplan", "99", str(len(MIGRATIONS)))


def test_a_directory_in_the_files_place(tmp_path):
    with pytest.raises(StoreError) as error:
        Store.open(tmp_path)
    one_sentence(error, tmp_path, "it is a directory")


def test_a_file_in_the_directorys_place(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "s.db"
    with pytest.raises(StoreError) as error:
        Store.open(path)
    one_sentence(error, path, "cannot be opened")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere"
)
def test_an_unwritable_directory(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError) as error:
            Store.open(tmp_path / "s.db")
        one_sentence(error, tmp_path / "s.db")
    finally:
        tmp_path.chmod(0o700)


def test_a_store_that_can_only_be_read(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add(sample())
        store._connection.execute("PRAGMA query_only = 1")  # root may write any file
        assert store.find() == [sample()]
        with pytest.raises(StoreError) as error:
            store.add(failure())
        one_sentence(error, path, "cannot be written")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (sqlite3.OperationalError("database or disk is full"), "disk is full"),
        (sqlite3.OperationalError("database is locked"), "locked"),
        (sqlite3.DatabaseError("database disk image is malformed"), "damaged"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "cannot be written"),
        (sqlite3.OperationalError("unable to open database file"), "cannot be opened"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
    ],
)
def test_every_error_names_the_file_and_a_way_out(error, word):
    text = str(explain(error, "s.db"))
    assert word in text
    assert "s.db" in text
    assert "--store" in text


def test_an_unreadable_row_costs_none_of_the_others(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.add(sample())
        store.add(failure())
        store._connection.execute("UPDATE measurements SET payload = '{' WHERE number = 1")
        assert store.find() == [failure()]
        assert "row 1 of" in store.warnings[0]


def test_a_measurement_that_could_not_be_read_back_is_refused():
    with Store.open(":memory:") as store:
        with pytest.raises(StoreError, match="peak_allocated"):
            store.add(sample(peak_allocated=-1))
        with pytest.raises(StoreError, match="cannot be stored"):
            store.add(sample(wall_s=float("nan")))
        assert len(store) == 0


WRITER = """
import itertools, sys
from segplan.store import Store
from tests.store.samples import sample
with Store.open(sys.argv[1]) as store:
    for number in itertools.count():
        store.add(sample(wall_s=float(number)))
        sys.stdout.write("%d\\n" % number)
        sys.stdout.flush()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("rows", [1, 23])
def test_killed_in_the_middle_of_writing(tmp_path, rows):
    path = tmp_path / "s.db"
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(rows):
        child.stdout.readline()
    child.kill()
    told = rows + len(child.stdout.read().splitlines())
    child.wait(timeout=30)
    assert child.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        kept = {m.wall_s for m in store.find()}
        # All that was told, and at most the one that was being told.
        assert kept >= set(map(float, range(told - 1)))
        assert told - 1 <= len(kept) <= told + 1
        assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.add(failure())
        assert len(store) == len(kept) + 1


def test_the_fallback_log_is_beside_the_store_and_can_be_imported(tmp_path):
    path = tmp_path / "s.db"
    path.write_text("no database")
    log = FallbackLog(path)
    assert log.path == tmp_path / "s.db.unsaved.jsonl"
    log.add(sample())
    again = FallbackLog(str(path))  # the next run
    again.add(failure(made_at=None))
    again.add(sample())
    with Store.open(":memory:") as store:
        report = store.import_file(log.path)
        assert (report.added, report.known, report.skipped) == (2, 1, ())
        assert sample() in store.find()


def test_a_fallback_log_goes_on_after_a_torn_line(tmp_path):
    log = FallbackLog(tmp_path / "s.db")
    log.add(sample())
    with log.path.open("a") as stream:
        stream.write('{"schema_version": 1, "workl')
    log.add(failure())
    with Store.open(":memory:") as store:
        report = store.import_file(log.path)
        assert report.added == 2
        assert [(s.where, s.reason) for s in report.skipped] == [("line 3", "it is no JSON.")]


@pytest.mark.parametrize("store", [":memory:", "file/s.db"])
def test_the_fallback_log_in_the_temp_directory(tmp_path, monkeypatch, store):
    (tmp_path / "file").write_text("")
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    log = FallbackLog(store if store == ":memory:" else tmp_path / store)
    assert log.path.parent == tmp_path / "temp"
    log.add(sample())
    with Store.open(":memory:") as opened:
        assert opened.import_file(log.path).added == 1


def test_the_fallback_log_moves_when_its_place_is_gone(tmp_path, monkeypatch):
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    log = FallbackLog(tmp_path / "data" / "s.db")
    log.path.unlink()
    log.path.mkdir()
    log.add(sample())
    assert log.path.parent == tmp_path / "temp"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(StoreError, match="neither"):
        log.add(sample())
