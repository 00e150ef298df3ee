"""Guesses: what cells are predicted to hold, worked out while the card measures others."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from segplan.api.fitting import Question, quickly_predicted_batch, trace_known, trace_others
from segplan.api.predicting import Predictor
from segplan.errors import NetworkError, WorkerError
from segplan.units import Patch


class Guesses:
    """The predicted largest batch of each patch, in a thread of its own.

    As long as it is open, only its thread uses the predictor: wait for `finish` first.

    Args:
        question: its patches are predicted.
        predictor: of its workload.
        budget: bytes the allocator may use.
    """

    def __init__(self, question: Question, predictor: Predictor, budget: int) -> None:
        self._question, self._predictor, self._budget = question, predictor, budget
        self._found: dict[Patch, Future[int | None]] = {p: Future() for p in question.patches}
        self._known: Future[tuple[Patch, ...]] = Future()
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1)
        self._work = self._executor.submit(self._predict)

    def order(self) -> list[Patch]:
        """The patches in the order in which guesses come."""
        known = self._known.result()
        return sorted(self._question.patches, key=lambda patch: patch not in known)

    def batch(self, patch: Patch) -> int | None:
        """The predicted largest batch; None where nothing can be predicted. Waits for it."""
        return self._found[patch].result()

    def finish(self) -> None:
        """Wait until all is predicted."""
        self._work.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self._work.done():
            self._stopping.set()
            self._predictor.stop()
        self._executor.shutdown(wait=True)

    def _predict(self) -> None:
        try:
            known: tuple[Patch, ...] = ()
            with contextlib.suppress(NetworkError, WorkerError):
                known = trace_known(self._question, self._predictor)
            self._known.set_result(known)
            for patch in self._question.patches:
                if patch in known:
                    self._guess(patch)
            with contextlib.suppress(NetworkError, WorkerError):
                if not self._stopping.is_set():
                    trace_others(self._question, self._predictor, self._budget)
            for patch in self._question.patches:
                if patch not in known:
                    self._guess(patch)
            for patch in self._question.patches:
                self._estimate(patch)
        except BaseException as error:  # whoever waits shall know
            waited_for: list[Future[Any]] = [self._known, *self._found.values()]
            for future in waited_for:
                if not future.done():
                    future.set_exception(error)
            raise

    def _guess(self, patch: Patch) -> None:
        found: int | None = None
        if not self._stopping.is_set():
            with contextlib.suppress(NetworkError, WorkerError):
                found = quickly_predicted_batch(
                    self._question, self._predictor, patch, self._budget
                )
        self._found[patch].set_result(found)

    def _estimate(self, patch: Patch) -> None:
        """Work out what the patch's cell will tell if the guess is right."""
        batch = self._found[patch].result()
        if batch and not self._stopping.is_set():
            with contextlib.suppress(NetworkError, WorkerError):
                self._predictor.estimate(patch, batch)
