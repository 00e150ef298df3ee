"""What a worker promises, with a process and without."""

import pytest

from segplan.errors import CardError, NetworkError, WorkerError
from segplan.worker import InProcessWorker, Worker, WorkerCrashed, WorkerFailed, WorkerTimedOut

HANDLERS = "tests.worker.handlers"


@pytest.fixture(params=[Worker, InProcessWorker])
def kind(request):
    return request.param


@pytest.fixture
def worker(kind):
    with kind(f"{HANDLERS}:handle", startup=f"{HANDLERS}:startup") as worker:
        yield worker


def test_answers_one_request_after_another(worker):
    assert not worker.alive
    first = worker.call({"do": "echo", "value": [1, {"a": None}, 2.5, "ü"]}, 20)
    second = worker.call({"do": "echo", "value": 2}, 20)
    assert first["got"] == [1, {"a": None}, 2.5, "ü"]
    assert second["got"] == 2
    assert first["pid"] == second["pid"]
    assert first["started"] >= 1
    assert worker.alive


def test_results_look_as_from_json(worker):
    assert worker.call({"do": "tuple"}, 20) == {"patch": [1, 2, 3]}
    assert worker.call({"do": "empty"}, 20) == {}
    with pytest.raises(WorkerFailed, match=r"TypeError: .*JSON"):
        worker.call({"do": "not_json"}, 20)
    assert worker.call({"do": "empty"}, 20) == {}


def test_progress_arrives_in_order(worker):
    seen = []
    assert worker.call({"do": "progress"}, 20, seen.append) == {"done": True}
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert worker.call({"do": "progress"}, 20) == {"done": True}


def test_errors_come_back_and_the_worker_lives_on(worker):
    with pytest.raises(CardError, match=r"^the card is busy$"):
        worker.call({"do": "card_error"}, 20)
    with pytest.raises(NetworkError, match=r"^this and that$") as nearest:
        worker.call({"do": "special_error"}, 20)
    assert type(nearest.value) is NetworkError
    with pytest.raises(WorkerFailed, match=r"^ValueError: first line$") as failed:
        worker.call({"do": "value_error"}, 20)
    assert failed.value.error_type == "ValueError"
    assert failed.value.detail == "first line\nsecond line"
    assert worker.call({"do": "echo", "value": 1}, 20)["got"] == 1


def test_out_of_time_means_dead(worker):
    worker.call({"do": "empty"}, 20)
    with pytest.raises(WorkerTimedOut, match="No answer within 0 s"):
        worker.call({"do": "sleep", "seconds": 3}, 0.2)
    assert not worker.alive
    with pytest.raises(WorkerError, match="has ended"):
        worker.call({"do": "empty"}, 20)


def test_an_exit_is_a_crash(worker):
    with pytest.raises(WorkerCrashed, match="exited with code 3"):
        worker.call({"do": "exit"}, 20)
    assert not worker.alive


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tests.worker.broken:handle", "ImportError: libcudart.so.12"),
        ("tests.worker.handlers:nothing", "names no function"),
        ("tests.worker.handlers", "names no function"),
        ("tests.worker.no_such_module:handle", "ModuleNotFoundError"),
    ],
)
def test_a_handler_that_cannot_be_loaded(kind, target, message):
    with kind(target) as worker, pytest.raises(WorkerError, match=message):
        worker.call({"do": "empty"}, 20)
    assert not worker.alive


def test_close_is_final_and_harmless(kind):
    worker = kind(f"{HANDLERS}:handle")
    worker.close()
    worker.close()
    with pytest.raises(WorkerError, match="has ended"):
        worker.start()
