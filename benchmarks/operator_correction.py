"""What operators timed one by one do for predicted steps: with and without, networks left out.

Run (no GPU needed):
    python benchmarks/operator_correction.py [OPERATORS.json] [--refit] [--grid] [--write]

Scores the GPU-bound steps measured on an H200 (rows of `step_time_rows.py`) against the model
alone, corrected by all timed operators, without those that only the network scored holds, and
without all that occur in it (`data/operator_networks.json`). `--refit` fits the model anew
without each network as well (kept between runs), so that nothing of a network is known. `--grid`
looks for the distance over which operators speak for each other, and how much (`Smoothness`'
defaults are what it found). `--write` writes the part on timed operators of docs/accuracy.md and,
into segplan/timing/h200.json, the spread that intervals of corrected steps are made from.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from document import table, write_part
from fit_step_time import Problem, factors_of
from step_time_rows import Row, rows

from segplan.api.calibrations import rates_by_precision, read_calibration
from segplan.gpus import find_card
from segplan.timing.correction import Correction, Smoothness, residuals
from segplan.timing.model import Calibration, seconds, shipped_calibration
from segplan.timing.operators import Operator, OperatorTime, operators_from_plain
from segplan.timing.work import KINDS

HERE = Path(__file__).parent
ROOM = HERE.parent / "segplan" / "timing"
REFITS = Path(tempfile.gettempdir()) / "segplan-left-out-factors.json"
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")

ALL, OWN, ANY = "all operators", "left out: its own", "left out: any of it"
"""Which operators correct: all; those that would be on a list made without the network; those
that occur nowhere in it."""


class Timed:
    """A file of operator times, and in which networks each operator occurs."""

    def __init__(self, path: Path) -> None:
        self.found = read_calibration(path)
        listed = operators_from_plain(json.loads((ROOM / "operators.json").read_text()))
        names = json.loads((HERE / "data" / "operator_networks.json").read_text())
        networks: dict[Operator, set[str]] = dict(zip(listed, map(set, names), strict=True))
        missing = sum(t.operator not in networks for t in self.found.times)
        if missing:
            print(f"{missing} operators are of another list: what they occur in is not known")
        self.networks = [networks.get(t.operator, set()) for t in self.found.times]
        self.rates = rates_by_precision(find_card(self.found.card))

    def without(self, network: str, how: str) -> list[OperatorTime]:
        return [
            t for t, names in zip(self.found.times, self.networks, strict=True)
            if how == ALL or (names != {network} if how == OWN else network not in names)
        ]  # fmt: skip


def predicted(row: Row, calibration: Calibration, correction: Correction | None) -> float:
    factors = None if correction is None else correction.factors(row.table, row.precision)
    parts = seconds(
        row.table, row.rates, calibration, channels_last=row.channels_last, factors=factors
    )
    return float(row.of(np.array(parts.gpu), np.array(parts.host)))


def errors(
    data: Sequence[Row],
    timed: Timed,
    calibrations: dict[str, Calibration],
    smoothness: Smoothness,
    how: str,
) -> np.ndarray:
    """log(predicted / measured) of each row."""
    found = np.zeros(len(data))
    for network in sorted({r.network for r in data}):
        calibration = calibrations[network]
        times = timed.without(network, how)
        correction = Correction(times, timed.rates, calibration, smoothness)
        for i, row in enumerate(data):
            if row.network == network:
                found[i] = np.log(predicted(row, calibration, correction) / row.measured)
    return found


def spread(found: np.ndarray) -> float:
    """Robust standard deviation, bias included (as `fit_step_time.spreads`)."""
    return float(np.quantile(np.abs(found), 0.8) / 1.2816)


def summary(name: str, how: str, found: np.ndarray) -> list[object]:
    relative = np.expm1(np.abs(found))
    return [
        name, how, len(found), *(f"{np.quantile(relative, q):.1%}" for q in (0.5, 0.9)),
        f"{relative.max():.0%}", f"{np.exp(np.median(found)):.2f}", f"{spread(found):.3f}",
    ]  # fmt: skip


HEADER = ("rows", "predicted by", "number", "median", "p90", "worst", "median ratio", "spread")


def refitted(data: Sequence[Row], networks: Sequence[str]) -> dict[str, Calibration]:
    """The model's calibration from rows without each network."""
    known = [r for r in data if r.source != "h200 held out"]
    problem = Problem(data)
    kept = json.loads(REFITS.read_text()) if REFITS.exists() else {}
    best = None
    for network in networks:
        if network in kept:
            continue
        if best is None:
            best = problem.fit(known, steps=25)
        rest = [r for r in known if not (r.network == network and r.card.startswith("h200"))]
        kept[network] = factors_of(problem.prior, problem.fit(rest, best, 4))
        REFITS.write_text(json.dumps(kept))
        print(f"fitted without {network}", flush=True)
    shipped = shipped_calibration()
    return {n: dataclasses.replace(shipped, factors=kept[n]) for n in networks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="?", default=str(ROOM / "h200_operators.json"))
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    everything = rows()
    h200 = [r for r in everything if r.source.startswith("h200")]
    shipped = shipped_calibration()
    bound = [
        r for r in h200
        if not seconds(r.table, r.rates, shipped, channels_last=r.channels_last).host_bound
    ]  # fmt: skip
    networks = sorted({r.network for r in bound})
    calibrations = dict.fromkeys(networks, shipped)
    if arguments.refit:
        calibrations = refitted(everything, networks)
    timed = Timed(Path(arguments.operators))
    _operators(timed)

    seen = [r for r in bound if r.source == "h200"]
    held = [r for r in bound if r.source != "h200"]
    smoothness = Smoothness()
    if arguments.grid:
        smoothness = _grid(seen, timed, calibrations)
    tables = []
    for name, data in (("measured", seen), ("held out", held)):
        alone = np.array(
            [np.log(predicted(r, calibrations[r.network], None) / r.measured) for r in data]
        )
        by_how = {"model alone": alone}
        for how in (ALL, OWN, ANY):
            by_how[how] = errors(data, timed, calibrations, smoothness, how)
        if name == "measured" and arguments.write:
            _write_spread(by_how[OWN])
        groups = [("all", "")] + [("precision", p) for p in PRECISIONS]
        groups += [("network", n) for n in sorted({r.network for r in data})]
        cells = []
        for attribute, value in groups:
            among = np.array([not value or getattr(r, attribute) == value for r in data])
            if among.any():
                cells += [
                    summary(value or attribute, how, found[among]) for how, found in by_how.items()
                ]
        tables.append(table(HEADER, cells))
        print(f"{name}\n\n{tables[-1]}")
    if arguments.write:
        _write_part(timed, arguments.refit, tables)


