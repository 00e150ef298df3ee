import time

import pytest

from segplan.errors import CardError
from segplan.worker import WorkerCrashed, WorkerFailed, WorkerPool, WorkerTimedOut
from tests.worker.conftest import gone

HANDLE = "tests.worker.handlers:handle"


def echo(value):
    return {"do": "echo", "value": value}


def test_every_request_is_answered_once_by_few_processes():
    with WorkerPool(HANDLE, 2) as pool:
        answers = dict(pool.map_unordered((echo(i) for i in range(20)), 20))
        assert [answers[i]["got"] for i in range(20)] == list(range(20))
        assert len({answer["pid"] for answer in answers.values()}) <= 2
        again = dict(pool.map_unordered([echo("x")], 20))
        assert again[0]["pid"] in {answer["pid"] for answer in answers.values()}
    assert gone(again[0]["pid"])


def test_failures_are_answers_and_dead_workers_are_replaced():
    requests = [
        echo(0), {"do": "kill"}, {"do": "card_error"}, {"do": "value_error"},
        {"do": "abort"}, echo(5), echo(6),
    ]  # fmt: skip
    with WorkerPool(HANDLE, 2) as pool:
        answers = dict(pool.map_unordered(requests, 20))
    assert isinstance(answers[1], WorkerCrashed)
    assert isinstance(answers[2], CardError)
    assert isinstance(answers[3], WorkerFailed)
    assert isinstance(answers[4], WorkerCrashed)
    assert [answers[i]["got"] for i in (0, 5, 6)] == [0, 5, 6]


def test_requests_run_side_by_side():
    with WorkerPool(HANDLE, 3).start() as pool:
        list(pool.map_unordered([echo(i) for i in range(3)], 20))
        began = time.monotonic()
        list(pool.map_unordered([{"do": "sleep", "seconds": 0.6}] * 3, 20))
        assert time.monotonic() - began < 1.5


def test_each_request_has_its_own_time():
    with WorkerPool(HANDLE, 1) as pool:
        requests = [{"do": "sleep", "seconds": 0.4}] * 3 + [{"do": "sleep", "seconds": 60}]
        answers = dict(pool.map_unordered(requests, 1.0))
    assert [answers[i]["slept"] for i in range(3)] == [0.4] * 3
    assert isinstance(answers[3], WorkerTimedOut)


def test_stopping_early_kills_what_is_busy():
    with WorkerPool(HANDLE, 2) as pool:
        answers = pool.map_unordered([echo(0), {"do": "sleep", "seconds": 60}], 60)
        _, first = next(answers)
        pids = [worker.pid for worker in pool._workers]
        answers.close()
        busy = [pid for pid in pids if pid != first["pid"]]
        assert len(busy) == 1
        assert gone(busy[0])
        assert dict(pool.map_unordered([echo(1)], 20))[0]["got"] == 1


def test_a_pool_of_nobody():
    with pytest.raises(ValueError, match="at least one"):
        WorkerPool(HANDLE, 0)
