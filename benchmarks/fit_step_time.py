"""Fit the step-time model to known times; leave networks and cards out; write the calibration.

Run (no GPU needed; a few minutes, most of them leaving out; tracing once takes as long):
    python benchmarks/fit_step_time.py [--quick]

Writes segplan/timing/h200.json and data/step_time_left_out.csv (each row predicted by a fit
that knew neither its network on that card, nor, for other cards, anything of that card).
`--quick` fits once and leaves nothing out. The held-out rows are never fitted to.

Each factor has a weak prior (a value and a width, in logarithms) from what is known of such
kernels: without one, factors that few rows touch would run away.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from step_time_rows import Row, rows

from segplan.gpus import find_card
from segplan.timing.model import (
    BLOCKED,
    CONVOLUTIONS,
    PRODUCTS,
    ROWED,
    STREAMS,
    Calibration,
    Steps,
    rates_of,
    seconds,
)

HERE = Path(__file__).parent
CALIBRATION = HERE.parent / "segplan" / "timing" / "h200.json"
LEFT_OUT = HERE / "data" / "step_time_left_out.csv"
WIDTH = {"h200": 0.08, "nnU-Net": 0.1, "NVIDIA": 0.12, "baseline": 0.12}
"""Standard deviation of a row's logarithm that the fit aims at, by source."""

GENERATIONS = ("volta", "turing", "ampere", "ampere-ga10x")

THREADS = 512
"""Of a block that reduces a channel (Normalization.cuh) or a group (group_norm_kernel.cu)."""
ROUND_S = 3.5e-7
"""Seconds in which such a thread loads an element and adds it up: some 700 cycles, most of them
the memory's latency."""
AT_ONCE = {"moments": 1.0, "channel_norm_backward": 1.5, "group_norm_backward": 2.0}
"""Elements a thread moves in a round: the image's; three in two rounds; the image's and the
gradient's. cuDNN's kernels are not published: taken as the second."""


class Prior:
    """Names, values and widths (in logarithms) of what is fitted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[float] = []
        self.widths: list[float] = []

    def add(self, name: str, value: float, width: float) -> None:
        self.names.append(name)
        self.values.append(float(np.log(value)))
        self.widths.append(width)


def prior(software: Sequence[str]) -> Prior:
    p = Prior()
    p.add("peak", 0.85, 0.1)
    # FLOP per cycle and multiprocessor; tensor cores do 1024 (V100) to 4096 (H100).
    for kind in CONVOLUTIONS:
        p.add(f"half.{kind}", 1500, 0.5)
    p.add("half.pointwise_conv", 2000, 0.5)
    p.add("half.matmul", 4000, 0.4)
    p.add("half.attention", 3000, 0.3)
    p.add("tf32/conv", 0.6, 0.3)
    p.add("tf32/pointwise_conv", 0.6, 0.3)
    p.add("tf32/matmul", 0.6, 0.3)
    for kind in CONVOLUTIONS:
        p.add(f"fp32.{kind}", 200, 0.7)
    p.add("fp32.pointwise_conv", 300, 0.7)
    p.add("fp32.matmul", 600, 0.5)
    p.add("fp32.attention", 600, 0.5)
    p.add("fill.convolution", 0.5, 0.7)
    p.add("fill.matmul", 0.4, 0.5)
    p.add("inner.convolution", 64, 0.5)
    p.add("inner.matmul", 64, 0.4)
    for kind in STREAMS:
        streams = kind in ("elementwise", "optimizer")
        value, width = (0.8, 0.12) if streams else (0.5, 0.35)
        if kind == "broadcast_cast":  # slow for two reasons
            value, width = 0.3, 0.5
        p.add(f"bandwidth.{kind}", value, width)
    p.add("bandwidth.product", 0.6, 0.3)
    p.add("bandwidth.turned", 0.5, 0.4)
    p.add("grouped.forward", 0.006, 0.8)
    p.add("grouped.backward", 0.006, 0.8)
    p.add("grouped.single", 2.0, 0.6)
    p.add("grouped.bfloat16", 0.5, 0.6)
    for kind in BLOCKED:
        p.add(f"block.{kind}", THREADS * AT_ONCE.get(kind, 1.5) / ROUND_S, 0.6)
    p.add("channels_last", 0.8, 0.3)
    p.add("kernel", 3e-6, 0.3)
    p.add("host.forward", 22e-6, 0.3)
    p.add("host.backward", 40e-6, 0.5)
    p.add("host.optimizer", 60e-6, 0.4)
    p.add("host.step", 2e-3, 0.4)
    for name in GENERATIONS:
        p.add(f"generation.{name}", 1.0, 0.1)
    p.add("older.bandwidth", 1.1, 0.1)
    p.add("older.fp32", 1.5, 0.3)
    p.add("older.fp32.spare", 1.3, 0.3)
    p.add("unaligned", 0.5, 0.4)
    for kind in ROWED:
        p.add(f"row.{kind}", 100, 0.7)
    p.add("emulated_half", 1.0, 0.3)
    for name in software:
        p.add(f"software/{name}", 1.0, 0.5)
    return p


def factors_of(p: Prior, x: np.ndarray) -> dict[str, float]:
    """The calibration's factors; those with "/" are relative to another."""
    v = dict(zip(p.names, np.exp(x).tolist(), strict=True))
    out = {name: value for name, value in v.items() if "/" not in name}
    for kind in PRODUCTS:
        base = "conv" if kind in CONVOLUTIONS else "matmul" if kind == "attention" else kind
        out[f"tf32.{kind}"] = v[f"half.{kind}"] * v[f"tf32/{base}"]
    return out


