"""Patch rules: which sizes a network takes, and which it can train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from segplan.units import Patch


@dataclass(frozen=True)
class PatchRule:
    """Which patches a network trains on.

    Attributes:
        divisor: every side must be a multiple of this, by axis (H, W, D).
        least: smallest side the network takes, by axis.
        bottleneck: how many times smaller the deepest feature map is, by axis.
        norm: "instance", "batch" or "none": what the deepest normalisation needs more than one
            element of (in train mode PyTorch refuses a single one): of each sample, or of the
            batch.
        fixed: the network is built for one patch size and must be rebuilt for another.
    """

    divisor: Patch = (1, 1, 1)
    least: Patch = (1, 1, 1)
    bottleneck: Patch = (1, 1, 1)
    norm: str = "none"
    fixed: bool = False

    def problem(self, patch: Patch, batch: int) -> str | None:
        """Why a patch cannot train, in words; None if it can."""
        for side, divisor, least in zip(patch, self.divisor, self.least, strict=True):
            if side % divisor:
                return f"every side must be {self.words()}: {side} is not a multiple of {divisor}"
            if side < least:
                return f"every side must be at least {least}: {side} is too small"
        elements = prod(max(side // b, 1) for side, b in zip(patch, self.bottleneck, strict=True))
        if self.norm == "batch":
            elements *= batch
        if self.norm != "none" and elements <= 1:
            return (
                f"its deepest feature map is one voxel for {'x'.join(map(str, patch))} at batch "
                f"{batch}, which normalisation cannot train on"
            )
        return None

    def round_up(self, patch: Patch, batch: int = 2) -> Patch:
        """The next patch that trains, each side rounded up on its own."""
        sides = [
            max(-(-side // d) * d, -(-least // d) * d)
            for side, d, least in zip(patch, self.divisor, self.least, strict=True)
        ]
        found: Patch = (sides[0], sides[1], sides[2])
        while self.problem(found, batch):
            grown = [s + d for s, d in zip(found, self.divisor, strict=True)]
            found = (grown[0], grown[1], grown[2])
        return found

    def round_down(self, patch: Patch, batch: int = 2) -> Patch | None:
        """The patch that trains with no side larger than this one's; None if there is none."""
        sides = [s // d * d for s, d in zip(patch, self.divisor, strict=True)]
        found: Patch = (sides[0], sides[1], sides[2])
        return None if min(found) < 1 or self.problem(found, batch) else found

    def words(self) -> str:
        """The divisor in words."""
        if self.divisor == (1, 1, 1):
            return "any size" + (f" of at least {max(self.least)}" if max(self.least) > 1 else "")
        if len(set(self.divisor)) == 1:
            return f"a multiple of {self.divisor[0]}"
        return "multiples of {} x {} x {}".format(*self.divisor)


def cube(side: int) -> Patch:
    """(side, side, side)."""
    return (side, side, side)


def norm_kind(norm: Any) -> str:
    """ "instance", "batch" or "none" from MONAI's norm argument (a name, or name and options)."""
    name = norm[0] if isinstance(norm, (list, tuple)) and norm else norm
    text = str(name).lower()
    if "instance" in text:
        return "instance"
    return "batch" if "batch" in text else "none"


def strides_product(strides: Sequence[Any]) -> Patch:
    """Product of strides by axis; a stride is a number or three.

    Raises:
        ValueError: one is neither.
    """
    total = [1, 1, 1]
    for stride in strides:
        by_axis = stride if isinstance(stride, (list, tuple)) else (stride,) * 3
        if len(by_axis) != 3 or not all(isinstance(s, int) and s > 0 for s in by_axis):
            raise ValueError(f"a stride is a whole number above 0 or three, not {stride!r}")
        for axis in range(3):
            total[axis] *= by_axis[axis]
    return (total[0], total[1], total[2])


def anisotropic_factor(resolution: Sequence[float], stages: int) -> Patch:
    """The divisor of SegResNetDS with `resolution` (its `scales_for_resolution`).

    The finer axes are halved alone, as often as floor(log2(coarsest spacing / spacing)), then
    all together.

    Raises:
        ValueError: the resolution is not three spacings above 0.
    """
    if len(resolution) != 3 or not all(r > 0 for r in resolution):
        raise ValueError("resolution is three spacings above 0")
    finer = [int(log2(max(resolution) / r)) for r in resolution]
    total = [1, 1, 1]
    for level in range(stages - 1):
        for axis in range(3):
            if level >= max(finer) or level < finer[axis]:
                total[axis] *= 2
    return (total[0], total[1], total[2])


def by_strides(arguments: Mapping[str, Any], norm: str) -> PatchRule:
    """The rule of networks whose levels are given by `strides`.

    With `channels`, one fewer strides are used; MONAI ignores those beyond.

    Raises:
        ValueError: there are too few strides, or one is malformed.
    """
    strides = arguments["strides"]
    if "channels" in arguments:
        used = len(arguments["channels"]) - 1
        if len(strides) < used:
            raise ValueError(f"{used + 1} channels need {used} strides, not {len(strides)}")
        strides = strides[:used]
    product = strides_product(strides)
    return PatchRule(divisor=product, least=product, bottleneck=product, norm=norm)


def by_levels(levels: int, norm: str, *, fixed: bool = False) -> PatchRule:
    """The rule of networks that halve the volume `levels` times.

    Raises:
        ValueError: `levels` is negative.
    """
    if levels < 0:
        raise ValueError("there must be at least one level")
    side = cube(2**levels)
    return PatchRule(divisor=side, least=side, bottleneck=side, norm=norm, fixed=fixed)
