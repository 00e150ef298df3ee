"""Workspaces of convolutions as they were recorded: what the rule of layout does not tell.

cuDNN's heuristics choose among many kernels, and how much one needs beside the copies of
`segplan.memory.convolution` follows no rule from outside. `workspaces.json` holds, for
convolutions that were run on an H200 (torch 2.11.0+cu130, cuDNN 9.19; made by
`benchmarks/fit_workspaces.py`), what was allocated beside the copies. A convolution with the
same weights at another size is taken to run as the nearest recorded one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

FARTHEST = 4.0
"""A record of this many times fewer or more voxels tells less than the rule of layout."""

FARTHEST_ALIKE = 3.0
"""The same for one that speaks only for its own number of samples."""


class Plan(NamedTuple):
    """What a kernel is chosen for, but for the size of the volume.

    Attributes:
        precision: "float16", "bfloat16", "tf32" or "float32".
        task: "fprop", "dgrad" or "wgrad", as cuDNN names them.
        weight: its shape.
        strides: of the convolution.
        transposed: whether it is one.
        samples: in the batch; whether there is more than one matters.
        dilation: of the kernel.
    """

    precision: str
    task: str
    weight: tuple[int, ...]
    strides: tuple[int, ...]
    transposed: bool
    samples: int
    dilation: tuple[int, ...] = (1, 1, 1)

    def key(self) -> str:
        """As the table names it: one sample and several are told apart."""
        way = "t" if self.transposed else "c"
        sizes = "x".join(map(str, self.weight)), "x".join(map(str, self.strides))
        spread = "" if set(self.dilation) == {1} else f" d{'x'.join(map(str, self.dilation))}"
        samples = min(self.samples, 2)
        return f"{self.precision} {self.task} {way} {sizes[0]} {sizes[1]} {samples}{spread}"


@dataclass(frozen=True)
class Seen:
    """How a recorded workspace stands to the copies.

    Attributes:
        voxels: of the image, over all samples.
        beside: bytes beside the copies.
        share: of the copies, where most of them fall away; None: all of them are made.
        samples: in the batch, where it speaks for no other number of them: where copies fell
            away, and for products of one voxel, which run as one of several kernels.
    """

    voxels: int
    beside: int
    share: float | None = None
    samples: int | None = None

    def distance(self, voxels: int) -> float:
        """How many times more voxels, or fewer."""
        return max(self.voxels / voxels, voxels / self.voxels)

    def tells(self, voxels: int, samples: int) -> bool:
        """Whether it is near enough to tell something."""
        if self.samples is None:
            return self.distance(voxels) <= FARTHEST
        return samples == self.samples and self.distance(voxels) <= FARTHEST_ALIKE

    def workspace(self, copies: int) -> int:
        """Bytes for a convolution whose copies take so many."""
        if self.share is not None:
            return int(self.share * copies)
        return max(copies + self.beside, 0)


def nearest(plan: Plan, voxels: int) -> Seen | None:
    """What was recorded at the nearest number of voxels, if one is near enough.

    Half precisions stand for each other where one was not recorded.
    """
    table = recorded()
    found = table.get(plan.key(), ())
    if not found and plan.precision in _OTHER_HALF and plan.weight[1] > 1:
        found = table.get(plan._replace(precision=_OTHER_HALF[plan.precision]).key(), ())
    near = [seen for seen in found if seen.tells(voxels, plan.samples)]
    return min(near, key=lambda seen: seen.distance(voxels), default=None)


_OTHER_HALF = {"float16": "bfloat16", "bfloat16": "float16"}


@lru_cache(maxsize=1)
def recorded() -> dict[str, tuple[Seen, ...]]:
    """The table, by `Plan.key`."""
    text = files("segplan.memory").joinpath("workspaces.json").read_text(encoding="utf-8")
    return {
        key: tuple(Seen(*row) for row in rows) for key, rows in json.loads(text)["plans"].items()
    }
