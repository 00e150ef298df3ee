"""Measure many configurations on a card; every third, by a fixed seed, goes to a held-out file.

Run on a GPU: python benchmarks/measure_memory.py OUT_DIRECTORY [--seconds 400] [--part K/N]

Writes memory_seen.csv and memory_heldout.csv, a row as it is made. Processes are reused while
clean, so rows measure peaks, not the boundary of what fits.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import time
from pathlib import Path

from segplan.errors import SegplanError
from segplan.gpus import select
from segplan.networks import NETWORKS, resolve
from segplan.probe import Prober
from segplan.units import MIB
from segplan.workload import Workload

SEED = 20261201
FIELDS = (
    "workload", "outcome", "peak_allocated_mib", "peak_reserved_mib", "retries", "step_ms",
    "step_samples_ms", "card", "torch", "cuda", "cudnn", "driver", "monai", "fresh", "message",
)  # fmt: skip


def configurations() -> list[Workload]:
    """Every registered network over patches, batches, precisions and options."""
    found: dict[str, Workload] = {}

    def add(**values: object) -> None:
        try:
            workload = resolve(Workload(**values))  # type: ignore[arg-type]
        except SegplanError:
            return
        found.setdefault(workload.key(), workload)

    for network in NETWORKS:
        base: dict[str, object] = {"model": network.name}
        side = 128 if network.name == "ahnet" else 96
        cube = (side,) * 3
        for precision in ("fp16", "bf16", "tf32", "fp32"):
            add(**base, patch=cube, batch=1, precision=precision)
        add(**base, patch=cube, batch=2, checkpointing=True)
        add(**base, patch=(64, 64, 64), batch=5, optimizer="sgd")
        add(**base, patch=(128, 128, 64), batch=2, in_channels=4, out_channels=3)
        add(**base, patch=(128, 128, 32), batch=3, zero_grad="before_backward", optimizer="adam")
        add(**base, patch=cube, batch=1, out_channels=105, precision="bf16")
    for name in ("swinunetr", "unetr", "segresnet", "dynunet", "unet"):
        base = {"model": name}
        for batch, side in itertools.product((1, 3), (64, 128, 160)):
            add(**base, patch=(side,) * 3, batch=batch)
        add(**base, patch=(64, 64, 64), batch=16)
        add(**base, patch=(96, 96, 96), batch=2, cudnn_benchmark=True)
        add(**base, patch=(96, 96, 96), batch=2, memory_format="channels_last_3d")
        add(**base, patch=(96, 96, 96), batch=2, grad_accumulation=2, grad_clip=1.0)
        add(**base, patch=(96, 96, 96), batch=2, loss="dicefocal", out_channels=2)
        add(**base, patch=(96, 96, 96), batch=2, checkpointing=True, precision="fp32")
    add(model="swinunetr", model_args={"drop_rate": 0.1, "attn_drop_rate": 0.1}, batch=2)
    add(model="unet", model_args={"dropout": 0.2}, batch=4)
    add(model="segresnet", model_args={"dropout_prob": 0.2}, batch=2)
    return list(found.values())


def split(workloads: list[Workload]) -> list[tuple[Workload, bool]]:
    """(workload, held out) in a random order; a third is held out."""
    order = sorted(workloads, key=lambda w: w.key())
    generator = random.Random(SEED)
    generator.shuffle(order)
    return [(w, i % 3 == 0) for i, w in enumerate(order)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N parts")
    options = parser.parse_args()
    part, parts = (int(x) for x in options.part.split("/"))
    options.directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    rows = split(configurations())[part - 1 :: parts]
    files = {held: (options.directory / f"memory_{name}.csv").open("w", newline="")
             for held, name in ((False, "seen"), (True, "heldout"))}  # fmt: skip
    writers = {held: csv.DictWriter(file, FIELDS) for held, file in files.items()}
    for writer in writers.values():
        writer.writeheader()
    done = 0
    with Prober(select("0"), timeout_s=60) as prober:
        for workload, held in rows:
            if time.monotonic() - began > options.seconds:
                break
            try:
                found = prober.probe(workload, timed_steps=3, warmup=3, budget_s=5)
            except SegplanError as error:
                print("refused:", workload.model, str(error)[:200], flush=True)
                continue
            done += 1
            samples = sorted(found.step_seconds)
            environment = found.environment
            writers[held].writerow({
                "workload": json.dumps(workload.to_dict()),
                "outcome": found.outcome.value,
                "peak_allocated_mib": (found.peak_allocated or 0) / MIB,
                "peak_reserved_mib": (found.peak_reserved or 0) / MIB,
                "retries": found.allocator_retries,
                "step_ms": 1000 * samples[len(samples) // 2] if samples else "",
                "step_samples_ms": " ".join(f"{1000 * s:.3f}" for s in found.step_seconds),
                "card": environment.card_name, "torch": environment.torch,
                "cuda": environment.cuda, "cudnn": environment.cudnn,
                "driver": environment.driver, "monai": environment.monai,
                "fresh": found.fresh, "message": found.message,
            })  # fmt: skip
            files[held].flush()
    print(f"{done} of {len(rows)} rows in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
