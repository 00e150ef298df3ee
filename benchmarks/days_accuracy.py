"""Experiments predicted and real: a part of docs/accuracy.md.

Run: python benchmarks/days_accuracy.py (after fit_step_time.py). Each epoch was predicted by a fit
that knew nothing of the card; 1,000 epochs are a fold, as nnU-Net trains.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import real_training
from document import table, write_part
from fit_step_time import LEFT_OUT

REAL = Path(__file__).parent / "data" / "h200_real_training.json"

EPOCHS = 1000
DAY = 86400


def main() -> None:
    with LEFT_OUT.open() as file:
        entries = [e for e in csv.DictReader(file) if e["source"] == "nnU-Net"]
    rows = []
    for e in sorted(entries, key=lambda e: (e["network"], e["software"], float(e["measured_s"]))):
        real, ours = (float(e[k]) * EPOCHS / DAY for k in ("measured_s", "predicted_s"))
        card = e["label"].rsplit(" nnU-Net", 1)[0]
        rows.append(
            [
                e["network"],
                e["software"],
                card,
                f"{real:.2f}",
                f"{ours:.2f}",
                f"{ours / real - 1:+.0%}",
            ]
        )
    real = json.loads(REAL.read_text(encoding="utf-8"))
    off = [r for r in rows if abs(float(r[5].rstrip("%"))) > 35]
    write_part(
        "days",
        f"""
## Days

Made by `python benchmarks/days_accuracy.py`: days of one fold of nnU-Net v1 (1,000 epochs of 250
training and 50 validation iterations, batch 2 and 6), from published seconds of an epoch without
data loading, and as predicted without knowing the card.

{table(("network", "software", "card", "published", "predicted", "off"), rows)}
{len(off)} of {len(rows)} rows are off by more than 35 %. Those with PyTorch 1.6 are of kernels
that later versions replaced, on Volta more than elsewhere; the Titan Xp has no tensor cores, and
what autocast costs there is known from this card alone, so that leaving it out leaves nothing to
know it from.

### Two real epochs

`python benchmarks/real_training.py` on one {real["machine"]["card"].split(",")[0]} (torch
{real["machine"]["torch"]}, MONAI {real["machine"]["monai"]}, {real["machine"]["cores"]} cores): an
ordinary MONAI training with sliding-window validation on generated NIfTI volumes of 160 × 160 ×
128 voxels, at the batch that `segplan fit --as rtx-3090` recommends and under that card's memory
limit; predicted beforehand by `segplan days` from the measured step, loader and validation.

{table(real_training.HEADER, real_training.table_rows(real))}
What is missing in the predictions is mostly the first step of a process, once, in which CUDA loads
its kernels: 1.8 s of 40 here, nothing in an experiment of days.
""",
    )


if __name__ == "__main__":
    main()
