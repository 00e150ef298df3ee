"""`loader`: how fast this machine loads a dataset's patches."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from segplan.api.json_files import read_json
from segplan.api.scanning import (
    QUIET_S,
    after,
    check_spacing,
    existing,
    open_dataset,
    silent,
)
from segplan.dataset.loader import LoaderRequest, measure
from segplan.dataset.nouns import CacheMode, LoaderRate, Spacing
from segplan.dataset.pipeline import Recipe
from segplan.dataset.scan import Progress
from segplan.dataset.statistics import spacing_spread
from segplan.dataset.summaries import find_summary
from segplan.errors import RequestError
from segplan.results import SCHEMA_VERSION
from segplan.units import Patch

DEFAULT_CASES = 16
DEFAULT_SECONDS = 60.0
MAX_WORKERS = 256
MAX_FILE_BYTES = 2**24
"""A larger file is no measurement of a loader."""

_WANTED = "--loader takes what `segplan loader --json` printed"


def measure_loader(
    data: str | Path,
    *,
    workers: int = 2,
    patch: Patch = (96, 96, 96),
    num_samples: int = 4,
    batch: int = 1,
    cache: str = "none",
    cache_dir: str | Path | None = None,
    spacing: Spacing | None = None,
    intensity: tuple[float, float] | None = None,
    cases: int = DEFAULT_CASES,
    seconds: float = DEFAULT_SECONDS,
    progress: Progress = silent,
) -> LoaderRate:
    """Measure MONAI's pipeline on this machine and this data.

    Args:
        data: a dataset's folder, or its dataset.json.
        workers: processes of the data loader; 0: this one.
        patch: voxels (H, W, D) of a crop.
        num_samples: crops at each visit of a case.
        batch: cases in a batch.
        cache: "none" (Dataset), "memory" (CacheDataset) or "disk" (PersistentDataset).
        cache_dir: folder in which a temporary one for the cache on disk is made, and removed
            afterwards; None: the system's.
        spacing: millimetres to resample to, axes right, front and up; None: the median of the
            cases, so turned.
        intensity: range that becomes 0 to 1, like (-175, 250) for CT; None: zero mean and unit
            variance.
        cases: different cases to visit, evenly spread over the dataset.
        seconds: to measure; first visits included.
        progress: called as time goes on.

    Raises:
        RequestError: a value is out of range, there is no such dataset, or it cannot be
            loaded here.
        WorkerError: a worker died.
    """
    later = after(QUIET_S, progress)
    kind = _check(workers, num_samples, batch, cache, intensity, cases, seconds)
    check_spacing(spacing)
    source = existing(data)
    if find_summary(source) is not None and not (source / "imagesTr").is_dir():
        raise RequestError(f"{data} is a summary: the loader needs the folder of the images.")
    dataset = open_dataset(source, later)
    if not dataset.cases:
        first = f" {dataset.problems[0].sentence}" if dataset.problems else ""
        raise RequestError(f"{data} holds no usable case: see segplan scan.{first}")
    if spacing is None:
        turned = [
            (c.image.spacing[c.image.to_ras[0]], c.image.spacing[c.image.to_ras[1]],
             c.image.spacing[c.image.to_ras[2]])
            for c in dataset.cases
        ]  # fmt: skip
        spacing = spacing_spread(turned).median
    recipe = Recipe(patch, num_samples, spacing, intensity)
    with tempfile.TemporaryDirectory(dir=_folder(cache_dir), prefix="segplan-cache-") as folder:
        request = LoaderRequest(recipe, workers, batch, kind, Path(folder), seconds, cases)
        return measure(dataset, str(data), request, later)


def read_loader(path: str | Path) -> LoaderRate:
    """What `segplan loader --json` wrote.

    Raises:
        RequestError: there is no such file, or it holds something else.
    """
    from pydantic import TypeAdapter, ValidationError

    wrong = f"{path} is no document of segplan loader --json"
    values = read_json(path, MAX_FILE_BYTES, "loader's measurement", _WANTED)
    if not isinstance(values, dict) or values.pop("schema_version", None) != SCHEMA_VERSION:
        raise RequestError(f"{wrong} of this version: {_WANTED}.")
    try:
        rate = TypeAdapter(LoaderRate).validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        raise RequestError(f"{wrong}: {key + ': ' if key else ''}{message}.") from error
    for name, value, least in (
        ("patches_per_s", rate.patches_per_s.low, 0.0),
        ("start_s", 1.0 if rate.start_s is None else rate.start_s.low, 0.0),
        ("workers", rate.workers, 0),
        ("num_samples", rate.num_samples, 1),
        ("batch", rate.batch, 1),
    ):
        if value < least:
            raise RequestError(f"{wrong}: {name} is {value:g}.")
    s = rate.patches_per_s
    if not 0 < s.value <= s.high or s.low > s.value:
        raise RequestError(f"{wrong}: patches_per_s is {s.low:g} to {s.high:g}.")
    return rate


def _folder(cache_dir: str | Path | None) -> Path | None:
    if cache_dir is None:
        return None
    folder = Path(cache_dir)
    if not folder.is_dir():
        raise RequestError(f"there is no folder '{cache_dir}' for the cache: make it first.")
    return folder


def _check(
    workers: int,
    num_samples: int,
    batch: int,
    cache: str,
    intensity: tuple[float, float] | None,
    cases: int,
    seconds: float,
) -> CacheMode:
    if not 0 <= workers <= MAX_WORKERS:
        raise RequestError(f"workers must be between 0 and {MAX_WORKERS}, not {workers}.")
    for name, value in (("num_samples", num_samples), ("batch", batch), ("cases", cases)):
        if value < 1:
            raise RequestError(f"{name} must be at least 1, not {value}.")
    if not 1 <= seconds <= 86_400:
        raise RequestError(f"seconds must be between 1 and 86400, not {seconds:g}.")
    if intensity is not None and not (
        all(math.isfinite(v) for v in intensity) and intensity[0] < intensity[1]
    ):
        raise RequestError("intensity must be a lower and a higher number, like -175,250.")
    if cache not in list(CacheMode):
        raise RequestError(f"cache must be none, memory or disk, not {cache!r}.")
    return CacheMode(cache)
