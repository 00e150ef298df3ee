"""`fit` on a card that is here: answers, probes, refusals."""

from __future__ import annotations

import dataclasses
import json

import pytest

import segplan.api.fitting as fitting
from segplan.api.side_by_side import fit_side_by_side
from segplan.errors import CardError, NetworkError, RequestError, WorkerError
from segplan.gpus.local import GpuProcess, MigSlice
from segplan.results import Basis, LimitedBy, Outcome
from segplan.store import Store
from segplan.units import GIB, MIB
from tests.api.measured import SMALL, FakePredictor, W, asked, cells_of, install, make_card
from tests.worker.conftest import gone

LIMIT = GIB  # 19 samples of SMALL
BIG = (64, 64, 64)  # 256 MiB a sample: 2


@pytest.fixture
def card(tmp_path):
    return make_card(tmp_path)


@pytest.fixture
def fit(card, tmp_path, monkeypatch):
    """`fit` on the fake card, with a store of its own."""

    def run(patches=(SMALL,), *, factor=1.0, fails=None, prober=None, on=card, **options):
        predictor = FakePredictor(on, factor, fails)
        install(monkeypatch, on, predictor, **(prober or {}))
        options = {"allocator_limit": LIMIT, "store": str(tmp_path / "s.db")} | options
        return fitting.fit(W, gpu="0", patches=list(patches), **options)

    return run


def test_a_right_prediction_takes_two_probes_from_fresh_processes(fit, card):
    found = fit([SMALL, BIG])
    assert [(c.max_batch, c.limited_by) for c in found.cells] == [
        (19, LimitedBy.MEMORY), (2, LimitedBy.MEMORY),
    ]  # fmt: skip
    assert [c.probes for c in found.cells] == [2, 2]
    assert asked(card) == [(SMALL, 19), (SMALL, 20), (BIG, 2), (BIG, 3)]
    assert len({entry["pid"] for entry in card.log()}) == 4
    assert all(entry["limit"] == LIMIT for entry in card.log())
    cell = found.cells[0]
    assert cell.basis is Basis.MEASURED
    assert cell.memory.basis is Basis.MEASURED
    assert cell.memory.peak_reserved == (400 + 19 * 32) * MIB
    assert cell.memory.context == (500 * MIB if not cell.retries else found.context)
    assert cell.step.basis is Basis.MEASURED
    assert cell.step.seconds == pytest.approx(19 * 32**3 * 1e-7)
    assert cell.step.low <= cell.step.seconds <= cell.step.high
    assert (found.measured_on, found.budget, found.recommended) == ("Fake Card", LIMIT, 1)


@pytest.mark.parametrize(("factor", "most"), [(0.9, 6), (1.1, 6), (0.2, 11), (5.0, 11)])
def test_a_wrong_prediction_costs_probes_not_the_answer(fit, factor, most):
    cell = fit(factor=factor).cells[0]
    assert (cell.max_batch, cell.status) == (19, "ok")
    assert cell.probes <= most


def test_without_a_prediction_the_range_is_bisected(fit):
    found = fit(fails=WorkerError("the trace died."))
    assert found.cells[0].max_batch == 19
    assert found.cells[0].probes <= 8
    assert found.cells[0].memory.peak_reserved == (400 + 19 * 32) * MIB


def test_nothing_fits(fit, card):
    cell = fit(allocator_limit=300 * MIB).cells[0]
    assert (cell.max_batch, cell.limited_by, cell.status) == (0, LimitedBy.MEMORY, "ok")
    assert cell.step is None
    assert cell.memory.basis is Basis.PREDICTED  # what batch 1 needs was not measured
    assert asked(card) == [(SMALL, 1)]


def test_nothing_fits_names_the_first_card_that_would_do(fit):
    found = fit(allocator_limit=300 * MIB)
    assert found.recommended is None
    assert found.smallest_card is not None


