"""Exports: snippets that run as they stand, overrides that a real bundle takes."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import types

import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader

from segplan.api import exporting
from segplan.api.exporting import network_code, read_bundle, recommend_for
from segplan.errors import CardError, NetworkError, RequestError
from segplan.networks import build, resolve
from segplan.report import export
from segplan.results import Basis, Cell, Fit, LimitedBy, MemoryEstimate
from segplan.step.train import backend_flags
from segplan.units import GIB
from segplan.workload import Workload
from tests.cli.fakes import estimate_of

SMALL = Workload(
    model="basicunet", model_args={"features": (4, 4, 4, 4, 4, 4)}, out_channels=3, batch=2,
    patch=(32, 16, 16), precision="fp32",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _flags_are_put_back():
    with backend_flags(Workload()):
        yield


def recommended(workload: Workload, **changes) -> exporting.Recommendation:
    w = resolve(workload)
    cell = Cell(w.patch, w.batch, LimitedBy.MEMORY, estimate_of(10.5))
    code = network_code(w)
    made = exporting.Recommendation("mine", w, "rtx-3090", 22 * GIB, cell, "it trains", code)
    return dataclasses.replace(made, **changes)


def run_snippet(text: str) -> types.SimpleNamespace:
    names: dict = {"__name__": "snippet"}
    exec(compile(text, "snippet.py", "exec"), names)
    return types.SimpleNamespace(**names)


def batches(w: Workload, count: int = 2):
    for _ in range(count):
        images = torch.randn(w.batch, w.in_channels, *w.patch)
        yield images, torch.randint(0, w.out_channels, (w.batch, 1, *w.patch))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "grad_accumulation": 2, "grad_clip": 12.0, "optimizer": "sgd"},
        {"checkpointing": True, "loss": "ce"},
        {"loss": "dicefocal", "memory_format": "channels_last_3d", "optimizer": "adam"},
        {"model": "unet", "checkpointing": True,
         "model_args": {"channels": (4, 8, 8), "strides": (2, 2)}},
        {"model": "segresnetds", "model_args": {"init_filters": 4, "blocks_down": (1, 1, 1)}},
        {"model": "dynunet", "model_args": {
            "kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2),
            "filters": (4, 8, 8), "deep_supervision": True, "deep_supr_num": 1}},
    ],
)  # fmt: skip
def test_the_python_snippet_trains(changes):
    w = resolve(SMALL.replace(**{"model_args": SMALL.model_args, **changes}))
    snippet = run_snippet(export.python_snippet(recommended(w)))
    assert (w.patch, w.batch) == (snippet.PATCH, snippet.BATCH)
    assert w.grad_accumulation == snippet.ACCUMULATE
    network = snippet.make_network()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    shapes = {name: p.shape for name, p in build(w).named_parameters()}
    assert {name: p.shape for name, p in before.items()} == shapes
    scaler = torch.amp.GradScaler("cpu", enabled=w.precision == "fp16")
    snippet.train(batches(w), network, snippet.make_optimizer(network), scaler, device="cpu")
    moved = sum(not torch.equal(before[n], p) for n, p in network.named_parameters())
    assert moved > len(before) // 2


def test_checkpointing_gives_the_same_gradients():
    plain = run_snippet(export.python_snippet(recommended(SMALL))).make_network()
    saving = run_snippet(
        export.python_snippet(recommended(SMALL.replace(checkpointing=True)))
    ).make_network()
    saving.load_state_dict(plain.state_dict())
    images = torch.randn(1, 1, 32, 16, 16)
    saved = []
    for network in (plain, saving):
        kept = 0

        def pack(tensor):
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = network.eval()(images).square().mean()
        loss.backward()
        saved.append(kept)
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)
    assert saved[1] < saved[0] / 2


class FakeTrainer:
    def __init__(self, **options):
        self.options = options


@pytest.mark.parametrize(
    ("precision", "word"),
    [("fp16", "16-mixed"), ("bf16", "bf16-mixed"), ("tf32", "32-true"), ("fp32", "32-true")],
)
def test_the_lightning_snippet(monkeypatch, precision, word):
    lightning = types.ModuleType("lightning")
    lightning.LightningModule = torch.nn.Module
    lightning.Trainer = FakeTrainer
    monkeypatch.setitem(sys.modules, "lightning", lightning)
    w = SMALL.replace(precision=precision, grad_clip=1.0, grad_accumulation=3)
    snippet = run_snippet(export.lightning_snippet(recommended(w)))
    assert snippet.trainer.options == {
        "accelerator": "gpu", "devices": 1, "precision": word, "accumulate_grad_batches": 3,
        "benchmark": False, "gradient_clip_val": 1.0,
    }  # fmt: skip
    assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    task = snippet.Segmentation()
    loss = task.training_step(next(batches(w)), 0)
    loss.backward()
    assert isinstance(task.configure_optimizers(), torch.optim.AdamW)


BUNDLE = {
    "network_def": {
        "_target_": "SwinUNETR", "in_channels": 1, "out_channels": 14, "feature_size": 12,
        "use_checkpoint": False,
    },
    "data": [{"image": torch.zeros(1, 70, 70, 70), "label": torch.ones(1, 70, 70, 70)}] * 4,
    "amp": False,
    "window": [48, 48, 48],
    "train": {
        "random_transforms": [
            {"_target_": "RandFlipd", "keys": ["image", "label"], "prob": 0.0},
            {
                "_target_": "RandCropByPosNegLabeld", "keys": ["image", "label"],
                "label_key": "label", "spatial_size": [32, 32, 32], "num_samples": 4,
            },
        ],
        "preprocessing": {"_target_": "Compose", "transforms": "@train#random_transforms"},
        "dataset": {"_target_": "Dataset", "data": "@data", "transform": "@train#preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@train#dataset", "batch_size": 1},
        "trainer": {"_target_": "SupervisedTrainer", "amp": "@amp", "max_epochs": 1},
    },
    "validate": {
        "dataloader": {"_target_": "DataLoader", "dataset": "@train#dataset", "batch_size": 1},
        "inferer": {
            "_target_": "SlidingWindowInferer", "roi_size": "@window", "sw_batch_size": 2,
        },
        "evaluator": {"_target_": "SupervisedEvaluator", "amp": "@amp"},
    },
}  # fmt: skip
"""The parts of a Model Zoo bundle that are changed, at other places than its usual ones."""

SWIN = Workload(model="swinunetr", model_args={"feature_size": 12}, patch=(64, 64, 64), batch=6)


def overridden(override):
    parser = ConfigParser(copy.deepcopy(BUNDLE))
    parser.parse(True)
    for name in override:  # a bundle run fails at an id whose parent is not there
        parser[name.rpartition("#")[0]] if "#" in name else parser[name]
    parser.update(override)
    return parser


def test_a_bundle_takes_the_override():
    override = export.monai_override(recommended(SWIN.replace(checkpointing=True)), BUNDLE)
    assert json.loads(json.dumps(override)) == override
    parser = overridden(override)
    loader = parser.get_parsed_content("train#dataloader")
    assert isinstance(loader, DataLoader)
    batch = next(iter(loader))
    assert batch["image"].shape == (6, 1, 64, 64, 64)  # 2 volumes x 3 crops
    assert parser["train#random_transforms#1#num_samples"] == 3
    network = parser.get_parsed_content("network_def")
    assert network.swinViT.layers1[0].use_checkpoint
    assert parser["validate#inferer#roi_size"] == "@window"
    assert parser.get_parsed_content("validate#inferer").roi_size == [64, 64, 64]
    assert override["amp"] is True
    assert "train#trainer#amp" not in override
    assert parser["train#trainer#optim_set_to_none"] is True
    assert parser["validate#dataloader#batch_size"] == 1


@pytest.mark.parametrize(("batch", "crops"), [(1, 1), (2, 2), (4, 4), (5, 1), (6, 3), (8, 4)])
def test_the_batch_is_volumes_times_crops(batch, crops):
    override = export.monai_override(recommended(SWIN.replace(batch=batch)), BUNDLE)
    assert override["train#random_transforms#1#num_samples"] == crops
    assert override["train#dataloader#batch_size"] * crops == batch


def test_the_model_zoos_own_names():
    """As in models/spleen_ct_segmentation/configs/train.json of Project-MONAI/model-zoo."""
    w = Workload(model="unet", model_args={"channels": (4, 8), "strides": (2,)}, batch=8,
                 precision="bf16")  # fmt: skip
    assert export.monai_override(recommended(w)) == {
        "train#random_transforms#0#spatial_size": [96, 96, 96],
        "train#random_transforms#0#num_samples": 4,
        "train#dataloader#batch_size": 2,
        "train#trainer#amp": True,
        "train#trainer#optim_set_to_none": True,
        "train#trainer#amp_kwargs": {"dtype": "$torch.bfloat16"},
        "validate#evaluator#amp": True,
        "validate#evaluator#amp_kwargs": {"dtype": "$torch.bfloat16"},
        "validate#inferer#roi_size": [96, 96, 96],
    }


def test_a_crop_without_a_count():
    bundle = json.loads(json.dumps({k: v for k, v in BUNDLE.items() if k != "data"}))
    bundle["train"]["random_transforms"][1] = {"_target_": "RandSpatialCropd", "roi_size": 32}
    override = export.monai_override(recommended(SWIN), bundle)
    assert override["train#random_transforms#1#roi_size"] == [64, 64, 64]
    assert override["train#dataloader#batch_size"] == 6


@pytest.mark.parametrize("missing", ["dataloader", "random_transforms"])
def test_a_bundle_without_what_is_to_be_changed(missing):
    bundle = {**BUNDLE, "train": {k: v for k, v in BUNDLE["train"].items() if k != missing}}
    with pytest.raises(RequestError, match="the bundle has no"):
        export.monai_override(recommended(SWIN), bundle)


def test_references_in_a_circle_end():
    bundle = {**BUNDLE, "amp": "@also", "also": "@amp"}
    override = export.monai_override(recommended(SWIN), bundle)
    assert override["train#dataloader#batch_size"] == 2


def test_notes_say_what_an_override_cannot():
    assert export.monai_notes(recommended(SWIN)) == []
    w = SMALL.replace(checkpointing=True, grad_accumulation=2)
    first, second, third = export.monai_notes(recommended(w))
    assert "no argument for checkpointing" in first
    assert "accumulate over 2" in second
    assert "TF32" in third


@pytest.mark.parametrize("raw", [b"", b"[]", b"[" * 50_000, b"\xff", b" " * (2**20 + 1)])
def test_a_file_that_is_no_bundle(tmp_path, raw):
    file = tmp_path / "train.json"
    file.write_bytes(raw)
    with pytest.raises(RequestError):
        read_bundle(file)


@pytest.mark.parametrize("name", ['"""\nimport os\n', "x\rimport os", "a\u2028b", "#'\\"])
def test_names_stay_in_their_comment(name):
    made = recommended(SMALL, name=name, reason=name, card=name)
    made = dataclasses.replace(made, cell=dataclasses.replace(made.cell, note=name))
    for text in (export.python_snippet(made), export.lightning_snippet(made)):
        head = text.split("import torch")[0]
        assert all(line.startswith("#") or not line for line in head.split("\n")[:5])
        assert "import os" not in [line.strip() for line in text.splitlines()]


