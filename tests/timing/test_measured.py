"""Predictions beside steps that were measured on an H200 (benchmarks/data/h200_steps.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from segplan import Workload, step_time

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.csv"


def measured_s(model: str, patch: int, batch: int, precision: str) -> float:
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            plain = row["bench"] == row["chlast"] == "False"
            key = (row["model"], row["patch"], row["batch"], row["precision"])
            if plain and key == (model, "x".join([str(patch)] * 3), str(batch), precision):
                return float(row["step_ms"]) / 1e3
    raise LookupError


@pytest.mark.parametrize(
    ("model", "patch", "batch", "precision", "host_bound"),
    [
        ("dynunet", 128, 2, "fp16", False),
        ("segresnet", 96, 2, "fp32", False),
        ("unet", 96, 1, "fp16", True),
    ],
)
def test_a_measured_step(model, patch, batch, precision, host_bound):
    workload = Workload(
        model=model, patch=(patch,) * 3, batch=batch, precision=precision,
        zero_grad="before_backward",
    )  # fmt: skip
    predicted = step_time(workload, gpu="h200")
    real = measured_s(model, patch, batch, precision)
    assert predicted.seconds == pytest.approx(real, rel=0.35)
    assert predicted.host_bound is host_bound
