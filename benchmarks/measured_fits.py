"""Run `segplan fit` on the card that is here as a user would, and keep what it says.

Run on a GPU: python benchmarks/measured_fits.py OUT.json [--only NAME,...] [--store FILE]

The runs: three networks on the full card and as an RTX 3090 (six default patches, fp16), and the
cells of data/h200_frontier.csv under an allocator limit of 23,000 MiB. Written after every run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

FIT = [sys.executable, "-m", "segplan.cli.main", "fit", "--gpu", "0", "--json"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--store", default="")
    parser.add_argument("--seconds", type=float, default=500.0)
    options = parser.parse_args()
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