def test_the_cap(fit, card):
    cell = fit(max_batch=8).cells[0]
    assert (cell.max_batch, cell.limited_by, cell.probes) == (8, LimitedBy.CAP, 1)


def test_a_kernel_limit_is_told(fit):
    cell = fit([(128, 128, 128)], allocator_limit=None, factor=0.1).cells[0]
    assert cell.max_batch == 11  # memory: 2 GiB a sample
    big = (512, 512, 256)  # 2^26 voxels of 32 channels: 2^31 elements
    cell = fit([big], allocator_limit=None, factor=0.01, max_batch=2).cells[0]
    assert (cell.max_batch, cell.limited_by) == (0, LimitedBy.KERNEL)
    assert "32-bit" in cell.note


def test_the_largest_patch_at_a_batch(fit, card):
    found = fit([SMALL, (48, 48, 48), BIG, (96, 96, 96)], batch=2)
    assert len(found.cells) == 1
    cell = found.cells[0]
    assert (cell.patch, cell.max_batch, cell.limited_by) == (BIG, 2, LimitedBy.MEMORY)
    assert cell.step is not None
    assert cell.probes == len(card.log())


def test_the_largest_patch_is_guessed_from_the_prediction(fit):
    sides = [(s, s, s) for s in range(64, 257, 16)]
    cell = fit(sides, batch=1, allocator_limit=8 * GIB).cells[0]
    assert (cell.patch, cell.probes) == ((192, 192, 192), 2)


def test_no_patch_at_a_batch(fit):
    cell = fit([SMALL, BIG], batch=30).cells[0]
    assert (cell.patch, cell.max_batch, cell.status) == (SMALL, 0, "ok")


@pytest.mark.parametrize(
    ("behaviour", "status", "note"),
    [
        ("abort", "failed", "SIGABRT"),
        ("kill", "failed", "SIGKILL"),
        ("exit", "failed", "code 1"),
        ("garbage", "failed", "no message"),
        ("nonsense", "failed", "makes no sense"),
        ("shape", "failed", "size of tensor a"),
        ("hang", "timed_out", "within 1 s"),
    ],
)
def test_a_probe_without_an_answer_costs_its_cell_only(tmp_path, fit, behaviour, status, note):
    card = make_card(tmp_path, behaviours={"20": behaviour})
    found = fit([SMALL, BIG], on=card, prober={"timeout_s": 1.0})
    first, second = found.cells
    assert (first.max_batch, first.limited_by, first.status) == (19, None, status)
    assert first.note.startswith("32x32x32 at batch 20: ")
    assert note in first.note
    assert first.step is not None
    assert (second.max_batch, second.status, second.note) == (2, "ok", None)
    assert found.recommended == 1


def test_out_of_memory_in_any_disguise_is_an_answer(tmp_path, fit):
    card = make_card(tmp_path, behaviours={"17": "no_engine"})
    cell = fit(on=card, factor=1.1).cells[0]
    assert (cell.max_batch, cell.limited_by, cell.status) == (16, LimitedBy.MEMORY, "ok")


def test_a_cell_that_only_hangs_is_given_up(tmp_path, fit):
    card = make_card(tmp_path, behaviours={f"32x32x32b{b}": "hang" for b in range(1, 65)})
    found = fit([SMALL, BIG], on=card, prober={"timeout_s": 0.5})
    assert [(c.max_batch, c.status) for c in found.cells] == [(0, "timed_out"), (2, "ok")]
    assert found.cells[0].probes == 2
    assert "within" in found.cells[0].note


def test_a_second_run_makes_no_probe(fit, card):
    first = fit([SMALL, BIG])
    before = len(card.log())
    second = fit([SMALL, BIG])
    assert len(card.log()) == before
    assert cells_of(second) == cells_of(first)
    assert second.recommended == first.recommended
    assert [c.probes for c in second.cells] == [0, 0]


