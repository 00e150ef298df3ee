"""Spreads over cases, and the size of a case at another spacing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from segplan.dataset.nouns import ShapeSpread, Spacing, SpacingSpread
from segplan.units import Patch


def resampled_shape(shape: Patch, spacing: Spacing, target: Spacing) -> Patch:
    """Voxels (H, W, D) at another spacing; at least one along each axis.

    Source: MIC-DKFZ/nnUNet, nnunetv2/preprocessing/resampling/default_resampling.py,
    compute_new_shape. MONAI's Spacing differs by at most one voxel.
    """
    h, w, d = (
        max(1, round(n * old / new)) for n, old, new in zip(shape, spacing, target, strict=True)
    )
    return h, w, d


def shape_spread(shapes: Sequence[Patch]) -> ShapeSpread:
    """Median, least and most along each axis; a median between two numbers is rounded."""
    axes = list(zip(*shapes, strict=True))
    h, w, d = (round(median(axis)) for axis in axes)
    return ShapeSpread(
        (h, w, d),
        (min(axes[0]), min(axes[1]), min(axes[2])),
        (max(axes[0]), max(axes[1]), max(axes[2])),
    )


def spacing_spread(spacings: Sequence[Spacing]) -> SpacingSpread:
    """Median, least and most along each axis."""
    axes = list(zip(*spacings, strict=True))
    h, w, d = (float(median(axis)) for axis in axes)
    return SpacingSpread(
        (h, w, d),
        (min(axes[0]), min(axes[1]), min(axes[2])),
        (max(axes[0]), max(axes[1]), max(axes[2])),
    )
