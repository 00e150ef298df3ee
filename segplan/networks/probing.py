"""The patch rule of a network nobody described: found by trying, on fake tensors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from segplan.errors import NetworkError
from segplan.networks.rules import PatchRule, cube
from segplan.units import Patch
from segplan.workload import Workload

if TYPE_CHECKING:
    from torch import nn

DIVISORS = (1, 2, 4, 8, 16, 32, 64, 128)
_ODD = 3
"""Sizes tried are odd multiples of a divisor, so that no larger divisor lets them pass."""


def find_rule(workload: Workload) -> PatchRule:
    """The rule of a factory's network: the smallest power of two that each side must divide by.

    Builds the network and runs its forward pass on fake tensors, so it takes seconds. The
    largest batch's normalisation is not tried: the trace of each patch does that.

    Raises:
        NetworkError: the network cannot be built, or takes no size that was tried.
    """
    from segplan.networks.building import build

    network = build(workload)
    safe = next((d for d in reversed(DIVISORS) if _runs(network, workload, cube(d))), None)
    if safe is None:
        if _runs(network, workload, workload.patch):
            return PatchRule(divisor=workload.patch, least=workload.patch, fixed=True)
        raise NetworkError(
            f"{workload.model} takes no patch of 1 to {DIVISORS[-1]} voxels a side in powers of "
            f"two, nor {'x'.join(map(str, workload.patch))}: name a size it takes with --patch."
        )
    sides = [_divisor(network, workload, safe, axis) for axis in range(3)]
    return PatchRule(divisor=(sides[0], sides[1], sides[2]), least=(sides[0], sides[1], sides[2]))


def _divisor(network: nn.Module, workload: Workload, safe: int, axis: int) -> int:
    for divisor in DIVISORS:
        patch = list(cube(safe))
        patch[axis] = divisor * _ODD
        if _runs(network, workload, (patch[0], patch[1], patch[2])):
            return divisor
    return safe


def _runs(network: nn.Module, workload: Workload, patch: Patch) -> bool:
    """Whether the forward pass takes the patch, in train mode, at batch 2."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functional_call

    network.train()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), mode, torch.no_grad():
        warnings.simplefilter("ignore")
        state = {
            name: mode.from_tensor(tensor)
            for name, tensor in [*network.named_parameters(), *network.named_buffers()]
        }
        image = torch.empty((2, workload.in_channels, *patch))
        try:
            functional_call(network, state, (image,))
        except Exception:
            return False
    return True
