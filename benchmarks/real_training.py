"""Two epochs of a real MONAI training, and what `segplan days` said before they began.

Run on a GPU:     python benchmarks/real_training.py OUT.json --seconds 240
Without a GPU:    python benchmarks/real_training.py OUT.json --tiny   (proves the script only)

On generated NIfTI volumes of 160 x 160 x 128 voxels, for SwinUNETR and SegResNet in turn:

1. `segplan fit --gpu 0 --as rtx-3090 --patch 96`: the batch that card trains, its measured step.
2. `segplan loader`: what the data loader delivers, and what starting an epoch costs.
3. seconds to validate a volume, by segplan's own validation step.
4. `segplan days --gpu 0 --store ... --loader ...`: hours predicted from these three.
5. the training: an ordinary MONAI script (`train` below: MONAI's network, loss, inferer, metric and
   DataLoader; segplan lends the transforms, the flags and nothing else), in a process of its own,
   under the allocator limit of step 1, timed by its own clock.

The wall time is that of both epochs as a whole, from before the first epoch's loader starts until
after the second validation: first steps, in which CUDA loads its kernels, are part of it. Starting
the process (imports, building the network) is told apart. OUT.json is written after each part.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from document import table

BEGAN = time.perf_counter()
SEGPLAN = [sys.executable, "-m", "segplan.cli.main"]
EPOCHS = 2
CLASSES = 14
SW_BATCH = 4
OVERLAP = 0.5
START_UP_S = 20.0
"""Set aside for a training process to start and to end."""

LEAST_CASES = 32
"""Training cases below which an epoch says nothing (8 more are validated)."""


@dataclass(frozen=True)
class Sizes:
    """What is made and trained; `tiny` runs on a CPU in a minute."""

    shape: tuple[int, int, int]
    patch: int
    cases: int
    validated: int
    loader_s: float
    least_cases: int
    model_args: dict[str, list[str]]
    tiny: bool = False


FULL = Sizes((160, 160, 128), 96, 120, 8, 10.0, LEAST_CASES, {"swinunetr": [], "segresnet": []})
TINY = Sizes(
    (80, 64, 64), 64, 4, 1, 3.0, 2,
    {
        "swinunetr": ["--model-arg", "feature_size=12", "--max-batch", "1"],
        "segresnet": ["--model-arg", "init_filters=8", "--max-batch", "2"],
    },
    tiny=True,
)  # fmt: skip


# The volumes --------------------------------------------------------------------------------


def make_volumes(root: Path, sizes: Sizes) -> list[dict[str, str]]:
    """Write a dataset in the Medical Segmentation Decathlon's layout."""
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(cores(), mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_make_case, str(root), n, sizes.shape) for n in range(sizes.cases)]
        training = [job.result() for job in jobs]
    labels = {str(n): f"class {n}" if n else "background" for n in range(CLASSES)}
    document = {"name": "Made", "modality": {"0": "CT"}, "labels": labels, "training": training}
    (root / "dataset.json").write_text(json.dumps(document))
    return training


