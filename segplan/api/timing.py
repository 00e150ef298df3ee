"""`step_time`: seconds of one training step."""

from __future__ import annotations

from segplan.api.predicting import Predictor, Progress, silent
from segplan.errors import CardError
from segplan.gpus import as_card, find_card, parse_gpus, select
from segplan.gpus.catalog import GpuKind
from segplan.networks import resolve
from segplan.results import StepTime
from segplan.workload import Workload


def step_time(workload: Workload, gpu: str, *, progress: Progress = silent) -> StepTime:
    """Predict how long one training step takes.

    Args:
        workload: its patch and batch are those of the step.
        gpu: a card's name, index, UUID or YAML file.
        progress: called as traces finish.

    Returns:
        Seconds with an 80 % interval.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch.
        CardError: there is no such card, or too little is known of it.
        WorkerError: the trace died.
    """
    requests = parse_gpus(gpu)
    if len(requests) == 1 and requests[0].kind is GpuKind.LOCAL:
        card = as_card(select(requests[0].text))
    else:
        card = find_card(gpu)
    resolved = resolve(workload)
    with Predictor(resolved, card, progress) as predictor:
        found = predictor.step_time(resolved.patch, resolved.batch)
    if found is None:
        raise CardError(
            f"too little is known of the {card.name} to predict a step's time: its bandwidth, fp32 "
            "rate, multiprocessors and compute capability are needed; give them in a YAML card."
        )
    return found
