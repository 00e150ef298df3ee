"""`estimate`: the memory one step needs, on a card or as tensors alone."""

from __future__ import annotations

from segplan.api.predicting import Predictor, Progress, silent
from segplan.gpus import as_card, find_card, parse_gpus, select
from segplan.gpus.card import Card
from segplan.gpus.catalog import GpuKind
from segplan.networks import resolve
from segplan.results import MemoryEstimate
from segplan.workload import Workload


def named_card(text: str) -> Card:
    """The card of a name, an index, a UUID or a YAML file.

    Raises:
        CardError: there is no such card.
    """
    requests = parse_gpus(text)
    if len(requests) == 1 and requests[0].kind is GpuKind.LOCAL:
        return as_card(select(requests[0].text))
    return find_card(text)


def estimate(
    workload: Workload, gpu: str | None = None, *, progress: Progress = silent
) -> MemoryEstimate:
    """Predict what one training step needs.

    Args:
        workload: its patch and batch are those of the step.
        gpu: a card's name, index, UUID or YAML file: its kernels' workspaces and its context
            are counted in. None: tensors and allocator only.
        progress: called as traces finish.

    Returns:
        Bytes, with an 80 % interval for the least memory.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch.
        CardError: there is no such card.
        WorkerError: the trace died.
    """
    card = named_card(gpu) if gpu is not None else None
    resolved = resolve(workload)
    with Predictor(resolved, card, progress) as predictor:
        return predictor.estimate(resolved.patch, resolved.batch)
