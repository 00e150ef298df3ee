"""Run `segplan fit` on the card that is here as a user would, and keep what it says.

Run on a GPU: python benchmarks/measured_fits.py OUT.json [--only NAME,...] [--store FILE]
              python benchmarks/measured_fits.py OUT.json --attempts 3 --of FITS.json

The runs: three networks on the full card and as an RTX 3090 (six default patches, fp16), and the
cells of data/h200_frontier.csv under an allocator limit of 23,000 MiB. Written after every run.
`--attempts` asks again, in fresh processes one at a time, about the cells of FITS.json that ended
elsewhere than in data/h200_frontier.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from document import table, write_part

FIT = [sys.executable, "-m", "segplan.cli.main", "fit", "--gpu", "0", "--json"]
FRONTIER = Path(__file__).parent / "data" / "h200_frontier.csv"
ATTEMPTS = Path(__file__).parent / "data" / "h200_attempts.json"
LIMIT = ["--allocator-limit", "23000MiB", "--zero-grad", "before_backward"]
CUBES = ["--patch", "96", "--patch", "128", "--patch", "160"]


def runs() -> dict[str, list[str]]:
    found = {}
    for model in ("swinunetr", "segresnet", "unetr"):
        found[f"{model}-as-rtx-3090"] = ["--model", model, "--as", "rtx-3090"]
    for model in ("swinunetr", "segresnet", "unetr"):
        found[f"{model}-full"] = ["--model", model]
    for model in ("swinunetr", "unetr", "segresnet"):
        found[f"{model}-23000"] = ["--model", model, *CUBES, *LIMIT]
    found["dynunet-23000"] = ["--model", "dynunet", "--precision", "fp32", *CUBES, *LIMIT]
    return found


def differing(results: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """(network, side, batch found, batch of data/h200_frontier.csv) of cells that differ."""
    with FRONTIER.open() as file:
        truth = {(r["model"], r["patch"]): r for r in csv.DictReader(file)}
    found = []
    for name, run in results.items():
        for c in run["document"]["cells"] if name.endswith("-23000") else ():
            model, side = name.removesuffix("-23000"), side_of(c)
            row = truth[model, side]
            seen = [int(n) for n in (row["max_batch"], *row["also_seen"].split())]
            if c["max_batch"] not in seen:
                found.append((model, side, c["max_batch"], seen[0]))
    return found


def attempt(results: dict[str, Any], times: int) -> Iterator[dict[str, Any]]:
    """Outcomes of every batch on which two answers disagree, and of the one above."""
    from segplan.gpus import select
    from segplan.networks import resolve
    from segplan.probe import Prober
    from segplan.units import MIB
    from segplan.workload import Workload

    asked = [
        (model, side, batch)
        for model, side, ours, theirs in differing(results)
        for batch in range(min(ours, theirs) + 1, max(ours, theirs) + 2)
    ]
    with Prober(select("0"), allocator_limit=23_000 * MIB).start() as prober:
        for count in range(times):
            for model, side, batch in asked:
                workload = resolve(Workload(
                    model=model, patch=(int(side),) * 3, batch=batch, zero_grad="before_backward",
                    precision="fp32" if model == "dynunet" else "fp16",
                ))  # fmt: skip
                found = prober.probe(workload, fresh=True, timed_steps=0)
                yield {
                    "model": model, "patch": side, "batch": batch, "attempt": count + 1,
                    "outcome": found.outcome.value, "retries": found.allocator_retries,
                    "seconds": found.wall_s,
                }  # fmt: skip


def part(results: dict[str, Any]) -> str:
    """The runs as a part of docs/accuracy.md."""
    rows, cells = [], []
    for name, run in results.items():
        found = run["document"]["cells"]
        told = ", ".join(f"{side_of(c)}: {c['max_batch']} ({c['probes']})" for c in found)
        rows.append([f"`{run['command']}`", f"{run['seconds']:.0f}", told])
        if not name.endswith("-23000"):
            cells += found
    small = [c["probes"] for c in cells if c["max_batch"] <= 16]
    large = [c["probes"] for c in cells if c["max_batch"] > 16]
    limited = [c for n, run in results.items() if n.endswith("-23000")
               for c in run["document"]["cells"]]  # fmt: skip
    differ = [f"{model} {side}³ {ours} ({theirs})"
              for model, side, ours, theirs in differing(results)]  # fmt: skip
    return f"""
