"""Every preset on every card of the catalogue: seconds each takes, and what comes out.

Run (no GPU needed): python benchmarks/days_presets.py [PRESET ...]

The bar is 60 s a preset on two cores, the start of a fresh process included. On a machine that
others use, look at the processors' seconds instead: those of the main process and half of its
workers' (traces run two at a time, and before everything else) are what two free cores take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from segplan.api.config import preset_names

BAR_S = 60.0
PROGRAM = """
import json, resource, sys
from segplan import load_experiment, plan_days
from segplan.report import json as report_json
from segplan.report.days import document
experiment = load_experiment(sys.argv[1])
plans = plan_days([experiment], ["catalog"])
report_json.write(document([experiment], plans), sys.stdout)
own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([u.ru_utime + u.ru_stime for u in (own, workers)]), file=sys.stderr)
"""


@dataclass
class Run:
    wall_s: float
    main_s: float
    workers_s: float
    plans: list[dict[str, Any]]

    @property
    def two_cores_s(self) -> float:
        return self.main_s + self.workers_s / 2


def run(name: str) -> Run:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - start
    main_s, workers_s = json.loads(done.stderr.splitlines()[-1])
    return Run(wall, main_s, workers_s, json.loads(done.stdout)["plans"])


def days(plan: dict[str, Any] | None) -> str:
    return "–" if plan is None else f"{plan['total']['seconds'] / 86400:.2g}"


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| preset | wall s | main s | workers s | two free cores s | cards it fits ", end="")
    print("| RTX 3090, days | A100 80GB, days | H200, days |")
    print("|---|---|---|---|---|---|---|---|---|")
    slow = []
    for name in sys.argv[1:] or preset_names():
        r = run(name)
        cards = {p["card"]: p for p in r.plans if p["fits"] and p["total"]}
        shown = [days(cards.get(c)) for c in ("rtx-3090", "a100-sxm4-80gb", "h200-sxm-141gb")]
        times = " | ".join(f"{s:.0f}" for s in (r.wall_s, r.main_s, r.workers_s, r.two_cores_s))
        fits = f"{sum(p['fits'] for p in r.plans)} of {len(r.plans)}"
        print(f"| {name} | {times} | {fits} | {' | '.join(shown)} |", flush=True)
        if min(r.wall_s, r.two_cores_s) > BAR_S:
            slow.append(name)
    if slow:
        print(f"\nabove {BAR_S:.0f} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
