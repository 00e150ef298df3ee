"""What an error or a suspicious measurement of a probe means. Pure: no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from segplan.results import Outcome
from segplan.units import MIB

KERNEL_ELEMENTS = 2**31
"""Elements of one tensor from which on kernels that index with 32 bits refuse or go wrong."""

_NEARLY_FULL = 512 * MIB  # a library that loads its kernels into less than this may fail

_MEMORY = re.compile(
    r"""
    \b(CUDA|HIP)\ out\ of\ memory            # the caching allocator
    | CUDA(\ driver|\ runtime)?\ error:\ out\ of\ memory
    | cudaErrorMemoryAllocation | CUDA_ERROR_OUT_OF_MEMORY
    | CUDNN_STATUS_ALLOC_FAILED | CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    | CUBLAS_STATUS_ALLOC_FAILED | CUSOLVER_STATUS_ALLOC_FAILED
    """,
    re.IGNORECASE | re.VERBOSE,
)
_KERNEL = re.compile(
    r"""
    INT_MAX | canUse32BitIndexMath | 32-bit\ index
    | numeric_limits<int(32_t)?>::max | int32_t\ max
    | 2\*\*31 | 2\^31 | 2147483648
    | too\ many\ elements | integer\ out\ of\ range
    | blocks\ must\ be\ positive,\ but\ got\ N=-
    """,
    re.IGNORECASE | re.VERBOSE,
)
# cuDNN finds no way to run a convolution: for want of workspace, or because a tensor is too large.
_NO_ENGINE = re.compile(r"CUDNN_STATUS_NOT_SUPPORTED|unable to find an engine", re.IGNORECASE)
# What an overflowing 32-bit index ends in, where a kernel does not check.
_OVERFLOW = re.compile(r"invalid configuration argument|illegal memory access", re.IGNORECASE)
# What libraries answer when nothing is left to load their kernels or make their handles.
_STARVED = re.compile(
    r"CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)"
    r"|CUBLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)",
    re.IGNORECASE,
)


def classify(
    error_type: str,
    message: str,
    *,
    largest_elements: int | None = None,
    free_bytes: int | None = None,
) -> Outcome:
    """What an exception means for the question "does it fit".

    Args:
        error_type: the exception's class name.
        message: its text.
        largest_elements: elements of the largest tensor of the step, as far as known.
        free_bytes: what was free on the card when it failed, or None.

    Returns:
        OUT_OF_MEMORY, KERNEL_LIMIT, or FAILED for everything else.
    """
    too_large = largest_elements is not None and largest_elements >= KERNEL_ELEMENTS
    if error_type == "OutOfMemoryError" or _MEMORY.search(message):
        return Outcome.OUT_OF_MEMORY
    if _KERNEL.search(message):
        return Outcome.KERNEL_LIMIT
    if _NO_ENGINE.search(message):
        return Outcome.KERNEL_LIMIT if too_large else Outcome.OUT_OF_MEMORY
    if too_large and _OVERFLOW.search(message):
        return Outcome.KERNEL_LIMIT
    if free_bytes is not None and free_bytes < _NEARLY_FULL and _STARVED.search(message):
        return Outcome.OUT_OF_MEMORY
    return Outcome.FAILED


def first_line(error_type: str, message: str) -> str:
    """An exception as one short line."""
    lines = message.strip().splitlines()
    return f"{error_type}: {lines[0].strip()[:300]}" if lines else error_type


def spilled(
    *,
    peak_reserved: int | None,
    context_bytes: int | None,
    capacity_bytes: int | None,
    seconds_per_patch: float | None = None,
    reference_seconds_per_patch: float | None = None,
    jump: float = 3.0,
) -> bool:
    """Whether a step that raised no error used the host's memory (WDDM, WSL2).

    Args:
        peak_reserved: most bytes the allocator held.
        context_bytes: what the process needs outside the allocator, or None.
        capacity_bytes: what the card could give this process, or None.
        seconds_per_patch: of this batch.
        reference_seconds_per_patch: of a smaller batch of the same patch that surely fitted.
        jump: how many times slower a patch must be to count as spilled.
    """
    if capacity_bytes is not None and (peak_reserved or 0) + (context_bytes or 0) > capacity_bytes:
        return True
    if seconds_per_patch is None or not reference_seconds_per_patch:
        return False
    return seconds_per_patch > jump * reference_seconds_per_patch


def settled(samples: Sequence[float], tolerance: float = 0.03) -> bool:
    """Whether the last two warm-up steps took the same time, within a share of the shorter."""
    if len(samples) < 2:
        return False
    shorter, longer = sorted(samples[-2:])
    return longer - shorter <= tolerance * shorter
