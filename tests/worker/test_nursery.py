"""Forked children: born with the imports done, apart from each other, ended with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segplan.worker import Nursery, Worker, WorkerCrashed, WorkerFailed, forking
from segplan.worker.launch import has_ended, pipes
from tests.worker.conftest import gone

HANDLE = "tests.worker.handlers:handle"
SLOW = "tests.worker.slow_start:startup"


def test_the_import_is_paid_once():
    with Nursery(SLOW) as nursery:
        with Worker(HANDLE, nursery=nursery) as first:
            assert first.call({"do": "empty"}, 20) == {}
        began = time.monotonic()
        for _ in range(3):
            with Worker(HANDLE, nursery=nursery) as worker:
                assert worker.call({"do": "empty"}, 20) == {}
        assert time.monotonic() - began < 0.9  # each would have taken a second


def test_each_child_is_another_process_with_its_own_environment():
    with Nursery(SLOW) as nursery:
        told = []
        for value in ("GPU-1", "GPU-2"):
            env = {"CUDA_VISIBLE_DEVICES": value}
            with Worker("tests.worker.slow_start:environment", env=env, nursery=nursery) as worker:
                answer = worker.call({"name": "CUDA_VISIBLE_DEVICES"}, 20)
                told.append((answer["value"], worker.pid))
        assert [value for value, _ in told] == ["GPU-1", "GPU-2"]
        assert told[0][1] != told[1][1]


def test_children_side_by_side_do_not_hold_each_other_open():
    with (
        Nursery(SLOW) as nursery,
        Worker(HANDLE, nursery=nursery) as one,
        Worker(HANDLE, nursery=nursery) as two,
    ):
        pids = [worker.call({"do": "echo", "value": 1}, 20)["pid"] for worker in (one, two)]
        one.kill()
        assert gone(pids[0])
        assert two.call({"do": "empty"}, 20) == {}
        with pytest.raises(WorkerCrashed, match="code 7"):
            two.call({"do": "hard_exit"}, 20)


def test_no_child_outlives_its_nursery():
    with Nursery(SLOW) as nursery:
        worker = Worker(HANDLE, nursery=nursery)
        pid = worker.call({"do": "echo", "value": 1}, 20)["pid"]
        nursery._process.send_signal(signal.SIGKILL)
        assert gone(pid)
        with pytest.raises(WorkerCrashed):
            worker.call({"do": "empty"}, 20)
        with Worker(HANDLE, nursery=nursery) as again:  # a dead one is replaced
            assert again.call({"do": "empty"}, 20) == {}
        worker.close()


def test_a_failed_import_is_the_childs_to_tell():
    with (
        Nursery("tests.worker.broken:startup") as nursery,
        Worker(HANDLE, startup="tests.worker.broken:startup", nursery=nursery) as worker,
        pytest.raises(WorkerFailed, match="libcudart"),
    ):
        worker.call({"do": "empty"}, 20)


def test_a_child_that_was_never_born_is_not_waited_for():
    with Nursery("tests.worker.slow_start:forever") as nursery:
        worker = Worker(HANDLE, nursery=nursery).start()
        began = time.monotonic()
        worker.kill()
        assert not worker.alive
        assert time.monotonic() - began < 5  # a killed child gets ten seconds to end


def test_a_child_killed_before_it_is_born_does_not_live():
    with Nursery(SLOW) as nursery:
        for _ in range(3):
            Worker(HANDLE, nursery=nursery).start().kill()
        with Worker(HANDLE, nursery=nursery) as worker:
            pid = worker.call({"do": "echo", "value": 1}, 20)["pid"]
            children = Path(f"/proc/{nursery._process.pid}/task/{nursery._process.pid}/children")
            end = time.monotonic() + 5
            while children.read_text().split() != [str(pid)] and time.monotonic() < end:
                time.sleep(0.02)
            assert children.read_text().split() == [str(pid)]


@pytest.mark.parametrize(("startup", "how"), [("aborts", "SIGABRT"), ("leaves", "SystemExit: 3")])
def test_an_import_that_ends_the_process_is_told(startup, how):
    startup = f"tests.worker.slow_start:{startup}"
    with (
        Nursery(startup) as nursery,
        Worker(HANDLE, startup=startup, nursery=nursery) as worker,
        pytest.raises(WorkerCrashed, match=how),
    ):
        worker.call({"do": "empty"}, 20)


def test_a_parent_without_standard_streams(tmp_path):
    """Its first descriptors are 0, 1 and 2, which a child's own streams would replace."""
    told = tmp_path / "told"
    code = f"""
import os
os.closerange(0, 3)
from segplan.worker import Nursery, Worker
with (
    Nursery("tests.worker.handlers:startup").start() as nursery,
    Worker({HANDLE!r}) as spawned,
    Worker({HANDLE!r}, nursery=nursery) as forked,
):
    answers = [worker.call({{"do": "empty"}}, 20) for worker in (spawned, forked)]
open({str(told)!r}, "w").write(repr(answers))
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert told.read_text() == "[{}, {}]"


def test_without_forks_new_processes_are_started():
    with pipes() as (ours, theirs):
        pid = forking._start({"target": HANDLE, "env": {}}, theirs, forks=False)
    for fd in ours.values():
        os.close(fd)  # its request pipe closes: it ends
    end = time.monotonic() + 20
    while not has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert has_ended(pid)
    assert os.waitpid(pid, 0)[0] == pid


def test_an_open_card_is_noticed(monkeypatch):
    assert not forking._holds_card()
    monkeypatch.setattr(os, "readlink", lambda _path: "/dev/nvidiactl")
    assert forking._holds_card()
