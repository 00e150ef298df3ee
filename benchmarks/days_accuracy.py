"""nnU-Net v1 experiments in days, predicted and published: a part of docs/accuracy.md.

Run: python benchmarks/days_accuracy.py (after fit_step_time.py). Each epoch was predicted by a fit
that knew nothing of the card; 1,000 epochs are a fold, as nnU-Net trains.
"""

from __future__ import annotations

import csv

from document import table, write_part
from fit_step_time import LEFT_OUT

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
""",
    )


if __name__ == "__main__":
    main()
