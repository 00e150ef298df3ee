"""The largest batch for each patch, from any oracle: pure, no torch."""

from segplan.search.batches import BatchAnswer, largest_batch
from segplan.search.patches import (
    PatchAnswer,
    candidate_patches,
    default_patches,
    largest_patch,
)
from segplan.search.recommending import recommend
from segplan.search.verdicts import Kind, Verdict

__all__ = [
    "BatchAnswer",
    "Kind",
    "PatchAnswer",
    "Verdict",
    "candidate_patches",
    "default_patches",
    "largest_batch",
    "largest_patch",
    "recommend",
]