def test_arguments_are_literals():
    code = exporting.NetworkCode("mine.nets", "make", {"text": "'); import os; ('"})
    text = export.python_snippet(recommended(SMALL, network=code))
    assert "text=\"'); import os; ('\"," in text
    w = SMALL.replace(model="os; import sys:make", model_args={})
    with pytest.raises(NetworkError, match="cannot be imported by name"):
        network_code(w)


class FakeFit:
    """Holds 10 GiB: a patch takes 3 GiB, a third with checkpointing, 1 more where accumulated."""

    def __init__(self, each: float = 3.0) -> None:
        self.each, self.calls = each, []

    def __call__(self, workload, gpu, patches, *, max_batch, store, progress):
        self.calls.append((workload, max_batch))
        each = self.each / 3 if workload.checkpointing else self.each
        room = 9.0 if workload.grad_accumulation > 1 else 10.0
        batch = min(int(room / each), max_batch)
        cap = batch == max_batch
        cell = Cell(
            tuple(patches[0]), batch, LimitedBy.CAP if cap else LimitedBy.MEMORY,
            MemoryEstimate(1, 1, 1, 1, 1, basis=Basis.PREDICTED),
        )  # fmt: skip
        return Fit(workload, gpu, 10 * GIB, 0, 0, (cell,), 0 if batch else None, "because",
                   smallest_card=None if batch else "a40")  # fmt: skip


