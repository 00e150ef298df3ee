"""Workspaces of single convolutions, as cuDNN's heuristics or its trials choose them.

For measure_memory's parts `workspaces`, `trials` and `channels_last`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "fp32": "float32"}


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run each convolution forward and backward once and see what was allocated besides.

    Args:
        request: {"precision", "cases": [{"image", "weight", "strides", "padding", "dilation",
            "transposed", "output_padding"}]}. Optional: "benchmark" (each case twice: the first
            time cuDNN tries its plans), "memory_format" ("channels_last_3d"), "seconds" (start
            no case after so many), "groups" in a case.
        progress: not used.

    Returns:
        {"rows": the cases with "precision", "result" (its shape) and "workspaces": bytes by task
        as cuDNN names them, None where it could not run; with "benchmark" also "trials": bytes
        of the first time}.
    """
    import torch

    device = str(request.get("device", "cuda"))
    dtype = getattr(torch, DTYPES[request["precision"]])
    tf32 = request["precision"] != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    benchmark = bool(request.get("benchmark"))
    torch.backends.cudnn.benchmark = benchmark
    layout = getattr(torch, str(request.get("memory_format", "contiguous_format")))
    until = time.monotonic() + float(request.get("seconds", 1e9))
    stats = _stats if device == "cuda" else lambda: (0, 0)

    def beside(run: Callable[..., Any], *args: Any) -> tuple[int | None, Any]:
        """(bytes allocated for a while, what was returned)."""
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            made = run(*args)
        except RuntimeError:
            return None, None
        peak, now = stats()
        return peak - now, made

    forward, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    rows = []
    with torch.no_grad():
        for case in request["cases"]:
            if time.monotonic() > until:
                break
            how = (case["strides"], case["padding"], case["dilation"], case["transposed"],
                   case["output_padding"], case.get("groups", 1))  # fmt: skip
            image, weight = (
                torch.zeros(case[name], device=device, dtype=dtype).to(memory_format=layout)
                for name in ("image", "weight")
            )
            there, back = ("dgrad", "fprop") if case["transposed"] else ("fprop", "dgrad")
            found: list[dict[str, int | None]] = []
            result = None
            for _ in range(1 + benchmark):
                size, result = beside(forward, image, weight, None, *how)
                found.append({there: size})
                if result is None:
                    break
                for task, mask in ((back, [True, False, False]), ("wgrad", [False, True, False])):
                    found[-1][task] = beside(backward, result, image, weight, None, *how, mask)[0]
            if result is not None:
                rows.append({
                    **case, "precision": request["precision"], "result": list(result.shape),
                    "workspaces": found[-1], **({"trials": found[0]} if benchmark else {}),
                })  # fmt: skip
            image = weight = result = None
    return {"rows": rows}


def _stats() -> tuple[int, int]:
    """(most bytes asked for since the last reset, bytes asked for now)."""
    import torch

    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"], stats["requested_bytes.all.current"]
