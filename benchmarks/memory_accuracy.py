"""Predicted memory against measured rows; prints tables for docs/accuracy.md.

Run: python benchmarks/memory_accuracy.py [--markdown] [--only steps|least|frontier]
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

from segplan.api.predicting import Predictor
from segplan.gpus import find_card
from segplan.networks import resolve
from segplan.units import MIB, parse_patch
from segplan.workload import Workload

DATA = Path(__file__).parent / "data"
CARD = find_card("h200")


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def predictor_for(workload: Workload, cache: dict[Workload, Predictor]) -> Predictor:
    resolved = resolve(workload)
    key = resolved.replace(batch=1, patch=(96, 96, 96))
    if key not in cache:
        cache[key] = Predictor(resolved, CARD)
    return cache[key]


def steps(cache: dict[Workload, Predictor]) -> list[tuple[dict[str, str], int, int]]:
    found = []
    for row in rows("h200_steps.csv"):
        if row["outcome"] != "fits":
            continue
        workload = Workload(
            model=row["model"],
            in_channels=int(row["cin"]),
            out_channels=int(row["cout"]),
            patch=parse_patch(row["patch"]),
            batch=int(row["batch"]),
            precision=row["precision"],
            optimizer=row["optim"],
            memory_format="channels_last_3d" if row["chlast"] == "True" else "contiguous",
            cudnn_benchmark=row["bench"] == "True",
            zero_grad="before_backward",
        )
        estimate = predictor_for(workload, cache).estimate(workload.patch, workload.batch)
        found.append((row, estimate.peak_allocated, estimate.peak_reserved))
    return found


def summary(errors: list[float]) -> str:
    size = sorted(abs(e) for e in errors)
    p90 = size[min(len(size) - 1, int(0.9 * len(size)))]
    under = sum(e < 0 for e in errors) / len(errors)
    return (
        f"{len(errors)} | {100 * statistics.median(size):.2f} % | {100 * p90:.2f} % | "
        f"{100 * size[-1]:.2f} % | {100 * under:.0f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("steps", "least", "frontier"))
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    cache: dict[Workload, Predictor] = {}
    if options.only in (None, "steps"):
        groups: dict[str, list[float]] = defaultdict(list)
        reserved: dict[str, list[float]] = defaultdict(list)
        for row, allocated, held in steps(cache):
            error = allocated / MIB / float(row["peak_alloc_mib"]) - 1
            held_error = held / MIB / float(row["peak_reserved_mib"]) - 1
            special = row["bench"] == "True" or row["chlast"] == "True"
            names = (
                ["benchmark or channels last"]
                if special
                else ["all others", row["model"], row["precision"]]
            )
            for name in names:
                groups[name].append(error)
                reserved[name].append(held_error)
            if options.rows:
                print(
                    f"{row['model']:14s} {row['patch']:12s} b{row['batch']:3s} {row['precision']} "
                    f"bench={row['bench'][0]} cl={row['chlast'][0]} "
                    f"allocated {100 * error:+.2f} % reserved {100 * held_error:+.1f} %"
                )
        print("| peak allocated | rows | median | p90 | worst | under |\n|---|---|---|---|---|---|")
        for name, errors in groups.items():
            print(f"| {name} | {summary(errors)} |")
        print(
            "\n| peak reserved | rows | median | p90 | worst | under |\n|---|---|---|---|---|---|"
        )
        for name, errors in reserved.items():
            print(f"| {name} | {summary(errors)} |")
    if options.only in (None, "least"):
        print("\n| least memory | measured MiB | predicted | error |\n|---|---|---|---|")
        for row in rows("h200_least_memory.csv"):
            workload = Workload(
                model=row["model"], patch=parse_patch(row["patch"]), batch=int(row["batch"]),
                precision=row["precision"], zero_grad="before_backward",
            )  # fmt: skip
            estimate = predictor_for(workload, cache).estimate(workload.patch, workload.batch)
            measured = float(row["least_allocator_mib"])
            predicted = estimate.least_memory / MIB
            print(
                f"| {row['model']} {row['patch']}³ b{row['batch']} | {measured:.0f} | "
                f"{predicted:.0f} | {100 * (predicted / measured - 1):+.1f} % |"
            )
    if options.only in (None, "frontier"):
        from segplan import fit

        print("\n| frontier | measured | also seen | predicted |\n|---|---|---|---|")
        exact = 0
        table = rows("h200_frontier.csv")
        for row in table:
            workload = Workload(
                model=row["model"], precision=row["precision"], zero_grad="before_backward"
            )
            cell = fit(
                workload, gpu="h200", patches=[parse_patch(row["patch"])],
                allocator_limit=int(row["cap_mib"]) * MIB,
            ).cells[0]  # fmt: skip
            seen = {row["max_batch"], *row["also_seen"].split("/")}
            hit = str(cell.max_batch) in seen
            exact += hit
            print(
                f"| {row['model']} {row['patch']}³ {row['precision']} | {row['max_batch']} | "
                f"{row['also_seen']} | {cell.max_batch}{'' if hit else ' ✗'} |"
            )
        print(f"\nExact: {exact} of {len(table)}.")
    for predictor in cache.values():
        predictor.__exit__(None, None, None)


if __name__ == "__main__":
    main()