@pytest.mark.parametrize(
    ("each", "batch", "wanted"),
    [
        (3.0, None, (3, 1, False)),
        (3.0, 2, (2, 1, False)),
        (3.0, 4, (2, 2, False)),  # 4 do not fit at once, 2 and 2 do
        (3.0, 7, (1, 7, False)),
        (4.0, 8, (2, 4, False)),
        (20.0, None, (1, 1, True)),
        (20.0, 2, (1, 2, True)),
    ],
)
def test_what_is_recommended(monkeypatch, each, batch, wanted):
    monkeypatch.setattr(exporting, "fit", FakeFit(each))
    found = recommend_for(SMALL, "rtx-3090", batch=batch)
    w = found.workload
    assert (w.batch, w.grad_accumulation, w.checkpointing) == wanted
    assert ("only with checkpointing" in found.reason) == wanted[2]
    assert found.cell.max_batch == w.batch


def test_nothing_to_recommend(monkeypatch):
    monkeypatch.setattr(exporting, "fit", FakeFit(99.0))
    with pytest.raises(CardError, match="mine does not fit the rtx-3090: because; a40 would do"):
        recommend_for(SMALL, "rtx-3090", name="mine")
    with pytest.raises(RequestError, match="batch must be"):
        recommend_for(SMALL, "rtx-3090", batch=0)
