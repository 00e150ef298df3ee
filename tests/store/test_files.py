"""Exchange between machines: nothing twice, nothing trusted, nothing lost."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.errors import RequestError, StoreError
from segplan.results import Environment, Measurement, Outcome
from segplan.store import (
    FallbackLog,
    Store,
    content_id,
    files,
    measurement_from_dict,
    measurement_to_dict,
)
from segplan.workload import Workload
from tests.store.samples import H200, OTHER_H200, failure, sample

texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.none() | st.integers(0, 2**63 - 1)
seconds = st.floats(0, 1e15)
measurements = st.builds(
    Measurement,
    workload=st.builds(
        Workload,
        batch=st.integers(1, 64),
        patch=st.tuples(*[st.integers(1, 512)] * 3),
        model_args=st.dictionaries(
            st.text("abc", max_size=3),
            st.none() | st.booleans() | st.integers() | st.lists(st.integers(), max_size=3),
            max_size=3,
        ),
        grad_clip=st.none() | st.floats(0.1, 10),
    ),
    outcome=st.sampled_from(Outcome),
    allocator_limit=counts,
    fresh=st.booleans(),
    step_seconds=st.lists(seconds, max_size=4).map(tuple),
    peak_allocated=counts,
    peak_reserved=counts,
    process_bytes=counts,
    allocator_retries=counts,
    environment=st.builds(Environment, card_name=texts, driver=texts, torch=texts),
    message=texts,
    wall_s=st.none() | seconds,
    made_at=st.none() | st.datetimes().map(lambda t: t.isoformat() + "+00:00"),
)


@given(measurements)
def test_there_and_back(measurement):
    text = json.dumps(measurement_to_dict(measurement), allow_nan=False)
    back = measurement_from_dict(json.loads(text))
    assert back == measurement
    assert content_id(back) == content_id(measurement)


def test_the_id_is_of_the_content():
    ids = [sample(), failure(), sample(wall_s=1.0), sample(made_at="2026-12-02T00:00:00+00:00")]
    assert len({content_id(m) for m in ids}) == 4
    # Pinned: another id for the same content would make duplicates of every exchanged file.
    assert content_id(sample()) == PINNED


PINNED = "5c6a72e09c79343cd3d4577059e5797ad56d61bcfb194805037860c2270aa74f"


def test_what_is_not_known_does_not_change_the_id():
    values = measurement_to_dict(sample(process_bytes=None))
    del values["process_bytes"]
    assert content_id(measurement_from_dict(values)) == content_id(sample())


def test_export_and_import_make_no_duplicates(tmp_path):
    with Store.open(":memory:") as mine, Store.open(":memory:") as theirs:
        theirs.add(sample(environment=OTHER_H200))
        theirs.add(failure(environment=OTHER_H200))
        assert theirs.export(tmp_path / "theirs.json") == 2
        mine.add(sample())
        report = mine.import_file(tmp_path / "theirs.json")
        assert (report.added, report.known, report.skipped) == (2, 0, ())
        report = mine.import_file(tmp_path / "theirs.json")
        assert (report.added, report.known) == (0, 2)
        mine.export(tmp_path / "all.json")
        assert theirs.import_file(tmp_path / "all.json").added == 1
        assert sorted(map(content_id, mine.find())) == sorted(map(content_id, theirs.find()))


def test_csv_has_a_column_for_every_attribute(tmp_path):
    with Store.open(":memory:") as store:
        store.export(tmp_path / "none.csv")
        store.add(sample())
        store.add(failure(environment=Environment(card_name="=HYPERLINK(1)", host_cpu='a,"b\nc')))
        assert store.export(tmp_path / "out.csv", format="csv") == 2
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    fits = next(r for r in rows if r["outcome"] == "fits")
    assert fits["patch"] == "96x96x96"
    assert fits["step_seconds"] == "0.41 0.412 0.43"
    assert fits["process_bytes"] == ""
    assert fits["allocator_retries"] == "0"
    assert fits["model_args"] == '{"depths": [2, 2, 2, 2]}'
    other = next(r for r in rows if r["outcome"] != "fits")
    assert other["card_name"] == "'=HYPERLINK(1)"
    assert other["host_cpu"] == 'a,"b\nc'
    assert (tmp_path / "none.csv").read_text().count("\n") == 1
    header = (tmp_path / "none.csv").read_text().strip().split(",")
    assert header == list(fits)
    assert len(header) == len(set(header))


BAD = {
    "not an object": [1, 2],
    "no version": {**measurement_to_dict(sample()), "schema_version": None},
    "newer": {**measurement_to_dict(sample()), "schema_version": 2},
    "unknown key": {**measurement_to_dict(sample()), "exec": "import os"},
    "no workload": {"schema_version": 1, "outcome": "fits"},
    "no outcome": {"schema_version": 1, "workload": Workload().to_dict()},
    "outcome": {**measurement_to_dict(sample()), "outcome": "great"},
    "outcome type": {**measurement_to_dict(sample()), "outcome": ["fits"]},
    "workload type": {**measurement_to_dict(sample()), "workload": "swinunetr"},
    "workload key": {**measurement_to_dict(sample()), "workload": {"modell": "x"}},
    "workload value": {**measurement_to_dict(sample()), "workload": {"batch": 0}},
    "workload patch": {**measurement_to_dict(sample()), "workload": {"patch": [96, 96]}},
    "workload infinity": {
        **measurement_to_dict(sample()), "workload": {"model_args": {"a": float("inf")}},
    },
    "negative": {**measurement_to_dict(sample()), "peak_allocated": -1},
    "float bytes": {**measurement_to_dict(sample()), "peak_allocated": 1.5},
    "flag bytes": {**measurement_to_dict(sample()), "peak_allocated": True},
    "huge": {**measurement_to_dict(sample()), "peak_reserved": 2**63},
    "huge seconds": {**measurement_to_dict(sample()), "wall_s": 10**400},
    "samples": {**measurement_to_dict(sample()), "step_seconds": [0.1, "x"]},
    "samples null": {**measurement_to_dict(sample()), "step_seconds": None},
    "fresh": {**measurement_to_dict(sample()), "fresh": 1},
    "time": {**measurement_to_dict(sample()), "made_at": "yesterday"},
    "no time": {**measurement_to_dict(sample()), "made_at": None},
    "long text": {**measurement_to_dict(sample()), "message": "x" * 5000},
    "surrogate": {**measurement_to_dict(sample()), "message": "\ud800"},
    "environment": {**measurement_to_dict(sample()), "environment": {"card_name": 3}},
    "environment key": {**measurement_to_dict(sample()), "environment": {"home": "x"}},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_and_costs_none_of_the_others(tmp_path, name):
    rows = [measurement_to_dict(sample()), BAD[name], measurement_to_dict(failure())]
    path = tmp_path / "in.json"
    text = json.dumps({"schema_version": 1, "measurements": rows})
    path.write_text(text.replace("Infinity", "1e999"))
    with Store.open(":memory:") as store:
        report = store.import_file(path)
        assert report.added == 2
        (skipped,) = report.skipped
        assert skipped.where == "measurement 2"
        assert skipped.reason.endswith((".", "?"))
        assert store.find() == [failure(), sample()]
        assert store.warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"measurements": 3}',
        '{"schema_version": 1, "measurements": {}}',
        '{"schema_version": true, "measurements": "x"}',
        '{"schema_version": 2, "measurements": []}',
        '{"schema_version": 1, "cells": []}'.replace("schema_version", "version"),
        "[" * 100_000,
        "1" * 10_000,
        "made_at,model\n2026,unet\n",
    ],
)
def test_a_file_that_is_none_of_ours(tmp_path, text):
    path = tmp_path / "in.json"
    path.write_text(text)
    with Store.open(":memory:") as store:
        with pytest.raises(StoreError, match=r"in\.json"):
            store.import_file(path)
        assert len(store) == 0


def test_files_that_cannot_be_imported(tmp_path, monkeypatch):
    with Store.open(":memory:") as store:
        with pytest.raises(RequestError, match="there is no file"):
            store.import_file(tmp_path / "nowhere.json")
        with pytest.raises(RequestError, match="there is no file"):
            store.import_file(tmp_path)
        store.add(sample())
        store.export(tmp_path / "out.json")
        monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
        with pytest.raises(RequestError, match="larger than"):
            store.import_file(tmp_path / "out.json")


def test_bytes_that_are_no_text_are_no_crash(tmp_path):
    (tmp_path / "in.json").write_bytes(b"\xff\xfe\x00\x80" * 50)
    with Store.open(":memory:") as store, pytest.raises(StoreError, match="holds no measurements"):
        store.import_file(tmp_path / "in.json")


def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("old")

    def full(measurements, benches, stream):
        stream.write("half")
        raise OSError(28, "No space left on device")

    with Store.open(tmp_path / "s.db") as store:
        store.add(sample())
        monkeypatch.setattr(files, "_write_json", full)
        with pytest.raises(StoreError, match="No space left"):
            store.export(path)
        assert path.read_text() == "old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "s.db"]
        with pytest.raises(RequestError, match=r"\.json or \.csv"):
            store.export(tmp_path / "out.xlsx")
        with pytest.raises(StoreError, match="store itself"):
            store.export(tmp_path / "s.db", format="csv")
        with pytest.raises(StoreError, match="cannot be written"):
            store.export(tmp_path / "nowhere" / "out.csv")


def test_a_golden_environment_is_kept_whole():
    values = measurement_to_dict(sample())
    assert values["environment"] == {
        "card_name": "NVIDIA H200", "card_uuid": "GPU-1111", "driver": "570.1", "cuda": "13.0",
        "cudnn": "91501", "torch": "2.11.0+cu130", "monai": "1.6.1", "segplan": "0.1.0",
        "python": "3.11.7", "host_cpu": "EPYC",
    }  # fmt: skip
    assert measurement_from_dict(values).environment == H200


def test_a_log_with_checks_that_grew(tmp_path):
    def check(*series):
        return {"made_at": "2026-12-01T17:54:10", "environment": {}, "series": list(series)}

    log = FallbackLog(tmp_path / "s.db")
    for bench in (check(1), check(1, 2), check(7), check(7), check(7, 8)):
        log.add_bench(bench)
        log.add(sample(wall_s=float(len(bench["series"]))))
    with Store.open(tmp_path / "s.db") as store:
        report = store.import_file(log.path)
        assert report.skipped == ()
        assert (report.added, report.benches_added) == (2, 2)
        assert [b["series"] for b in store.benches()] == [[7, 8], [1, 2]]
