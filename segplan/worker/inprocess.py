"""A worker without a process: for tests, and for handlers that cannot harm."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from typing import Any, Self

from segplan.errors import WorkerError
from segplan.worker.failures import WorkerTimedOut, crashed, describe, revive
from segplan.worker.handlers import answer, load
from segplan.worker.process import OnProgress


class InProcessWorker:
    """As `Worker`, with the handler in a thread of this process.

    A handler that hangs cannot be ended: its thread is left behind. Requests and results pass
    through JSON, so that they look the same as from a process. `env` is ignored.
    """

    def __init__(
        self, target: str, *, env: Mapping[str, str] | None = None, startup: str | None = None
    ) -> None:
        self.target = target
        self._startup = startup
        self._handler: Any = None
        self._dead = False

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._handler is not None and not self._dead

    @property
    def pid(self) -> int | None:
        """None: it has no process of its own."""
        return None

    def start(self) -> Self:
        """Import the handler."""
        if self._dead:
            raise WorkerError("This worker has ended: make a new one.")
        if self._handler is None:
            try:
                self._handler = load(self.target)
                if self._startup:
                    load(self._startup)()
            except Exception as error:
                self._dead = True
                raise _as_from_child(error) from error
        return self

    def call(
        self, request: dict[str, Any], timeout_s: float, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """As `Worker.call`."""
        self.start()
        replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                asked = json.loads(json.dumps(request))
                reply = answer(self._handler, asked, lambda m: replies.put({"progress": m}))
                replies.put(reply)
            except SystemExit as error:
                replies.put({"exit": error.code if isinstance(error.code, int) else 1})

        threading.Thread(target=run, daemon=True).start()
        while True:
            try:
                reply = replies.get(timeout=timeout_s)
            except queue.Empty:
                self._dead = True
                raise WorkerTimedOut(f"No answer within {timeout_s:.0f} s.") from None
            if "progress" in reply:
                if on_progress is not None:
                    on_progress(reply["progress"])
            elif "exit" in reply:
                self._dead = True
                raise crashed(reply["exit"], "")
            elif "error" in reply:
                raise revive(reply["error"])
            else:
                try:
                    result: dict[str, Any] = json.loads(json.dumps(reply["result"]))
                except (TypeError, ValueError) as error:
                    raise _as_from_child(error) from error
                return result

    def kill(self) -> None:
        """Take no more requests."""
        self._dead = True

    def close(self) -> None:
        """Take no more requests."""
        self._dead = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _as_from_child(error: Exception) -> Exception:
    return revive(describe(error))
