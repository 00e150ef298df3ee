"""Steps of the registered networks, traced at common sizes: where operators worth timing occur."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from segplan.errors import NetworkError
from segplan.networks import NETWORKS, resolve
from segplan.trace.job import TARGET
from segplan.trace.tape import Op, trace_from_json
from segplan.worker import WorkerPool
from segplan.workload import Workload

CACHE = Path(tempfile.gettempdir()) / "segplan-operator-traces"

STEPS = (
    ("fp16", 96, 1), ("fp16", 96, 2), ("fp16", 96, 4), ("fp16", 128, 1), ("fp16", 128, 2),
    ("fp16", 64, 2), ("fp16", 64, 8), ("fp16", 160, 1), ("fp32", 96, 2), ("fp32", 128, 1),
    ("fp32", 64, 4),
)  # fmt: skip
"""Precision, side of the patch and batch at which each network is traced with its defaults."""

_FILTERS = (16, 32, 64, 128, 256)
OTHERS = (
    ("swinunetr", {"model_args": {"feature_size": 24}}),
    ("segresnet", {"model_args": {"init_filters": 16}}),
    ("unet", {"model_args": {"channels": _FILTERS, "strides": (2, 2, 2, 2), "num_res_units": 2}}),
    ("dynunet", {"model_args": {"deep_supervision": True, "deep_supr_num": 2}}),
    ("unetr", {"model_args": {"feature_size": 32}}),
    ("segresnet", {"memory_format": "channels_last_3d"}),
    ("unet", {"memory_format": "channels_last_3d"}),
    ("dynunet", {"memory_format": "channels_last_3d"}),
    ("swinunetr", {"precision": "bf16"}),
    ("unet", {"precision": "bf16"}),
    ("segresnet", {"precision": "bf16"}),
    ("mednexts", {"precision": "bf16"}),
    ("mednextl", {"precision": "bf16"}),
    ("unet", {"loss": "dicefocal", "optimizer": "sgd", "grad_clip": 12.0}),
    ("segresnet", {"optimizer": "adam", "in_channels": 4, "out_channels": 3}),
)
"""Other arguments, layouts, data types and losses, at 96 and batch 2."""


def workloads() -> Iterator[Workload]:
    """All steps, resolved."""
    for network in NETWORKS:
        name = getattr(network, "name", network)
        for precision, side, batch in STEPS:
            found = _resolved(Workload(model=name, precision=precision, batch=batch), side)
            if found is not None:
                yield found
    for name, options in OTHERS:
        found = _resolved(Workload(**{"model": name, "batch": 2, **options}), 96)
        if found is not None:
            yield found


def _resolved(workload: Workload, side: int) -> Workload | None:
    for patch in ((side,) * 3, (128, 128, side)):  # AHNet takes nothing smaller
        try:
            return resolve(workload.replace(patch=patch))
        except NetworkError:
            continue
    return None


def traced(wanted: Sequence[Workload]) -> Iterator[tuple[Workload, list[Op]]]:
    """Each workload with the operators of its second step; traces are kept between runs."""
    CACHE.mkdir(exist_ok=True)
    missing = [w for w in wanted if not _path(w).exists()]
    with WorkerPool(TARGET, size=2) as pool:
        requests = [{"workload": w.to_dict()} for w in missing]
        for done, (index, reply) in enumerate(pool.map_unordered(requests, 600), 1):
            w = missing[index]
            print(f"{done}/{len(missing)} {w.model} {w.patch[2]} b{w.batch}", file=sys.stderr)
            if isinstance(reply, Exception):
                print(reply, file=sys.stderr)
                continue
            with gzip.open(_path(w), "wt", 4) as file:
                json.dump(reply["trace"] | {"events": [], "sizes": [], "kinds": []}, file)
    for w in wanted:
        if _path(w).exists():
            with gzip.open(_path(w), "rt") as file:
                trace = trace_from_json(json.load(file))
            yield w, [op for op in trace.ops if op.step == 1]


def _path(workload: Workload) -> Path:
    return CACHE / (hashlib.sha1(workload.key().encode()).hexdigest() + ".json.gz")


if __name__ == "__main__":
    count = sum(1 for _ in traced(list(workloads())))
    print(f"{count} steps traced")
