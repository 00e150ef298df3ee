from __future__ import annotations

import dataclasses
import threading

import pytest

from segplan.errors import StoreError
from segplan.results import Environment, Outcome
from segplan.store import Store, store_path
from segplan.workload import Workload
from tests.store.samples import H200, LIMIT, OTHER_H200, failure, sample


@pytest.fixture
def store():
    with Store.open(":memory:") as opened:
        yield opened


def test_a_measurement_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "results.sqlite"
    with Store.open(path) as store:
        number = store.add(sample())
        other = store.add(failure())
    with Store.open(path) as store:
        assert store.find() == [failure(), sample()]
        assert (number, other) == (1, 2)


def test_the_same_measurement_is_kept_once(store):
    assert store.add(sample()) == store.add(sample()) == 1
    assert store.add(failure()) == 2
    assert store.add(sample()) == 1
    assert len(store) == 2


def test_one_without_a_time_is_stamped(store):
    store.add(sample(made_at=None))
    (found,) = store.find()
    assert found.made_at is not None
    assert dataclasses.replace(found, made_at=None) == sample(made_at=None)


def test_a_row_is_seen_by_others_before_add_returns(tmp_path):
    with Store.open(tmp_path / "s.db") as one, Store.open(tmp_path / "s.db") as two:
        one.add(sample())
        assert two.find() == [sample()]
        two.add(failure())
        assert len(one) == 2


@pytest.mark.parametrize(
    "strange",
    [
        {"message": "x" * 100_000},
        {"message": "broken \udcff text"},
    ],
)
def test_any_message_can_be_kept(store, strange):
    store.add(sample(**strange))
    assert len(store.find()) == 1
    assert store.warnings == []


def test_find_by_everything(store):
    unet = Workload(model="unet", patch=(128, 128, 64))
    a = sample(made_at="2026-12-01T09:00:00+00:00")
    # An hour and a half earlier, though its text sorts after.
    b = failure(workload=unet, made_at="2026-12-01T09:30:00+02:00")
    c = sample(environment=OTHER_H200, made_at="2026-12-02T00:00:00")
    c3090 = Environment(card_name="NVIDIA GeForce RTX 3090", card_uuid="GPU-3", torch="2.10")
    d = failure(Outcome.TIMED_OUT, environment=c3090, made_at="2026-12-03T00:00:00+00:00")
    for m in (a, b, c, d):
        store.add(m)
    assert store.find() == [d, c, a, b]
    assert store.find(limit=2) == [d, c]
    assert store.find(workload=unet) == [b]
    assert store.find(workload=a.workload.replace(batch=5)) == []
    assert store.find(model="UNet ") == [b]
    assert store.find(patch=(128, 128, 64)) == [b]
    assert store.find(card="rtx-3090") == store.find(card="RTX 3090") == [d]
    assert store.find(card="h200") == [c, a, b]
    assert store.find(card="GPU-2222") == store.find(card_uuid="GPU-2222") == [c]
    assert store.find(card="%") == []
    assert store.find(outcome=Outcome.FITS) == [c, a]
    assert store.find(outcome=(Outcome.FITS, Outcome.TIMED_OUT)) == [d, c, a]
    assert store.find(outcome=()) == []
    assert store.find(environment=Environment(torch="2.10")) == [d]
    assert store.find(model="unet", card="h200", outcome=Outcome.FITS) == []
    assert store.find(model="' OR 1 --") == []


def test_reuse_of_the_very_same(store):
    assert store.reusable(sample().workload, H200, LIMIT) is None
    store.add(sample())
    newer = sample(made_at="2026-12-02T09:00:00+00:00", wall_s=3.0)
    store.add(newer)
    assert store.reusable(sample().workload, H200, LIMIT) == newer


