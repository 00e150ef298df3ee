"""Which cell of a frontier to use."""

from __future__ import annotations

from collections.abc import Sequence

from segplan.results import Cell

WANTED_BATCH = 2


def recommend(cells: Sequence[Cell]) -> tuple[int | None, str]:
    """(index of the cell to use, why in one sentence); (None, why not) when nothing fits.

    The rule is nnU-Net's (its experiment planner): the largest patch first, as context helps
    segmentation most, but not below two patches a step; a single patch only when no size
    trains two.
    """
    fitting = [i for i, c in enumerate(cells) if c.max_batch > 0]
    if not fitting:
        if not cells or all(c.status != "ok" for c in cells):
            return None, "no cell has an answer"
        return None, "nothing fits at any of these sizes"

    def volume(index: int) -> int:
        h, w, d = cells[index].patch
        return h * w * d

    enough = [i for i in fitting if cells[i].max_batch >= WANTED_BATCH]
    if enough:
        best = max(enough, key=volume)
        if len(fitting) == 1:
            return best, f"it trains {cells[best].max_batch} patches a step"
        return best, f"the largest patch that trains at least {WANTED_BATCH} a step"
    best = max(fitting, key=volume)
    return best, "the largest patch that trains; no size here trains two patches a step"
