"""The rows that the time model is fitted to can be made (`benchmarks/step_time_rows.py`)."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16"])
def test_the_baselines_forward_passes_can_be_recorded(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    made = importlib.import_module("step_time_rows").forward(name, torch.float16)
    products = [op for op in made if op.name in ("convolution.default", "addmm.default")]
    # 53 convolutions and a head; a patch embedding, twelve blocks of 4 products, and a head.
    assert len(products) == (54 if name == "resnet50" else 50)
    assert {t.dtype for op in products for t in op.inputs} == {"float16"}
