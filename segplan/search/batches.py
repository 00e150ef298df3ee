"""The exact largest batch, from any oracle, in few calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from segplan.results import LimitedBy
from segplan.search.verdicts import Verdict

Oracle = Callable[[int], Verdict]
"""Says of a batch whether it fits."""

GIVE_UP = 3
"""Unknown answers after which an oracle is not asked any more (each may be a time-out)."""

# Doubling steps outward from a guess. Upward the first two are 1, so that a guess one too low
# costs three calls. After four steps the guess was no good: bisecting what is left is cheaper.
_UP = (1, 1, 2, 4)
_DOWN = (1, 2, 4, 8)


@dataclass(frozen=True)
class BatchAnswer:
    """The largest batch that fits.

    Attributes:
        max_batch: fits, and `max_batch` + 1 does not (or is above the cap); 0 when nothing fits.
        limited_by: what stops a larger one; None when the answer is not complete.
        calls: (batch, verdict) of the oracle, in the order asked; no batch twice.
        violations: sentences: a larger batch fitted although a smaller one did not, or a
            verification contradicted the search.
        complete: whether the neighbour above was seen to fail (or is above the cap).
        verifications: (batch, verdict) of the verifying oracle, in the order asked.
        message: where the answer is not complete: what the oracle said, if anything.
    """

    max_batch: int
    limited_by: LimitedBy | None
    calls: tuple[tuple[int, Verdict], ...]
    violations: tuple[str, ...]
    complete: bool
    verifications: tuple[tuple[int, Verdict], ...] = ()
    message: str | None = None


def largest_batch(
    oracle: Oracle,
    *,
    cap: int = 64,
    guess: int | None = None,
    verify: Oracle | None = None,
    look_above: int = 0,
    give_up: int = GIVE_UP,
) -> BatchAnswer:
    """Find the largest batch that fits, asking the oracle as little as possible.

    A monotone oracle is answered exactly, with at most

    - ⌈log₂ cap⌉ + 1 calls without a guess (bisection),
    - 2 with an exact guess, 3 with one right within one, 1 where 0 is guessed rightly,
    - ⌈log₂ cap⌉ + 5 with any guess (four doubling steps outward, then bisection),

    and as many as `look_above` more. An oracle that is not monotone gets an answer that was
    seen to fit with a neighbour that was seen to fail; which of several such pairs depends on
    the guess. The search itself only asks between a fit and a failure, where no contradiction
    can show: `look_above` and `verify` are what notices one.

    Args:
        oracle: says of a batch whether it fits; unknown counts as "does not", for the search.
        cap: the largest batch to consider, at least 1.
        guess: where the answer is thought to be; 0 means "nothing fits".
        verify: a stricter oracle (a fresh process) whose word the final pair needs; answers
            marked `final` are taken as its own. Steps down to a batch it lets pass, or up as
            long as it does, one at a time.
        look_above: batches above the failing neighbour to ask as well.
        give_up: unknown answers after which no oracle is asked any more.

    Raises:
        ValueError: the cap is below 1.
    """
    return boundary(
        oracle,
        cap,
        guess,
        verify=verify,
        look_above=look_above,
        give_up=give_up,
        name=lambda batch: f"batch {batch}",
    )


def boundary(
    oracle: Oracle,
    cap: int,
    guess: int | None,
    *,
    name: Callable[[int], str],
    verify: Oracle | None = None,
    look_above: int = 0,
    give_up: int = GIVE_UP,
) -> BatchAnswer:
    """`largest_batch` for anything numbered from 1 to `cap`; `name` is for sentences."""
    if cap < 1:
        raise ValueError(f"cap must be at least 1, not {cap}")
    asked = _Asked(oracle, give_up)
    low = _search(asked, cap, guess)
    for above in range(low + 2, min(low + 1 + look_above, cap) + 1):
        asked.fits(above)
    evidence = asked.answers
    violations: list[str] = []
    verifications: dict[int, Verdict] = {}
    if verify is not None:
        sure = _Asked(verify, give_up, {b: v for b, v in asked.answers.items() if v.final})
        low = _verified(sure, low, cap)
        evidence = {**asked.answers, **sure.answers}
        verifications = {b: v for b, v in sure.answers.items() if b in sure.asked}
        violations += _contradicted(asked.answers, verifications, name)
    violations += _not_monotone(evidence, name)
    above_it = evidence.get(low + 1)
    limited_by: LimitedBy | None
    if low >= cap:
        limited_by = LimitedBy.CAP
    else:
        limited_by = above_it.limited_by if above_it is not None else None
    message = None
    if limited_by is None:
        unknown = [v for v in evidence.values() if not v.known]
        told = above_it if above_it in unknown else (unknown[-1] if unknown else None)
        message = told.message if told is not None else None
    return BatchAnswer(
        max_batch=low,
        limited_by=limited_by,
        calls=tuple(asked.answers.items()),
        violations=tuple(violations),
        complete=limited_by is not None,
        verifications=tuple(verifications.items()),
        message=message,
    )


class _Asked:
    """An oracle that remembers, and is left alone after too many unknown answers."""

    def __init__(
        self, oracle: Oracle, give_up: int, known: dict[int, Verdict] | None = None
    ) -> None:
        self.answers: dict[int, Verdict] = dict(known or {})
        self.asked: set[int] = set()
        self._oracle = oracle
        self._patience = give_up

    def fits(self, batch: int) -> bool:
        if batch not in self.answers:
            if self._patience <= 0:
                return False
            verdict = self._oracle(batch)
            self.answers[batch] = verdict
            self.asked.add(batch)
            self._patience -= not verdict.known
        return self.answers[batch].fits


def _search(asked: _Asked, cap: int, guess: int | None) -> int:
    low, high = 0, cap + 1  # low fits (0 always does), high does not (cap + 1 is never asked)
    if guess is not None:
        at = min(max(guess, 1), cap)
        upward = asked.fits(at)
        low, high = (at, high) if upward else (low, at)
        for step in _UP if upward else _DOWN:
            if high - low <= 1:
                break
            middle = (low + high) // 2
            batch = min(low + step, middle) if upward else max(high - step, middle)
            fits = asked.fits(batch)
            low, high = (batch, high) if fits else (low, batch)
            if fits is not upward:
                break
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if asked.fits(middle) else (low, middle)
    return low


def _verified(sure: _Asked, low: int, cap: int) -> int:
    found = low
    while found > 0 and not sure.fits(found):
        found -= 1
    if found == low:  # else the neighbour above has just been seen to fail
        while found < cap and sure.fits(found + 1):
            found += 1
    return found


def _not_monotone(evidence: dict[int, Verdict], name: Callable[[int], str]) -> list[str]:
    largest = max((b for b, v in evidence.items() if v.fits), default=0)
    return [
        f"not monotone: {name(largest)} fits although {name(less)} does not"
        for less, verdict in sorted(evidence.items())
        if less < largest and verdict.known and not verdict.fits
    ]


def _contradicted(
    first: dict[int, Verdict], verified: dict[int, Verdict], name: Callable[[int], str]
) -> list[str]:
    return [
        f"not repeatable: {name(batch)} "
        + ("fitted at first but not" if first[batch].fits else "did not fit at first but did")
        + " when verified"
        for batch, verdict in sorted(verified.items())
        if batch in first
        and verdict.known
        and first[batch].known
        and first[batch].fits is not verdict.fits
    ]
