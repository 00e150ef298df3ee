"""How well measured step times repeat: the same steps, each time in a process of its own.

Run on a GPU: python benchmarks/step_repeats.py OUT.json [--repeats 3] [--seconds 90]

A step is measured as `segplan fit` measures it (median of samples after a warm-up). Written as it
is measured. The table says how far the medians of a step lie apart; host-bound steps wait for
Python and are marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

from document import table

from segplan.gpus import select
from segplan.networks import resolve
from segplan.probe import Prober
from segplan.results import Outcome
from segplan.workload import Workload

STEPS = (
    Workload(model="swinunetr", model_args={"feature_size": 48}, batch=2),
    Workload(model="segresnet", model_args={"init_filters": 32}, batch=4),
    Workload(model="dynunet", batch=4),
    Workload(model="unetr", batch=8),
    Workload(model="segresnet", patch=(128, 128, 128), batch=2, precision="bf16"),
    Workload(model="unetr", batch=2, precision="tf32"),
    Workload(model="unet", batch=1),
)


def measured(out: Path, repeats: int, seconds: float) -> None:
    """Each step so many times, one after the other, so that repeats lie apart in time."""
    until = time.monotonic() + seconds
    found: list[dict[str, object]] = []
    out.write_text("[]\n")
    with Prober(select("0"), share=True, timeout_s=60.0).start() as prober:
        for repeat in range(repeats):
            for workload in map(resolve, STEPS):
                if time.monotonic() > until:
                    return
                probe = prober.probe(workload, fresh=True)
                if probe.outcome is not Outcome.FITS:
                    raise SystemExit(f"{workload.model} did not train: {probe.message}")
                found.append(
                    {"workload": workload.to_dict(), "repeat": repeat,
                     "samples_s": list(probe.step_seconds), "host_bound": probe.host_bound,
                     "throttled": probe.throttled, "environment": asdict(probe.environment)}
                )  # fmt: skip
                out.write_text(json.dumps(found, indent=1) + "\n")


def spread_table(found: list[dict]) -> str:
    """Medians of each step in ms, and how much longer the longest is than the shortest."""
    medians: dict[str, list[float]] = {}
    bound: dict[str, bool] = {}
    for one in found:
        w = Workload.from_dict(one["workload"])
        arguments = ",".join(f"{k}={v}" for k, v in w.model_args.items())
        name = f"{w.model} {arguments} {'x'.join(map(str, w.patch))} b{w.batch} {w.precision}"
        medians.setdefault(name, []).append(1e3 * statistics.median(one["samples_s"]))
        bound[name] = bound.get(name, False) or bool(one["host_bound"])
    return table(
        ("step", "medians, ms", "apart", "host-bound"),
        [
            (name, ", ".join(f"{m:.1f}" for m in values),
             f"{max(values) / min(values) - 1:.1%}" if len(values) > 1 else "measured once",
             "yes" if bound[name] else "")
            for name, values in medians.items()
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--render", action="store_true", help="only print the file's table")
    options = parser.parse_args()
    if not options.render:
        measured(options.out, options.repeats, options.seconds)
    found = json.loads(options.out.read_text())
    if not found:
        raise SystemExit(f"nothing was measured in {options.seconds:g} s: give more --seconds")
    print(spread_table(found))


if __name__ == "__main__":
    main()