def test_a_failure_is_tried_again(tmp_path, fit):
    card = make_card(tmp_path, behaviours={"20": "kill"})
    assert fit(on=card).cells[0].status == "failed"
    card = make_card(tmp_path)
    found = fit(on=card).cells[0]
    assert (found.max_batch, found.status, found.probes) == (19, "ok", 1)


@pytest.mark.parametrize(
    "other",
    [
        {"limit": {"allocator_limit": LIMIT + MIB}},
        {"driver": {"driver": "1000.0"}},
        {"uuid": {"uuid": "GPU-other"}},
        {"torch": {"torch": "10.0"}},
    ],
    ids=lambda o: next(iter(o)),
)
def test_results_of_something_else_are_not_reused(tmp_path, fit, monkeypatch, other):
    card = make_card(tmp_path)
    fit(on=card)
    before = len(card.log())
    ((name, change),) = other.items()
    if name in ("driver", "uuid"):
        card.local = dataclasses.replace(card.local, **change)
    if name == "torch":
        import tests.api.measured as measured

        monkeypatch.setitem(measured.SOFTWARE, "torch", "10.0")
    options = change if name == "limit" else {}
    fit(on=card, **options)
    assert len(card.log()) > before


def test_every_probe_is_in_the_store_with_its_environment(fit, card, tmp_path):
    from segplan.store import Store

    fit()
    store = Store.open(str(tmp_path / "s.db"))
    rows = store.find()
    store.close()
    assert sorted((m.workload.batch, m.outcome) for m in rows) == [
        (19, Outcome.FITS), (20, Outcome.OUT_OF_MEMORY),
    ]  # fmt: skip
    assert {m.environment.card_uuid for m in rows} == {"GPU-fake"}
    assert all(m.fresh for m in rows)


def test_a_smaller_card_is_emulated(fit, card):
    found = fit([BIG], allocator_limit=None, emulate="rtx-3080-10gb")
    assert found.card == "rtx-3080-10gb"
    assert found.measured_on == "Fake Card"
    assert found.budget < 10 * GIB
    assert {entry["limit"] for entry in card.log()} == {found.budget}
    cell = found.cells[0]
    assert cell.max_batch == (found.budget - 400 * MIB) // (256 * MIB)
    assert cell.basis is cell.memory.basis is Basis.EMULATED
    assert cell.step.basis is Basis.MEASURED
    assert any("timed on the Fake Card" in w for w in found.warnings)


def test_a_soak_is_reported(fit, card):
    found = fit(soak=7)
    assert card.log()[-1]["steps"] == 7
    assert any(w.startswith("Soak: 7 steps, time +0.0 %") for w in found.warnings)


def busy(card, used, *processes):
    local = dataclasses.replace(
        card.local, free_bytes=card.local.total_bytes - used, processes=processes
    )
    card.local, card.free, card.processes = local, local.free_bytes, processes
    return card


def test_a_busy_card_is_refused(fit, card):
    busy(card, 3 * GIB, GpuProcess(4242, "/usr/bin/python3", 3 * GIB))
    with pytest.raises(CardError, match=r"card 0 is busy: 3072 MiB are held by PID 4242 \(python3"):
        fit()
    with pytest.raises(CardError, match="--share"):
        fit()
    assert card.log() == []


def test_a_busy_card_is_shared_when_asked(fit, card):
    busy(card, 3 * GIB, GpuProcess(4242, "/usr/bin/python3", 3 * GIB))
    found = fit(share=True, allocator_limit=None)
    assert found.cells[0].max_batch == 64
    assert found.budget <= 21 * GIB - found.context - found.reserve


def test_a_desktop_is_not_busy(fit, card):
    busy(card, 200 * MIB, GpuProcess(7, "/usr/lib/xorg/Xorg", 200 * MIB))
    assert fit().cells[0].max_batch == 19


