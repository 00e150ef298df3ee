"""Measurements for the store's tests."""

from __future__ import annotations

import dataclasses

from segplan.results import Environment, Measurement, Outcome
from segplan.units import MIB
from segplan.workload import Workload

H200 = Environment(
    card_name="NVIDIA H200",
    card_uuid="GPU-1111",
    driver="570.1",
    cuda="13.0",
    cudnn="91501",
    torch="2.11.0+cu130",
    monai="1.6.1",
    segplan="0.1.0",
    python="3.11.7",
    host_cpu="EPYC",
)
OTHER_H200 = dataclasses.replace(H200, card_uuid="GPU-2222")
LIMIT = 23_000 * MIB


def sample(**changes):
    values = {
        "workload": Workload(patch=(96, 96, 96), batch=4, model_args={"depths": [2, 2, 2, 2]}),
        "outcome": Outcome.FITS,
        "allocator_limit": LIMIT,
        "step_seconds": (0.41, 0.412, 0.43),
        "peak_allocated": 17_700 * MIB,
        "peak_reserved": 22_800 * MIB,
        "process_bytes": None,
        "allocator_retries": 0,
        "environment": H200,
        "wall_s": 11.5,
        "made_at": "2026-12-01T09:00:00+00:00",
        **changes,
    }
    return Measurement(**values)


def failure(outcome=Outcome.OUT_OF_MEMORY, **changes):
    return sample(
        outcome=outcome, step_seconds=(), message="OutOfMemoryError: CUDA out of memory.", **changes
    )
