"""WorkerPool: many independent requests over a few child processes."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from segplan.errors import SegplanError, WorkerError
from segplan.worker.process import Worker

_LOOK_S = 0.1


class WorkerPool:
    """A few workers with the same target; started when first needed, kept between calls.

    Everything happens in the calling thread: no result is handled while the caller is away.
    Only `stop` may be called from another one.

    Args:
        target: as for `Worker`.
        size: processes at most; by default 2, or 1 where there is a single core.
        env: as for `Worker`.
        startup: as for `Worker`.
    """

    def __init__(
        self,
        target: str,
        size: int | None = None,
        *,
        env: Mapping[str, str] | None = None,
        startup: str | None = None,
    ) -> None:
        self.size = size if size is not None else min(2, _cores())
        if self.size < 1:
            raise ValueError("a pool needs at least one worker")
        self._target, self._env, self._startup = target, env, startup
        self._workers: list[Worker] = []
        self._stopped = threading.Event()

    def start(self) -> Self:
        """Start all workers now, so that they import while the caller does something else."""
        while len(self._workers) < self.size:
            self._workers.append(self._new().start())
        return self

    def map_unordered(
        self,
        requests: Iterable[dict[str, Any]],
        timeout_s: float,
        on_progress: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> Iterator[tuple[int, dict[str, Any] | SegplanError]]:
        """The answers as they come, each with its request's position.

        A worker that dies is replaced; its request is answered with the error and not repeated.
        When the caller stops early, or is interrupted, the workers still busy are killed.

        Args:
            requests: JSON values; drawn from as workers become free.
            timeout_s: seconds for each request.
            on_progress: called with a request's position and what its handler tells.

        Yields:
            (position, result), or (position, error) where the handler raised one of segplan's
            errors or the worker failed.

        Raises:
            WorkerError: the pool was stopped.
        """
        waiting = enumerate(requests)
        busy: dict[Worker, int] = {}
        more = True
        try:
            while True:
                if self._stopped.is_set():
                    raise WorkerError("The work was stopped.")
                while more and len(busy) < self.size:
                    following = next(waiting, None)
                    if following is None:
                        more = False
                        break
                    index, request = following
                    worker = self._idle(busy)
                    news = None if on_progress is None else partial(on_progress, index)
                    worker.submit(request, timeout_s, news)
                    busy[worker] = index
                if not busy:
                    return
                _wait(busy)
                for worker in list(busy):
                    answer = _advance(worker)
                    if answer is not None:
                        yield busy.pop(worker), answer
        finally:
            for worker in busy:
                worker.kill()

    def stop(self) -> None:
        """Have `map_unordered`, in whichever thread it runs, end soon; no more work is taken."""
        self._stopped.set()

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _new(self) -> Worker:
        return Worker(self._target, env=self._env, startup=self._startup)

    def _idle(self, busy: Mapping[Worker, int]) -> Worker:
        self._workers = [worker for worker in self._workers if worker.alive]
        for worker in self._workers:
            if worker not in busy:
                return worker
        self._workers.append(self._new().start())
        return self._workers[-1]


def _advance(worker: Worker) -> dict[str, Any] | SegplanError | None:
    try:
        return worker.advance()
    except SegplanError as error:
        return error


def _wait(workers: Iterable[Worker]) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            for fd in worker.filenos():
                selector.register(fd, selectors.EVENT_READ)
        selector.select(_LOOK_S)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
