"""A recommendation as others take it: a MONAI bundle's overrides, Lightning, plain Python.

Whatever a user named stands in comments as text without line breaks, or as a literal of Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from segplan.errors import RequestError
from segplan.report import format as fmt
from segplan.results import SCHEMA_VERSION, to_plain

if TYPE_CHECKING:
    from segplan.api.exporting import NetworkCode, Recommendation
    from segplan.workload import Workload

ZOO_CROPS = 4
"""Crops of a volume (`num_samples`) where no bundle says otherwise, as in most of the Model Zoo."""

_CROPS = {
    "RandCropByPosNegLabeld": ("spatial_size", "num_samples"),
    "RandCropByLabelClassesd": ("spatial_size", "num_samples"),
    "RandWeightedCropd": ("spatial_size", "num_samples"),
    "RandSpatialCropSamplesd": ("roi_size", "num_samples"),
    "RandSpatialCropd": ("roi_size", None),
}
"""MONAI's random crops of dictionaries: the arguments for the size and for the count."""

_LOSSES = {"dicece": "DiceCELoss", "dice": "DiceLoss", "dicefocal": "DiceFocalLoss"}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_LIGHTNING = {"fp16": "16-mixed", "bf16": "bf16-mixed", "tf32": "32-true", "fp32": "32-true"}


def document(recommendation: Recommendation) -> dict[str, Any]:
    """The JSON document of a recommendation."""
    return {"schema_version": SCHEMA_VERSION, **to_plain(recommendation)}


