"""One validation after three steps of training, in a process of its own (for measure_memory)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

VOLUMES = 2
"""The one-hot prediction of the first is still there while the second is stitched."""

STEPS = 3


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train, then validate.

    Args:
        request: {"workload": a resolved workload, "validation": a `Validation`} and, for a test
            without a card, {"device": "cpu"}.
        progress: told the phase.

    Returns:
        {"outcome", "message", "training": [allocated, reserved], "validating": the same (bytes,
        peaks of each phase), "environment": versions}.
    """
    import torch

    from segplan.networks import build
    from segplan.probe.device import versions
    from segplan.probe.job import placed
    from segplan.probe.outcomes import classify, first_line
    from segplan.results import Outcome
    from segplan.step.train import backend_flags, make_batch, make_step
    from segplan.step.validate import Validation, ValidationStep, predictor
    from segplan.workload import Workload

    workload = Workload.from_dict(request["workload"])
    validation = Validation.from_dict(request["validation"])
    device = str(request.get("device", "cuda"))
    on_card = device == "cuda"

    def peaks() -> list[int]:
        if not on_card:
            return [0, 0]
        torch.cuda.synchronize()
        found = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        torch.cuda.reset_peak_memory_stats()
        return found

    def volumes() -> Iterator[tuple[Any, Any]]:
        for _ in range(VOLUMES):
            yield (
                torch.randn((1, workload.in_channels, *validation.volume)),
                torch.randint(0, max(2, workload.out_channels), (1, 1, *validation.volume)).float(),
            )

    reply: dict[str, Any] = {
        "outcome": Outcome.FITS.value, "message": "", "training": [0, 0], "validating": [0, 0],
    }  # fmt: skip
    with warnings.catch_warnings(), backend_flags(workload):
        warnings.simplefilter("ignore")
        try:
            network = placed(build(workload), workload, device)
            images, labels = make_batch(workload, device)
            step = make_step(workload, network, device_type=device)
            progress({"phase": "training"})
            for _ in range(STEPS):
                step.run(images, labels)
            reply["training"] = peaks()
            progress({"phase": "validation"})
            # The last batch stays: a training loop's names still hold it.
            ValidationStep(
                workload=workload, validation=validation, predict=predictor(network),
                device=torch.device(device), host=torch.device("cpu"), device_type=device,
            ).run(volumes())  # fmt: skip
            reply["validating"] = peaks()
            del images, labels, step
        except Exception as error:
            outcome = classify(type(error).__name__, str(error))
            reply |= {
                "outcome": outcome.value, "message": first_line(type(error).__name__, str(error)),
            }  # fmt: skip
    known = versions()
    reply["environment"] = {name: known[name] for name in ("torch", "cuda", "cudnn", "monai")}
    with contextlib.suppress(RuntimeError, AssertionError):
        reply["environment"]["card"] = torch.cuda.get_device_name()
    return reply
