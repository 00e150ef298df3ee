"""The child's side: import the handler, then answer requests until the pipe closes.

Run as `python -m segplan.worker.child TARGET`; the first frame on the request pipe carries the
parent's `sys.path` and the function to call at start-up. What the handler prints goes to the
captured output: the pipes of the protocol are numbers that nothing else knows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
from typing import Any

from segplan.worker.failures import describe
from segplan.worker.handlers import answer, load
from segplan.worker.wire import Decoder, NoFrameError, encode

_PR_SET_PDEATHSIG = 1


def main(argv: list[str] | None = None) -> None:
    """Serve until the parent closes the pipe or dies."""
    parser = argparse.ArgumentParser(prog="segplan.worker.child")
    parser.add_argument("target")
    parser.add_argument("--request-fd", type=int, required=True)
    parser.add_argument("--reply-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args(argv)
    serve(args.target, args.request_fd, args.reply_fd, args.parent)


def serve(target: str, request_fd: int, reply_fd: int, parent: int) -> None:
    """Answer requests until the pipe closes or the parent dies.

    Args:
        target: the handler.
        request_fd, reply_fd: this side's ends of the protocol's pipes.
        parent: the process that started this one.
    """
    die_with(parent)
    faulthandler.enable()
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(request_fd, requests), daemon=True).start()
    writing = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        try:
            frame = encode(message)
        except (TypeError, ValueError) as error:
            frame = encode({"error": describe(error)})
        with writing:
            view = memoryview(frame)
            while view:
                view = view[os.write(reply_fd, view) :]

    hello = requests.get()
    sys.path[:] = hello["sys_path"]
    try:
        handler = load(target)
        if hello.get("startup"):
            load(hello["startup"])()
    except Exception as error:
        send({"fatal": describe(error)})
        return
    send({"ready": True})
    while True:
        request = requests.get()
        send(answer(handler, request, lambda news: send({"progress": news})))


def _read(fd: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put requests into the queue; end the process, busy or not, when the parent is gone."""
    decoder = Decoder()
    while True:
        try:
            piece = os.read(fd, 2**16)
            messages = decoder.feed(piece)
        except (OSError, NoFrameError):
            piece, messages = b"", []
        if not piece:
            os._exit(0)
        for message in messages:
            requests.put(message)


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, however it dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
