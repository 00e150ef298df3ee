"""Workspaces of single convolutions, as cuDNN's heuristics choose them (for measure_memory)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "fp32": "float32"}


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run each convolution forward and backward once and see what was allocated besides.

    Args:
        request: {"precision", "cases": [{"image", "weight", "strides", "padding", "dilation",
            "transposed", "output_padding"}]}; contiguous tensors, no groups.
        progress: not used.

    Returns:
        {"rows": the cases with "precision", "result" (its shape) and "workspaces": bytes by task
        as cuDNN names them, None where it could not run}.
    """
    import torch

    device = str(request.get("device", "cuda"))
    dtype = getattr(torch, DTYPES[request["precision"]])
    tf32 = request["precision"] != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
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
            how = (case["strides"], case["padding"], case["dilation"], case["transposed"],
                   case["output_padding"], 1)  # fmt: skip
            image = torch.zeros(case["image"], device=device, dtype=dtype)
            weight = torch.zeros(case["weight"], device=device, dtype=dtype)
            size, result = beside(forward, image, weight, None, *how)
            there, back = ("dgrad", "fprop") if case["transposed"] else ("fprop", "dgrad")
            found = {there: size}
            if result is not None:
                for task, mask in ((back, [True, False, False]), ("wgrad", [False, True, False])):
                    found[task] = beside(backward, result, image, weight, None, *how, mask)[0]
                rows.append({
                    **case, "precision": request["precision"], "result": list(result.shape),
                    "workspaces": found,
                })  # fmt: skip
            image = weight = result = None
    return {"rows": rows}


def _stats() -> tuple[int, int]:
    """(most bytes asked for since the last reset, bytes asked for now)."""
    import torch

    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"], stats["requested_bytes.all.current"]
