"""The sliding-window validation step, written once: trace and probe run this very code.

Whole volumes, one after the other, as MONAI's tutorials validate (`spleen_segmentation_3d`,
`swin_unetr_btcv_segmentation_3d`): the network in eval mode under `no_grad` and the training's
autocast, `sliding_window_inference`, then `AsDiscrete` and `DiceMetric`. As there, a name keeps
what it holds until the next volume takes its place: the one-hot prediction of one volume is
still there while the next one is stitched.

torch and MONAI are imported where they are used, so that the noun costs nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from segplan.errors import WorkloadError
from segplan.units import Patch
from segplan.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MODES = ("constant", "gaussian")
STITCH = ("gpu", "cpu")


@dataclass(frozen=True)
class Validation:
    """How whole volumes are validated during training.

    Attributes:
        volume: voxels (H, W, D) of the largest volume, as resampled for the network.
        roi_size: voxels (H, W, D) of a window; None: the training's patch.
        sw_batch_size: windows in one forward pass (4 in MONAI's tutorials).
        overlap: share of a window that the next one repeats (MONAI's default: 0.25).
        mode: how windows are blended, "constant" (MONAI's default) or "gaussian".
        stitch: where the whole output is put together, and then scored: on the "gpu" (MONAI's
            default), or on the "cpu", with the volume there too and only windows on the GPU
            (`sw_device="cuda", device="cpu"`).

    Raises:
        WorkloadError: a value has the wrong type or range.
    """

    volume: Patch
    roi_size: Patch | None = None
    sw_batch_size: int = 4
    overlap: float = 0.25
    mode: str = "constant"
    stitch: str = "gpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "volume", _sizes("volume", self.volume))
        if self.roi_size is not None:
            object.__setattr__(self, "roi_size", _sizes("roi_size", self.roi_size))
        windows = self.sw_batch_size
        if isinstance(windows, bool) or not isinstance(windows, int) or windows < 1:
            raise WorkloadError(
                f"sw_batch_size must be a whole number of at least 1, not {windows!r}."
            )
        overlap = self.overlap
        if isinstance(overlap, bool) or not isinstance(overlap, (int, float)):
            raise WorkloadError(f"overlap must be a number from 0 to below 1, not {overlap!r}.")
        if not 0 <= overlap < 1:
            raise WorkloadError(f"overlap must be from 0 to below 1, not {overlap!r}.")
        object.__setattr__(self, "overlap", float(overlap))
        _choice("mode", self.mode, MODES)
        _choice("stitch", self.stitch, STITCH)

    def window(self, patch: Patch) -> Patch:
        """Voxels of a window where the training's patch is `patch`."""
        return self.roi_size or patch

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `Validation.from_dict` gives an equal one."""
        return {
            "volume": list(self.volume),
            "roi_size": list(self.roi_size) if self.roi_size is not None else None,
            "sw_batch_size": self.sw_batch_size,
            "overlap": self.overlap,
            "mode": self.mode,
            "stitch": self.stitch,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Validation:
        """The validation of `to_dict` (raises as the constructor)."""
        return cls(**values)


def window_count(volume: Patch, window: Patch, overlap: float) -> int:
    """Windows of one volume in `monai.inferers.sliding_window_inference`.

    A volume smaller than the window is padded to it. Along each axis windows start every
    `int(window * (1 - overlap))` voxels (at least 1) until one reaches the end; the last is moved
    back to end with the volume (MONAI 1.6.1: `inferers/utils.py` `_get_scan_interval`,
    `data/utils.py` `dense_patch_slices`).

    Args:
        volume: voxels (H, W, D).
        window: voxels (H, W, D).
        overlap: share of a window that its neighbour covers too, from 0 to below 1.
    """
    count = 1
    for size, side in zip(volume, window, strict=True):
        stride = max(int(side * (1 - overlap)), 1)
        count *= 1 + -(-max(size - side, 0) // stride)
    return count


def call_count(windows: int, sw_batch_size: int) -> int:
    """Forward passes that hold so many windows; the last may hold fewer."""
    return -(-windows // sw_batch_size)


@dataclass
class ValidationStep:
    """Everything a validation needs; `run` goes through some volumes.

    Attributes:
        workload: whose network, classes and precision these are.
        validation: windows, overlap and where the output is stitched.
        predict: windows float32 (B, C, H, W, D) to logits (B, classes, H, W, D).
        device: of the network.
        host: where volumes come from, and where they are stitched if not on the device.
        device_type: for autocast: "cuda", or "cpu" in a trace.
        on_phase: called with "inference" and "metric" as each begins.
    """

    workload: Workload
    validation: Validation
    predict: Callable[[Tensor], Tensor]
    device: torch.device
    host: torch.device
    device_type: str = "cuda"
    on_phase: Callable[[str], None] = field(default=lambda _phase: None)

    def run(self, volumes: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Mean Dice over volumes.

        Args:
            volumes: images float32 (1, C, H, W, D) and labels float32 (1, 1, H, W, D) (what
                MONAI's loaders give unless told otherwise), on the host.
        """
        import torch
        from monai.data.utils import decollate_batch
        from monai.metrics.meandice import DiceMetric

        post_prediction, post_label = _post_processing(self.workload.out_channels)
        metric = DiceMetric(include_background=True, reduction="mean")
        place = self.device if self.validation.stitch == "gpu" else self.host
        with torch.no_grad(), _plain_tensors():
            for image, label in volumes:
                self.on_phase("inference")
                inputs: Any
                labels: Any
                outputs: Any
                inputs, labels = image.to(place), label.to(place)
                del image, label
                outputs = self.infer(inputs)
                self.on_phase("metric")
                outputs = [post_prediction(o) for o in decollate_batch(outputs)]
                labels = [post_label(x) for x in decollate_batch(labels)]
                metric(y_pred=outputs, y=labels)
            mean: Any = metric.aggregate()
        return cast("Tensor", mean)

    def infer(self, image: Tensor) -> Tensor:
        """Logits float32 (1, classes, H, W, D) of a whole volume, where it is stitched."""
        from monai.inferers.utils import sliding_window_inference

        from segplan.step.train import autocast

        v = self.validation
        with autocast(self.workload, self.device_type):
            output: Any = sliding_window_inference(
                image,
                v.window(self.workload.patch),
                v.sw_batch_size,
                self.predict,
                overlap=v.overlap,
                mode=v.mode,
                sw_device=self.device,
                device=image.device,
            )
        return cast("Tensor", output)


def predictor(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network in eval mode, its full-size output alone (no deep supervision)."""
    network.eval()
    return lambda windows: main_output(network(windows))


def main_output(output: Any) -> Tensor:
    """The first full-size output (B, C, H, W, D) of whatever a network returns.

    Raises:
        TypeError: there is none.
    """
    from torch import Tensor

    if isinstance(output, Tensor):
        if output.dim() == 5:
            return output
        if output.dim() == 6:  # DynUNet stacks its heads: (B, heads, C, H, W, D)
            return output[:, 0]
    elif isinstance(output, Mapping):
        return main_output(list(output.values()))
    elif isinstance(output, Sequence):
        for value in output:
            try:
                return main_output(value)
            except TypeError:
                continue
    raise TypeError("the network returned no tensor (B, C, H, W, D) to validate")


def _post_processing(classes: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What MONAI's tutorials do to logits and labels (C, H, W, D) before the metric."""
    from monai.transforms.post.array import Activations, AsDiscrete

    if classes == 1:
        sigmoid, threshold = Activations(sigmoid=True), AsDiscrete(threshold=0.5)
        return lambda x: threshold(sigmoid(x)), lambda x: x
    return AsDiscrete(argmax=True, to_onehot=classes), AsDiscrete(to_onehot=classes)


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Keep MONAI's transforms from wrapping tensors with metadata, which takes no GPU memory."""
    from monai.data.meta_obj import get_track_meta, set_track_meta

    before = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(before)


def _sizes(name: str, value: Any) -> Patch:
    sizes = (value,) * 3 if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        sizes = tuple(sizes)
    except TypeError:
        sizes = ()
    whole = all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sizes)
    if len(sizes) != 3 or not whole:
        raise WorkloadError(
            f"{name} must be three whole numbers of at least 1 (H, W, D), not {value!r}."
        )
    return (sizes[0], sizes[1], sizes[2])


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise WorkloadError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}.")