CHANGES = {
    "batch": {"workload": sample().workload.replace(batch=3)},
    "network argument": {"workload": sample().workload.replace(model_args={"depths": [2, 2]})},
    "precision": {"workload": sample().workload.replace(precision="bf16")},
    "limit": {"allocator_limit": LIMIT - 1},
    "no limit": {"allocator_limit": None},
    **{
        name: {"environment": dataclasses.replace(H200, **{name: "another"})}
        for name in ("card_uuid", "driver", "cuda", "cudnn", "torch", "monai")
    },
    **{
        f"unknown {name}": {"environment": dataclasses.replace(H200, **{name: None})}
        for name in ("card_uuid", "driver", "cuda", "cudnn", "torch", "monai")
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_reuse_where_something_differs(store, change):
    there = sample(**CHANGES[change])
    store.add(there)
    assert store.reusable(sample().workload, H200, LIMIT) is None
    # Asked the other way round: what is unknown now is never the same as what was known.
    with Store.open(":memory:") as other:
        other.add(sample())
        found = other.reusable(there.workload, there.environment, there.allocator_limit)
        assert found is None


def test_what_does_not_matter_does_not_prevent_reuse(store):
    store.add(sample())
    same = dataclasses.replace(H200, segplan="0.2.0", python="3.12.0", host_cpu=None)
    assert store.reusable(sample().workload, same, LIMIT) == sample()


def test_unknown_versions_are_never_the_same(store):
    unknown = dataclasses.replace(H200, cudnn=None)
    store.add(sample(environment=unknown))
    assert store.reusable(sample().workload, unknown, LIMIT) is None
    no_card = dataclasses.replace(H200, card_uuid=None)
    store.add(sample(environment=no_card))
    assert store.reusable(sample().workload, no_card, LIMIT) is None


@pytest.mark.parametrize("outcome", Outcome)
def test_reuse_by_outcome(store, outcome):
    store.add(failure(outcome))
    known = {Outcome.FITS, Outcome.OUT_OF_MEMORY, Outcome.KERNEL_LIMIT}
    found = store.reusable(sample().workload, H200, LIMIT)
    assert (found is not None) == (outcome in known)


def test_a_used_process_does_not_answer_for_a_fresh_one(store):
    used = sample(fresh=False)
    store.add(used)
    assert store.reusable(sample().workload, H200, LIMIT) is None
    assert store.reusable(sample().workload, H200, LIMIT, fresh=False) == used
    with Store.open(":memory:") as other:
        other.add(sample())
        assert other.reusable(sample().workload, H200, LIMIT, fresh=False) == sample()


def test_reuse_of_an_imported_one_by_name_and_limit(store, tmp_path):
    with Store.open(":memory:") as theirs:
        theirs.add(sample(environment=OTHER_H200))
        theirs.add(sample(environment=OTHER_H200, allocator_limit=None))
        theirs.export(tmp_path / "theirs.json")
    store.import_file(tmp_path / "theirs.json")
    found = store.reusable(sample().workload, H200, LIMIT)
    assert found is not None
    assert found.environment.card_uuid == "GPU-2222"
    # Without a limit nothing says that the two cards have the same memory.
    assert store.reusable(sample().workload, H200, None) is None
    other = dataclasses.replace(H200, card_name="NVIDIA A40")
    assert store.reusable(sample().workload, other, LIMIT) is None


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.delenv("SEGPLAN_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    default = store_path()
    assert default.endswith("results.sqlite")
    assert "segplan" in default
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "mine.db"))
    assert store_path() == str(tmp_path / "mine.db")
    assert store_path(tmp_path / "other.db") == str(tmp_path / "other.db")
    assert store_path("~/x.db") == str(tmp_path / "x.db")
    monkeypatch.setenv("SEGPLAN_STORE", " ")
    assert store_path() == default
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "dir" / "mine.db"))
    with Store.open() as store:
        store.add(sample())
    assert (tmp_path / "dir" / "mine.db").exists()


def test_a_new_store_opened_by_several_at_once(tmp_path):
    errors = []

    def work(number):
        try:
            with Store.open(tmp_path / "s.db") as store:
                store.add(sample(wall_s=float(number)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Store.open(tmp_path / "s.db") as store:
        assert len(store) == 8


def check(count, made_at="2026-12-01T17:54:10+00:00"):
    return {"made_at": made_at, "environment": {"card_uuid": "GPU-1"}, "series": [0.1] * count}


def test_a_check_that_grows_takes_its_own_place(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.add_bench(check(1))
        store.add_bench(check(2), replaces=check(1))
        store.add_bench(check(2), replaces=check(2))  # itself
        store.add_bench(check(3), replaces=check(1))  # gone already: nothing else is touched
        assert [len(b["series"]) for b in store.benches()] == [3, 2]
        with pytest.raises(StoreError, match="cannot be stored"):
            store.add_bench({"environment": {}}, replaces=check(3))
        assert len(store.benches()) == 2
