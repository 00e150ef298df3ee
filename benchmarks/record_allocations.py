"""Record what the allocator really does, operator by operator, in a step on a GPU.

Run on a GPU: python benchmarks/record_allocations.py OUT.jsonl.gz [--seconds 420]

Each line holds a workload, the peaks of its steps, and for one step the operators with the
allocations (positive) and frees (negative: the number of the allocation, from 1) made inside
each. The rules of `segplan/memory` were read off such a file; the one in
`tests/memory/recorded/` was made on an H200 (torch 2.11.0+cu130) by an earlier form of this script.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from segplan.networks import build, resolve
from segplan.step.train import MEMORY_FORMAT, backend_flags, make_batch, make_step
from segplan.workload import Workload


def events() -> int:
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


class Operators(TorchDispatchMode):
    """Notes for each operator which allocator events fell inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[Any]] = []
        self.phase = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = events()
        out = func(*args, **(kwargs or {}))
        after = events()
        if after != before:
            name = str(func).removeprefix("aten.")
            self.rows.append([name, self.phase, before, after, [describe(a) for a in args]])
        return out


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype).removeprefix("torch.")]
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value[:8]]
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def history() -> list[int]:
    """The recorded events: sizes allocated, and frees by the number of what was allocated."""
    numbers: dict[int, int] = {}
    found: list[int] = []
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            found.append(entry["size"])
            numbers[entry["addr"]] = len(found)
        elif entry["action"] == "free_completed":
            found.append(-numbers.get(entry["addr"], 0))
    return found


def record(workload: Workload) -> dict[str, Any]:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with backend_flags(workload):
        network = build(workload).to(
            "cuda", memory_format=MEMORY_FORMAT[workload.memory_format]
        )  # fmt: skip
        operators = Operators()
        step = make_step(
            workload, network, on_phase=lambda phase: setattr(operators, "phase", phase)
        )
        images, labels = make_batch(workload, "cuda")
        for _ in range(2):
            step.run(images, labels)
        torch.cuda.synchronize()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.memory._record_memory_history(context=None, max_entries=400_000)
        start = events()
        with operators:
            step.run(images, labels)
        torch.cuda.synchronize()
        sequence = history()
        torch.cuda.memory._record_memory_history(enabled=None)
    rows = [[n, p, a - start, b - start, d] for n, p, a, b, d in operators.rows]
    return {
        "workload": workload.to_dict(), "peak2": peaks[0], "reserved2": peaks[1],
        "opseq": sequence, "ops": rows,
    }  # fmt: skip


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Every event of the allocator, with addresses, of three steps in a fresh process.

    A worker's handler: the process must not have touched the card.

    Args:
        request: {"workload", "limit_mib": the allocator's, or None, "alloc_conf": what
            `PYTORCH_ALLOC_CONF` says here, or None, "operators": False to see no operators,
            so that nothing of Python holds their tensors (default True)}.
        progress: not used.

    Returns:
        "events": [action, address, bytes] as torch's history has them, from the first allocation
        to the end of the third step (or the error); "ops": [operator, phase, events of
        allocation and release before it, after it, shapes]; "segments": [address, bytes] held at
        the end; the request, the outcome, peaks and versions.
    """
    from segplan.probe.device import fraction_for, versions
    from segplan.probe.job import placed
    from segplan.probe.outcomes import classify, first_line

    workload = Workload.from_dict(request["workload"])
    device = str(request.get("device", "cuda"))
    limit = request["limit_mib"]
    if limit is not None:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(fraction_for(limit * 2**20, total), 0)
    torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    outcome, message = "fits", ""
    operators = Operators()
    with warnings.catch_warnings(), backend_flags(workload):
        warnings.simplefilter("ignore")
        try:
            network = placed(build(workload), workload, device)
            step = make_step(
                workload, network, device_type=device,
                on_phase=lambda phase: setattr(operators, "phase", phase),
            )  # fmt: skip
            images, labels = make_batch(workload, device)
            seen = operators if request.get("operators", True) else contextlib.nullcontext()
            for _ in range(3):
                with seen:
                    step.run(images, labels)
            torch.cuda.synchronize()
        except Exception as error:
            outcome = classify(type(error).__name__, str(error)).value
            message = first_line(type(error).__name__, str(error))
        snapshot = torch.cuda.memory._snapshot()
    stats = torch.cuda.memory_stats()
    return {
        **request, "outcome": outcome, "message": message,
        "events": [[e["action"], e.get("addr", 0), e["size"]] for e in snapshot["device_traces"][0]
                   if e["action"] in ACTIONS],
        "ops": operators.rows,
        "segments": [[s["address"], s["total_size"]] for s in snapshot["segments"]],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"],
        "environment": {"card": torch.cuda.get_device_name(), **versions()},
    }  # fmt: skip


ACTIONS = (
    "alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "oom",
)  # fmt: skip


def workloads() -> list[Workload]:
    found = []
    for model in (
        "swinunetr", "unetr", "segresnet", "dynunet", "unet", "vnet", "attentionunet"
    ):  # fmt: skip
        base = Workload(model=model, batch=2, zero_grad="before_backward")
        found += [base.replace(precision=p) for p in ("fp16", "fp32", "tf32", "bf16")]
        found += [base.replace(patch=(side,) * 3, batch=1) for side in (128, 160)]
        found.append(base.replace(precision="bf16", memory_format="channels_last_3d"))
    return [resolve(workload) for workload in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=420.0)
    options = parser.parse_args()
    began = time.monotonic()
    with gzip.open(options.out, "wt") as file:
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        file.write(json.dumps({**versions, "card": torch.cuda.get_device_name()}) + "\n")
        for workload in workloads():
            if time.monotonic() - began > options.seconds:
                break
            file.write(json.dumps(record(workload)) + "\n")


if __name__ == "__main__":
    main()
