"""What version 1 wrote still loads. Never remake these files: add a directory for a new version."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from segplan.results import Environment
from segplan.store import Store
from segplan.store.schema import MIGRATIONS
from tests.store.samples import H200, LIMIT, failure, sample

GOLDEN = Path(__file__).with_name("golden")

V1 = [
    sample(
        made_at="2026-12-01T09:02:00+00:00",
        fresh=False,
        environment=Environment(card_name="NVIDIA GeForce RTX 3090"),
        allocator_limit=None,
        step_seconds=(),
    ),
    failure(made_at="2026-12-01T09:01:00+00:00", workload=sample().workload.replace(batch=5)),
    sample(),
]


@pytest.fixture
def v1(tmp_path):
    return Path(shutil.copytree(GOLDEN / "v1", tmp_path / "v1"))


def test_the_database_of_version_1(v1):
    with Store.open(v1 / "results.sqlite") as store:
        assert store.find() == V1
        assert store.warnings == []
        assert store.reusable(sample().workload, H200, LIMIT) == sample()
        store.add(sample(wall_s=1.0))
        assert len(store) == 4
    connection = sqlite3.connect(v1 / "results.sqlite")
    assert connection.execute("SELECT version FROM schema_version").fetchall() == [
        (len(MIGRATIONS),)
    ]
    connection.close()


def test_the_exports_of_version_1(v1):
    with Store.open(":memory:") as store:
        assert store.import_file(v1 / "results.json").added == 3
        assert store.find() == V1
        # The same ids as when they were written.
        assert store.import_file(v1 / "unsaved.jsonl").known == 1
        with Store.open(v1 / "results.sqlite") as old:
            old.export(v1 / "again.json")
        assert store.import_file(v1 / "again.json").known == 3


def test_a_migration_that_fails_changes_nothing(v1, monkeypatch):
    def add_column(connection):
        connection.execute("ALTER TABLE measurements ADD COLUMN extra TEXT")

    def broken(connection):
        connection.execute("ALTER TABLE measurements ADD COLUMN more TEXT")
        raise sqlite3.OperationalError("database or disk is full")

    path = v1 / "results.sqlite"
    monkeypatch.setattr("segplan.store.schema.MIGRATIONS", [*MIGRATIONS, add_column, broken])
    with pytest.raises(Exception, match="disk is full"):
        Store.open(path)
    monkeypatch.setattr("segplan.store.schema.MIGRATIONS", [*MIGRATIONS, add_column])
    with Store.open(path) as store:
        assert store.find() == V1
        assert store._connection.execute("SELECT extra FROM measurements").fetchone() == (None,)
