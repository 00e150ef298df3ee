"""What only a process can do: die, print, and leave orphans."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from segplan.worker import Nursery, Worker, WorkerCrashed, WorkerGarbled, WorkerTimedOut
from segplan.worker.failures import telling_line
from tests.worker.conftest import gone

HANDLE = "tests.worker.handlers:handle"


@pytest.fixture(params=["spawned", "forked"])
def worker(request):
    if request.param == "spawned":
        with Worker(HANDLE) as worker:
            yield worker
        return
    with (
        Nursery("tests.worker.handlers:startup") as nursery,
        Worker(HANDLE, nursery=nursery) as worker,
    ):
        yield worker


@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        (
            "kill",
            -signal.SIGKILL,
            "signal 9 \\(SIGKILL\\) without an answer \\(the system.*main memory",
        ),
        ("abort", -signal.SIGABRT, "signal 6 \\(SIGABRT\\)"),
        ("hard_exit", 7, "exited with code 7 .*Fatal: the disk is gone"),
    ],
)
def test_a_dead_child_is_a_crash_that_says_how(worker, do, code, message):
    with pytest.raises(WorkerCrashed, match=message) as crash:
        worker.call({"do": do}, 20)
    assert crash.value.returncode == code
    assert not worker.alive
    if do == "abort":
        assert "c10::Error" in crash.value.tail


def test_a_child_killed_while_idle(worker):
    worker.call({"do": "empty"}, 20)
    os.kill(worker.pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while worker.alive and time.monotonic() < end:  # its threads end one after the other
        time.sleep(0.01)
    assert not worker.alive
    with pytest.raises(WorkerCrashed, match="signal 9"):
        worker.call({"do": "empty"}, 20)


def test_printing_does_no_harm(worker):
    assert worker.call({"do": "print"}, 20) == {"printed": True}
    assert worker.call({"do": "empty"}, 20) == {}


def test_garbage_in_the_pipe(worker):
    with pytest.raises(WorkerGarbled, match="this is no message"):
        worker.call({"do": "garbage"}, 20)
    assert not worker.alive
    assert gone(worker.pid)


def test_large_messages_and_many_writers(worker):
    text = "ä" * 3_000_000
    assert worker.call({"do": "echo", "value": text}, 30)["got"] == text
    news = []
    assert worker.call({"do": "threads"}, 30, news.append) == {"done": True}
    assert [n["n"] for n in news] == ["z" * 70000] * 8


def test_a_time_out_takes_the_whole_group(worker):
    pids = []
    with pytest.raises(WorkerTimedOut):
        worker.call({"do": "stubborn"}, 1.0, lambda news: pids.extend(news.values()))
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_importing_does_not_count_as_answering():
    slow = Worker(HANDLE, startup="tests.worker.slow_start:startup")
    with slow:
        began = time.monotonic()
        slow.start()
        assert time.monotonic() - began < 0.9
        assert slow.alive
        assert slow.call({"do": "empty"}, 0.5) == {}
        assert time.monotonic() - began > 1.0


def test_an_import_that_hangs(monkeypatch):
    monkeypatch.setattr("segplan.worker.process.START_TIMEOUT_S", 0.3)
    with (
        Worker(HANDLE, startup="tests.worker.slow_start:startup") as worker,
        pytest.raises(WorkerTimedOut, match="No import of tests"),
    ):
        worker.call({"do": "empty"}, 20)


def test_the_environment_reaches_the_child():
    env = {"CUDA_VISIBLE_DEVICES": "GPU-1234"}
    with Worker("tests.worker.slow_start:environment", env=env) as worker:
        assert worker.call({"name": "CUDA_VISIBLE_DEVICES"}, 20) == {"value": "GPU-1234"}


def test_an_interrupt_kills_the_child(worker):
    pids = []

    def interrupt(news):
        pids.append(news["pid"])
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        worker.call({"do": "sleep", "seconds": 60}, 60, interrupt)
    assert gone(pids[0])
    assert not worker.alive


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_when_the_parent_dies(how, tmp_path):
    note = tmp_path / "pid"
    script = textwrap.dedent(f"""
        import pathlib
        from segplan.worker import Worker
        worker = Worker("{HANDLE}")
        note = lambda news: pathlib.Path({str(note)!r}).write_text(str(news["pid"]))
        worker.call({{"do": "sleep", "seconds": 60}}, 60, note)
    """)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.DEVNULL, env=os.environ
    )
    end = time.monotonic() + 20
    while not (note.exists() and note.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    child = int(note.read_text())
    parent.send_signal(how)
    parent.wait(10)
    assert gone(child)


def test_one_request_at_a_time(worker):
    worker.submit({"do": "empty"}, 20)
    with pytest.raises(Exception, match="busy"):
        worker.submit({"do": "empty"}, 20)


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        ("", ""),
        ("hello\nbye\n", "bye"),
        ('an error\n  File "x.py", line 3 in error\nlater\n', "an error"),
        ("Fatal Python error: Aborted\n\nCurrent thread 0x1:\n", "Fatal Python error: Aborted"),
    ],
)  # fmt: skip
def test_the_line_that_tells(tail, line):
    assert telling_line(tail) == line


def test_a_start_prints_nothing(worker):
    worker.call({"do": "empty"}, 20)
    assert bytes(worker._tail) == b""


def test_a_busy_child_ends_when_its_pipe_closes(worker):
    pids = []
    worker.submit({"do": "sleep", "seconds": 60}, 60, lambda news: pids.append(news["pid"]))
    end = time.monotonic() + 20
    while not pids and time.monotonic() < end:
        worker.advance()
        time.sleep(0.01)
    os.close(worker._fds.pop("request"))
    assert gone(pids[0])