def _make_case(root: str, number: int, shape: tuple[int, int, int]) -> dict[str, str]:
    import nibabel
    import numpy as np

    random = np.random.default_rng(number)
    image = random.integers(-150, 150, shape, dtype=np.int16)
    label = np.zeros(shape, np.uint8)
    for value in range(1, CLASSES):
        radius = int(random.integers(min(shape) // 12, min(shape) // 6))
        middle = [int(random.integers(radius, side - radius)) for side in shape]
        box = tuple(slice(m - radius, m + radius + 1) for m in middle)
        axes = np.ogrid[tuple(slice(-radius, radius + 1) for _ in shape)]
        ball = sum(axis**2 for axis in axes) <= radius**2
        label[box][ball] = value
        image[box][ball] += np.int16(60 * value)
    name = f"case_{number:03d}.nii"
    for folder, data in (("imagesTr", image), ("labelsTr", label)):
        nibabel.save(
            nibabel.Nifti1Image(data, np.diag([1.5, 1.5, 2.0, 1.0])), f"{root}/{folder}/{name}"
        )
    return {"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"}


# What runs in processes of its own ----------------------------------------------------------


def deterministic(spacing: tuple[float, float, float]) -> Any:
    """The transforms of a whole volume: those of training, without what is random."""
    from monai import transforms as t

    keys = ("image", "label")
    return t.Compose(
        [
            t.LoadImaged(keys, reader="NibabelReader"),
            t.EnsureChannelFirstd(keys),
            t.Orientationd(keys, axcodes="RAS", labels=None),
            t.Spacingd(keys, pixdim=spacing, mode=("bilinear", "nearest")),
            t.NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        ]
    )


def open_card(request: dict[str, Any]) -> Any:
    """The device, limited as the emulated card is."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    from segplan.probe.device import fraction_for

    total = torch.cuda.mem_get_info(0)[1]
    torch.cuda.set_per_process_memory_fraction(fraction_for(request["limit"], total), 0)
    return torch.device("cuda")


def synchronize(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


class Waits:
    """Goes through a loader and notes how long each batch was waited for."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.seconds, self.end_s = loader, [], 0.0

    def __iter__(self) -> Iterator[Any]:
        begin = time.perf_counter()
        for batch in self.loader:
            self.seconds.append(time.perf_counter() - begin)
            yield batch
            del batch
            begin = time.perf_counter()
        self.end_s = time.perf_counter() - begin  # the workers have ended

    def told(self) -> dict[str, float]:
        return {
            "first_s": self.seconds[0],
            "later_s": sum(self.seconds[1:]),
            "longest_later_s": max(self.seconds[1:], default=0.0),
            "end_s": self.end_s,
        }


def train(request: dict[str, Any], save: Any) -> dict[str, Any]:
    """An ordinary MONAI training of a few epochs, as its tutorials write it, with a clock in it."""
    import monai.networks.nets as nets
    import torch
    from monai.data import DataLoader, Dataset, decollate_batch
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.metrics import DiceMetric
    from monai.transforms import AsDiscrete

    from segplan.dataset.nouns import CacheMode
    from segplan.dataset.pipeline import Recipe, make_dataset
    from segplan.step.train import AMP_DTYPES, backend_flags
    from segplan.workload import Workload

    w = Workload.from_dict(request["workload"])
    spacing = tuple(request["spacing"])
    recipe = Recipe(w.patch, request["num_samples"], spacing)
    workers = request["workers"]
    train_items, val_items = request["train"], request["validate"]
    device = open_card(request)
    cuda = device.type == "cuda"
    train_loader = DataLoader(
        make_dataset(train_items, recipe, CacheMode.NONE, None),
        batch_size=1, shuffle=True, num_workers=workers, pin_memory=cuda,
    )  # fmt: skip
    val_loader = DataLoader(
        Dataset(val_items, deterministic(spacing)),
        batch_size=1, num_workers=workers, pin_memory=cuda,
    )  # fmt: skip
    network_class = {"swinunetr": nets.SwinUNETR, "segresnet": nets.SegResNet}[w.model]
    network = network_class(
        in_channels=w.in_channels, out_channels=w.out_channels, **dict(w.model_args)
    ).to(device)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=w.precision == "fp16")
    post_prediction = AsDiscrete(argmax=True, to_onehot=w.out_channels)
    post_label = AsDiscrete(to_onehot=w.out_channels)
    metric = DiceMetric(include_background=True, reduction="mean")

    def autocast() -> Any:
        dtype = AMP_DTYPES.get(w.precision, torch.bfloat16)
        return torch.autocast(device.type, dtype=dtype, enabled=w.amp)

    def on_device(batch: Any) -> tuple[Any, Any]:
        # Plain tensors: with MONAI's metadata on them every operator would be wrapped.
        return tuple(batch[key].as_tensor().to(device) for key in ("image", "label"))

    found: dict[str, Any] = {
        "start_up_s": time.perf_counter() - BEGAN, "cases": len(train_items), "epochs": [],
    }  # fmt: skip
    with backend_flags(w):
        synchronize(device)
        start = time.perf_counter()
        for _epoch in range(request["epochs"]):
            epoch_start = time.perf_counter()
            network.train()
            total, copies, steps = 0.0, [], []
            waits = Waits(train_loader)
            for batch in waits:
                began = time.perf_counter()
                images, labels = on_device(batch)
                copied = time.perf_counter()
                optimizer.zero_grad()
                with autocast():
                    loss = loss_function(network(images), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                total += loss.item()  # waits for the card, as tutorials do
                copies.append(copied - began)
                steps.append(time.perf_counter() - copied)
            trained = time.perf_counter()
            network.eval()
            volumes = []
            val_waits = Waits(val_loader)
            with torch.no_grad():
                for batch in val_waits:
                    began = time.perf_counter()
                    images, labels = on_device(batch)
                    with autocast():
                        outputs = sliding_window_inference(
                            images, w.patch, SW_BATCH, network, overlap=OVERLAP
                        )
                    predicted = [post_prediction(o) for o in decollate_batch(outputs)]
                    metric(y_pred=predicted, y=[post_label(x) for x in decollate_batch(labels)])
                    synchronize(device)
                    volumes.append(time.perf_counter() - began)
            dice = metric.aggregate().item()
            metric.reset()
            done = time.perf_counter()
            found["epochs"].append(
                {
                    "wall_s": done - epoch_start,
                    "training_s": trained - epoch_start,
                    "validation_s": done - trained,
                    "steps": len(steps),
                    "step_median_s": statistics.median(steps),
                    "steps_s": sum(steps),
                    "first_step_s": steps[0],
                    "copies_s": sum(copies),
                    "waits": waits.told(),
                    "volume_median_s": statistics.median(volumes),
                    "volumes_s": sum(volumes),
                    "first_volume_s": volumes[0],
                    "validation_waits": val_waits.told(),
                    "mean_loss": total / len(steps),
                    "dice": dice,
                }
            )
            found["wall_s"] = done - start
            if cuda:
                stats = torch.cuda.memory_stats()
                found["memory"] = {
                    "peak_allocated": torch.cuda.max_memory_allocated(),
                    "peak_reserved": torch.cuda.max_memory_reserved(),
                    "allocator_retries": stats["num_alloc_retries"],
                    "out_of_memory_errors": stats["num_ooms"],
                }
            save(found)
    return found


def validate(request: dict[str, Any], save: Any) -> dict[str, Any]:
    """Seconds of a volume by segplan's validation step, loading left out."""
    import torch

    from segplan.networks import build
    from segplan.step.train import backend_flags
    from segplan.step.validate import Validation, ValidationStep, predictor
    from segplan.workload import Workload

    w = Workload.from_dict(request["workload"])
    device = open_card(request)
    load = deterministic(tuple(request["spacing"]))
    volumes = []
    for item in request["validate"][:2]:
        loaded = load(item)
        volumes.append(tuple(loaded[key].as_tensor()[None] for key in ("image", "label")))
    asked = Validation(tuple(volumes[0][0].shape[2:]), sw_batch_size=SW_BATCH, overlap=OVERLAP)
    samples = []
    with backend_flags(w):
        step = ValidationStep(
            w, asked, predictor(build(w).to(device)), device, torch.device("cpu"), device.type
        )
        for place in range(2 if request["tiny"] else 6):  # the first one warms up
            began = time.perf_counter()
            step.run([volumes[place % len(volumes)]])
            synchronize(device)
            samples.append(time.perf_counter() - began)
    return {"samples": samples, "seconds_per_volume": statistics.median(samples[1:])}


def step_on_cpu(request: dict[str, Any], save: Any) -> dict[str, Any]:
    """Only for --tiny: what `segplan fit` would have measured, as if the CPU were the card."""
    from segplan.networks import build
    from segplan.results import Environment, Measurement, Outcome
    from segplan.step.train import make_batch, make_step
    from segplan.store import Store
    from segplan.workload import Workload
    from tests.gpus.fake_pynvml import FakeGpu

    w = Workload.from_dict(request["workload"])
    step = make_step(w, build(w), device_type="cpu")
    samples = []
    for _ in range(3):
        images, labels = make_batch(w, "cpu")
        began = time.perf_counter()
        step.run(images, labels)
        samples.append(time.perf_counter() - began)
    with Store.open(request["store"]) as store:
        here = Environment(card_uuid=FakeGpu().uuid)
        store.add(Measurement(w, Outcome.FITS, step_seconds=tuple(samples[1:]), environment=here))
    return {"samples": samples}


CHILDREN = {"train": train, "validate": validate, "step": step_on_cpu}


def run_child(name: str, path: Path) -> None:
    """One of the above: the request is a file, the answer another."""
    out = path.with_suffix(".out.json")

    def save(values: dict[str, Any]) -> None:
        out.write_text(json.dumps(values))

    save(CHILDREN[name](json.loads(path.read_text()), save))


# The whole ----------------------------------------------------------------------------------


class OutOfTime(Exception):
    """Nothing more can be done within --seconds."""


class Benchmark:
    """Runs one part after the other and keeps what each said."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.sizes = TINY if options.tiny else FULL
        self.store = str(folder / "store.sqlite")
        self.data = folder / "data"
        self.environment = dict(os.environ)
        self.result: dict[str, Any] = {
            "command": "python benchmarks/real_training.py " + " ".join(sys.argv[1:]),
            "networks": {},
        }
        if options.tiny:
            self._pretend_a_card()

    def _pretend_a_card(self) -> None:
        """A driver library that shows an RTX 3090, so that `--gpu 0` means something."""
        shim = self.folder / "shim"
        shim.mkdir()
        (shim / "pynvml.py").write_text(
            "import sys\nfrom tests.gpus.fake_pynvml import FakeGpu, FakeNvml\n"
            "sys.modules[__name__] = FakeNvml(cards=[FakeGpu()])\n"
        )
        repository = str(Path(__file__).parents[1])
        paths = [str(shim), repository, self.environment.get("PYTHONPATH", "")]
        self.environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)

    @property
    def left_s(self) -> float:
        return self.options.seconds - (time.perf_counter() - BEGAN)

    def save(self) -> None:
        self.options.out.write_text(json.dumps(self.result, indent=1))

    def run(self, arguments: list[str], what: str) -> tuple[int, str, str]:
        """A process within the time that is left: (exit status, stdout, stderr)."""
        if self.left_s < 5:
            raise OutOfTime(what)
        began = time.perf_counter()
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, timeout=self.left_s, check=False,
                env=self.environment,
            )  # fmt: skip
            answer = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            told = error.stderr or b""
            text = told if isinstance(told, str) else told.decode(errors="replace")
            answer = -1, "", f"{text}\nout of time"
        seconds = time.perf_counter() - began
        print(f"{what}: exit {answer[0]}, {seconds:.1f} s, {self.left_s:.0f} s left", flush=True)
        if answer[0]:
            print(answer[2][-1500:], flush=True)
        return answer

    def segplan(self, what: str, *arguments: str) -> dict[str, Any]:
        """What a command of segplan says with --json."""
        code, out, err = self.run([*SEGPLAN, *arguments, "--json"], what)
        if code:
            raise RuntimeError(f"segplan {arguments[0]} failed: {err[-400:]}")
        document: dict[str, Any] = json.loads(out)
        return document

    def child(self, name: str, request: dict[str, Any], what: str) -> dict[str, Any]:
        """What a function of this file says in a process of its own; what it said before it
        failed is kept under its result, with `error`."""
        path = self.folder / f"{what.replace(' ', '-')}.json"
        path.write_text(json.dumps(request))
        path.with_suffix(".out.json").unlink(missing_ok=True)  # of an attempt before
        code, _, err = self.run(
            [sys.executable, "-W", "ignore", __file__, str(path), "--child", name], what
        )
        answer = path.with_suffix(".out.json")
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
        if code:
            found["error"] = err[-1500:]
            found["out_of_memory"] = "OutOfMemoryError" in err
        return found

    def main(self) -> None:
        began = time.perf_counter()
        listed = make_volumes(self.data, self.sizes)
        self.items = [{k: str(self.data / v) for k, v in item.items()} for item in listed]
        self.result["volumes"] = {
            "cases": len(listed), "shape": self.sizes.shape,
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        print(f"{len(listed)} volumes made, {self.result['volumes']['seconds']:.1f} s", flush=True)
        self.result["machine"] = machine()
        self.save()
        models = self.options.models.split(",")
        for place, model in enumerate(models):
            entry: dict[str, Any] = {}
            self.result["networks"][model] = entry
            try:
                self.network(model, entry, networks_left=len(models) - place)
            except OutOfTime as error:
                entry["error"] = f"no time was left for: {error}"
            except Exception as error:
                entry["error"] = f"{type(error).__name__}: {error}"
            if "error" in entry:
                print(f"{model}: {entry['error']}", flush=True)
            entry["seconds"] = time.perf_counter() - BEGAN
            self.save()
        print()
        print_rows(self.result)

    def network(self, model: str, entry: dict[str, Any], networks_left: int) -> None:
        """All parts of one network; a batch that runs out of memory is told, and one less tried."""
        share = self.left_s / networks_left
        end_s = self.left_s - share  # time that belongs to those after this one
        limit = None
        for attempt in range(2):
            self.attempt(model, entry, end_s, limit)
            if not entry.get("training", {}).get("out_of_memory"):
                return
            told = {key: value for key, value in entry.items() if key != "failed"}
            entry.setdefault("failed", []).append(told)
            print(f"{model}: batch {entry['batch']} ran out of memory", flush=True)
            if attempt or entry["batch"] == 1:
                return
            limit = entry["batch"] - 1

    def attempt(
        self, model: str, entry: dict[str, Any], end_s: float, max_batch: int | None
    ) -> None:
        s = self.sizes
        own = ["--model", model, *s.model_args[model], "--patch", str(s.patch)]
        most = [] if max_batch is None else ["--max-batch", str(max_batch)]
        if s.tiny:
            card = ["--gpu", "rtx-3090", "--precision", "fp32"]
        else:
            card = ["--gpu", "0", "--as", "rtx-3090", "--store", self.store]
        fit = self.segplan(f"{model} fit", "fit", *own, *card, *most)
        cell = fit["cells"][fit["recommended"]]
        batch = cell["max_batch"]
        workload = {**fit["workload"], "patch": cell["patch"], "batch": batch}
        entry.update(
            batch=batch, patch=cell["patch"], budget=fit["budget"], fit=cell, workload=workload,
        )  # fmt: skip
        self.save()
        workers = usable_workers(batch, s)
        request = {
            "workload": workload, "limit": fit["budget"], "workers": workers,
            "num_samples": batch, "spacing": [1.5, 1.5, 2.0], "epochs": EPOCHS,
            "validate": self.items[-s.validated :], "store": self.store, "tiny": s.tiny,
        }  # fmt: skip
        if s.tiny:
            entry["step_on_cpu"] = self.child("step", request, f"{model} step")
        loader = self.segplan(
            f"{model} loader", "loader", "--data", str(self.data), "--workers", str(workers),
            "--patch", str(s.patch), "--num-samples", str(batch), "--seconds", str(s.loader_s),
            "--cases", str(max(16, 2 * workers)),
        )  # fmt: skip
        loader_file = self.folder / f"{model}-loader.json"
        loader_file.write_text(json.dumps(loader))
        entry.update(workers=workers, loader=loader)
        self.save()
        entry["validation"] = self.child("validate", request, f"{model} validate")
        self.save()
        cases = s.cases - s.validated
        allowed = self.left_s - end_s - START_UP_S
        for _ in range(2):
            plan = self.days(model, entry, cases, loader_file)
            if plan["total"]["seconds"] <= allowed or cases <= s.least_cases:
                break
            cases = max(s.least_cases, int(cases * allowed / plan["total"]["seconds"]))
        entry.update(cases=cases, plan=plan, predicted_s=plan["total"]["seconds"])
        self.save()
        request["train"] = self.items[:cases]
        training = self.child("train", request, f"{model} train")
        entry["training"] = training
        if "wall_s" in training and len(training["epochs"]) == EPOCHS:
            entry["wall_s"] = training["wall_s"]
            entry["ratio"] = entry["predicted_s"] / training["wall_s"]
        if "error" in training and not training["out_of_memory"]:
            entry["error"] = training["error"]
        self.save()

    def days(
        self, model: str, entry: dict[str, Any], cases: int, loader_file: Path
    ) -> dict[str, Any]:
        """The plan of exactly these epochs on this card, from what was measured."""
        s = self.sizes
        measured = entry["validation"].get("seconds_per_volume")
        validation: dict[str, Any] = {
            "cases": s.validated, "every": 1, "overlap": OVERLAP, "sw_batch_size": SW_BATCH,
        }  # fmt: skip
        schedule = {
            "epochs": EPOCHS, "cases": cases, "num_samples": entry["batch"],
            "validation": validation,
        }  # fmt: skip
        config = {
            **entry["workload"], "name": f"real-{model}", "schedule": schedule,
            "dataset": {
                "cases": s.cases, "channels": 1, "classes": CLASSES, "shape": list(s.shape),
                "spacing": [1.5, 1.5, 2.0],
            },
        }  # fmt: skip
        path = self.folder / f"{model}.yaml"
        asked = [
            "days", "--config", str(path), "--gpu", "0", "--store", self.store,
            "--loader", str(loader_file),
        ]  # fmt: skip
        if measured is not None:
            validation["seconds_per_volume"] = measured
        path.write_text(json.dumps(config))  # JSON is YAML
        entry["config"] = config
        plan: dict[str, Any] = self.segplan(f"{model} days", *asked)["plans"][0]
        return plan


def usable_workers(batch: int, sizes: Sizes) -> int:
    """All cores but a few for the training itself, as far as shared memory holds their queues."""
    wanted = 2 if sizes.tiny else max(1, cores() - 4)
    try:
        shared = shutil.disk_usage("/dev/shm").free
    except OSError:
        return wanted
    each = max(batch * sizes.patch**3, sizes.shape[0] * sizes.shape[1] * sizes.shape[2]) * 4 * 2
    return max(0, min(wanted, int((0.8 * shared / each - 1) / 2)))


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Card, processor and versions."""
    from importlib import metadata

    from segplan.dataset.loader import _host_cpu

    found: dict[str, Any] = {"cores": cores(), "host_cpu": _host_cpu(), "python": sys.version}
    for package in ("torch", "monai", "segplan", "numpy", "nibabel"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found["card"] = subprocess.run(
            asked, capture_output=True, text=True, timeout=20, check=False
        ).stdout.strip()
    except OSError:
        found["card"] = None
    try:
        found["shared_memory_bytes"] = shutil.disk_usage("/dev/shm").total
    except OSError:
        found["shared_memory_bytes"] = None
    return found


HEADER = ("network", "batch", "cases", "part", "predicted, s", "real, s", "predicted / real")


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """Prediction against wall time, in all and by part."""
    found: list[list[str]] = []
    for model, entry in result["networks"].items():
        plan, training = entry.get("plan"), entry.get("training", {})
        told = training.get("epochs", [])
        if plan is None or len(told) < EPOCHS:
            why = (entry.get("error") or "–").strip().splitlines()[-1][:80]
            found.append([model, str(entry.get("batch", "–")), "–", why, "", "", ""])
            continue

        def real(key: str, told: list[dict[str, Any]] = told) -> float:
            return sum(epoch[key] for epoch in told)

        def waits(where: str, *keys: str, told: list[dict[str, Any]] = told) -> float:
            return sum(epoch[where][key] for epoch in told for key in keys)

        start = (entry["loader"]["start_s"] or {"value": 0.0})["value"]
        volume = plan_volume(entry)
        validated = EPOCHS * entry["config"]["schedule"]["validation"]["cases"]
        rows = [
            ("two epochs", plan["total"]["seconds"], training["wall_s"]),
            ("training", plan["training"]["seconds"], real("training_s")),
            ("— its steps", plan["steps"] * plan["step"]["seconds"], real("steps_s")),
            ("— of which the first step's extra", None, first_extra(told)),
            ("— first batches", EPOCHS * start, waits("waits", "first_s", "end_s")),
            ("— later batches", None, waits("waits", "later_s")),
            ("— copies to the card", None, real("copies_s")),
            ("validation", plan["validation"]["seconds"], real("validation_s")),
            ("— its volumes", None if volume is None else validated * volume, real("volumes_s")),
            ("— first volumes", EPOCHS * start, waits("validation_waits", "first_s", "end_s")),
            ("— later volumes", None, waits("validation_waits", "later_s")),
        ]
        for name, predicted, measured in rows:
            ratio = "" if predicted is None or measured <= 0 else f"{predicted / measured:.3f}"
            shown = "" if predicted is None else f"{predicted:.2f}"
            about = [model, str(entry["batch"]), str(entry["cases"])]
            found.append([*about, name, shown, f"{measured:.2f}", ratio])
    return found


def first_extra(told: list[dict[str, Any]]) -> float:
    """Seconds by which the very first step, in which CUDA loads its kernels, is longer."""
    return float(told[0]["first_step_s"] - told[0]["step_median_s"])


def plan_volume(entry: dict[str, Any]) -> float | None:
    value = entry["config"]["schedule"]["validation"].get("seconds_per_volume")
    return None if value is None else float(value)


def print_rows(result: dict[str, Any]) -> None:
    print(table(HEADER, table_rows(result)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument(
        "--folder", type=Path, help="for volumes and files; default: a temporary one"
    )
    parser.add_argument("--models", default="swinunetr,segresnet")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_child(options.child, options.out)
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # tensors travel as open files
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="real-training-", dir=options.folder))
    try:
        Benchmark(options, folder).main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
