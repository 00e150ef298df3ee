"""Workload: what one training step trains."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from segplan.errors import WorkloadError
from segplan.units import Patch

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
OPTIMIZERS = ("adamw", "adam", "sgd")
LOSSES = ("dicece", "dice", "ce", "dicefocal")
MEMORY_FORMATS = ("contiguous", "channels_last_3d")
ZERO_GRAD = ("before_forward", "before_backward")


class FrozenArgs(Mapping[str, Any]):
    """An immutable, hashable mapping of JSON-like values (a network's arguments).

    Lists become tuples on the way in, so that equal arguments are equal however written.
    """

    __slots__ = ("_items",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._items = {str(k): _freeze(v) for k, v in sorted((values or {}).items())}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self.canonical())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenArgs):
            return self.canonical() == other.canonical()
        return isinstance(other, Mapping) and self == FrozenArgs(other)

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenArgs, (self._items,))

    def canonical(self) -> str:
        """The arguments as JSON text with sorted keys: the same for equal arguments."""
        return json.dumps(self._items, sort_keys=True)


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, Mapping):
        return {str(k): _freeze(v) for k, v in sorted(value.items())}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise WorkloadError(
        f"model_args holds a {type(value).__name__}: use numbers, text, true/false or lists."
    )


@dataclass(frozen=True)
class Workload:
    """What one step trains: the network, its input, and how it is trained.

    Types and ranges are checked here; whether the network exists and takes the patch is
    checked by `segplan.networks.resolve`.

    Attributes:
        model: MONAI's class name in lower case, or "package.module:factory".
        model_args: the network's constructor arguments (a mapping; stored frozen).
        in_channels: image channels.
        out_channels: classes, background included.
        patch: voxels (H, W, D); an int means a cube.
        batch: patches in one forward pass on one GPU.
        precision: "fp32" (TF32 off), "tf32", or "fp16"/"bf16" (autocast, TF32 on).
        optimizer: "adamw", "adam" or "sgd" (momentum 0.99, nesterov).
        loss: "dicece", "dice", "ce" or "dicefocal".
        checkpointing: recompute activations in the backward pass.
        memory_format: "contiguous" or "channels_last_3d".
        cudnn_benchmark: let cuDNN try its algorithms at the first call of each shape.
        zero_grad: when gradients are set to None: "before_forward" (MONAI, nnU-Net) or
            "before_backward" (Lightning).
        grad_accumulation: forward/backward passes per optimizer step.
        grad_clip: maximum gradient norm, or None.

    Raises:
        WorkloadError: a value has the wrong type or range.
    """

    model: str = "swinunetr"
    model_args: Mapping[str, Any] = field(default_factory=FrozenArgs)
    in_channels: int = 1
    out_channels: int = 14
    patch: Patch = (96, 96, 96)
    batch: int = 1
    precision: str = "fp16"
    optimizer: str = "adamw"
    loss: str = "dicece"
    checkpointing: bool = False
    memory_format: str = "contiguous"
    cudnn_benchmark: bool = False
    zero_grad: str = "before_forward"
    grad_accumulation: int = 1
    grad_clip: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.model, str) or not self.model.strip():
            raise WorkloadError("model must be a network's name, like swinunetr.")
        if ":" not in self.model:
            put(self, "model", self.model.strip().lower())
        if not isinstance(self.model_args, Mapping):
            raise WorkloadError("model_args must be a mapping of argument names to values.")
        put(self, "model_args", FrozenArgs(self.model_args))
        for name in ("in_channels", "out_channels", "batch", "grad_accumulation"):
            put(self, name, _positive_int(name, getattr(self, name)))
        put(self, "patch", _patch(self.patch))
        _choice("precision", self.precision, PRECISIONS)
        _choice("optimizer", self.optimizer, OPTIMIZERS)
        _choice("loss", self.loss, LOSSES)
        _choice("memory_format", self.memory_format, MEMORY_FORMATS)
        _choice("zero_grad", self.zero_grad, ZERO_GRAD)
        for name in ("checkpointing", "cudnn_benchmark"):
            if not isinstance(getattr(self, name), bool):
                raise WorkloadError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        if self.grad_clip is not None:
            clip = self.grad_clip
            if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0:
                raise WorkloadError(f"grad_clip must be a number above 0, not {clip!r}.")
            put(self, "grad_clip", float(clip))

    @property
    def amp(self) -> bool:
        """Whether the forward pass runs under autocast."""
        return self.precision in ("fp16", "bf16")

    def replace(self, **changes: Any) -> Workload:
        """A copy with some values changed (and checked)."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `Workload(**w.to_dict())` gives an equal workload."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["model_args"] = json.loads(FrozenArgs(self.model_args).canonical())
        values["patch"] = list(self.patch)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Workload:
        """The workload of `to_dict`.

        Raises:
            WorkloadError: an unknown key, or a value that does not pass the checks.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, 1)
                hint = (
                    f": did you mean {close[0]}?" if close else f": known are {', '.join(known)}."
                )
                raise WorkloadError(f"a workload has no '{key}'{hint}")
        return cls(**values)

    def key(self) -> str:
        """Canonical JSON text: equal for equal workloads, stable between versions."""
        return json.dumps(self.to_dict(), sort_keys=True)


def _positive_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise WorkloadError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


def _patch(value: Any) -> Patch:
    sizes = (value,) * 3 if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        sizes = tuple(sizes)
    except TypeError:
        sizes = ()
    whole = all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes)
    if len(sizes) != 3 or not whole:
        raise WorkloadError(
            f"patch must be three whole numbers of at least 1 (H, W, D), not {value!r}."
        )
    return (sizes[0], sizes[1], sizes[2])


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise WorkloadError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}.")
