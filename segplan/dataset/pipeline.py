"""The data pipeline of a MONAI training, as its tutorials write it, with a clock in it.

Load, channel first, orientation, spacing, intensity, padding to the patch (all of these can be
cached), then random crops around the labels, flips, a quarter turn and an intensity shift.
Source: Project-MONAI/tutorials, 3d_segmentation/swin_unetr_btcv_segmentation_3d.ipynb and
spleen_segmentation_3d.ipynb.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segplan.dataset.nouns import CacheMode, ProblemKind, Spacing
from segplan.dataset.scan import Case
from segplan.units import Patch

KEYS = ("image", "label")
_BYTES = "prepared_bytes"
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Recipe:
    """What the pipeline does to a case.

    Attributes:
        patch: voxels (H, W, D) of a crop.
        num_samples: crops at each visit.
        spacing: millimetres to resample to; axes right, front and up.
        intensity: range that becomes 0 to 1 (CT); None: zero mean and unit variance.
    """

    patch: Patch
    num_samples: int
    spacing: Spacing
    intensity: tuple[float, float] | None = None


@dataclass(frozen=True)
class Visit:
    """One case, loaded once by one process.

    Attributes:
        index: of the case.
        seconds: from its index to its patches.
        prepared_bytes: of the whole case before cropping.
        added_bytes: most memory the process has added since its first visit.
        patches: crops delivered.
        fault: why there are none, with its kind; None where there are.
    """

    index: int
    seconds: float
    prepared_bytes: int = 0
    added_bytes: int = 0
    patches: int = 0
    fault: tuple[ProblemKind, str] | None = None


def items_of(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The cases as MONAI's datasets take them."""
    return [{"image": [str(f) for f in c.files.images], "label": str(c.files.label)} for c in cases]


def make_dataset(
    items: Sequence[Mapping[str, Any]], recipe: Recipe, cache: CacheMode, folder: Path | None
) -> Any:
    """MONAI's dataset of that kind; one in memory is filled as its cases are first visited."""
    data: Any = importlib.import_module("monai.data")
    transform = _compose(recipe)
    if cache is CacheMode.MEMORY:
        slots: list[Any] = [None] * len(items)
        return data.CacheDataset(items, transform, progress=False, runtime_cache=slots)
    if cache is CacheMode.DISK:
        return data.PersistentDataset(items, transform, cache_dir=folder)
    return data.Dataset(items, transform)


def _compose(recipe: Recipe) -> Any:
    t: Any = importlib.import_module("monai.transforms")
    if recipe.intensity is None:
        scale = t.NormalizeIntensityd("image", nonzero=True, channel_wise=True)
        crop_more: dict[str, Any] = {}
    else:
        low, high = recipe.intensity
        scale = t.ScaleIntensityRanged("image", low, high, 0.0, 1.0, clip=True)
        crop_more = {"image_key": "image", "image_threshold": 0}
    return t.Compose(
        [
            t.LoadImaged(KEYS, reader="NibabelReader"),
            t.EnsureChannelFirstd(KEYS),
            t.Orientationd(KEYS, axcodes="RAS", labels=None),
            t.Spacingd(KEYS, pixdim=recipe.spacing, mode=("bilinear", "nearest")),
            scale,
            t.SpatialPadd(KEYS, spatial_size=recipe.patch),
            t.Lambda(_weigh),
            t.RandCropByPosNegLabeld(
                KEYS, label_key="label", spatial_size=recipe.patch, pos=1, neg=1,
                num_samples=recipe.num_samples, **crop_more,
            ),
            t.RandFlipd(KEYS, prob=0.1, spatial_axis=0),
            t.RandFlipd(KEYS, prob=0.1, spatial_axis=1),
            t.RandFlipd(KEYS, prob=0.1, spatial_axis=2),
            t.RandRotate90d(KEYS, prob=0.1, max_k=3),
            t.RandShiftIntensityd("image", offsets=0.1, prob=0.5),
        ]
    )  # fmt: skip


def _weigh(item: dict[str, Any]) -> dict[str, Any]:
    """Note the bytes of the prepared case, where caches end: a cached case brings its own."""
    return {**item, _BYTES: sum(int(item[key].nbytes) for key in KEYS)}


class TimedDataset:
    """A dataset whose items are (patches, Visit): errors are told, not raised."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._base: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[list[dict[str, Any]], Visit]:
        if self._base is None or self._base[0] != os.getpid():
            self._base = (os.getpid(), _reset_peak())
        start = time.perf_counter()
        try:
            found = self._dataset[index]
        except Exception as error:  # whatever a file makes MONAI raise, the others go on
            return [], Visit(index, time.perf_counter() - start, fault=_fault(error))
        seconds = time.perf_counter() - start
        prepared = int(found[0][_BYTES])
        added = max(0, peak_bytes() - self._base[1])
        patches = [{key: patch[key] for key in KEYS} for patch in found]
        return patches, Visit(index, seconds, prepared, added, len(patches))


def collate(batch: Sequence[tuple[list[dict[str, Any]], Visit]]) -> tuple[Any, list[Visit]]:
    """MONAI's batch of the patches of several cases, and their visits."""
    data: Any = importlib.import_module("monai.data")
    patches = [patch for found, _ in batch for patch in found]
    return (data.list_data_collate(patches) if patches else None), [visit for _, visit in batch]


def _fault(error: BaseException) -> tuple[ProblemKind, str]:
    """The first cause of an error as a sentence."""
    seen = {id(error)}
    while (cause := error.__cause__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    lines = str(error).strip().splitlines()
    text = (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
    # MONAI's loader tells what its reader raised in its message only.
    last = (lines[-1] if lines else "")[:200]
    if isinstance(error, EOFError) or last.startswith("EOFError"):
        return ProblemKind.TRUNCATED, "Its compressed voxels end too early."
    if last != text and "Error" in last:
        text = last.rstrip(".")
    return ProblemKind.UNREADABLE, f"It cannot be loaded: {text}."


def rss_bytes() -> int:
    """Memory this process holds now, or its peak where the system tells only that."""
    return kernel_bytes(_STATUS, "VmRSS") or _ru_maxrss()


def peak_bytes() -> int:
    """Most memory this process has held since its peak was reset."""
    return kernel_bytes(_STATUS, "VmHWM") or _ru_maxrss()


def _reset_peak() -> int:
    """Begin a new peak where the system allows it (Linux: proc(5), clear_refs); what is held."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return peak_bytes()
    return rss_bytes()


def kernel_bytes(file: Path, name: str) -> int | None:
    """What a file of Linux's /proc says of a name, in bytes (it counts in KiB: proc(5))."""
    try:
        text = file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith(name + ":")), None)
    return int(line.split()[1]) * 1024 if line else None


def _ru_maxrss() -> int:
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