class Problem:
    """The fit's unknowns, and rows as functions of them."""

    def __init__(self, data: Sequence[Row]) -> None:
        self.prior = prior(sorted({r.software for r in data if r.software}))
        self.start = np.array(self.prior.values)
        self.widths = np.array(self.prior.widths)
        self.clock = rates_of(find_card("h200"), "fp16").clock

    def calibration(self, x: np.ndarray) -> Calibration:
        return Calibration("h200", factors_of(self.prior, x), {}, self.clock, {})

    def predict(self, x: np.ndarray, data: Sequence[Row]) -> np.ndarray:
        return np.exp(Joined(data, self.prior).log(self.calibration(x), x))

    def fit(
        self, data: Sequence[Row], start: np.ndarray | None = None, steps: int = 25
    ) -> np.ndarray:
        measured = np.log([r.measured for r in data])
        widths = np.array([WIDTH[r.source] for r in data])
        joined = Joined(data, self.prior)

        def residuals(x: np.ndarray) -> np.ndarray:
            errors = (joined.log(self.calibration(x), x) - measured) / widths
            return np.concatenate([errors, (x - self.start) / self.widths])

        begin = self.start if start is None else start
        found = least_squares(residuals, begin, loss="soft_l1", f_scale=1.5, max_nfev=steps)
        return np.asarray(found.x)


class Joined:
    """Rows whose times are computed all at once."""

    def __init__(self, data: Sequence[Row], names: Prior) -> None:
        self.steps = Steps(
            [r.table for r in data], [r.rates for r in data], [r.channels_last for r in data]
        )
        kinds = list(dict.fromkeys(r.of for r in data))
        self.kinds = [(of, np.array([r.of is of for r in data])) for of in kinds]
        index = {name: i for i, name in enumerate(names.names)}
        # One more unknown, always 0, for software of the calibration's age.
        self.software = np.array(
            [index[f"software/{r.software}"] if r.software else len(index) for r in data], dtype=int
        )

    def log(self, calibration: Calibration, x: np.ndarray) -> np.ndarray:
        """Logarithm of the seconds of each row."""
        gpu, host = self.steps.gpu(calibration), self.steps.host(calibration)
        found = np.zeros(len(gpu))
        for of, among in self.kinds:
            found = np.where(among, of(gpu, host), found)
        return np.log(found) + np.append(x, 0.0)[self.software]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fit once, leave nothing out")
    parser.add_argument("--steps", type=int, default=25)
    arguments = parser.parse_args()
    data = rows()
    known = [r for r in data if r.source != "h200 held out"]
    problem = Problem(data)
    began = time.time()
    best = problem.fit(known, steps=arguments.steps)
    say(f"fitted {len(known)} rows in {time.time() - began:.0f} s")
    _table(problem.predict(best, known), known)
    if not arguments.quick:
        left_out = list(_leave_out(problem, best, known))
        held = [r for r in data if r.source == "h200 held out"]
        left_out += [
            ("held out", r, p) for r, p in zip(held, problem.predict(best, held), strict=True)
        ]
        _write_left_out(left_out, best, problem)
    _write_calibration(problem, best, len(known))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _leave_out(problem: Problem, best: np.ndarray, known: Sequence[Row]):
    """("network" or "card", row, prediction) by fits that did not know it."""
    for network in sorted({r.network for r in known if r.card.startswith("h200")}):
        out = [r for r in known if r.network == network and r.source == "h200"]
        x = problem.fit(
            [r for r in known if not (r.network == network and r.source == "h200")], best, 4
        )
        for row, predicted in zip(out, problem.predict(x, out), strict=True):
            yield "network", row, predicted
        say(f"left out {network}")
    for card in sorted({r.card for r in known if not r.card.startswith("h200")}):
        out = [r for r in known if r.card == card]
        x = problem.fit([r for r in known if r.card != card], best, 5)
        for row, predicted in zip(out, problem.predict(x, out), strict=True):
            yield "card", row, predicted
        say(f"left out {card}")


