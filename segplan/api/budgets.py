"""What of a card is left for PyTorch's allocator."""

from __future__ import annotations

from segplan.gpus import Card
from segplan.memory.context import context_bytes
from segplan.memory.distributed import communicator_bytes


def left_for_allocator(card: Card, reserve: int, gpus: int = 1) -> int:
    """Bytes of a card that is not here that the allocator may use; 0 or less where none are left.

    Args:
        card: all of whose memory is free.
        reserve: bytes left free on purpose.
        gpus: that train together: NCCL's buffers are set aside for more than one.
    """
    context, _measured = context_bytes(card.compute_capability)
    return card.memory_visible - context - reserve - communicator_bytes(gpus)
