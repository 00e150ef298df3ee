"""The child process's side of a calibration: operators in, the seconds of each out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TARGET = "segplan.baseline.operator_job:handle"
STARTUP = "segplan.baseline.operator_job:preload"

MOST_BYTES = 8 * 2**30
"""Of an operator's tensors; less where less is free."""

SHARE_OF_FREE = 0.4
"""Inputs may be there twice, and libraries want workspaces."""

WARM_UP_S = 0.5


def preload() -> None:
    """Import what is slow to import; creates no CUDA context."""
    import segplan.baseline.operators  # noqa: F401


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Time operators on the card that CUDA_VISIBLE_DEVICES leaves.

    Args:
        request: "tensors", "ops" and "precisions" as
            `segplan.timing.operators.operators_request` gives them,
            "first" (position of the first to time) and "seconds" (when to begin no other).
            "device": "cpu" times on the processor, for a test.
        progress: told {"build": ...} first, then {"at": position, "seconds": [...]} or
            {"at": position, "why_not": text} for each operator; {"at": position} before it.

    Returns:
        {"next": position of the first that was not begun, "spent": seconds}.

    Raises:
        CardError: torch cannot use the card, or has no kernels for it.
    """
    import torch

    from segplan.baseline import operators
    from segplan.trace.tape import trace_from_json

    device = str(request.get("device", "cuda"))
    timer: operators.Timer = operators.HostTimer()
    most = kept = MOST_BYTES
    if device == "cuda":
        _check_card(progress)
        timer = operators.CudaTimer()
        kept = int(SHARE_OF_FREE * torch.cuda.mem_get_info()[0])
        most = min(most, kept)
        _warm_up(torch)
    blank: dict[str, Any] = {
        "batch": 0, "events": [], "sizes": [], "kinds": [], "modules": [], "step_starts": []
    }  # fmt: skip
    ops = trace_from_json({**blank, "tensors": request["tensors"], "ops": request["ops"]}).ops
    began = time.monotonic()
    at = int(request["first"])
    while at < len(ops) and time.monotonic() - began < request["seconds"]:
        progress({"at": at})
        found = operators.time_operator(ops[at], request["precisions"][at], timer, device, most)
        progress(
            {"at": at, "seconds": list(found.seconds)}
            if found.seconds
            else {"at": at, "why_not": found.why_not}
        )
        if device == "cuda" and torch.cuda.memory_reserved() > kept:
            torch.cuda.empty_cache()
        at += 1
    return {"next": at, "spent": time.monotonic() - began}


def _check_card(progress: Callable[[dict[str, Any]], None]) -> None:
    import torch

    from segplan.baseline.job import build_support, check, no_kernels
    from segplan.errors import CardError

    check(torch, "calibrate")
    capability, built = torch.cuda.get_device_capability(0), torch.cuda.get_arch_list()
    support = build_support(capability, built)
    progress({"build": support})
    if support == "none":
        raise CardError(no_kernels(capability, torch.__version__, built))


def _warm_up(torch: Any) -> None:
    """Keep the card at work until its clocks have risen."""
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    began = time.monotonic()
    while time.monotonic() - began < WARM_UP_S:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
