"""Guesses come while something else is done, and are called off at once."""

import threading

import pytest

from segplan.api.fitting import ask
from segplan.api.guessing import Guesses
from segplan.errors import NetworkError, WorkerError
from segplan.units import GIB
from segplan.workload import Workload
from tests.api.measured import FakePredictor, make_card

LARGE, MIDDLE, SMALL = (128, 128, 128), (64, 64, 64), (32, 32, 32)
BUDGET = 20 * GIB


class SlowPredictor(FakePredictor):
    """Traces the third patch only once it is let go; `stop` does that too."""

    def __init__(self, card, **options):
        super().__init__(card, **options)
        self.let_go = threading.Event()
        self.stopped = False
        self.traced = []

    def trace(self, wanted):
        for patch, batch in wanted:
            if patch == SMALL:
                self.let_go.wait(20)
            if self.stopped:
                raise WorkerError("stopped")
            self.traced.append((patch, batch))

    def stop(self):
        self.stopped = True
        self.let_go.set()


@pytest.fixture
def question():
    return ask(Workload(model="unet"), [SMALL, MIDDLE, LARGE], None, BUDGET, 0, 64)


def test_what_is_known_comes_before_the_rest_is_traced(tmp_path, question):
    predictor = SlowPredictor(make_card(tmp_path))
    with Guesses(question, predictor, BUDGET) as guesses:
        assert guesses.order() == [MIDDLE, LARGE, SMALL]
        assert guesses.batch(MIDDLE) == 64
        assert guesses.batch(LARGE) == 9
        assert not predictor.let_go.is_set()
        predictor.let_go.set()
        assert guesses.batch(SMALL) == 64
        guesses.finish()
    assert not predictor.stopped


def test_leaving_calls_off_what_is_traced(tmp_path, question):
    predictor = SlowPredictor(make_card(tmp_path))
    with Guesses(question, predictor, BUDGET) as guesses:
        assert guesses.batch(MIDDLE) == 64
    assert predictor.stopped
    assert all(patch != SMALL for patch, _ in predictor.traced)


def test_what_cannot_be_predicted_is_no_guess(tmp_path, question):
    predictor = FakePredictor(make_card(tmp_path), fails=NetworkError("no such argument"))
    with Guesses(question, predictor, BUDGET) as guesses:
        assert [guesses.batch(patch) for patch in guesses.order()] == [None, None, None]


def test_an_error_nobody_expects_reaches_whoever_waits(tmp_path, question):
    predictor = FakePredictor(make_card(tmp_path), fails=ZeroDivisionError())
    with Guesses(question, predictor, BUDGET) as guesses, pytest.raises(ZeroDivisionError):
        guesses.batch(SMALL)
