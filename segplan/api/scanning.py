"""`scan`: what a dataset on disk holds, from its headers."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from segplan.dataset.layouts import list_folder
from segplan.dataset.nouns import DatasetScan, Spacing
from segplan.dataset.scan import Dataset, Progress, add_labels, read_dataset, summarise
from segplan.dataset.summaries import find_summary, read_summary
from segplan.errors import RequestError

QUIET_S = 2.0
"""Seconds before progress is worth a word."""

SAMPLE = 20
"""Labels that are read unless another number is asked for."""


def silent(_done: int, _total: int, _text: str) -> None:
    """A `Progress` that says nothing."""


def scan(
    path: str | Path,
    *,
    spacing: Spacing | None = None,
    labels: bool = False,
    sample: int = SAMPLE,
    progress: Progress = silent,
) -> DatasetScan:
    """What a dataset holds.

    Args:
        path: a folder (Medical Segmentation Decathlon, nnU-Net v2 raw, or folders of images
            and labels), its dataset.json, an nnU-Net dataset_fingerprint.json, or the YAML of
            MONAI's DataAnalyzer.
        spacing: millimetres to resample to, axes right, front and up; None: as stored.
        labels: read the voxels of a sample of the labels.
        sample: most labels to read.
        progress: called as files are read, after the first two seconds.

    Raises:
        RequestError: there is no such path, it holds no dataset, or a value is out of range.
    """
    source = existing(path)
    check_spacing(spacing)
    if sample < 1:
        raise RequestError(f"sample must be at least 1, not {sample}.")
    summary = find_summary(source)
    if summary is not None:
        return read_summary(summary, spacing, str(path))
    later = after(QUIET_S, progress)
    dataset = open_dataset(source, later)
    found = summarise(dataset, str(path), spacing)
    return add_labels(found, dataset, sample, later) if labels else found


def open_dataset(source: Path, progress: Progress = silent) -> Dataset:
    """The cases of a folder (or of the folder of a dataset.json), their headers read.

    Raises:
        RequestError: it holds no dataset.
    """
    return read_dataset(list_folder(source.parent if source.is_file() else source), progress)


def existing(path: str | Path) -> Path:
    """The path, checked.

    Raises:
        RequestError: there is nothing of that name.
    """
    source = Path(path)
    try:
        there = source.is_dir() or source.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        there = False
    if not there:
        raise RequestError(f"there is no folder or file '{path}': name the dataset's folder.")
    return source


def check_spacing(spacing: Spacing | None) -> None:
    """Whether a target spacing makes sense.

    Raises:
        RequestError: it is not between 0.01 and 1,000 mm.
    """
    if spacing is not None and not all(0.01 <= s <= 1000 for s in spacing):
        text = "x".join(f"{s:g}" for s in spacing)
        raise RequestError(f"spacing must be between 0.01 and 1000 mm along each axis, not {text}.")


def parse_spacing(text: str) -> Spacing:
    """(1.5, 1.5, 2.0) from "1.5x1.5x2", or a cube's from "1".

    Raises:
        RequestError: the text is no spacing.
    """
    try:
        sizes = [float(part) for part in re.split(r"[x×,]", text.strip().lower())]
    except ValueError:
        sizes = []
    if len(sizes) == 1:
        sizes *= 3
    if len(sizes) != 3:
        raise RequestError(f"'{text}' is no spacing: write it like 1 or 1.5x1.5x2 (millimetres).")
    spacing = (sizes[0], sizes[1], sizes[2])
    check_spacing(spacing)
    return spacing


def after(seconds: float, progress: Progress) -> Progress:
    """The progress, silent for its first seconds."""
    start = time.monotonic()

    def later(done: int, total: int, text: str) -> None:
        if time.monotonic() - start >= seconds:
            progress(done, total, text)

    return later


def section(found: DatasetScan) -> dict[str, Any]:
    """What other commands need to know, as the keys of a configuration file; unknown ones
    are left out.

    `shape` is the median after resampling where a target spacing was given.
    """
    shape = found.resampled or found.shape
    spacing = found.target_spacing or (found.spacing.median if found.spacing else None)
    dataset = {
        "cases": found.cases,
        "channels": found.channels,
        "classes": found.classes,
        "shape": list(shape.median) if shape else None,
        "spacing": [round(s, 6) for s in spacing] if spacing else None,
        "bytes_per_case": found.bytes_per_case,
        "foreground": found.labels.foreground if found.labels else None,
        "path": found.path,
    }
    values = {
        "in_channels": found.channels,
        "out_channels": found.classes,
        "dataset": {key: value for key, value in dataset.items() if value is not None},
    }
    return {key: value for key, value in values.items() if value is not None}


def write_section(found: DatasetScan, file: str | Path) -> Path:
    """Write `section` as YAML; the file is replaced only when the new one is complete.

    Raises:
        RequestError: there is no usable case, or the file cannot be written.
    """
    import yaml

    if found.cases == 0:
        raise RequestError(f"{found.path} holds no usable case: there is nothing to write.")
    target = Path(file)
    lines = [f"# Written by segplan scan: {found.cases} cases, layout {found.layout.value}."]
    if found.classes is None:
        lines.append("# out_channels is not known from the headers: add it, or scan with --labels.")
    body = yaml.safe_dump(section(found), sort_keys=False, default_flow_style=None, width=1000)
    temporary = target.with_name(f".{target.name}.part")
    try:
        temporary.write_text("\n".join([*lines, body]), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RequestError(f"{file} cannot be written: {error.strerror or error}.") from error
    return target