COLUMNS = (
    "left_out", "source", "card", "network", "label", "precision", "software", "measured_s",
    "predicted_s", "host_bound", "generation", "tensor_cores",
)  # fmt: skip


def _write_left_out(left_out, best: np.ndarray, problem: Problem) -> None:
    calibration = Calibration("h200", factors_of(problem.prior, best), {}, problem.clock, {})
    with LEFT_OUT.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for kind, row, predicted in left_out:
            parts = seconds(row.table, row.rates, calibration, channels_last=row.channels_last)
            writer.writerow(
                [kind, row.source, row.card, row.network, row.label, row.precision,
                 row.software or "", f"{row.measured:.6g}", f"{predicted:.6g}", parts.host_bound,
                 row.rates.generation, row.rates.on_tensor_cores(row.precision)]
            )  # fmt: skip


def spreads() -> dict[str, float]:
    """Standard deviations of log(predicted / measured) among left-out rows, by case.

    Robust: half the width between the 10th and 90th percentiles over 1.2816, biases included
    (the percentiles of the absolute value).
    """
    with LEFT_OUT.open() as file:
        table = list(csv.DictReader(file))

    def spread(chosen) -> float:
        errors = [abs(np.log(float(r["predicted_s"]) / float(r["measured_s"]))) for r in chosen]
        return float(np.quantile(errors, 0.8)) / 1.2816

    same = [r for r in table if r["left_out"] == "network"]
    steps = [r for r in table if r["left_out"] == "card" and r["source"] != "baseline"]
    network = spread([r for r in same if r["host_bound"] == "False"])
    hosts = spread([r for r in same if r["host_bound"] == "True"])
    found = {"network": network, "host": _beyond(hosts, network)}
    card = spread(
        [r for r in steps if r["software"] != "PyTorch 1.6" and r["generation"] != "pascal"]
    )
    found["card.other"] = max(_beyond(card, 0.0), 0.1)
    pascal = [r for r in steps if r["generation"] == "pascal"]
    found["no_tensor_cores"] = _beyond(spread(pascal), card) if pascal else 0.3
    # Not in the tables: a generation without 3D rows may be off by as much as those that have
    # them are from each other, and a cache several times larger by as much again.
    found["card.unseen"] = found["card.other"] * 1.5
    found["cache"] = found["card.other"]
    return {name: round(value, 4) for name, value in found.items()}


def _beyond(whole: float, part: float) -> float:
    """What must be added to a part in quadrature to give the whole."""
    return float(np.sqrt(max(whole**2 - part**2, 0.0)))


def _write_calibration(problem: Problem, best: np.ndarray, count: int) -> None:
    rounded = {k: float(f"{v:.4g}") for k, v in sorted(factors_of(problem.prior, best).items())}
    before = json.loads(CALIBRATION.read_text())["spread"] if CALIBRATION.exists() else {}
    timed = {k: v for k, v in before.items() if k == "network.timed"}  # operator_correction.py's
    document = {
        "card": find_card("h200").slug,
        "clock": problem.clock,
        "factors": rounded,
        "spread": {**spreads(), **timed},
        "about": {
            "made_by": "benchmarks/fit_step_time.py",
            "rows": str(count),
            "software": "torch 2.11.0+cu130, cuDNN 9.19, MONAI 1.6.1",
        },
    }
    CALIBRATION.write_text(json.dumps(document, indent=1) + "\n")
    say(f"wrote {CALIBRATION.name}")


def _table(predicted: np.ndarray, data: Sequence[Row]) -> None:
    by_source: dict[str, list[float]] = {}
    for row, value in zip(data, predicted, strict=True):
        by_source.setdefault(row.source, []).append(abs(float(np.log(value / row.measured))))
    for source, errors in by_source.items():
        median, high = np.quantile(errors, (0.5, 0.9))
        say(f"{source:10s} {len(errors):4d} median {median:.1%} p90 {high:.1%}")


if __name__ == "__main__":
    main()
