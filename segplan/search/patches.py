"""Which patches to ask about, and the largest that fits at one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segplan.results import LimitedBy
from segplan.search.batches import Verdict
from segplan.units import Patch

DEFAULT_SIDES = (64, 96, 128, 160, 192, 224)


def default_patches(next_valid: Callable[[Patch], Patch]) -> tuple[Patch, ...]:
    """Cubes of the default sides, each rounded up to what the network takes, without repeats."""
    return tuple(dict.fromkeys(next_valid((side,) * 3) for side in DEFAULT_SIDES))


def candidate_patches(
    next_valid: Callable[[Patch], Patch], smallest: Patch, step: int, up_to: int
) -> tuple[Patch, ...]:
    """Valid patches from the smallest on, in steps of about `step` voxels a side, ascending."""
    found = {smallest: None}
    side = max(smallest) + 1
    while side <= up_to:
        patch = next_valid((side,) * 3)
        if max(patch) > up_to:
            break
        found[patch] = None
        side = max(max(patch) + 1, (max(patch) // step + 1) * step)
    return tuple(sorted(found, key=lambda p: p[0] * p[1] * p[2]))


@dataclass(frozen=True)
class PatchAnswer:
    """The largest patch that fits; the attributes are those of `BatchAnswer`."""

    patch: Patch | None
    limited_by: LimitedBy | None
    calls: tuple[tuple[Patch, Verdict], ...]
    violations: tuple[str, ...]
    complete: bool


def largest_patch(oracle: Callable[[Patch], Verdict], patches: Sequence[Patch]) -> PatchAnswer:
    """The largest of some patches, sorted ascending by volume, that fits.

    Doubles its steps from the smallest on, then bisects: a large patch costs most to try.
    """
    seen: dict[int, Verdict] = {}

    def fits(index: int) -> bool:
        if index not in seen:
            seen[index] = oracle(patches[index])
        return seen[index] is Verdict.FITS

    low, high, step = -1, len(patches), 1
    while low + 1 < len(patches):
        up = min(low + step, len(patches) - 1)
        if not fits(up):
            high = up
            break
        low, step = up, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    violations = tuple(
        f"not monotone: {_size(patches[more])} fits although {_size(patches[less])} does not"
        for less, verdict in sorted(seen.items())
        if verdict is Verdict.TOO_BIG
        for more in [max((i for i, v in seen.items() if i > less and v is Verdict.FITS), default=0)]
        if more
    )
    above = seen.get(low + 1)
    limited_by = None
    if low + 1 >= len(patches):
        limited_by = LimitedBy.CAP
    elif above is Verdict.KERNEL:
        limited_by = LimitedBy.KERNEL
    elif above is Verdict.TOO_BIG:
        limited_by = LimitedBy.MEMORY
    return PatchAnswer(
        patches[low] if low >= 0 else None,
        limited_by,
        tuple((patches[i], v) for i, v in seen.items()),
        violations,
        limited_by is not None,
    )


def _size(patch: Patch) -> str:
    return "x".join(map(str, patch))
