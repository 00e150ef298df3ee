"""Handlers that the tests' workers run: one well-behaved, and every way to misbehave."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from segplan.errors import CardError, NetworkError

started = []


def startup():
    started.append(time.monotonic())


class SpecialNetworkError(NetworkError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def handle(request, progress):
    return globals()[f"do_{request['do']}"](request, progress)


def do_echo(request, progress):
    return {"got": request["value"], "started": len(started), "pid": os.getpid()}


def do_empty(request, progress):
    return {}


def do_progress(request, progress):
    for i in range(3):
        progress({"step": i})
    return {"done": True}


def do_tuple(request, progress):
    return {"patch": (1, 2, 3)}


def do_not_json(request, progress):
    return {"object": object()}


def do_value_error(request, progress):
    raise ValueError("first line\nsecond line")


def do_card_error(request, progress):
    raise CardError("the card is busy")


def do_special_error(request, progress):
    raise SpecialNetworkError("this", "that")


def do_sleep(request, progress):
    progress({"pid": os.getpid()})
    time.sleep(request["seconds"])
    return {"slept": request["seconds"], "pid": os.getpid()}


def do_exit(request, progress):
    sys.exit(3)


def do_hard_exit(request, progress):
    sys.stderr.write("Fatal: the disk is gone\n")
    os._exit(7)


def do_abort(request, progress):
    os.write(2, b"terminate called after throwing an instance of 'c10::Error'\n")
    os.abort()


def do_kill(request, progress):
    os.kill(os.getpid(), signal.SIGKILL)


def do_print(request, progress):
    for _ in range(5000):
        print("x" * 100)
        print("y" * 100, file=sys.stderr)
    os.write(1, b"\x00\xffraw\n")
    return {"printed": True}


def do_garbage(request, progress):
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, b"this is no message")
    time.sleep(60)
    return {}


def do_stubborn(request, progress):
    """Ignores SIGTERM and holds a grandchild."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    progress({"pid": os.getpid(), "grandchild": grandchild.pid})
    time.sleep(120)
    return {}


def do_threads(request, progress):
    threads = [threading.Thread(target=progress, args=({"n": "z" * 70000},)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"done": True}
