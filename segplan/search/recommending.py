"""Which cell of a frontier to use."""

from __future__ import annotations

from collections.abc import Sequence

from segplan.results import Cell

WANTED_BATCH = 2
"""nnU-Net's planner shrinks the patch rather than go below two patches a step."""


def recommend(cells: Sequence[Cell]) -> tuple[int | None, str]:
    """(index of the cell to use, why in one line); (None, why not) when nothing fits.

    The rule, which is nnU-Net's: the largest patch that still trains two patches a step, as
    context helps segmentation most and a batch of one least; a single patch only when no size
    trains two. Of patches of one volume: the most patches a second where every step is known,
    else the largest batch (at one volume, the most voxels a step).
    """
    fitting = [i for i, c in enumerate(cells) if c.max_batch > 0]
    if not fitting:
        return None, _why_not(cells)
    if len(cells) == 1:
        batch = cells[0].max_batch
        return 0, f"it trains {batch} {'patch' if batch == 1 else 'patches'} a step"
    enough = [i for i in fitting if cells[i].max_batch >= WANTED_BATCH]
    largest = max(_voxels(cells[i]) for i in enough or fitting)
    same = [i for i in enough or fitting if _voxels(cells[i]) == largest]
    rates = [cells[i].patches_per_second for i in same]
    if any(rate is None for rate in rates):
        best = max(same, key=lambda i: cells[i].max_batch)
    else:
        best = max(same, key=lambda i: cells[i].patches_per_second or 0.0)
    if enough:
        return best, f"the largest patch that trains at least {WANTED_BATCH} a step"
    return best, "the largest patch that trains; no size here trains two patches a step"


def _why_not(cells: Sequence[Cell]) -> str:
    unanswered = sum(c.status != "ok" for c in cells)
    if unanswered == len(cells):
        return "no cell has an answer"
    if unanswered:
        return f"nothing fits at the sizes with an answer; {unanswered} of {len(cells)} have none"
    return "nothing fits at any of these sizes"


def _voxels(cell: Cell) -> int:
    h, w, d = cell.patch
    return h * w * d
