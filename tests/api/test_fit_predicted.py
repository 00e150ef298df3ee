"""`fit` for a card that is not here: real traces of a small network, and what can go wrong."""

from __future__ import annotations

import pytest

import segplan.api.fitting as fitting
from segplan import Workload, fit
from segplan.api.predicting import Predictor
from segplan.errors import CardError, NetworkError, RequestError, WorkerError
from segplan.gpus import catalogue, find_card
from segplan.results import Basis, LimitedBy, MemoryEstimate
from segplan.search import Verdict
from segplan.trace.tape import Trace, trace_to_json
from segplan.units import GIB, MIB
from segplan.worker import WorkerTimedOut
from tests.api.measured import FakePredictor, make_card

W = Workload(model="unet", model_args={"channels": (4, 8, 16), "strides": (2, 2)})
SMALL, MIDDLE, BIG = (32, 32, 32), (48, 48, 48), (64, 64, 64)
LIMIT = 200 * MIB


class Progress(list):
    def __call__(self, done, total, what):
        assert 0 <= done <= total
        self.append(what)


@pytest.fixture(scope="module")
def found():
    return fit(W, gpu="rtx-3090", patches=[SMALL, MIDDLE], allocator_limit=LIMIT)


def test_the_answer_is_the_replays(found):
    card = find_card("rtx-3090")
    with Predictor(found.workload, card) as predictor:
        for cell in found.cells:
            assert cell.limited_by is LimitedBy.MEMORY
            assert 1 < cell.max_batch < 64
            assert predictor.fits(cell.patch, cell.max_batch, LIMIT)
            assert not predictor.fits(cell.patch, cell.max_batch + 1, LIMIT)
            assert predictor.estimate(cell.patch, cell.max_batch) == cell.memory


def test_what_a_prediction_says_of_itself(found):
    assert (found.card, found.measured_on, found.budget) == ("rtx-3090", None, LIMIT)
    assert found.context > 0
    assert [c.patch for c in found.cells] == [SMALL, MIDDLE]
    for cell in found.cells:
        assert cell.basis is cell.memory.basis is Basis.PREDICTED
        assert (cell.status, cell.probes, cell.retries) == ("ok", 0, None)
        assert cell.step.basis is Basis.PREDICTED
        assert cell.step.low < cell.step.seconds < cell.step.high
        m = cell.memory
        assert m.peak_allocated <= m.least_memory
        assert m.least_memory_low <= m.least_memory <= m.least_memory_high
        assert m.context == found.context
    assert found.recommended == 1
    assert any("600 MiB assumed" in w for w in found.warnings)


def test_nothing_fits():
    found = fit(W, gpu="rtx-3090", patches=[SMALL, MIDDLE], allocator_limit=MIB)
    assert [(c.max_batch, c.limited_by, c.status) for c in found.cells] == [
        (0, LimitedBy.MEMORY, "ok")
    ] * 2
    assert found.recommended is None
    assert "nothing fits" in found.reason
    assert found.cells[0].memory.least_memory > MIB
    visible = {card.slug: card.memory_visible for card in catalogue()}
    assert visible[found.smallest_card] == min(visible.values())


def test_the_largest_patch_at_a_batch(found):
    batch = found.cells[1].max_batch
    other = fit(W, gpu="rtx-3090", patches=[BIG, SMALL, MIDDLE], batch=batch, allocator_limit=LIMIT)
    (cell,) = other.cells
    assert (cell.patch, cell.max_batch, cell.limited_by) == (MIDDLE, batch, LimitedBy.MEMORY)
    assert cell.memory == found.cells[1].memory
    assert other.recommended == 0


def test_several_cards_share_their_traces():
    progress = Progress()
    fits = fitting.fit_many(W, ["rtx-3090", "catalog"], [SMALL], max_batch=2, progress=progress)
    assert [f.card for f in fits[1:]] == [c.slug for c in catalogue()]
    assert all(f.cells[0].max_batch == 2 for f in fits)
    assert sum(what.startswith("traced") for what in progress) == 2


NOT_ANSWERED = {
    "rule": ({"patches": [(33, 32, 32)]}, NetworkError, "Nearest valid: 32 and 36x32x32"),
    "as": ({"emulate": "rtx-3080-10gb"}, CardError, "--gpu rtx-3080-10gb alone"),
    "soak": ({"soak": 10}, CardError, "use --gpu 0"),
    "several": ({"gpu": "rtx-3090,rtx-4090"}, RequestError, "fit_many"),
    "all": ({"gpu": "all"}, RequestError, "fit_many"),
    "card": ({"gpu": "rtx-309"}, CardError, "did you mean"),
    "batch": ({"batch": 0}, RequestError, "batch must be a whole number of at least 1, not 0"),
    "limit": (
        {"allocator_limit": 0},
        RequestError,
        "allocator_limit must be a whole number of at least 1",
    ),
    "reserve": ({"reserve": -1}, RequestError, "reserve must be .* at least 0"),
    "cap": ({"max_batch": 0}, RequestError, "max_batch must be .* at least 1"),
    "text": ({"max_batch": "8"}, RequestError, "max_batch must be a whole number"),
    "flat patch": ({"patches": [(32, 32)]}, RequestError, "three whole numbers"),
    "no patches": ({"patches": []}, RequestError, "leave patches out"),
    "no room": ({"reserve": 30 * GIB}, CardError, "lower --reserve"),
}


@pytest.mark.parametrize("case", NOT_ANSWERED)
def test_requests_that_cannot_be_answered(case):
    options, kind, message = NOT_ANSWERED[case]
    with pytest.raises(kind, match=message) as error:
        fit(W, **{"gpu": "rtx-3090", "patches": [SMALL], **options})
    assert error.value.exit_code == 2


