"""What a process takes of a card outside PyTorch's allocator: CUDA context and loaded kernels."""

from __future__ import annotations

from segplan.units import MIB

MEASURED = {(9, 0): 730 * MIB}
"""Bytes by compute capability, the most seen in one process.

H200, torch 2.11.0+cu130, driver 580: 527 MiB when the context is created, 700 to 730 MiB once
the kernels of a training step are loaded.
"""

ASSUMED = 600 * MIB
"""Bytes for cards that were not measured: an assumption, marked as such in every answer."""


def context_bytes(capability: tuple[int, int] | None) -> tuple[int, bool]:
    """(bytes outside the allocator, whether they were measured on such a card)."""
    if capability in MEASURED:
        return MEASURED[capability], True
    return ASSUMED, False