## Fits measured on an H200

Made by `python benchmarks/measured_fits.py OUT.json` on a card (torch 2.11.0+cu130, MONAI 1.6.1,
16 cores), whole processes, start-up counted; `--document` writes this part. Cells: patch: largest
batch (probes); every answer b was seen to train in a fresh process, and b + 1 to fail in another.

{table(("command", "seconds", "cells"), rows)}
Of the six runs without a limit, {len(small)} cells up to batch 16 took
{sum(small) / len(small):.1f} probes each, {len(large)} above took {sum(large) / len(large):.1f}.
Under 23,000 MiB {len(differ)} of {len(limited)} cells ended elsewhere than the earlier
measurement in `benchmarks/data/h200_frontier.csv` (in brackets): {"; ".join(differ)}. The boundary
is soft: which of two equal free blocks is taken depends on addresses that differ from process to
process.
{tried_again()}"""


def tried_again() -> str:
    """The attempts at cells that differ, in a table."""
    if not ATTEMPTS.exists():
        return ""
    outcomes: dict[tuple[str, str, int], list[str]] = {}
    for row in json.loads(ATTEMPTS.read_text(encoding="utf-8")):
        key = row["model"], row["patch"], row["batch"]
        outcomes.setdefault(key, []).append(row["outcome"].replace("_", " "))
    rows = [(f"{m} {s}³", str(b), ", ".join(o)) for (m, s, b), o in sorted(outcomes.items())]
    return f"""
Those cells were asked again, each attempt in a fresh process, one at a time
(`measured_fits.py OUT.json --attempts 3`):

{table(("cell", "batch", "attempts"), rows)}"""


def side_of(cell: dict[str, Any]) -> str:
    """The cube's side."""
    return str(cell["patch"][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--store", default="")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--document", action="store_true", help="write docs/accuracy.md from OUT")
    parser.add_argument("--attempts", type=int, default=0)
    parser.add_argument("--of", type=Path, help="fits whose differing cells are tried again")
    options = parser.parse_args()
    if options.attempts:
        rows = []
        fits = json.loads((options.of or options.out).read_text(encoding="utf-8"))
        for row in attempt(fits, options.attempts):
            rows.append(row)
            options.out.write_text(json.dumps(rows, indent=1))
            print(row, flush=True)
        return
    if options.document:
        write_part("measured fits", part(json.loads(options.out.read_text(encoding="utf-8"))))
        return
    wanted = [name for name in options.only.split(",") if name]
    store = options.store or f"{options.out}.sqlite"
    began = time.monotonic()
    results = {}
    for name, arguments in runs().items():
        if (wanted and name not in wanted) or time.monotonic() - began > options.seconds:
            continue
        start = time.monotonic()
        try:
            done = subprocess.run(
                [*FIT, *arguments, "--store", store], capture_output=True, text=True, timeout=120
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, out, err = -1, "", str(error.stderr)[-2000:]
        seconds = time.monotonic() - start
        document = json.loads(out) if code == 0 else None
        results[name] = {
            "command": " ".join(["segplan", "fit", "--gpu", "0", *arguments]),
            "seconds": round(seconds, 1),
            "exit": code,
            "document": document,
            "stderr": err.splitlines()[-40:],
        }
        options.out.write_text(json.dumps(results, indent=1))
        cells = document["fit"]["cells"] if document and "fit" in document else []
        if document and not cells:
            cells = document.get("cells", [])
        probes = sum(c["probes"] for c in cells)
        print(
            f"{name}: exit {code}, {seconds:.0f} s, {probes} probes, "
            + " ".join(f"{c['patch'][0]}:{c['max_batch']}({c['probes']})" for c in cells),
            flush=True,
        )
        if code:
            print(err[-600:], flush=True)


if __name__ == "__main__":
    main()
