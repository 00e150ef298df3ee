"""Which patches to ask about, and the largest that fits at one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segplan.results import LimitedBy
from segplan.search.batches import GIVE_UP, boundary
from segplan.search.verdicts import Verdict
from segplan.units import Patch

DEFAULT_SIDES = (64, 96, 128, 160, 192, 224)


def default_patches(next_valid: Callable[[Patch], Patch]) -> tuple[Patch, ...]:
    """Cubes of the default sides, each rounded up to what the network takes, without repeats."""
    return tuple(dict.fromkeys(next_valid((side,) * 3) for side in DEFAULT_SIDES))


def candidate_patches(
    next_valid: Callable[[Patch], Patch], smallest: Patch, step: int, up_to: int
) -> tuple[Patch, ...]:
    """Valid patches from the smallest on, cubes at about each multiple of `step`, ascending.

    Args:
        next_valid: rounds a patch up to one the network takes.
        smallest: the smallest patch it takes; always among the candidates.
        step: voxels between two sides, at least 1.
        up_to: no cube has a longer side.
    """
    found = {smallest: None}
    side = max(smallest) + 1
    while side <= up_to:
        patch = next_valid((side,) * 3)
        if max(patch) > up_to:
            break
        found[patch] = None
        reached = max(side, *patch)
        side = (reached // step + 1) * step
    return tuple(sorted(found, key=_voxels))


@dataclass(frozen=True)
class PatchAnswer:
    """The largest patch that fits.

    Attributes:
        patch: fits, and the next candidate does not (or there is none); None when none fits.
        limited_by: what stops the next one; CAP where it was the largest candidate; None when
            the answer is not complete.
        calls: (patch, verdict) in the order asked; no patch twice.
        violations: sentences, as in `BatchAnswer`.
        complete: whether the next candidate was seen to fail (or there is none).
        verifications: (patch, verdict) of the verifying oracle.
        message: where the answer is not complete: what the oracle said, if anything.
    """

    patch: Patch | None
    limited_by: LimitedBy | None
    calls: tuple[tuple[Patch, Verdict], ...]
    violations: tuple[str, ...]
    complete: bool
    verifications: tuple[tuple[Patch, Verdict], ...] = ()
    message: str | None = None


def largest_patch(
    oracle: Callable[[Patch], Verdict],
    patches: Sequence[Patch],
    *,
    guess: int | None = 0,
    verify: Callable[[Patch], Verdict] | None = None,
    look_above: int = 0,
    give_up: int = GIVE_UP,
) -> PatchAnswer:
    """The largest of some patches that fits at a fixed batch.

    The same search as `largest_batch`, with the same bounds (n candidates in place of the cap).

    Args:
        oracle: says of a patch whether it fits.
        patches: ascending by volume.
        guess: index of the patch to begin with; the smallest by default, as a large patch costs
            most to try; None bisects.
        verify: as for `largest_batch`.
        look_above: as for `largest_batch`.
        give_up: as for `largest_batch`.
    """
    if not patches:
        return PatchAnswer(None, None, (), (), False)

    def named(number: int) -> str:
        return "x".join(map(str, patches[number - 1]))

    found = boundary(
        lambda number: oracle(patches[number - 1]),
        len(patches),
        None if guess is None else guess + 1,
        name=named,
        verify=None if verify is None else lambda number: verify(patches[number - 1]),
        look_above=look_above,
        give_up=give_up,
    )
    return PatchAnswer(
        patch=patches[found.max_batch - 1] if found.max_batch else None,
        limited_by=found.limited_by,
        calls=tuple((patches[number - 1], verdict) for number, verdict in found.calls),
        violations=found.violations,
        complete=found.complete,
        verifications=tuple((patches[n - 1], verdict) for n, verdict in found.verifications),
        message=found.message,
    )


def _voxels(patch: Patch) -> int:
    return patch[0] * patch[1] * patch[2]
