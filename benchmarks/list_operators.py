"""Choose the operators that `segplan calibrate` times: segplan/timing/operators.json.

Run (no GPU needed; ten minutes on two cores, most of it tracing):
    python benchmarks/list_operators.py [--count N]

Candidates are the operators of the registered networks' steps (`operator_traces.py`). Each is
first run on fake tensors: what comes out must be what the tape says. Those are kept which tell
most of the others: an operator speaks for its neighbours (`segplan.timing.correction`), weighted
by the share of their steps that the model says they take, per second that timing it costs. The
first of the list tell most, so a shorter calibration is a coarser one.

benchmarks/data/operator_networks.json says of each in which networks it occurred.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from operator_traces import traced, workloads
from torch._subclasses.fake_tensor import FakeTensorMode

from segplan.baseline.operators import bytes_of, prepare
from segplan.gpus import find_card
from segplan.timing.correction import group_of, places_of
from segplan.timing.model import kernel_seconds, rates_of, shipped_calibration
from segplan.timing.operators import SCHEMA_VERSION, Operator, operators_plain
from segplan.timing.work import WorkTable, work_of, work_table
from segplan.trace.tape import Op
from segplan.workload import Workload

HERE = Path(__file__).parent
LIST = HERE.parent / "segplan" / "timing" / "operators.json"
NETWORKS = HERE / "data" / "operator_networks.json"

MOST_BYTES = 5 * 2**30
MOST_S = 0.03
"""Longest operator, by the model, on the card the list is made for."""

OVERHEAD_S = {"convolution": 0.02, "other": 0.006}
"""Of timing one: inputs, the first call (cuDNN's heuristics), the rest."""

LENGTH = 1.5
"""Distance, in factors of two, at which an operator speaks for another by 1/e."""

ACROSS = 0.3
"""What an operator tells of one of another variant at the same place."""

MOST_LISTED_TENSORS = 200
MOST_OF_A_KIND = 1500


def pieces(op: Op) -> list[Op]:
    """A convolution's gradients as operators of their own; others as they are."""
    if op.name != "convolution_backward.default":
        return [op]
    mask = op.args[10]
    found = []
    for i in range(3):
        if mask[i]:
            only = tuple(j == i for j in range(3))
            # Outputs that are None are left off a tape.
            output = op.outputs[sum(map(bool, mask[:i]))]
            found.append(replace(op, args=(*op.args[:10], only), outputs=(output,)))
    return found


def candidates() -> tuple[dict[Operator, float], dict[Operator, set[str]]]:
    """(share of steps, networks) of each distinct operator."""
    calibration, card = shipped_calibration(), find_card("h200")
    shares: dict[Operator, float] = collections.defaultdict(float)
    networks: dict[Operator, set[str]] = collections.defaultdict(set)
    for workload, ops in traced(list(workloads())):
        found: collections.Counter[Op] = collections.Counter()
        for op in ops:
            for piece in pieces(replace(op, step=0, at=0, end=0)):
                if work_of(piece, piece.phase):
                    found[piece] += 1
        for precision in ("tf32", "fp32") if workload.precision == "fp32" else (None,):
            rates = rates_of(card, precision or workload.precision)
            table, firsts = _works(list(found))
            seconds = np.add.reduceat(
                kernel_seconds(
                    table, rates, calibration, channels_last=workload.memory_format != "contiguous"
                ),
                firsts,
            )
            times = seconds * np.array(list(found.values()))
            for op, share, each in zip(found, times / times.sum(), seconds, strict=True):
                if each > MOST_S or len(op.inputs) > MOST_LISTED_TENSORS:
                    continue
                operator = Operator(op, _precision(op, workload, precision))
                shares[operator] += share
                networks[operator].add(workload.model)
    return shares, networks


def _works(ops: list[Op]) -> tuple[WorkTable, np.ndarray]:
    """Their work, and where in the table each operator's begins."""
    counts = [len(work_of(op, op.phase)) for op in ops]
    return work_table(ops), np.cumsum([0, *counts[:-1]])


def _precision(op: Op, workload: Workload, arithmetic: str | None) -> str:
    """Of an operator: 16-bit types say it; of float32 only products know TF32."""
    if arithmetic == "fp32" and work_table([op]).flops.any():
        return "fp32"
    kinds = {t.dtype for t in (*op.inputs, *op.outputs)}
    return "fp16" if "float16" in kinds else "bf16" if "bfloat16" in kinds else "tf32"


def replayable(op: Op) -> str:
    """Why an operator's replay does not give what the tape says; "" if it does."""
    try:
        if bytes_of(op) > MOST_BYTES:
            return "too large"
        json.dumps(op.args, allow_nan=False)  # a file holds no infinity
        with warnings.catch_warnings(), FakeTensorMode() as fake:
            warnings.simplefilter("ignore")
            fake.allow_non_fake_inputs = True
            result = prepare(op, "cpu").call()
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
    made = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
    if not op.name.startswith(("_scaled", "native_batch_norm", "_foreach")):
        expected = [t.shape for t in op.outputs]
        got = [tuple(t.shape) for t in made if t.numel() or () in expected]
        if [s for s in expected if 0 not in s] != got[: len(expected)]:
            return f"outputs {got} instead of {expected}"
    return ""


def _flat(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def order(operators: list[Operator], weights: np.ndarray, count: int) -> list[int]:
    """Which to time, the most telling per second first (greedy facility location).

    An operator of several pieces of work lies where the longest of them does.
    """
    table, firsts = _works([o.op for o in operators])
    pieces = np.diff([*firsts, len(table.kind)])
    precisions = np.repeat([o.precision for o in operators], pieces)
    calibration, card = shipped_calibration(), find_card("h200")
    rates = {p: rates_of(card, p) for p in ("fp16", "bf16", "tf32", "fp32")}
    parts = np.zeros(len(table.kind))
    for name, rate in rates.items():
        parts = np.where(precisions == name, kernel_seconds(table, rate, calibration), parts)
    seconds = np.add.reduceat(parts, firsts)
    longest = [a + int(np.argmax(parts[a : a + n])) for a, n in zip(firsts, pieces, strict=True)]
    groups = group_of(table, precisions == "fp32")[longest]
    places = places_of(table)[longest]
    convolutions = np.array([o.op.name.startswith("conv") for o in operators])
    overhead = np.where(convolutions, OVERHEAD_S["convolution"], OVERHEAD_S["other"])
    cost = overhead + 2 * seconds + 5 * seconds
    chosen: list[tuple[float, int]] = []
    for group in np.unique(groups):
        among = np.flatnonzero(groups == group)
        chosen += _greedy(among, places, weights, cost)
    chosen.sort(reverse=True)
    picked = [i for _, i in chosen[:count]]
    total = cost[picked].sum()
    print(f"{len(picked)} operators, about {total:.0f} s", file=sys.stderr)
    return picked


def _greedy(among, places, weights, cost) -> list[tuple[float, int]]:
    if len(among) > MOST_OF_A_KIND:  # the lightest change nothing
        among = among[np.argsort(-weights[among])[:MOST_OF_A_KIND]]
    at, variant = places[among, :-1].astype(np.float32), places[among, -1]
    squares = (at**2).sum(1)[:, None] + (at**2).sum(1)[None] - 2 * at @ at.T
    alike = np.exp(-np.sqrt(np.maximum(squares, 0)) / np.float32(LENGTH))
    alike *= np.where(variant[:, None] == variant[None], np.float32(1), np.float32(ACROSS))
    weight = weights[among].astype(np.float32)
    best = np.zeros(len(among), dtype=np.float32)
    found = []
    last = np.inf
    for _ in range(min(len(among), 300)):
        gains = weight @ np.maximum(alike - best[:, None], 0) / cost[among]
        i = int(np.argmax(gains))
        if gains[i] <= 0:
            break
        last = min(last, float(gains[i]))
        found.append((last, int(among[i])))
        best = np.maximum(best, alike[i])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2600)
    arguments = parser.parse_args()
    shares, networks = candidates()
    print(f"{len(shares)} distinct operators", file=sys.stderr)
    operators = list(shares)
    weights = np.array([shares[o] for o in operators]) + 1e-6
    refused: collections.Counter[str] = collections.Counter()
    picked: list[int] = []
    ranked = order(operators, weights, 2 * arguments.count)
    for i in ranked:
        if len(picked) == arguments.count:
            break
        why = replayable(operators[i].op)
        if why:
            refused[f"{operators[i].op.name}: {why}"] += 1
        else:
            picked.append(i)
    for text, n in refused.most_common(40):
        print(f"refused {n} {text}", file=sys.stderr)
    chosen = [operators[i] for i in picked]
    document = {"schema_version": SCHEMA_VERSION, **operators_plain(chosen)}
    LIST.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    NETWORKS.write_text(
        json.dumps([sorted(networks[o]) for o in chosen], separators=(",", ":")) + "\n"
    )
    kinds = collections.Counter(work_of(o.op, o.op.phase)[0].kind for o in chosen)
    print(kinds, LIST.stat().st_size, file=sys.stderr)


if __name__ == "__main__":
    main()
