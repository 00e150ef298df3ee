"""Make segplan/memory/workspaces.json from recorded workspaces of convolutions.

Run (no GPU needed): python benchmarks/fit_workspaces.py

Reads the recorded steps of `tests/memory/recorded/` (those without a failure, after which cuDNN
takes other plans) and, where it is there, `benchmarks/data/h200_memory/workspaces.jsonl.gz` (single
convolutions, made by `measure_memory.py --parts workspaces`). Nothing of a measured peak is used.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from segplan.memory.convolution import Convolution, layout_copies
from segplan.memory.plans import Plan
from segplan.trace.tape import TensorMeta

HERE = Path(__file__).parent
RECORDED = HERE.parent / "tests" / "memory" / "recorded"
SINGLE = HERE / "data" / "h200_memory" / "workspaces.jsonl.gz"
TABLE = HERE.parent / "segplan" / "memory" / "workspaces.json"
MOSTLY = 0.75
"""A workspace of less than this share of the copies does without some of them."""

SMALLEST = 2**20
"""Fewer bytes, at every size that was met, decide nothing."""


class Seen(NamedTuple):
    """One task of one convolution with the bytes of its workspace."""

    task: str
    conv: Convolution
    precision: str
    workspace: int


def meta(shape: Iterable[int], dtype: str) -> TensorMeta:
    """A contiguous tensor."""
    sizes = tuple(shape)
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return TensorMeta(sizes, dtype, tuple(strides))


def of_steps(lines: Iterable[dict[str, Any]]) -> Iterator[Seen]:
    """Convolutions of recorded steps, those left out whose arguments were copied first."""
    for line in lines:
        workload = line["workload"]
        if workload["memory_format"] != "contiguous" or workload["cudnn_benchmark"]:
            continue
        for name, _phase, start, end, args in line["ops"]:
            if name == "convolution.default":
                yield from _forward(line, start, end, args)
            elif name == "convolution_backward.default":
                yield from _backward(line, start, end, args)


def _stages(line: dict[str, Any], start: int, end: int) -> list[list[int]]:
    """Bytes freed again by the operator: those before its first output, after it, ..."""
    events = line["opseq"]
    freed = {-e - 1 for e in events[start:end] if e < 0}
    stages: list[list[int]] = [[]]
    for at in range(start, end):
        if events[at] > 0 and at in freed:
            stages[-1].append(events[at])
        elif events[at] > 0:
            stages.append([])
    return stages


def _forward(line: dict[str, Any], start: int, end: int, args: list[Any]) -> Iterator[Seen]:
    stages = _stages(line, start, end)
    image, weight = meta(*args[0]), meta(*args[1])
    strides, transposed, groups = tuple(args[3]), args[6], args[8]
    if len(stages) < 2 or stages[0] or len(image.shape) != 5:
        return
    if transposed:
        sides = [
            (i - 1) * s - 2 * p + d * (k - 1) + o + 1
            for i, s, p, d, k, o in zip(
                image.shape[2:], strides, args[4], args[5], weight.shape[2:], args[7], strict=True
            )
        ]
        channels = weight.shape[1] * groups
    else:
        sides = [
            (i + 2 * p - d * (k - 1) - 1) // s + 1
            for i, s, p, d, k in zip(
                image.shape[2:], strides, args[4], args[5], weight.shape[2:], strict=True
            )
        ]
        channels = weight.shape[0]
    result = meta((image.shape[0], channels, *sides), image.dtype)
    conv = Convolution(image, result, weight, strides, transposed, groups, tuple(args[5]))
    task = "dgrad" if transposed else "fprop"
    yield Seen(task, conv, line["workload"]["precision"], max(stages[1], default=0))


def _backward(line: dict[str, Any], start: int, end: int, args: list[Any]) -> Iterator[Seen]:
    stages = _stages(line, start, end)
    result, image, weight = (meta(*args[i]) for i in range(3))
    strides, transposed, groups, mask = tuple(args[4]), args[7], args[9], args[10]
    if stages[0] or len(image.shape) != 5 or len(stages) <= sum(map(bool, mask)):
        return
    conv = Convolution(image, result, weight, strides, transposed, groups, tuple(args[6]))
    tasks = (["fprop" if transposed else "dgrad"] if mask[0] else []) + ["wgrad"] * bool(mask[1])
    for task, stage in zip(tasks, stages[1:], strict=False):
        yield Seen(task, conv, line["workload"]["precision"], max(stage, default=0))


def of_single(lines: Iterable[dict[str, Any]]) -> Iterator[Seen]:
    """Convolutions that ran alone: the rows of the part `workspaces`."""
    for line in lines:
        dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(line["precision"], "float32")
        conv = Convolution(
            meta(line["image"], dtype), meta(line["result"], dtype), meta(line["weight"], dtype),
            tuple(line["strides"]), line["transposed"], 1, tuple(line["dilation"]),
        )  # fmt: skip
        for task, size in line["workspaces"].items():
            if size is not None:
                yield Seen(task, conv, line["precision"], size)


def rows(seen: Iterable[Seen]) -> dict[str, list[list[Any]]]:
    """The table: for each plan the fields of `segplan.memory.plans.Seen`."""
    found: dict[str, dict[tuple[int, int], list[Any]]] = {}
    largest: dict[str, int] = defaultdict(int)
    for one in seen:
        conv = one.conv
        if conv.groups != 1:
            continue
        dtype = conv.image.dtype
        cores = dtype != "float32" or one.precision == "tf32"
        if not cores and one.task != "wgrad":
            continue
        copies = layout_copies(one.task, conv, cores)
        precision = "tf32" if cores and dtype == "float32" else dtype
        plan = Plan(
            precision, one.task, conv.weight.shape, conv.strides, conv.transposed,
            conv.image.shape[0], conv.dilation,
        )  # fmt: skip
        voxels = conv.image.numel // conv.image.shape[1]
        row: list[Any] = [voxels, one.workspace - copies]
        if one.task == "wgrad" and prod(conv.weight.shape[2:]) == 1:
            row += [None, plan.samples]
        if one.workspace < MOSTLY * copies:
            row = [voxels, 0, round(one.workspace / copies, 4), plan.samples]
        largest[plan.key()] = max(largest[plan.key()], copies, one.workspace)
        found.setdefault(plan.key(), {})[voxels, plan.samples] = row
    return {
        key: [by[v] for v in sorted(by)]
        for key, by in sorted(found.items())
        if largest[key] >= SMALLEST
    }


def recorded_steps() -> list[dict[str, Any]]:
    """Recorded steps, each with its events as signed sizes and numbers."""
    steps = [line for line in lines_of(RECORDED / "h200_allocations.jsonl.gz") if "ops" in line]
    for path in sorted(RECORDED.glob("*.json.gz")):
        run = lines_of(path)[0]
        if not run["ooms"]:
            steps.append({**run, "opseq": _numbered(run["events"])})
    return steps


def _numbered(events: list[list[Any]]) -> list[int]:
    """Sizes allocated, and frees by minus the place (from 1) of what was allocated."""
    places: dict[int, int] = {}
    found: list[int] = []
    for action, address, size in events:
        if action == "alloc":
            found.append(size)
            places[address] = len(found)
        elif action == "free_completed":
            found.append(-places[address])
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    single = lines_of(SINGLE) if SINGLE.exists() else []
    table = rows([*of_steps(recorded_steps()), *of_single(single)])
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
    TABLE.write_text('{"schema_version": 1, "plans": {\n' + text + "\n}}\n", encoding="utf-8")
    print(f"{len(table)} plans, {sum(map(len, table.values()))} rows, {TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
