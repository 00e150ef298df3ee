"""What is to be measured on a card, in order of worth, and which third is held out.

Run (no GPU needed): python benchmarks/plan_memory.py [--out benchmarks/data/memory_plan.json]

Everything that a card need not wait for is done here: networks and patches are checked, steps are
traced and predicted (frontiers and least memories are sought from the prediction outwards), and
the held-out third of each part is drawn by a fixed seed before anything is measured. Nothing
measured is read but which workloads were measured before.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from segplan.api.predicting import Predictor, target_for
from segplan.errors import SegplanError
from segplan.gpus import find_card
from segplan.memory.prediction import predict, predict_validation
from segplan.networks import NETWORKS, next_valid, resolve
from segplan.results import MemoryEstimate
from segplan.search import Verdict, largest_batch
from segplan.step.validate import Validation
from segplan.trace import cache
from segplan.trace.job import TARGET
from segplan.trace.tape import Op, Tape, Trace, trace_from_json
from segplan.units import MIB
from segplan.worker import WorkerPool
from segplan.workload import Workload

SEED = 20261202
DATA = Path(__file__).parent / "data"
CARD = find_card("h200")
LIMITS_MIB = (6_600, 9_900, 14_600, 22_500, 30_900)
"""About what cards of 8, 11, 16, 24 and 32 GB leave after the CUDA context and a reserve."""

MOST_BATCH = 20
cache.MOST_FILES = 20_000  # more than anyone plans with: memory_accuracy asks for the same traces
MEASURED_ANEW = ("segresnetvae",)
"""Networks whose step was another when they were measured first."""

DROPOUT = {
    "swinunetr": {"drop_rate": 0.1, "attn_drop_rate": 0.1, "dropout_path_rate": 0.1},
    "unetr": {"dropout_rate": 0.1}, "segresnet": {"dropout_prob": 0.2},
    "segresnetvae": {"dropout_prob": 0.2}, "dynunet": {"dropout": 0.1}, "unet": {"dropout": 0.2},
    "attentionunet": {"dropout": 0.1}, "basicunet": {"dropout": 0.1},
    "basicunetplusplus": {"dropout": 0.1}, "vnet": {"dropout_prob_down": 0.3},
    "highresnet": {"dropout_prob": 0.1}, "flexibleunet": {"dropout": 0.1},
}  # fmt: skip

STEP_OPTIONS: tuple[dict[str, Any], ...] = (
    {"patch": (64, 64, 64), "batch": 8, "precision": "bf16", "optimizer": "adam"},
    {"patch": (128, 96, 64), "batch": 2, "precision": "tf32", "optimizer": "sgd",
     "in_channels": 2, "out_channels": 5},
    {"patch": (96, 96, 96), "batch": 2, "memory_format": "channels_last_3d"},
    {"patch": (96, 96, 96), "batch": 1, "cudnn_benchmark": True},
    {"patch": (96, 96, 96), "batch": 1, "precision": "fp32", "checkpointing": True,
     "in_channels": 4, "out_channels": 4},
    {"patch": (96, 96, 96), "batch": 2, "dropout": True, "out_channels": 2},
    {"patch": (160, 96, 32), "batch": 2, "grad_accumulation": 2, "grad_clip": 1.0,
     "zero_grad": "before_backward"},
    {"patch": (64, 64, 64), "batch": 16},
    {"patch": (128, 128, 128), "batch": 1, "precision": "bf16", "checkpointing": True},
    {"patch": (64, 64, 64), "batch": 3, "out_channels": 105, "precision": "fp16"},
    {"patch": (64, 96, 96), "batch": 3, "precision": "bf16", "memory_format": "channels_last_3d",
     "optimizer": "sgd", "loss": "dicefocal", "out_channels": 3},
    {"patch": (96, 96, 96), "batch": 3, "precision": "fp16", "loss": "ce", "grad_clip": 12.0},
)  # fmt: skip

LEAST: tuple[dict[str, Any], ...] = (
    {"model": "unet", "patch": (128, 128, 128), "batch": 2},
    {"model": "swinunetr", "patch": (64, 64, 64), "batch": 4},
    {"model": "segresnet", "patch": (96, 96, 96), "batch": 4, "precision": "bf16"},
    {"model": "dynunet", "patch": (96, 96, 96), "batch": 4, "precision": "tf32"},
    {"model": "mednexts", "patch": (96, 96, 96), "batch": 2},
    {"model": "vnet", "patch": (96, 96, 96), "batch": 4},
    {"model": "attentionunet", "patch": (128, 96, 96), "batch": 2, "precision": "bf16"},
    {"model": "unet", "patch": (96, 96, 96), "batch": 4, "precision": "fp32"},
    {"model": "basicunet", "patch": (96, 96, 96), "batch": 4},
    {"model": "swinunetr", "patch": (96, 96, 96), "batch": 2, "checkpointing": True},
    {"model": "dynunet", "patch": (128, 128, 64), "batch": 4,
     "memory_format": "channels_last_3d"},
    {"model": "segresnetds", "patch": (96, 96, 96), "batch": 2},
    {"model": "flexibleunet", "patch": (96, 96, 96), "batch": 8},
    {"model": "unetr", "patch": (96, 96, 96), "batch": 6, "precision": "bf16"},
)  # fmt: skip

VALIDATIONS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"model": "swinunetr"}, {"volume": (192, 192, 128)}),
    ({"model": "unet"}, {"volume": (256, 256, 160), "sw_batch_size": 4}),
    ({"model": "unet"}, {"volume": (256, 256, 160), "sw_batch_size": 4, "stitch": "cpu"}),
    ({"model": "segresnet", "out_channels": 3, "in_channels": 4},
     {"volume": (240, 240, 155), "roi_size": (128, 128, 128), "sw_batch_size": 1,
      "overlap": 0.5, "mode": "gaussian"}),
    ({"model": "dynunet", "patch": (128, 128, 64), "precision": "bf16"},
     {"volume": (256, 256, 128), "sw_batch_size": 8}),
    ({"model": "unetr", "out_channels": 2}, {"volume": (160, 160, 160), "sw_batch_size": 2}),
    ({"model": "swinunetr", "out_channels": 105}, {"volume": (160, 160, 128), "sw_batch_size": 1}),
    ({"model": "segresnetds", "precision": "fp32"}, {"volume": (192, 192, 96)}),
    ({"model": "basicunet", "out_channels": 1}, {"volume": (320, 320, 128), "mode": "gaussian"}),
    ({"model": "attentionunet", "precision": "tf32"},
     {"volume": (192, 160, 96), "stitch": "cpu", "overlap": 0.5}),
    ({"model": "mednexts", "out_channels": 5}, {"volume": (192, 192, 128), "sw_batch_size": 4}),
    ({"model": "vnet", "out_channels": 2}, {"volume": (256, 256, 96), "sw_batch_size": 2}),
)  # fmt: skip

RECORDS: tuple[tuple[str, dict[str, Any], int | None, str | None], ...] = (
    ("unet_near_limit", {"model": "unet", "patch": (128,) * 3, "batch": 4,
                         "zero_grad": "before_backward"}, 5_600, None),
    ("unet_failing", {"model": "unet", "patch": (128,) * 3, "batch": 4,
                      "zero_grad": "before_backward"}, 5_440, None),
    ("swinunetr_near_limit", {"model": "swinunetr", "batch": 2,
                              "zero_grad": "before_backward"}, 10_780, None),
    ("unet_expandable", {"model": "unet", "batch": 2}, 2_400, "expandable_segments:True"),
    ("dynunet_fp32_batch_11", {"model": "dynunet", "precision": "fp32", "batch": 11,
                               "zero_grad": "before_backward"}, 23_000, None),
    ("segresnet_batch_10", {"model": "segresnet", "batch": 10,
                            "zero_grad": "before_backward"}, 23_000, None),
    ("swinunetr_checkpointing", {"model": "swinunetr", "batch": 2, "checkpointing": True},
     7_828, None),
    ("unetr_batch_4", {"model": "unetr", "batch": 4, "zero_grad": "before_backward"}, 5_300, None),
    ("dynunet_tf32_batch_4", {"model": "dynunet", "batch": 4, "precision": "tf32"}, 8_700, None),
    ("unetr_batch_23", {"model": "unetr", "batch": 23,
                        "zero_grad": "before_backward"}, 23_000, None),
)  # fmt: skip

UNOBSERVED: tuple[tuple[str, dict[str, Any], int | None], ...] = (
    ("unet_batch_19", {"model": "unet", "batch": 19}, 9_900),
    ("swinunetr_batch_2", {"model": "swinunetr", "batch": 2}, None),
    ("swinunetr_checkpointing_2", {"model": "swinunetr", "batch": 2, "checkpointing": True}, None),
    ("unetr_batch_2", {"model": "unetr", "batch": 2}, None),
    ("unetr_batch_4_5200", {"model": "unetr", "batch": 4, "zero_grad": "before_backward"}, 5_200),
    ("segresnet_batch_2", {"model": "segresnet", "batch": 2}, None),
    ("segresnet_checkpointing", {"model": "segresnet", "batch": 2, "checkpointing": True}, None),
    ("segresnetds_batch_2", {"model": "segresnetds", "batch": 2}, None),
    ("dynunet_batch_2", {"model": "dynunet", "batch": 2}, None),
    ("attentionunet_batch_2", {"model": "attentionunet", "batch": 2}, None),
    ("basicunetplusplus_batch_2", {"model": "basicunetplusplus", "batch": 2}, None),
    ("vnet_batch_2", {"model": "vnet", "batch": 2}, None),
    ("mednexts_batch_2", {"model": "mednexts", "batch": 2}, None),
    ("highresnet_batch_1", {"model": "highresnet", "batch": 1}, None),
    ("ahnet_batch_1", {"model": "ahnet", "patch": (128,) * 3, "batch": 1}, None),
    ("flexibleunet_batch_2", {"model": "flexibleunet", "batch": 2}, None),
    ("segresnet_channels_last", {"model": "segresnet", "batch": 2, "precision": "bf16",
                                 "memory_format": "channels_last_3d"}, None),
    ("unet_accumulating", {"model": "unet", "batch": 2, "grad_accumulation": 2, "precision": "tf32",
                           "zero_grad": "before_backward"}, None),
)  # fmt: skip
"""Recorded without a look at operators: a dispatch mode changes how gradients are summed."""


def valid(**values: Any) -> Workload | None:
    """The resolved workload, its patch rounded up to what the network takes; None: refused."""
    dropout = values.pop("dropout", False)
    if dropout:
        if values["model"] not in DROPOUT:
            return None
        values["model_args"] = DROPOUT[values["model"]]
    try:
        workload = resolve(Workload(**values), check_patch=False)
        return resolve(workload.replace(patch=next_valid(workload, workload.patch)))
    except SegplanError as error:
        print("left out:", values, str(error)[:100], file=sys.stderr)
        return None


def before() -> tuple[set[str], set[str]]:
    """Keys of the workloads measured before: (seen, held out)."""
    found: list[set[str]] = []
    for name in ("seen", "heldout"):
        with (DATA / f"h200_memory_{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        found.append({Workload.from_dict(json.loads(r["workload"])).key() for r in rows})
    return found[0], found[1]


def asked_before() -> list[Workload]:
    """Every registered network over patches, batches, precisions and options: the first plan."""
    found: list[Workload | None] = []
    for network in NETWORKS:
        base: dict[str, Any] = {"model": network.name}
        cube = (128 if network.name == "ahnet" else 96,) * 3
        found += [valid(**base, patch=cube, batch=1, precision=precision)
                  for precision in ("fp16", "bf16", "tf32", "fp32")]  # fmt: skip
        found.append(valid(**base, patch=cube, batch=2, checkpointing=True))
        found.append(valid(**base, patch=(64,) * 3, batch=5, optimizer="sgd"))
        found.append(valid(**base, patch=(128, 128, 64), batch=2, in_channels=4, out_channels=3))
        found.append(valid(**base, patch=(128, 128, 32), batch=3, zero_grad="before_backward",
                           optimizer="adam"))  # fmt: skip
        found.append(valid(**base, patch=cube, batch=1, out_channels=105, precision="bf16"))
    for name in ("swinunetr", "unetr", "segresnet", "dynunet", "unet"):
        base = {"model": name}
        found += [valid(**base, patch=(side,) * 3, batch=batch)
                  for batch, side in itertools.product((1, 3), (64, 128, 160))]  # fmt: skip
        base["patch"] = (96,) * 3
        found.append(valid(**base, batch=2, grad_accumulation=2, grad_clip=1.0))
        found.append(valid(**base, batch=2, loss="dicefocal", out_channels=2))
        found.append(valid(**base, batch=2, checkpointing=True, precision="fp32"))
    return [w for w in found if w is not None]


def step_workloads() -> list[tuple[Workload, bool]]:
    """(workload, held out): new options of every network first, then what is left of the old."""
    seen, held = before()
    generator = random.Random(SEED)
    fresh: dict[str, Workload] = {}
    for options in STEP_OPTIONS:
        for network in NETWORKS:
            workload = valid(model=network.name, **options)
            if workload is not None:
                fresh.setdefault(workload.key(), workload)
    rest = {w.key(): w for w in asked_before()}
    shuffled = sorted(rest)
    generator.shuffle(shuffled)
    fresh |= {key: rest[key] for key in shuffled if key not in fresh}
    anew = [w for w in map(Workload.from_dict, map(json.loads, sorted(seen | held)))
            if w.model in MEASURED_ANEW]  # fmt: skip
    new = [w for key, w in fresh.items() if key not in seen | held]
    out = third(len(new), generator)
    return [(w, w.key() in held) for w in anew] + list(zip(new, out, strict=True))


def third(count: int, generator: random.Random) -> list[bool]:
    """Which of so many are held out."""
    chosen = set(generator.sample(range(count), round(count / 3)))
    return [i in chosen for i in range(count)]


class Traces:
    """Traces by a pool of processes, kept between runs."""

    def __init__(self) -> None:
        self.pool = WorkerPool(TARGET)

    def each(
        self, wanted: list[tuple[Workload, Validation | None]]
    ) -> Iterator[tuple[int, Trace | SegplanError]]:
        """(position, trace or error) of steps and validations as they come."""
        missing = []
        for index, (workload, validation) in enumerate(wanted):
            kept = cache.load(workload) if validation is None else None
            if kept is None:
                missing.append(index)
            else:
                yield index, trace_from_json(kept)
        requests = (
            {"workload": w.to_dict(), **({} if v is None else {"validation": v.to_dict()})}
            for w, v in (wanted[i] for i in missing)
        )
        for done, (at, answer) in enumerate(self.pool.map_unordered(requests, 300.0)):
            index = missing[at]
            print(f"{done + 1}/{len(missing)}", end="\r", file=sys.stderr)
            if isinstance(answer, SegplanError):
                print(wanted[index][0].model, answer, file=sys.stderr)
                yield index, answer
            else:
                if wanted[index][1] is None:
                    cache.keep(wanted[index][0], answer["trace"])
                yield index, trace_from_json(answer["trace"])


def estimates(traces: Traces, workloads: list[Workload]) -> dict[int, MemoryEstimate]:
    """Predictions by position; those that cannot be traced are missing."""
    found = {}
    for index, trace in traces.each([(w, None) for w in workloads]):
        if isinstance(trace, Trace):
            w = workloads[index]
            found[index] = predict(Tape({w.batch: trace}), w.batch, target_for(w, CARD))
    return found


def steps(_traces: Traces) -> list[dict[str, Any]]:
    """Not predicted beforehand: one that does not fit its limit is a row too."""
    return [{"workload": w.to_dict(), "held_out": held} for w, held in step_workloads()]


def frontier_workloads() -> Iterable[Workload]:
    """Three of each network: a cube, and two other patches in other precisions."""
    patches = ((96, 96, 96), (64, 64, 64), (128, 128, 64), (128, 128, 128), (160, 96, 96))
    precisions = ("bf16", "fp32", "fp16", "tf32")
    for index, network in enumerate(NETWORKS):
        yield from (
            workload
            for workload in (
                valid(model=network.name, patch=patches[0]),
                valid(model=network.name, patch=patches[1 + index % 4],
                      precision=precisions[index % 4], optimizer=("sgd", "adam")[index % 2]),
                valid(model=network.name, patch=patches[1 + (index + 2) % 4],
                      out_channels=(3, 14, 5)[index % 3]),
            )
            if workload is not None
        )  # fmt: skip


def frontier(_traces: Traces) -> list[dict[str, Any]]:
    """Cells whose largest batch is predicted to be 1 to 20, two limits for each workload."""
    cells = []
    for number, workload in enumerate(frontier_workloads()):
        with Predictor(workload, CARD) as predictor:
            try:
                low, high = (predictor.estimate(workload.patch, b).least_memory for b in (2, 3))
                answers = {}
                for limit in LIMITS_MIB:
                    guess = 2 + (limit * MIB - low) // (high - low)
                    if 0 <= guess <= MOST_BATCH:
                        answers[limit] = _largest(predictor, workload, limit, guess)
            except SegplanError as error:
                print("left out:", workload.model, workload.patch, error, file=sys.stderr)
                continue
        trains = [limit for limit, batch in answers.items() if batch > 0]
        start = number % max(1, len(trains) - 1)
        cells += [
            {"workload": workload.to_dict(), "limit_mib": limit, "predicted_batch": answers[limit]}
            for limit in trains[start : start + 2]
        ]
        print(f"{workload.model} {workload.patch} {workload.precision}: {answers}", flush=True)
    # The first cell of every workload comes before the second of any.
    order = sorted(range(len(cells)), key=lambda i: (_again(cells, i), i))
    out = third(len(cells), random.Random(SEED + 1))
    return [{**cells[i], "held_out": out[i]} for i in order]


def _again(cells: list[dict[str, Any]], at: int) -> bool:
    return at > 0 and cells[at - 1]["workload"] == cells[at]["workload"]


def _largest(predictor: Predictor, workload: Workload, limit: int, guess: int) -> int:
    def fits(batch: int) -> Verdict:
        inside = predictor.fits(workload.patch, batch, limit * MIB)
        return Verdict.FITS if inside else Verdict.TOO_BIG

    return largest_batch(fits, guess=guess).max_batch


def least(traces: Traces) -> list[dict[str, Any]]:
    workloads = [w for w in (valid(**values) for values in LEAST) if w is not None]
    found = estimates(traces, workloads)
    out = third(len(workloads), random.Random(SEED + 2))
    return [
        {
            "workload": w.to_dict(),
            "predicted_least_mib": found[i].least_memory // MIB,
            "held_out": out[i],
        }
        for i, w in enumerate(workloads)
        if i in found
    ]


def validations(traces: Traces) -> list[dict[str, Any]]:
    cases = []
    for values, options in VALIDATIONS:
        workload = valid(**values)
        if workload is not None:
            roi = options.get("roi_size", workload.patch)
            cases.append((workload, Validation(**{**options, "roi_size": roi})))
    wanted: list[tuple[Workload, Validation | None]] = [(w, None) for w, _ in cases]
    found = dict(traces.each([*wanted, *cases]))
    out = third(len(cases), random.Random(SEED + 3))
    items = []
    for i, (workload, validation) in enumerate(cases):
        training, validating = found[i], found[i + len(cases)]
        if isinstance(training, Trace) and isinstance(validating, Trace):
            _, together = predict_validation(training, validating, target_for(workload, CARD))
            items.append({
                "workload": workload.to_dict(), "validation": validation.to_dict(),
                "needs_mib": 1.15 * together.peak_reserved / MIB, "held_out": out[i],
            })  # fmt: skip
    return items


def records(_traces: Traces) -> list[dict[str, Any]]:
    asked = [(*record, True) for record in RECORDS]
    asked += [(name, values, limit, None, False) for name, values, limit in UNOBSERVED]
    return [
        {
            "name": name, "workload": resolve(Workload(**values)).to_dict(), "limit_mib": limit,
            "alloc_conf": conf, "needs_mib": limit or 30_000, "operators": operators,
        }
        for name, values, limit, conf, operators in asked
    ]  # fmt: skip


def workspaces(traces: Traces, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convolutions of the frontier's networks and patches at batches 2, 1 and 4, shuffled.

    In half precision first, then with TF32; those of a few MiB decide nothing.
    """
    workloads = {json.dumps(c["workload"]): Workload.from_dict(c["workload"]) for c in cells}
    wanted = [w.replace(batch=b) for w in workloads.values() for b in (1, 2, 3)]
    tapes: dict[str, Tape] = {}
    for index, trace in traces.each([(w, None) for w in wanted]):
        if isinstance(trace, Trace):
            tape = tapes.setdefault(wanted[index].replace(batch=1).key(), Tape())
            tape.traces[wanted[index].batch] = trace
    cases: dict[int, dict[str, dict[str, Any]]] = {b: {} for b in CONVOLUTION_BATCHES}
    for tape in tapes.values():
        for batch in CONVOLUTION_BATCHES:
            if tape.missing(batch):
                continue
            for op in tape.at(batch).ops:
                if op.name != "convolution.default" or op.step or op.args[8] != 1:
                    continue
                image = op.inputs[0]
                elements = image.numel + op.outputs[0].numel
                if len(image.shape) != 5 or not FEWEST_ELEMENTS <= elements <= MOST_ELEMENTS:
                    continue
                case = _case(op)
                cases[batch].setdefault(json.dumps(case), case)
    found = []
    for precision in ("fp16", "tf32"):
        for batch, by_key in cases.items():
            mine = [by_key[key] for key in sorted(by_key)]
            random.Random(SEED).shuffle(mine)
            found += [
                {"name": f"{precision}_{batch}_{at // 80}", "precision": precision,
                 "cases": mine[at : at + 80], "needs_mib": 16_000}
                for at in range(0, len(mine), 80)
            ]  # fmt: skip
    return found


