"""Step times that are known, with the work of each step: what the time model is fitted to.

Sources: our own runs on an H200 (`data/h200_*.csv`, `h200_fits.json`), nnU-Net's and NVIDIA's
published 3D U-Net times (`data/public_step_times.csv`) and the published ResNet50 and ViT-B/16
throughput that segplan ships (`segplan/baseline/published.csv`, PyTorch 1.9 inference).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensorMode

from segplan.baseline.networks import build
from segplan.gpus import find_card
from segplan.gpus.card import Card
from segplan.networks import resolve
from segplan.timing import work
from segplan.timing.model import Rates, forward_total, rates_of, step_total
from segplan.timing.work import WorkTable, merged, work_table
from segplan.trace import cuda
from segplan.trace.job import TARGET
from segplan.trace.tape import Op, Trace, trace_from_json, trace_to_json
from segplan.trace.tracer import Recorder
from segplan.units import parse_patch
from segplan.worker import WorkerPool
from segplan.workload import Workload

ANOTHER_STEP = "segresnetvae"
"""Its rows of `h200_memory_*.csv` were measured without the network's own loss, which other steps
of it have: without the backward pass of its autoencoder."""
TAPES = Path(tempfile.gettempdir()) / "segplan-tapes"
TABLES = Path(tempfile.gettempdir()) / "segplan-work-tables"
IMAGES = 64
"""Images of a forward pass of the baseline: the tables do not say; ratios hardly depend on it."""

CARDS = {
    "A100 40GB PCIe 250W": "a100-pcie-40gb",
    "A100 40GB (DGX A100) 400W": "a100-sxm4-40gb",
    "A100 SXM 80GB": "a100-sxm4-80gb",
    "A100": "a100-sxm4-40gb",
    "V100 32GB SXM2 300W": "v100-sxm2-32gb",
    "V100 32GB SXM3 (DGX2) 350W": "v100-sxm2-32gb",
    "V100 32GB PCIe 250W": "v100-pcie-32gb",
    "V100": "v100-sxm2-32gb",
    "RTX 2080 ti 11GB 250W": "rtx-2080-ti",
    "RTX 2080 Ti": "rtx-2080-ti",
    "Titan Xp 12GB 250W": "titan-xp",
    "TITAN Xp": "titan-xp",
    "GTX 1080 Ti": "gtx-1080-ti",
    "RTX 3060": "rtx-3060-12gb",
    "RTX 3080 Ti": "rtx-3080-ti",
    "RTX 3090": "rtx-3090",
    "RTX A4000": "rtx-a4000",
    "RTX A5000": "rtx-a5000",
    "A40": "a40",
    "Tesla T4": "t4",
    "A10": "a10",
    "RTX 3080": "rtx-3080-10gb",
    "RTX 3090 Ti": "rtx-3090-ti",
}
"""The catalogue's card for each label of the tables; the DGX-2's V100 is nearest to the SXM2."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A known time and what it is of.

    Attributes:
        source: "h200", "h200 held out", "nnU-Net", "NVIDIA" or "baseline".
        card: slug.
        network: left out together.
        precision: of the arithmetic.
        label: for tables.
        table: the work.
        rates: of the card.
        measured: seconds.
        software: age of it where it is not the calibration's, else None.
        channels_last: memory format.
        of: seconds out of those of the phases on the card and on the host.
    """

    source: str
    card: str
    network: str
    precision: str
    label: str
    table: WorkTable
    rates: Rates
    measured: float
    software: str | None = None
    channels_last: bool = False
    of: Callable[[Array, Array], Array] = step_total


def epoch(gpu: Array, host: Array) -> Array:
    """nnU-Net v1: 250 training and 50 validation iterations (network_trainer.py)."""
    return 250 * step_total(gpu, host) + 50 * forward_total(gpu, host)


def kernels(gpu: Array, host: Array) -> Array:
    """What large batches of a forward pass take: the card alone."""
    return gpu[..., 0]


def nnunet(task: str, batch: int) -> Workload:
    """nnU-Net v1's generic U-Net of MSD's Liver (128^3) or Heart (80x192x160), as a DynUNet.

    Deep supervision's extra heads are left out: 1 x 1 x 1 convolutions of three outputs.
    """
    last = [2, 2, 2] if task == "liver" else [1, 2, 2]
    return dynunet(
        (128, 128, 128) if task == "liver" else (80, 192, 160), batch, 1,
        3 if task == "liver" else 2, last,
    )  # fmt: skip


def dynunet(
    patch: tuple[int, int, int], batch: int, channels: int, classes: int, last: list[int],
    precision: str = "fp16",
) -> Workload:  # fmt: skip
    strides = [[1, 1, 1], *[[2, 2, 2]] * 4, last]
    return Workload(
        model="dynunet",
        model_args={
            "kernel_size": [[3, 3, 3]] * 6, "strides": strides,
            "upsample_kernel_size": strides[1:], "filters": [32, 64, 128, 256, 320, 320],
            "norm_name": ("instance", {"affine": True}), "res_block": False,
            "deep_supervision": False,
        },
        in_channels=channels, out_channels=classes, patch=patch, batch=batch,
        precision=precision, optimizer="sgd", grad_clip=12.0,
    )  # fmt: skip


def rows() -> list[Row]:
    """All rows; traces are made where they are not cached."""
    found: list[tuple[Workload, dict]] = []
    for row, ms in _h200_rows():
        found.append((row[1], {"source": row[0], "card": "h200", "measured": ms / 1e3}))
    for entry in read("public_step_times.csv"):
        found.append(_published_step(entry))
    tables = work_tables([w for w, _ in found])
    result = []
    for workload, facts in found:
        card = find_card(facts["card"])
        args = dict(facts)
        args.setdefault("label", f"{_size(workload)} {workload.precision}")
        args.setdefault("network", workload.model)
        args["card"] = card.slug
        rates = _rates(card, workload.precision)
        if not rates.on_tensor_cores(workload.precision):
            args["software"] = None  # what changed with the libraries are tensor cores' kernels
        result.append(
            Row(
                table=tables[workload.key()],
                rates=rates,
                precision=workload.precision,
                channels_last=workload.memory_format == "channels_last_3d",
                **args,
            )
        )
    return [*result, *_baseline_rows()]


@lru_cache
def _rates(card: Card, precision: str) -> Rates:
    return rates_of(card, precision)


def _size(w: Workload) -> str:
    return f"{'x'.join(map(str, w.patch))} b{w.batch}"


def read(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / "data" / name).open() as file:
        return list(csv.DictReader(file))


def _h200_rows() -> Iterable[tuple[tuple[str, Workload], float]]:
    for entry in read("h200_steps.csv"):
        if entry["outcome"] == "fits":
            workload = Workload(
                model=entry["model"], in_channels=int(entry["cin"]),
                out_channels=int(entry["cout"]), patch=parse_patch(entry["patch"]),
                batch=int(entry["batch"]), precision=entry["precision"], optimizer=entry["optim"],
                memory_format="channels_last_3d" if entry["chlast"] == "True" else "contiguous",
                cudnn_benchmark=entry["bench"] == "True", zero_grad="before_backward",
            )  # fmt: skip
            yield ("h200", workload), float(entry["step_ms"])
    for name, source in (
        ("h200_memory_seen.csv", "h200"),
        ("h200_memory_heldout.csv", "h200 held out"),
    ):
        for entry in read(name):
            workload = Workload.from_dict(json.loads(entry["workload"]))
            if workload.model == ANOTHER_STEP:
                continue
            if entry["outcome"] == "fits" and entry["step_ms"]:
                yield (source, workload), float(entry["step_ms"])
    fits = json.loads((Path(__file__).parent / "data" / "h200_fits.json").read_text())
    for run in fits.values():
        document = run["document"]
        for cell in document["cells"]:
            if cell["max_batch"] and cell["step"]:
                asked = {**document["workload"], "patch": cell["patch"], "batch": cell["max_batch"]}
                yield ("h200", Workload.from_dict(asked)), 1e3 * cell["step"]["seconds"]


def _published_step(entry: dict[str, str]) -> tuple[Workload, dict]:
    facts = {"card": CARDS[entry["gpu"]], "label": f"{entry['gpu']} {entry['framework'][:24]}"}
    if entry["metric"] == "s/epoch":
        batch = 6 if "large" in entry["model"] else 2
        task = "heart" if "Heart" in entry["task/dataset"] else "liver"
        version = entry["framework"].split("PyTorch ")[1].lstrip("~").split()[0]
        software = "PyTorch " + ".".join(version.split(".")[:2])
        facts |= {
            "source": "nnU-Net", "network": f"nnunet {task}", "of": epoch,
            "measured": float(entry["value"]), "software": software,
        }  # fmt: skip
        return nnunet(task, batch), facts
    precision = {"AMP fp16": "fp16", "TF32": "tf32"}[entry["precision"]]
    batch = int(float(entry["batch"]))
    facts |= {
        "source": "NVIDIA", "network": "nvidia dynunet", "measured": batch / float(entry["value"]),
        "software": "PyTorch 1.11",  # what the container 21.11 holds
    }  # fmt: skip
    return dynunet((128, 128, 128), batch, 5, 4, [2, 2, 2], precision), facts


def work_tables(workloads: list[Workload]) -> dict[str, WorkTable]:
    """The work of the second step of each workload, by its key, equal entries counted together.

    Tapes are kept, so that another definition of the work needs no new ones; tables are kept for
    as long as `segplan/timing/work.py` stays as it is.
    """
    for folder in (TAPES, TABLES):
        folder.mkdir(exist_ok=True)
    missing = {w.key(): w for w in workloads if not _tape(w).exists()}
    with WorkerPool(TARGET, size=2) as pool:
        waiting = list(missing.values())
        requests = [{"workload": resolve(w).to_dict()} for w in waiting]
        for index, reply in pool.map_unordered(requests, 600):
            if isinstance(reply, Exception):
                raise reply
            trace = trace_from_json(reply["trace"])
            _keep_tape(_tape(waiting[index]), trace)
    return {w.key(): _table(w) for w in workloads}


def _tape(workload: Workload) -> Path:
    return TAPES / f"{_hash(workload.key())}.json.gz"


def _hash(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def _keep_tape(path: Path, trace: Trace) -> None:
    """The operators of the second step, without what was allocated."""
    second = Trace(trace.batch, ops=[op for op in trace.ops if op.step == 1])
    text = json.dumps(trace_to_json(second))
    half = path.with_suffix(".part")
    half.write_bytes(gzip.compress(text.encode(), 3))
    half.replace(path)


def _table(workload: Workload) -> WorkTable:
    path = TABLES / f"{_hash(workload.key() + _rules())}.npz"
    if not path.exists():
        text = gzip.decompress(_tape(workload).read_bytes())
        _save(path, merged(work_table(trace_from_json(json.loads(text)).ops)))
    return _load(path)


@lru_cache
def _rules() -> str:
    return Path(work.__file__).read_text(encoding="utf-8")


def _save(path: Path, table: WorkTable) -> None:
    np.savez(path, **{name: getattr(table, name) for name in WorkTable.__dataclass_fields__})


def _load(path: Path) -> WorkTable:
    with np.load(path) as data:
        values = {name: data[name] for name in WorkTable.__dataclass_fields__}
    values["launches"] = tuple(int(n) for n in values["launches"])
    return WorkTable(**values)


def _baseline_rows() -> list[Row]:
    tables = {
        (name, half): merged(work_table(forward(name, torch.float16 if half else torch.float32)))
        for name in ("resnet50", "vit_b_16")
        for half in (True, False)
    }
    found = []
    text = resources.files("segplan.baseline").joinpath("published.csv").read_text()
    for entry in csv.DictReader(text.splitlines()):
        if entry["software"] != "PyTorch 1.9.0" or entry["card_name"] not in CARDS:
            continue
        half, network = entry["precision"] == "fp16", entry["network"]
        card = find_card(CARDS[entry["card_name"]])
        precision = "fp16" if half else "tf32"
        found.append(
            Row(
                source="baseline", card=card.slug, network=network, precision=precision,
                label=entry["card_name"], table=tables[network, half],
                rates=_rates(card, precision),
                measured=IMAGES / float(entry["images_per_s"]),
                software=f"{network} {precision}", of=kernels,
            )
        )  # fmt: skip
    return found


def forward(name: str, dtype: torch.dtype) -> list[Op]:
    """A forward pass in evaluation, all of it in one data type, on fake tensors."""
    fake = FakeTensorMode()
    recorder = Recorder(IMAGES, fake)
    recorder.trace.step_starts.append(0)
    with fake:
        torch.set_default_dtype(dtype)
        try:
            network = build(name).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        images = torch.empty(IMAGES, 3, 224, 224, dtype=dtype)
    unfused = patch("torch.nn.functional.scaled_dot_product_attention", attention)
    with fake, torch.no_grad(), cuda.behaviour(), unfused, recorder:
        recorder.phase = "forward"
        network(images)
    recorder.close()
    return recorder.trace.ops


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention with its matrix in memory, as timm wrote it before PyTorch 2 fused it."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value