def monai_override(
    recommendation: Recommendation, bundle: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What `python -m monai.bundle run --args_file` takes to change a bundle's configuration.

    Args:
        recommendation: what to train with.
        bundle: the bundle's training configuration, to find its own names in; None: the layout
            of the Model Zoo's segmentation bundles.

    Raises:
        RequestError: the bundle has no data loader or no random crop to change.
    """
    w = recommendation.workload
    places = _zoo_places(w) if bundle is None else _places(bundle, w)
    crops, count = places["crop"], None
    samples = next((c[2] for c in crops if c[2] is not None), None)
    found: dict[str, Any] = {}
    if samples is not None:
        # As many crops of one volume as the bundle takes, or the next fewer that divide the batch.
        count = max(n for n in range(1, min(samples, w.batch) + 1) if w.batch % n == 0)
    for path, (size, number), _ in crops:
        found[f"{path}#{size}"] = list(w.patch)
        if number is not None:
            found[f"{path}#{number}"] = count or 1
    for path in places["loader"]:
        found[f"{path}#batch_size"] = w.batch // (count or 1)
    for path in places["trainer"]:
        found[f"{path}#amp"] = w.amp
        found[f"{path}#optim_set_to_none"] = True
        if w.precision == "bf16":
            found[f"{path}#amp_kwargs"] = {"dtype": "$torch.bfloat16"}
    for path in places["evaluator"]:
        found[f"{path}#amp"] = w.amp
        if w.precision == "bf16":
            found[f"{path}#amp_kwargs"] = {"dtype": "$torch.bfloat16"}
    for path in places["inferer"]:
        found[f"{path}#roi_size"] = list(w.patch)
    argument = recommendation.network.checkpoint_argument
    if argument is not None:
        for path in places["network"]:
            found[f"{path}#{argument}"] = w.checkpointing
    return found if bundle is None else _followed(found, bundle)


def monai_notes(recommendation: Recommendation) -> list[str]:
    """What a bundle's overrides cannot say."""
    w, notes = recommendation.workload, []
    if w.checkpointing and recommendation.network.checkpoint_argument is None:
        notes.append(
            f"{w.model} has no argument for checkpointing: wrap its blocks as the Python snippet "
            "does (--to python), or the batch does not fit."
        )
    if w.grad_accumulation > 1:
        notes.append(
            f"MONAI's SupervisedTrainer takes one optimizer step for each batch: accumulate over "
            f"{w.grad_accumulation} in a trainer of your own."
        )
    if w.precision == "fp32":
        notes.append("TF32 is off in fp32: set torch.backends.cudnn.allow_tf32 = False.")
    return notes


def _zoo_places(w: Workload) -> dict[str, Any]:
    crop = _CROPS["RandCropByPosNegLabeld"]
    return {
        "network": ["network_def"],
        "loader": ["train#dataloader"],
        "crop": [("train#random_transforms#0", crop, min(ZOO_CROPS, w.batch))],
        "trainer": ["train#trainer"],
        "evaluator": ["validate#evaluator"],
        "inferer": ["validate#inferer"],
    }


def _places(bundle: Mapping[str, Any], w: Workload) -> dict[str, Any]:
    """Where a bundle's configuration holds what is to be changed.

    Raises:
        RequestError: it has no data loader or no random crop.
    """
    places: dict[str, Any] = {
        "network": [], "loader": [], "crop": [], "trainer": [], "evaluator": [], "inferer": []
    }  # fmt: skip
    for path, node in _components(bundle):
        name = str(node["_target_"]).rpartition(".")[2]
        validating = path.split("#")[0].startswith("val")
        if name.lower() == w.model:
            places["network"].append(path)
        elif name in _CROPS and not validating:
            number = _CROPS[name][1]
            samples = _value(bundle, node.get(number, 1)) if number else None
            places["crop"].append((path, _CROPS[name], samples if _counts(samples) else None))
        elif name.endswith("DataLoader") and not validating:
            places["loader"].append(path)
        elif name.endswith("Trainer"):
            places["trainer"].append(path)
        elif name.endswith("Evaluator"):
            places["evaluator"].append(path)
        elif name.startswith("SlidingWindowInferer"):
            places["inferer"].append(path)
    for what, words in (("loader", "data loader"), ("crop", "random crop")):
        if not places[what]:
            raise RequestError(
                f"the bundle has no {words} for training that segplan knows: leave --bundle out, "
                "and rename the keys by hand."
            )
    return places


def _components(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(id, component) of everything a bundle's configuration would instantiate."""
    if isinstance(node, Mapping):
        if path and "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _components(value, f"{path}#{key}" if path else str(key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _components(value, f"{path}#{i}")


def _followed(found: Mapping[str, Any], bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Where the bundle refers to a value of its own ("@amp"), that value is changed instead."""
    changed: dict[str, Any] = {}
    for path, value in found.items():
        seen = {path}
        while True:
            held = _at(bundle, path)
            if not isinstance(held, str) or not held.startswith("@"):
                break
            if held[1:] in seen or _at(bundle, held[1:]) is None:
                break
            path = held[1:]
            seen.add(path)
        changed[path] = value
    return changed


def _value(bundle: Mapping[str, Any], value: Any) -> Any:
    """The value, or what it refers to."""
    if isinstance(value, str) and value.startswith("@"):
        return _at(bundle, value[1:])
    return value


def _at(bundle: Any, path: str) -> Any:
    """What an id names; None where there is nothing."""
    for key in path.split("#"):
        if isinstance(bundle, Mapping):
            bundle = bundle.get(key)
        elif isinstance(bundle, list) and key.isdecimal() and int(key) < len(bundle):
            bundle = bundle[int(key)]
        else:
            return None
    return bundle


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def python_snippet(recommendation: Recommendation) -> str:
    """A training loop in plain PyTorch and MONAI; it runs as it stands, given a loader."""
    w, code = recommendation.workload, recommendation.network
    lines = [
        *_head(recommendation),
        "import torch",
        *_imports(w, code),
        "",
        *_constants(w),
        "",
        "",
        *_network(code),
        "",
        "",
        *_loss(w, code),
        "",
        "",
        "def make_optimizer(network):",
        f"    return {_optimizer(w, 'network.parameters()')}",
        "",
        "",
        "def train(loader, network, optimizer, scaler, device='cuda'):",
        '    """One epoch; the loader yields (images, labels): (BATCH, C, *PATCH) and '
        '(BATCH, 1, *PATCH)."""',
        *_backends(w),
        "    network.train()",
        "    compute_loss = make_loss()",
        "    for i, (images, labels) in enumerate(loader):",
        f"        images = images.to(device{_format(w)})",
        "        labels = labels.to(device)",
        "        if i % ACCUMULATE == 0:",
        "            optimizer.zero_grad(set_to_none=True)",
        f"        with {_autocast(w)}:",
        "            loss = compute_loss(network(images), labels) / ACCUMULATE",
        "        scaler.scale(loss).backward()",
        "        if (i + 1) % ACCUMULATE == 0:",
        *_clip(w),
        "            scaler.step(optimizer)",
        "            scaler.update()",
        "",
        "",
        "# network = make_network().to('cuda')",
        "# optimizer = make_optimizer(network)  # once: it keeps its state between epochs",
        f"# scaler = torch.amp.GradScaler('cuda', enabled={w.precision == 'fp16'})",
        "# for epoch in range(EPOCHS):",
        "#     train(loader, network, optimizer, scaler)",
        "",
    ]
    return _checked(lines)


def lightning_snippet(recommendation: Recommendation) -> str:
    """A LightningModule and a Trainer."""
    w, code = recommendation.workload, recommendation.network
    trainer = [
        f"    precision={_LIGHTNING[w.precision]!r},",
        "    accumulate_grad_batches=ACCUMULATE,",
        f"    benchmark={w.cudnn_benchmark},",
    ]
    if w.grad_clip is not None:
        trainer.append(f"    gradient_clip_val={w.grad_clip!r},")
    lines = [
        *_head(recommendation),
        "import lightning as L",
        "import torch",
        *_imports(w, code),
        "",
        *_constants(w),
        "",
        "",
        *_network(code),
        "",
        "",
        *_loss(w, code),
        "",
        "",
        "class Segmentation(L.LightningModule):",
        '    """Batches are (images, labels): (BATCH, C, *PATCH) and (BATCH, 1, *PATCH)."""',
        "",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.network = make_network()",
        "        self.compute_loss = make_loss()",
        "",
        "    def training_step(self, batch, batch_idx):",
        "        images, labels = batch",
        *([f"        images = images.to({_format(w)[2:]})"] if _format(w) else []),
        "        return self.compute_loss(self.network(images), labels)",
        "",
        "    def configure_optimizers(self):",
        f"        return {_optimizer(w, 'self.parameters()')}",
        "",
        "",
        *(line[4:] for line in _backends(w, benchmark=False)),
        "trainer = L.Trainer(",
        "    accelerator='gpu',",
        "    devices=1,",
        *trainer,
        ")",
        "# trainer.fit(Segmentation(), DataLoader(dataset, batch_size=BATCH))",
        "",
    ]
    return _checked(lines)


SNIPPETS: dict[str, Callable[[Recommendation], str]] = {
    "python": python_snippet,
    "lightning": lightning_snippet,
}


def _checked(lines: list[str]) -> str:
    text = "\n".join(lines)
    ast.parse(text)
    return text


def _head(r: Recommendation) -> list[str]:
    w, m = r.workload, r.cell.memory
    step = f"{fmt.patch(w.patch)} at batch {w.batch}"
    if w.grad_accumulation > 1:
        step += f", accumulated over {w.grad_accumulation}"
    lines = [f"{r.name} on the {r.card}: {step}, {w.precision}."]
    if m is not None:
        needs = fmt.memory_interval(m.least_memory, m.least_memory_low, m.least_memory_high)
        lines.append(
            f"Needs {needs} of the {fmt.memory(r.budget)} that the card leaves "
            f"({r.cell.basis.value}, 80 % interval)."
        )
    lines.append(f"Why: {r.reason}.")
    if r.cell.note:
        lines.append(f"Note: {r.cell.note}.")
    return [f"# {_one_line(line)}" for line in lines] + [""]


def _one_line(text: str) -> str:
    """Text for a comment: no line break of any kind, no control character."""
    return "".join(c if c.isprintable() else " " for c in text)


def _imports(w: Workload, code: NetworkCode) -> list[str]:
    names = [_LOSSES[w.loss]] if w.loss in _LOSSES else []
    if code.several_outputs:
        names.append("DeepSupervisionLoss")
    lines = [f"from monai.losses import {', '.join(sorted(names))}"] if names else []
    lines.append(f"from {code.module} import {code.name}")
    if code.checkpoint_blocks:
        lines.append("from torch.utils.checkpoint import checkpoint")
    return lines


def _constants(w: Workload) -> list[str]:
    return [
        f"PATCH = {w.patch}  # voxels, (H, W, D)",
        f"BATCH = {w.batch}  # patches in one forward pass",
        f"ACCUMULATE = {w.grad_accumulation}  # forward passes of one optimizer step",
    ]


def _network(code: NetworkCode) -> list[str]:
    call = [f"        {name}={value!r}," for name, value in code.arguments.items()]
    build = [f"    network = {code.name}(", *call, "    )", "    return network"]
    if not code.checkpoint_blocks:
        return ["def make_network():", *build]
    return [
        "def recompute(network, classes):",
        '    """Recompute the activations of the outermost blocks of these classes."""',
        "    wrapped = []",
        "    for name, module in network.named_modules():",
        "        inside = any(name.startswith(outer + '.') for outer in wrapped)",
        "        if type(module).__name__ in classes and not inside:",
        "            wrapped.append(name)",
        "            plain = module.forward",
        "            module.forward = lambda *a, plain=plain, **k: checkpoint(",
        "                plain, *a, use_reentrant=False, **k",
        "            )",
        "    return network",
        "",
        "",
        "def make_network():",
        *build[:-1],
        f"    return recompute(network, {code.checkpoint_blocks!r})",
    ]


def _loss(w: Workload, code: NetworkCode) -> list[str]:
    one = w.out_channels == 1
    head = ["def make_loss():"]
    if w.loss == "ce":
        inner = "torch.nn.BCEWithLogitsLoss()" if one else "torch.nn.CrossEntropyLoss()"
        labels = "labels.float()" if one else "labels.squeeze(1).long()"
        head += [f"    inner = {inner}", "", "    def base(output, labels):",
                 f"        return inner(output, {labels})", ""]  # fmt: skip
    else:
        kind = "sigmoid=True" if one else "to_onehot_y=True, softmax=True"
        head.append(f"    base = {_LOSSES[w.loss]}({kind})")
    if not code.several_outputs:
        return [*head, "    return base"]
    if w.loss == "ce":
        raise RequestError("no snippet for ce over several outputs: use --loss dicece.")
    return [
        *head,
        "    deep = DeepSupervisionLoss(base)",
        "",
        "    def loss(output, labels):",
        "        stacked = isinstance(output, torch.Tensor) and output.dim() == 6",
        "        return deep(list(output.unbind(1)) if stacked else output, labels)",
        "",
        "    return loss",
    ]


def _optimizer(w: Workload, parameters: str) -> str:
    if w.optimizer == "sgd":
        return f"torch.optim.SGD({parameters}, lr=0.01, momentum=0.99, nesterov=True)"
    return f"torch.optim.{'AdamW' if w.optimizer == 'adamw' else 'Adam'}({parameters}, lr=1e-4)"


def _backends(w: Workload, *, benchmark: bool = True) -> list[str]:
    tf32 = w.precision != "fp32"
    lines = [
        f"    torch.backends.cuda.matmul.allow_tf32 = {tf32}",
        f"    torch.backends.cudnn.allow_tf32 = {tf32}",
    ]
    if benchmark:
        lines.append(f"    torch.backends.cudnn.benchmark = {w.cudnn_benchmark}")
    return lines


def _autocast(w: Workload) -> str:
    if not w.amp:
        return "torch.autocast(device, enabled=False)"
    return f"torch.autocast(device, dtype=torch.{_DTYPES[w.precision]})"


def _format(w: Workload) -> str:
    if w.memory_format == "contiguous":
        return ""
    return ", memory_format=torch.channels_last_3d"


def _clip(w: Workload) -> list[str]:
    if w.grad_clip is None or not math.isfinite(w.grad_clip):
        return []
    return [
        "            scaler.unscale_(optimizer)",
        f"            torch.nn.utils.clip_grad_norm_(network.parameters(), {w.grad_clip!r})",
    ]
