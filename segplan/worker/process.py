"""Worker: the parent's side of one child process."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from segplan.errors import WorkerError
from segplan.worker.failures import WorkerGarbled, WorkerTimedOut, crashed, revive
from segplan.worker.launch import Child, pipes, spawn
from segplan.worker.nursery import Nursery, absolute_path
from segplan.worker.wire import Decoder, NoFrameError, encode

START_TIMEOUT_S = 300.0
"""Seconds a child may take to import its handler (a cold disk and a large torch are slow)."""

OnProgress = Callable[[dict[str, Any]], None]
_TAIL_BYTES = 8192
_LOOK_S = 0.2  # how often a silent child is checked for being alive


class Worker:
    """One child process that answers requests through `target`, one at a time.

    The child leads a process group of its own, which is killed as a whole; it does not outlive
    this process, nor (on Linux) the thread that started it.

    Args:
        target: "package.module:function", a `handle(request, progress) -> result`.
        env: variables added to the child's environment.
        startup: "package.module:function" called once without arguments before the first
            request, such as one that imports what is slow to import.
        nursery: forks the child, instead of starting a Python process for it.
    """

    def __init__(
        self,
        target: str,
        *,
        env: Mapping[str, str] | None = None,
        startup: str | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        self.target = target
        self._env = dict(env or {})
        self._startup = startup
        self._nursery = nursery
        self._process: Child | None = None
        self._fds: dict[str, int] = {}
        self._dead = False
        self._forget()

    def _forget(self) -> None:
        self._ready = False
        self._busy = False
        self._decoder = Decoder()
        self._outgoing = bytearray()
        self._tail = bytearray()
        self._timeout_s = 0.0
        self._deadline = 0.0
        self._on_progress: OnProgress | None = None

    @property
    def alive(self) -> bool:
        """Whether the child runs (and may still be importing)."""
        return self._process is not None and not self._dead and not self._ended()

    @property
    def pid(self) -> int | None:
        """The child's process number, or None before it is started."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the child, which begins to import; returns at once. Does nothing if started.

        Raises:
            WorkerError: the worker is dead, or the system starts no process.
        """
        if self._dead:
            raise WorkerError("This worker has ended: make a new one.")
        if self._process is not None:
            return self
        if os.name != "posix":
            raise WorkerError("Worker processes need Linux, macOS or WSL2.")
        start = spawn if self._nursery is None else self._nursery.launch
        try:
            with pipes() as (ours, theirs):
                self._process = start(self.target, self._env, theirs)
        except OSError as error:
            raise WorkerError(f"The system starts no child process: {error}.") from error
        self._fds = ours
        self._outgoing += encode({"sys_path": absolute_path(), "startup": self._startup})
        self._deadline = time.monotonic() + START_TIMEOUT_S
        self._write()
        return self

    def call(
        self, request: dict[str, Any], timeout_s: float, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """The handler's result for a request; starts the child if needed.

        Args:
            request: JSON values.
            timeout_s: seconds the handler may take; importing at the start is not counted.
            on_progress: called with each message the handler passes to its `progress`.

        Raises:
            SegplanError: the handler raised it (the same class as in the child).
            WorkerFailed: the handler raised anything else.
            WorkerCrashed: the child died; this worker is dead now, as with the next two.
            WorkerTimedOut: no answer in time.
            WorkerGarbled: the answer is no message.
        """
        self.submit(request, timeout_s, on_progress)
        try:
            while True:
                result = self.advance()
                if result is not None:
                    return result
                self._wait()
        except BaseException:  # Ctrl-C: a child whose answer nobody waits for must not live on
            if self._busy:
                self.kill()
            raise

    def submit(
        self, request: dict[str, Any], timeout_s: float, on_progress: OnProgress | None = None
    ) -> None:
        """Send a request without waiting; `advance` gives the result. Arguments as in `call`."""
        self.start()
        if self._busy:
            raise WorkerError("This worker is busy: it answers one request at a time.")
        self._outgoing += encode(request)
        self._busy, self._on_progress, self._timeout_s = True, on_progress, timeout_s
        if self._ready:
            self._deadline = time.monotonic() + timeout_s

    def advance(self) -> dict[str, Any] | None:
        """Handle what has arrived, without waiting.

        Returns:
            The result of the request in flight, or None while there is none yet.

        Raises:
            SegplanError: as `call` does.
        """
        if self._dead:
            raise WorkerError("This worker has ended: make a new one.")
        self._write()
        self._read_output()
        ended = self._ended()  # asked before reading: an answer sent before the end still counts
        result: dict[str, Any] | None = None
        try:
            closed, messages = self._read_replies()
            for message in messages:
                taken = self._take(message)
                result = result if taken is None else taken
        except NoFrameError as error:
            self.kill()
            raise WorkerGarbled(
                f"The child process wrote no message into its reply pipe ({error})."
            ) from None
        if result is not None:
            return result
        if ended or closed:
            raise self._bury()
        if time.monotonic() > self._deadline and (self._busy or not self._ready):
            began, limit = self._ready, self._timeout_s if self._ready else START_TIMEOUT_S
            self.kill()
            what = "answer" if began else f"import of {self.target}"
            raise WorkerTimedOut(f"No {what} within {limit:.0f} s: the child process was killed.")
        return None

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when `advance` has something to do."""
        own = self._process.filenos() if self._process is not None else ()
        return (*(fd for name, fd in self._fds.items() if name != "request"), *own)

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        if self._process is not None and not self._dead:
            self._process.kill()
        self._dead, self._busy = True, False
        self._close_fds()

    def close(self) -> None:
        """End the child; harmless if it has ended already."""
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _take(self, message: dict[str, Any]) -> dict[str, Any] | None:
        if "ready" in message:
            self._ready = True
            self._deadline = time.monotonic() + self._timeout_s
        elif "progress" in message and self._busy:
            if self._on_progress is not None:
                self._on_progress(message["progress"])
        elif "fatal" in message:
            self.kill()
            raise revive(message["fatal"])
        elif "error" in message and self._busy:
            self._busy = False
            raise revive(message["error"])
        elif isinstance(message.get("result"), dict) and self._busy:
            self._busy = False
            result: dict[str, Any] = message["result"]
            return result
        else:
            raise NoFrameError(f"unexpected keys {sorted(message)}")
        return None

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            for fd in self.filenos():
                selector.register(fd, selectors.EVENT_READ)
            if self._outgoing:
                selector.register(self._fds["request"], selectors.EVENT_WRITE)
            rest = max(0.0, self._deadline - time.monotonic()) + 0.001
            selector.select(min(_LOOK_S, rest))

    def _write(self) -> None:
        while self._outgoing:
            try:
                sent = os.write(self._fds["request"], self._outgoing[: 2**16])
            except BlockingIOError:
                return
            except BrokenPipeError:  # the child is gone: reading will say how
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def _read_replies(self) -> tuple[bool, list[dict[str, Any]]]:
        messages: list[dict[str, Any]] = []
        while True:
            try:
                piece = os.read(self._fds["reply"], 2**20)
            except BlockingIOError:
                return False, messages
            if not piece:
                return True, messages
            messages += self._decoder.feed(piece)

    def _read_output(self) -> None:
        while "output" in self._fds:
            try:
                piece = os.read(self._fds["output"], 2**16)
            except BlockingIOError:
                return
            if not piece:
                os.close(self._fds.pop("output"))
            self._tail += piece
            del self._tail[:-_TAIL_BYTES]

    def _ended(self) -> bool:
        return self._process is not None and self._process.ended()

    def _bury(self) -> WorkerError:
        """The error for a child that went away, once it is known how."""
        patience = time.monotonic() + 10
        while not self._ended() and time.monotonic() < patience:  # writing a core takes a moment
            time.sleep(0.01)
        itself = self._ended()
        self._read_output()
        self.kill()
        code = self._process.returncode if self._process and itself else None
        return crashed(code, self._tail.decode(errors="replace"))

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
