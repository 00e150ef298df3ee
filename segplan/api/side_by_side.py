"""Several cards of one machine measured at the same time, each by a process of its own."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from segplan.api.fitting import Question
from segplan.api.predicting import Progress
from segplan.errors import SegplanError, WorkerError
from segplan.gpus import LocalCard, select
from segplan.results import Fit, to_plain
from segplan.units import Patch
from segplan.worker import Worker
from segplan.workload import Workload

TARGET = "segplan.api.side_by_side:handle"
PATIENCE_S = 7 * 86400.0
"""A fit ends by itself: each of its probes has a time limit."""

_LOOK_S = 0.2


def fit_side_by_side(
    question: Question,
    cards: Sequence[LocalCard],
    *,
    store: str | None,
    share: bool,
    progress: Progress,
) -> tuple[Fit, ...]:
    """The frontier of each card, measured at the same time.

    The cards share the host's cores and its links: steps that wait for the host are slower than
    alone. A card that is named twice is measured once. An error on one card ends the others; what
    they measured is in the store.

    Raises:
        WorkerError: a card's process died; the card is named.
        SegplanError: as `fit_measured`, the first that happens.
    """
    names = [_id(card) for card in cards]
    cards = list(dict(zip(names, cards, strict=True)).values())
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(TARGET)) for _ in cards]
        told = [(0, 0)] * len(cards)
        for i, (worker, card) in enumerate(zip(workers, cards, strict=True)):
            worker.submit(
                _request(question, card, store, share), PATIENCE_S, _relay(i, card, told, progress)
            )
        found: dict[int, Fit] = {}
        while len(found) < len(cards):
            _wait([w for i, w in enumerate(workers) if i not in found])
            for i, worker in enumerate(workers):
                if i in found:
                    continue
                try:
                    answer = worker.advance()
                except WorkerError as error:
                    raise WorkerError(f"GPU {_name(cards[i])}: {error}") from error
                if answer is not None:
                    found[i] = _fit_of(answer)
        fits = {_id(card): found[i] for i, card in enumerate(cards)}
        return tuple(fits[name] for name in names)


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The child's side: one card.

    Args:
        request: as `_request` makes it.
        progress: told {"done", "total", "text"}.

    Returns:
        {"fit": a `Fit` as plain values}.

    Raises:
        SegplanError: as `fit_measured`.
    """
    from segplan.api.measuring import fit_measured

    asked = dict(request["question"])
    patches: list[Patch] = [(h, w, d) for h, w, d in asked.pop("patches")]
    question = Question(
        workload=Workload.from_dict(asked.pop("workload")), patches=tuple(patches), **asked
    )
    fit = fit_measured(
        question,
        select(request["gpu"]),
        emulate=None,
        store=request["store"],
        share=request["share"],
        soak=0,
        progress=lambda done, total, text: progress({"done": done, "total": total, "text": text}),
    )
    return {"fit": to_plain(fit)}


def _request(question: Question, card: LocalCard, store: str | None, share: bool) -> dict[str, Any]:
    return {
        "question": {
            "workload": question.workload.to_dict(),
            "patches": [list(patch) for patch in question.patches],
            "batch": question.batch,
            "allocator_limit": question.allocator_limit,
            "reserve": question.reserve,
            "max_batch": question.max_batch,
        },
        "gpu": _id(card),
        "store": store,
        "share": share,
    }


def _relay(
    i: int, card: LocalCard, told: list[tuple[int, int]], progress: Progress
) -> Callable[[dict[str, Any]], None]:
    """What a child tells, as progress of the whole."""

    def relay(news: dict[str, Any]) -> None:
        told[i] = int(news["done"]), int(news["total"])
        done, total = (sum(numbers) for numbers in zip(*told, strict=True))
        progress(done, max(total, 1), f"GPU {_name(card)}: {news['text']}")

    return relay


def _fit_of(answer: dict[str, Any]) -> Fit:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Fit).validate_python(answer["fit"])
    except (KeyError, ValidationError) as error:
        raise SegplanError(f"The child process's answer makes no sense ({error!r:.200}).") from None


def _id(card: LocalCard) -> str:
    """What `select` finds the card by."""
    return card.uuid or str(card.index)


def _name(card: LocalCard) -> str:
    return str(card.index) if card.index is not None else str(card.uuid)


def _wait(workers: Sequence[Worker]) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            for fd in worker.filenos():
                selector.register(fd, selectors.EVENT_READ)
        selector.select(_LOOK_S)