def _case(op: Op) -> dict[str, Any]:
    """A convolution as `workspace_job` is asked for it."""
    return {
        "image": op.inputs[0].shape, "weight": op.inputs[1].shape, "strides": op.args[3],
        "padding": op.args[4], "dilation": op.args[5], "transposed": op.args[6],
        "output_padding": op.args[7],
    }  # fmt: skip


def channels_last(traces: Traces) -> list[dict[str, Any]]:
    """Convolutions of the registered networks, channels last, at batches 1 and 2, shuffled."""
    wanted = [
        w for w in (
            valid(model=n.name, patch=(side,) * 3, batch=batch, memory_format="channels_last_3d")
            for side in (64, 96) for batch in (1, 2) for n in NETWORKS
        ) if w is not None
    ]  # fmt: skip
    cases: dict[str, dict[str, Any]] = {}
    for _, trace in traces.each([(w, None) for w in wanted]):
        if not isinstance(trace, Trace):
            continue
        for op in trace.ops:
            if op.name != "convolution.default" or op.step or len(op.inputs[0].shape) != 5:
                continue
            if op.inputs[0].numel + op.outputs[0].numel >= FEWEST_ELEMENTS:
                case = {**_case(op), "groups": op.args[8]}
                cases.setdefault(json.dumps(case), case)
    mine = [cases[key] for key in sorted(cases)]
    random.Random(SEED).shuffle(mine)
    return [
        {"name": f"{precision}_{at // 40}", "precision": precision, "cases": mine[at : at + 40],
         "needs_mib": 16_000, "memory_format": "channels_last_3d", "seconds": SECONDS}
        for precision in ("bf16", "fp16", "tf32")
        for at in range(0, len(mine), 40)
    ]  # fmt: skip


SECONDS = 60.0
"""Of a process that measures convolutions one by one."""

CONVOLUTION_BATCHES = (2, 1, 4)
FEWEST_ELEMENTS, MOST_ELEMENTS = 2**22, 2**31
"""Of image and result together: 8 MiB to 4 GiB in half precision."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA / "memory_plan.json")
    options = parser.parse_args()
    traces = Traces()
    plan: dict[str, Any] = {"seed": SEED}
    for name, make in (
        ("record", records), ("steps", steps), ("least", least), ("validation", validations),
        ("frontier", frontier),
    ):  # fmt: skip
        plan[name] = make(traces)
        print(f"{name}: {len(plan[name])}", flush=True)
        options.out.write_text(json.dumps(plan) + "\n")
    plan["workspaces"] = workspaces(traces, plan["frontier"])
    plan["channels_last"] = channels_last(traces)
    for name in ("workspaces", "channels_last"):
        print(f"{name}: {len(plan[name])}", flush=True)
    options.out.write_text(json.dumps(plan) + "\n")


if __name__ == "__main__":
    main()