def test_default_patches_are_valid():
    question = fitting.ask(Workload(model="swinunetr"), None, None, None, 0, 64)
    assert [p[0] for p in question.patches] == [64, 96, 128, 160, 192, 224]
    asked_for = fitting.ask(Workload(model="swinunetr"), None, 2, None, 0, 64).patches
    assert asked_for == tuple(sorted(asked_for))
    assert asked_for[0] < (96, 96, 96) < asked_for[-1]


class Broken(FakePredictor):
    """Dies at one patch."""

    def __init__(self, card, patch, error):
        super().__init__(card)
        self.patch, self.error = patch, error

    def estimate(self, patch, batch):
        if patch == self.patch:
            raise self.error
        return super().estimate(patch, batch)


@pytest.mark.parametrize(
    ("error", "status"),
    [(WorkerError("the trace died."), "failed"), (WorkerTimedOut("no answer."), "timed_out")],
)
def test_a_trace_that_dies_costs_its_cell_only(tmp_path, error, status):
    question = fitting.ask(W, [SMALL, MIDDLE], None, GIB, 0, 64)
    predictor = Broken(make_card(tmp_path), MIDDLE, error)
    found = fitting.fit_predicted(question, find_card("rtx-3090"), predictor)
    first, second = found.cells
    assert (first.max_batch, first.status) == (19, "ok")
    assert (second.max_batch, second.limited_by, second.status) == (0, None, status)
    assert second.note == str(error)
    assert found.recommended == 0
    question = fitting.ask(W, [MIDDLE], None, GIB, 0, 64)
    with pytest.raises(WorkerError, match=str(error)):
        fitting.fit_predicted(question, find_card("rtx-3090"), predictor)


def test_a_trace_that_dies_on_the_way_to_the_largest_patch(tmp_path):
    question = fitting.ask(W, [SMALL, MIDDLE, BIG], 2, 4 * GIB, 0, 64)
    predictor = Broken(make_card(tmp_path), BIG, WorkerError("the trace died."))
    (cell,) = fitting.fit_predicted(question, find_card("rtx-3090"), predictor).cells
    assert (cell.patch, cell.max_batch, cell.limited_by) == (MIDDLE, 2, None)
    assert (cell.status, cell.note) == ("failed", "the trace died.")


def test_a_prediction_that_is_not_monotone_is_told(tmp_path):
    class Odd(FakePredictor):
        def fits(self, patch, batch, limit):
            return batch in (1, 2, 4) or batch > 60

    question = fitting.ask(W, [SMALL], None, 500 * MIB, 0, 64)
    predictor = Odd(make_card(tmp_path))
    (cell,) = fitting.fit_predicted(question, find_card("rtx-3090"), predictor).cells
    assert cell.max_batch in (2, 4)
    if cell.max_batch == 2:
        assert "not monotone: batch 4 fits although batch 3 does not" in cell.note


def plain_trace(batch, extra=0):
    """A trace of nothing much."""
    return Trace(batch, [1, -1] * (1 + extra), [512], ["activation"], [""], [], [0])


class FakePool:
    """Answers traces at once; batch 3 makes another sequence, and `dead` die."""

    asked: list[int]

    def __init__(self, dead=()):
        self.asked, self.dead = [], dead

    def __call__(self, *arguments, **options):
        return self

    def map_unordered(self, requests, timeout_s):
        for index, request in enumerate(requests):
            batch = request["workload"]["batch"]
            self.asked.append(batch)
            if batch in self.dead:
                yield index, WorkerError(f"batch {batch} died.")
            else:
                yield index, {"trace": trace_to_json(plain_trace(batch, batch == 3))}

    def close(self):
        pass


def test_sequences_that_differ_are_traced_batch_by_batch(monkeypatch):
    pool = FakePool()
    monkeypatch.setattr("segplan.api.predicting.WorkerPool", pool)
    with Predictor(W) as predictor:
        predictor.trace([(SMALL, 7)])
        assert pool.asked == [2, 3, 7]
        predictor.trace([(SMALL, 7), (SMALL, 2)])
        assert pool.asked == [2, 3, 7]
        predictor.trace([(SMALL, 8), (SMALL, 9)])
        assert pool.asked == [2, 3, 7, 8, 9]


def test_a_trace_that_died_is_not_tried_again_and_costs_no_other_batch(monkeypatch):
    pool = FakePool(dead=(1,))
    monkeypatch.setattr("segplan.api.predicting.WorkerPool", pool)
    with Predictor(W) as predictor:
        for _ in range(2):
            with pytest.raises(WorkerError, match="batch 1 died"):
                predictor.fits(SMALL, 1, GIB)
        predictor.trace([(SMALL, 2), (SMALL, 1)])
        assert pool.asked == [1, 2]
        assert predictor._failure(SMALL, 2) is None


def test_verdicts_say_why(tmp_path):
    predictor = FakePredictor(make_card(tmp_path))
    predictor.kernel_limit = lambda patch, batch: "max pooling"
    assert fitting._oracle(predictor, SMALL, 1, GIB).kind is Verdict.KERNEL.kind


def test_the_least_memory_decides_and_not_the_peak(monkeypatch):
    needs = MemoryEstimate(10, 30, 20, 19, 21)
    with Predictor(W) as predictor:
        monkeypatch.setattr(predictor, "estimate", lambda patch, batch: needs)
        assert predictor.fits(SMALL, 1, 20)
        assert not predictor.fits(SMALL, 1, 19)