def test_a_little_less_free_memory_still_reuses_results(fit, card):
    first = fit(allocator_limit=None, max_batch=4)
    busy(card, MIB)
    second = fit(allocator_limit=None, max_batch=4)
    assert second.cells[0].probes == 0
    assert second.budget == first.budget


REFUSED = {
    "larger card": (
        {"allocator_limit": None, "emulate": "h200"},
        "cannot stand in for the larger h200.*--gpu h200",
    ),
    "larger limit": ({"allocator_limit": 30 * GIB}, "lower --allocator-limit"),
    "no room": ({"allocator_limit": None, "reserve": 30 * GIB}, "lower --reserve"),
    "no such card": ({"emulate": "rtx-309"}, "did you mean"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_fix_named(fit, card, case):
    options, message = REFUSED[case]
    with pytest.raises(CardError, match=message):
        fit(**options)
    assert card.log() == []


def test_a_card_that_is_not_here(card, monkeypatch):
    install(monkeypatch, card, FakePredictor(card))
    with pytest.raises(CardError, match="there is no GPU 3: 1 GPU is usable here: use --gpu 0"):
        fitting.fit(W, gpu="3", patches=[SMALL])


def test_a_card_cut_into_slices(card, monkeypatch):
    part = dataclasses.replace(
        card.local, uuid="MIG-1", index=None,
        mig=MigSlice("1g.10gb", 10 * GIB, 14, card.local.uuid, card.local.name),
    )  # fmt: skip
    parent = dataclasses.replace(card.local, mig="parent")
    install(monkeypatch, card, FakePredictor(card))
    monkeypatch.setattr("segplan.gpus.choose.local_cards", lambda: (parent, part))
    monkeypatch.setattr("segplan.api.fitting.local_cards", lambda: (parent, part))
    with pytest.raises(CardError, match="--gpu MIG-1"):
        fitting.fit(W, gpu="0", patches=[SMALL])
    assert fitting.usable_cards() == (part,)


def test_all_cards_are_measured_in_turn(card, monkeypatch, tmp_path):
    predictor = FakePredictor(card)
    install(monkeypatch, card, predictor)
    monkeypatch.setattr("segplan.api.fitting.Predictor", predictor)
    twin = dataclasses.replace(card.local, index=1, uuid="GPU-twin")
    monkeypatch.setattr("segplan.api.fitting.local_cards", lambda: (card.local, twin))
    store = str(tmp_path / "s.db")
    fits = fitting.fit_many(W, ["all", "rtx-3090"], [SMALL], allocator_limit=LIMIT, store=store)
    assert [f.measured_on for f in fits] == ["Fake Card", "Fake Card", None]
    assert [f.cells[0].max_batch for f in fits] == [19, 19, 19]


@pytest.fixture
def two_cards(tmp_path, monkeypatch):
    """Lets a test start two fake cards with settings each; returns them."""

    def make(*settings):
        cards = []
        for i, own in enumerate(settings):
            folder = tmp_path / f"GPU-{i}"
            folder.mkdir()
            (folder / "settings.json").write_text(json.dumps(own))
            card = make_card(folder, **own)
            card.local = dataclasses.replace(card.local, index=i, uuid=f"GPU-{i}")
            cards.append(card)
        monkeypatch.setenv("FAKE_CARDS", str(tmp_path))
        monkeypatch.setattr("segplan.api.side_by_side.TARGET", "tests.api.measured:handle_one")
        monkeypatch.setattr(
            "segplan.api.fitting.local_cards", lambda: tuple(c.local for c in cards)
        )
        return cards

    return make


def test_all_cards_at_the_same_time(two_cards, tmp_path):
    cards = two_cards({}, {"fixed": 592 * MIB})
    told = []
    fits = fitting.fit_many(
        W, ["all"], [SMALL], allocator_limit=LIMIT, store=str(tmp_path / "s.db"),
        side_by_side=True, progress=lambda *news: told.append(news),
    )  # fmt: skip
    assert [f.cells[0].max_batch for f in fits] == [19, 13]
    assert [f.cells[0].step.basis for f in fits] == [Basis.MEASURED] * 2
    assert fits[0].cells[0].memory.basis is Basis.MEASURED
    assert [len(card.log()) for card in cards] == [2, 2]
    assert all(any(f"GPU {i}: 32x32x32" in text for _, _, text in told) for i in (0, 1))
    assert all(done <= total for done, total, _ in told)
    with Store.open(str(tmp_path / "s.db")) as store:
        assert len(store) == 4


def test_a_card_named_twice_is_measured_once(two_cards, tmp_path):
    cards = two_cards({}, {})
    one, two = (card.local for card in cards)
    question = fitting.ask(W, [SMALL], None, LIMIT, 0, 64)
    fits = fit_side_by_side(
        question, [one, two, one], store=str(tmp_path / "s.db"), share=False,
        progress=lambda *news: None,
    )  # fmt: skip
    assert len(fits) == 3
    assert fits[0] is fits[2]
    assert [len(card.log()) for card in cards] == [2, 2]


def test_a_failing_card_ends_the_others_and_what_was_measured_is_kept(two_cards, tmp_path):
    cards = two_cards({"behaviours": {"20": "hang"}}, {"behaviours": {"19": "network_error"}})
    with pytest.raises(NetworkError, match="refuses this patch"):
        fitting.fit_many(
            W, ["all"], [SMALL], allocator_limit=LIMIT, store=str(tmp_path / "s.db"),
            side_by_side=True,
        )  # fmt: skip
    assert all(gone(entry["pid"]) for card in cards for entry in card.log())


def test_named_cards_are_not_measured_side_by_side(card, monkeypatch):
    with pytest.raises(RequestError, match="--gpu"):
        fitting.fit_many(W, ["rtx-3090"], [SMALL], side_by_side=True)


def test_all_cards_are_checked_before_the_first_is_measured(card, monkeypatch, tmp_path):
    install(monkeypatch, card, FakePredictor(card))
    taken = dataclasses.replace(card.local, index=1, uuid="GPU-1", free_bytes=GIB)
    monkeypatch.setattr("segplan.api.fitting.local_cards", lambda: (card.local, taken))
    with pytest.raises(CardError, match="card 1 is busy"):
        fitting.fit_many(W, ["all"], [SMALL], store=str(tmp_path / "s.db"))
    assert card.log() == []


def test_a_card_taken_in_between_ends_the_fit_and_keeps_what_was_measured(fit, card, monkeypatch):
    def progress(done, total, what):
        if what.startswith("32x32x32 batch 19:"):
            card.free = 2 * GIB
            card.processes = (GpuProcess(4242, "/usr/bin/python3", 22 * GIB),)

    monkeypatch.setattr("segplan.probe.guard._PATIENCE_S", 0.2)
    with pytest.raises(CardError, match=r"now used by PID 4242 \(python3\).*is kept") as error:
        fit(progress=progress)
    assert error.value.exit_code == 2
    card.free, card.processes = 24 * GIB, ()
    assert fit().cells[0].probes == 1
    assert asked(card) == [(SMALL, 19), (SMALL, 20)]


def test_versions_known_ahead_are_those_a_probe_reports():
    from segplan.api.recording import software
    from segplan.probe.device import versions

    reported = versions()
    assert software() == {name: reported[name] for name in ("torch", "cuda", "cudnn", "monai")}


def test_an_environment_nobody_can_tell_reuses_nothing(card, monkeypatch):
    from segplan.api.recording import EnvironmentAhead

    def broken():
        raise ImportError("no torch")

    monkeypatch.setattr("segplan.api.recording.software", broken)
    known = EnvironmentAhead(card.local).get()
    assert (known.card_uuid, known.driver, known.torch) == ("GPU-fake", "999.1", None)
