"""Several cards of one machine measured at the same time, each by a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segplan.api.fitting import Question
from segplan.api.predicting import Progress
from segplan.errors import SegplanError, WorkerError
from segplan.gpus import LocalCard, select
from segplan.results import Fit, to_plain
from segplan.units import Patch
from segplan.worker import WorkerPool
from segplan.workload import Workload

TARGET = "segplan.api.side_by_side:handle"
PATIENCE_S = 7 * 86400.0
"""A fit ends by itself: each of its probes has a time limit."""


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
    told = [(0, 0)] * len(cards)

    def relay(i: int, news: dict[str, Any]) -> None:
        told[i] = int(news["done"]), int(news["total"])
        done, total = (sum(numbers) for numbers in zip(*told, strict=True))
        progress(done, max(total, 1), f"GPU {_name(cards[i])}: {news['text']}")

    requests = [_request(question, card, store, share) for card in cards]
    found: dict[int, Fit] = {}
    with WorkerPool(TARGET, size=len(cards)) as pool:
        for i, answer in pool.map_unordered(requests, PATIENCE_S, relay):
            if isinstance(answer, WorkerError):
                raise WorkerError(f"GPU {_name(cards[i])}: {answer}") from answer
            if isinstance(answer, SegplanError):
                raise answer
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
