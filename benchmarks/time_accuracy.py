"""Predicted step times against known ones that the fit did not know: docs/accuracy.md.

Run: python benchmarks/time_accuracy.py (after fit_step_time.py, which leaves rows out).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from document import table, write_part
from fit_step_time import CALIBRATION, LEFT_OUT

from segplan.gpus import find_card
from segplan.timing.model import calibration_from_json
from segplan.timing.prediction import EIGHTY

Entry = dict[str, str]


def error(entry: Entry) -> float:
    """log(predicted / measured)."""
    return math.log(float(entry["predicted_s"]) / float(entry["measured_s"]))


def summary(name: str, entries: Sequence[Entry], spread: float | None = None) -> list[object]:
    errors = np.array([error(e) for e in entries])
    relative = np.expm1(np.abs(errors))
    cells: list[object] = [name, len(entries)]
    cells += [f"{np.quantile(relative, q):.0%}" for q in (0.5, 0.9)]
    cells += [f"{relative.max():.0%}", f"{(errors < 0).mean():.0%}"]
    covered = "" if spread is None else f"{(np.abs(errors) <= EIGHTY * spread).mean():.0%}"
    return [*cells, covered]


HEADER = ("group", "rows", "median", "p90", "worst", "too quick", "in the 80 % interval")


def spread_of(entry: Entry, spread: dict[str, float]) -> float:
    """As `segplan.timing.prediction.spread_of` adds it up."""
    total = spread["network"] ** 2
    if entry["left_out"] == "card":
        total += spread["card.other"] ** 2
    if entry["tensor_cores"] == "False" and entry["precision"] in ("fp16", "bf16"):
        total += spread["no_tensor_cores"] ** 2
    if entry["host_bound"] == "True":
        total += spread["host"] ** 2
    return math.sqrt(total)


def covered(entries: Sequence[Entry], spread: dict[str, float]) -> str:
    inside = [abs(error(e)) <= EIGHTY * spread_of(e, spread) for e in entries]
    return f"{np.mean(inside):.0%}"


def group(name: str, entries: Sequence[Entry], spread: dict[str, float]) -> list[object]:
    return [*summary(name, entries)[:-1], covered(entries, spread)]


def main() -> None:
    with LEFT_OUT.open() as file:
        entries = list(csv.DictReader(file))
    calibration = calibration_from_json(CALIBRATION.read_text())
    spread = dict(calibration.spread)
    same = [e for e in entries if e["left_out"] == "network"]
    held = [e for e in entries if e["left_out"] == "held out"]
    cards = [e for e in entries if e["left_out"] == "card"]
    bound = [e for e in same if e["host_bound"] == "False"]

    rows = [
        group("H200, network left out, GPU-bound", bound, spread),
        group("the same, host-bound", [e for e in same if e["host_bound"] == "True"], spread),
    ]
    rows += [
        group(f"GPU-bound, {p}", [e for e in bound if e["precision"] == p], spread)
        for p in ("fp16", "bf16", "tf32", "fp32")
    ]
    networks = sorted({e["network"] for e in bound})
    rows += [group(n, [e for e in bound if e["network"] == n], spread) for n in networks]
    rows.append(group("H200, rows held out (their networks known)", held, spread))

    other = [e for e in cards if e["source"] != "baseline"]
    card_rows = [
        group("all", other, spread),
        *(
            group(
                f"nnU-Net v1 epochs, {v}",
                [e for e in other if e["software"] == v and e["source"] == "nnU-Net"],
                spread,
            )
            for v in ("PyTorch 1.6", "PyTorch 1.7", "PyTorch 1.11")
        ),
        *(
            group(c, [e for e in other if e["card"] == c], spread)
            for c in sorted({e["card"] for e in other})
        ),
    ]

    pairs: list[float] = []
    pair_rows = []
    order = []
    for software in sorted({e["software"] for e in cards if e["source"] == "baseline"}):
        column = {
            e["card"]: e for e in cards if e["source"] == "baseline" and e["software"] == software
        }
        errors = [
            math.expm1(abs(error(column[a]) - error(column[b]))) for a, b in combinations(column, 2)
        ]
        pairs += errors
        a40, old = column[find_card("a40").slug], column[find_card("rtx-3090").slug]
        real = float(old["measured_s"]) / float(a40["measured_s"])
        ours = float(old["predicted_s"]) / float(a40["predicted_s"])
        order.append((real - 1) * (ours - 1) > 0)
        pair_rows.append(
            [software, len(errors), f"{np.median(errors):.0%}", f"{np.quantile(errors, 0.9):.0%}",
             f"{real:.2f}", f"{ours:.2f}"]
        )  # fmt: skip
    pair_rows.append(
        [
            "all",
            len(pairs),
            f"{np.median(pairs):.0%}",
            f"{np.quantile(pairs, 0.9):.0%}",
            "",
            f"order right in {sum(order)} of {len(order)}",
        ]
    )

    about = json.loads(CALIBRATION.read_text())["about"]
    write_part(
        "step time",
        f"""
## Step time

Made by `python benchmarks/time_accuracy.py`. The model's factors are fitted by
`benchmarks/fit_step_time.py` to {about["rows"]} known times ({about["software"]} on
the H200, and the published tables named below); every row here was predicted by a fit that did
not know it. A ratio's error is the larger of predicted/measured and its inverse, less one. "Too
quick" is the share of rows predicted shorter than they are.

### The same card, another network

{table(HEADER, rows)}
Host-bound steps wait for Python; how long depends on the host's processor, which no card's name
tells.

### Another card

3D networks on cards of which the fit knew nothing: nnU-Net v1's epochs without data loading
(250 training and 50 validation iterations; a DynUNet of the same plan, without the heads of deep
supervision) and NVIDIA's DynUNet table of container 21.11. Each age of the software has one factor,
known from the other cards.

{table(HEADER, card_rows)}
PyTorch 1.6 picked other convolution kernels on Volta than later versions (its times fall by
half with the next version, on that card more than on others), which one factor cannot tell.

### ResNet50 and ViT-B/16, ratios between cards

Inference with PyTorch 1.9 (AutoDL's table); each card left out of the fit in its turn. The ratio
of every pair of eleven cards, and A40 over RTX 3090 as published and as predicted.

{table(("column", "pairs", "median", "p90", "A40 / 3090", "predicted"), pair_rows)}
""",
    )


if __name__ == "__main__":
    main()
