"""The exact largest batch, from any oracle, in few calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from segplan.results import LimitedBy


class Verdict(StrEnum):
    """What an oracle says of one batch (or one patch)."""

    FITS = "fits"
    TOO_BIG = "too_big"
    KERNEL = "kernel"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class BatchAnswer:
    """The largest batch that fits.

    Attributes:
        max_batch: fits, and `max_batch` + 1 does not (or is the cap); 0 when nothing fits.
        limited_by: what stops a larger one; None when the answer is not complete.
        calls: (batch, verdict) in the order asked.
        violations: sentences, where a larger batch fitted although a smaller one did not.
        complete: whether the neighbour above was seen to fail (or is above the cap).
    """

    max_batch: int
    limited_by: LimitedBy | None
    calls: tuple[tuple[int, Verdict], ...]
    violations: tuple[str, ...]
    complete: bool


def largest_batch(
    oracle: Callable[[int], Verdict], *, cap: int = 64, guess: int | None = None
) -> BatchAnswer:
    """Find the largest batch that fits, asking the oracle as little as possible.

    Monotone oracles are answered exactly. From a cold start at most ⌈log₂ cap⌉ + 2 calls: the
    first call bisects the whole range. From a guess right within one at most 3: the guess and
    its neighbours. From a worse guess the steps double until the boundary is passed, then
    bisect. No batch is asked twice. An oracle that contradicts itself (fits above a failure) is
    noticed; the answer is still a batch that fits with a neighbour that does not.

    Args:
        oracle: says of a batch whether it fits.
        cap: the largest batch to consider, at least 1.
        guess: where the answer is thought to be; 0 means "nothing fits".
    """
    seen: dict[int, Verdict] = {}

    def fits(batch: int) -> bool:
        if batch not in seen:
            seen[batch] = oracle(batch)
        return seen[batch] is Verdict.FITS

    low, high = 0, cap + 1  # low fits (0 always does), high does not (cap + 1 is not asked)
    if guess is not None:
        at = min(max(guess, 1), cap)
        step = 1
        if fits(at):
            low = at
            steps = [1]  # 1, 1, 2, 4 ...: a guess one too low costs three calls
            while low < cap and low + 1 < high:
                up = min(low + steps[-1], cap)
                if not fits(up):
                    high = up
                    break
                low = up
                steps.append(sum(steps))
        else:
            high = at
            while high > 1:
                down = max(high - step, 1)
                if fits(down):
                    low = down
                    break
                high, step = down, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return _answer(low, cap, seen)


def _answer(low: int, cap: int, seen: dict[int, Verdict]) -> BatchAnswer:
    violations = tuple(
        f"not monotone: batch {more} fits although batch {less} does not"
        for less, verdict in sorted(seen.items())
        if verdict is Verdict.TOO_BIG
        for more in [max((b for b, v in seen.items() if b > less and v is Verdict.FITS), default=0)]
        if more
    )
    above = seen.get(low + 1)
    limited_by = None
    if low >= cap:
        limited_by = LimitedBy.CAP
    elif above is Verdict.KERNEL:
        limited_by = LimitedBy.KERNEL
    elif above is Verdict.TOO_BIG:
        limited_by = LimitedBy.MEMORY
    return BatchAnswer(low, limited_by, tuple(seen.items()), violations, limited_by is not None)
