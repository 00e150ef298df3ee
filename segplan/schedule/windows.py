"""Sliding windows: how many a volume takes, counted as MONAI counts them."""

from __future__ import annotations

from segplan.errors import RequestError
from segplan.units import Patch


def windows_per_volume(shape: Patch, roi: Patch, overlap: float) -> int:
    """Windows of one volume in `monai.inferers.sliding_window_inference`.

    A volume smaller than the window is padded to it. Along each axis windows start every
    `int(roi * (1 - overlap))` voxels (at least 1) until one reaches the end; the last is moved
    back to end with the volume (MONAI 1.6.1: `inferers/utils.py` `_get_scan_interval`,
    `data/utils.py` `dense_patch_slices`).

    Args:
        shape: voxels of the volume (H, W, D).
        roi: voxels of a window (H, W, D).
        overlap: share of a window that its neighbour covers too, from 0 to below 1.

    Raises:
        RequestError: the overlap is out of range.
    """
    if not 0 <= overlap < 1:
        raise RequestError(f"overlap must be at least 0 and below 1, not {overlap:g}.")
    count = 1
    for size, window in zip(shape, roi, strict=True):
        stride = max(int(window * (1 - overlap)), 1)
        count *= 1 + -(-max(size - window, 0) // stride)
    return count


def calls_per_volume(windows: int, sw_batch_size: int) -> int:
    """Forward passes one volume takes with so many windows in a pass; the last may be smaller."""
    return -(-windows // sw_batch_size)
