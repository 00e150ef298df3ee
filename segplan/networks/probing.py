"""The patch rule of a network nobody described: found by trying, on fake tensors."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from segplan.errors import NetworkError
from segplan.networks.rules import PatchRule, cube
from segplan.units import Patch
from segplan.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

DIVISORS = (1, 2, 4, 8, 16, 32, 64, 128)
_ODD = 3
"""Sizes tried are odd multiples of a divisor, so that no larger divisor lets them pass."""


def find_rule(workload: Workload) -> PatchRule:
    """The rule of a factory's network: the smallest power of two that each side must divide by.

    Builds the network and runs its forward pass on fake tensors, so it takes seconds; the
    answer is remembered. Whether normalisation refuses the smallest patch is found too.

    Raises:
        NetworkError: the network cannot be built, or takes no size that was tried.
    """
    # What the forward pass does not depend on is left out, so that it is not tried again.
    plain = Workload(
        model=workload.model,
        model_args=workload.model_args,
        in_channels=workload.in_channels,
        out_channels=workload.out_channels,
        checkpointing=workload.checkpointing,
    )
    return _found(plain) or _only(workload)


@lru_cache(maxsize=32)
def _found(workload: Workload) -> PatchRule | None:
    """The rule, or None where no cube of a power of two passes."""
    from segplan.networks.building import build

    network = build(workload)
    safe = next(
        (d for d in reversed(DIVISORS) if refusal(network, workload, cube(d)) is None), None
    )
    if safe is None:
        return None
    sides = [_divisor(network, workload, safe, axis) for axis in range(3)]
    divisor: Patch = (sides[0], sides[1], sides[2])
    norm = "none"
    if refusal(network, workload, divisor) is not None:
        norm = "instance"
    elif refusal(network, workload, divisor, batch=1) is not None:
        norm = "batch"
    return PatchRule(divisor=divisor, least=divisor, bottleneck=divisor, norm=norm)


@lru_cache(maxsize=128)
def _only(workload: Workload) -> PatchRule:
    """The rule of a network that takes the patch asked for and nobody knows which others."""
    from segplan.networks.building import build

    patch = workload.patch
    error = refusal(build(workload), workload, patch)
    if error is None:
        return PatchRule(divisor=patch, least=patch, fixed=True)
    first = (str(error).strip() or "no reason given").splitlines()[0][:200].rstrip(" .")
    raise NetworkError(
        f"{workload.model} takes no patch of 1 to {DIVISORS[-1]} voxels a side in powers of two, "
        f"nor {'x'.join(map(str, patch))} ({type(error).__name__}: {first}): name a size it "
        "takes with --patch."
    )


def _divisor(network: nn.Module, workload: Workload, safe: int, axis: int) -> int:
    for divisor in DIVISORS:
        patch = list(cube(safe))
        patch[axis] = divisor * _ODD
        if refusal(network, workload, (patch[0], patch[1], patch[2])) is None:
            return divisor
    return safe


def refusal(
    network: nn.Module, workload: Workload, patch: Patch, batch: int = 2
) -> Exception | None:
    """What the forward pass in train mode raises on the patch, or None."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functional_call

    network.train()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with (
        _quiet(),
        mode,
        torch.no_grad(),
    ):
        state: dict[str, Tensor] = {
            name: mode.from_tensor(tensor)
            for name, tensor in [*network.named_parameters(), *network.named_buffers()]
        }
        image = torch.empty((batch, workload.in_channels, *patch))
        try:
            functional_call(network, state, (image,))
        except Exception as error:
            return error.with_traceback(None)
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a refusal to ourselves: torch logs the traceback of each one on fake tensors."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before