def _write_spread(left: np.ndarray) -> None:
    path = ROOM / "h200.json"
    document = json.loads(path.read_text())
    document["spread"]["network.timed"] = round(spread(left), 4)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _write_part(timed: Timed, refit: bool, tables: Sequence[str]) -> None:
    model = "a fit that did not know the network" if refit else "the fit that is shipped"
    write_part(
        "timed operators",
        f"""
## Step time from operators timed one by one

Made by `python benchmarks/operator_correction.py --write`. GPU-bound steps measured on an H200
against the model alone ({model}), the model corrected by {len(timed.found.times)} operators timed
on that card, without those that only the network scored holds (as if the list had been made
without it), and without all that occur in it. "Median ratio" is predicted over measured.

Rows that shares were fitted to:

{tables[0]}
Rows held out:

{tables[1]}
""",
    )


def _operators(timed: Timed) -> None:
    """How operators stand to the model, and what leaving networks out leaves of that."""
    works, found, _ = residuals(timed.found.times, timed.rates, shipped_calibration())
    cells = []
    for kind in np.unique(works.kind):
        among = found[works.kind == kind]
        cells.append(
            [KINDS[kind], len(among), *(f"{np.exp(np.quantile(among, q)):.2f}" for q in
             (0.1, 0.25, 0.5, 0.75, 0.9))]
        )  # fmt: skip
    print(table(("measured / modelled", "operators", "p10", "p25", "median", "p75", "p90"), cells))


def _grid(data: Sequence[Row], timed: Timed, calibrations: dict[str, Calibration]) -> Smoothness:
    scored = []
    for length, local, kind, noise in itertools.product(
        (1.0, 2.0, 4.0, 8.0), (0.2, 0.4), (0.1, 0.3, 1.0), (0.05, 0.15)
    ):
        tried = Smoothness(length, local, kind, noise)
        left = np.expm1(np.abs(errors(data, timed, calibrations, tried, OWN)))
        scored.append((float(np.quantile(left, 0.5)), float(np.quantile(left, 0.9)), tried))
    scored.sort(key=lambda s: s[0] + 0.5 * s[1])
    print(table(("median", "p90", "smoothness"), [(f"{m:.1%}", f"{h:.1%}", s) for m, h, s in
                                                  scored[:12]]))  # fmt: skip
    return scored[0][2]


if __name__ == "__main__":
    main()
