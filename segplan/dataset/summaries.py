"""Summaries that other programs have written: nnU-Net's fingerprint, MONAI's statistics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segplan.dataset.documents import read_json, read_yaml
from segplan.dataset.layouts import label_values, text_of
from segplan.dataset.nouns import (
    DatasetScan,
    LabelSample,
    Layout,
    Problem,
    ProblemKind,
    Spacing,
)
from segplan.dataset.statistics import resampled_shape, shape_spread, spacing_spread
from segplan.errors import RequestError
from segplan.units import Patch

FINGERPRINT = "dataset_fingerprint.json"
DATA_STATS = ("datastats.yaml", "data_stats.yaml", "datastats_by_case.yaml")
MAX_AXIS = 2**31
"""An axis longer than this is a mistake."""


def find_summary(path: Path) -> Path | None:
    """The summary a path is, or that lies in the folder it is; None: read the images."""
    if path.is_file():
        return path if path.name != "dataset.json" else None
    return next((f for n in (FINGERPRINT, *DATA_STATS) if (f := path / n).is_file()), None)


def read_summary(path: Path, target: Spacing | None, asked: str) -> DatasetScan:
    """What a summary says.

    Args:
        path: a dataset_fingerprint.json, or the YAML of MONAI's DataAnalyzer.
        target: spacing to resample to, or None.
        asked: the path as a person wrote it.

    Raises:
        RequestError: it is neither of the two, or holds no usable case.
    """
    value = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if isinstance(value, dict) and "shapes_after_crop" in value:
        return _fingerprint(path, value, target, asked)
    if isinstance(value, dict) and ("stats_summary" in value or "stats_by_cases" in value):
        return _data_stats(value, target, asked)
    raise RequestError(
        f"{path} is neither a dataset_fingerprint.json of nnU-Net nor the YAML of MONAI's "
        "DataAnalyzer: name one of these, or a folder of images."
    )


def _fingerprint(
    path: Path, value: dict[str, Any], target: Spacing | None, asked: str
) -> DatasetScan:
    """nnU-Net's fingerprint: (z, y, x), turned to the array's order here; shapes are those
    after cropping to nonzero.

    Source: MIC-DKFZ/nnUNet, nnunetv2/experiment_planning/dataset_fingerprint.
    """
    shapes, spacings = value["shapes_after_crop"], value.get("spacings")
    if not isinstance(shapes, list) or not isinstance(spacings, list):
        raise RequestError(f"{path} holds no list of shapes and of spacings.")
    pairs, problems = [], []
    for number in range(max(len(shapes), len(spacings))):
        shape = _shape(shapes[number]) if number < len(shapes) else None
        spacing = _spacing(spacings[number]) if number < len(spacings) else None
        if shape is None or spacing is None:
            problems.append(_bad_case(number))
        else:
            pairs.append(((shape[2], shape[1], shape[0]), (spacing[2], spacing[1], spacing[0])))
    found = len(pairs) + len(problems)
    intensities = value.get("foreground_intensity_properties_per_channel")
    channels = len(intensities) if isinstance(intensities, dict) and intensities else None
    classes = name = None
    beside = path.with_name("dataset.json")
    if beside.is_file():
        try:
            document = read_json(beside)
        except RequestError as error:
            problems.append(Problem("dataset.json", ProblemKind.DOCUMENT, str(error), False))
        else:
            if isinstance(document, dict):
                classes, name = (
                    label_values(document.get("labels"))[0],
                    text_of(document.get("name")),
                )
    return _scan(
        asked, Layout.FINGERPRINT, found, pairs, problems, target,
        name=name, channels=channels, classes=classes,
    )  # fmt: skip


def _data_stats(value: dict[str, Any], target: Spacing | None, asked: str) -> DatasetScan:
    """MONAI's data statistics: the cases one by one where they are listed, else the summary.

    Source: Project-MONAI/MONAI, monai/auto3dseg/analyzer.py and utils/enums.py.
    """
    summary = _mapping(value.get("stats_summary"))
    images = _mapping(summary.get("image_stats"))
    found_labels = _mapping(summary.get("label_stats")).get("labels")
    cases = value.get("stats_by_cases")
    problems: list[Problem] = []
    channels = _whole(_mapping(images.get("channels")).get("median"))
    shares = []
    if isinstance(cases, list) and cases:
        pairs, classes_seen = [], set()
        for number, case in enumerate(cases):
            stats = _mapping(_mapping(case).get("image_stats"))
            shape = _shape(_first(stats.get("shape")))
            spacing = _spacing(_first(stats.get("spacing")))
            if shape is None or spacing is None:
                problems.append(_bad_case(number))
                continue
            pairs.append((shape, spacing))
            channels = channels or _whole(stats.get("channels"))
            labels = _mapping(_mapping(case).get("label_stats"))
            classes_seen |= {n for v in _list(labels.get("labels")) if (n := _whole(v)) is not None}
            share = _foreground(labels)
            shares += [share] if share is not None else []
        found = len(cases)
        if not isinstance(found_labels, list) and classes_seen:
            found_labels = sorted(classes_seen)
        scan = _scan(asked, Layout.DATA_STATS, found, pairs, problems, target)
    else:
        scan = _from_summary(summary, images, target, asked)
    values = [n for v in _list(found_labels) if (n := _whole(v)) is not None]
    sample = None
    if shares:
        sample = LabelSample(
            len(shares), scan.cases, {}, sum(shares) / len(shares), shares.count(0.0)
        )
    return dataclasses.replace(
        scan,
        channels=channels,
        classes=max(values) + 1 if values and max(values) > 0 else None,
        labels=sample,
    )


def _from_summary(
    summary: dict[str, Any], images: dict[str, Any], target: Spacing | None, asked: str
) -> DatasetScan:
    """Only medians and extremes are known; the median case stands for all when resampling."""
    shapes = [_rounded(_mapping(images.get("shape")).get(k)) for k in ("min", "median", "max")]
    spacings = [_spacing(_mapping(images.get("spacing")).get(k)) for k in ("min", "median", "max")]
    cases = _whole(summary.get("n_cases"))
    if None in shapes or None in spacings or not cases:
        raise RequestError(f"{asked} holds no case with a shape and a spacing.")
    known_shapes = [s for s in shapes if s is not None]
    known_spacings = [s for s in spacings if s is not None]
    middle = (known_shapes[1], known_spacings[1])
    resampled = None
    if target is not None:
        resampled = shape_spread([resampled_shape(*middle, target)])
    return DatasetScan(
        path=asked, layout=Layout.DATA_STATS, found=cases, cases=cases,
        shape=shape_spread(known_shapes), spacing=spacing_spread(known_spacings),
        target_spacing=target, resampled=resampled,
    )  # fmt: skip


def _scan(
    asked: str,
    layout: Layout,
    found: int,
    pairs: Sequence[tuple[Patch, Spacing]],
    problems: Sequence[Problem],
    target: Spacing | None,
    **more: Any,
) -> DatasetScan:
    if not pairs:
        raise RequestError(f"{asked} holds no case with a shape and a spacing.")
    return DatasetScan(
        path=asked, layout=layout, found=found, cases=len(pairs),
        shape=shape_spread([s for s, _ in pairs]), spacing=spacing_spread([s for _, s in pairs]),
        target_spacing=target,
        resampled=shape_spread([resampled_shape(*p, target) for p in pairs]) if target else None,
        problems=tuple(problems), **more,
    )  # fmt: skip


def _bad_case(number: int) -> Problem:
    sentence = "It has no shape and spacing of three numbers above zero."
    return Problem(f"case {number}", ProblemKind.DOCUMENT, sentence)


def _foreground(labels: dict[str, Any]) -> float | None:
    """Share of voxels that are no background; MONAI lists percentages, class by class."""
    names, entries = _list(labels.get("labels")), _list(labels.get("label"))
    if len(names) != len(entries) or not names:
        return None
    shares = [_mapping(e).get("foreground_percentage") for e in entries]
    known = [s for s in shares if isinstance(s, (int, float)) and 0 <= s <= 100]
    if len(known) != len(shares):
        return None
    return min(1.0, sum(s for n, s in zip(names, known, strict=True) if n != 0) / 100)


def _numbers(value: Any) -> list[float] | None:
    if not isinstance(value, list) or len(value) < 3:
        return None
    kept = value[:3]
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in kept):
        return None
    # Comparing first: an int may be too large for a float.
    if not all(0 < v < MAX_AXIS and math.isfinite(v) for v in kept):
        return None
    return [float(v) for v in kept]


def _rounded(value: Any) -> Patch | None:
    found = _numbers(value)
    if found is None:
        return None
    h, w, d = (max(1, round(n)) for n in found)
    return h, w, d


def _shape(value: Any) -> Patch | None:
    found = _numbers(value)
    return _rounded(value) if found and all(n == int(n) for n in found) else None


def _spacing(value: Any) -> Spacing | None:
    found = _numbers(value)
    return (found[0], found[1], found[2]) if found else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < MAX_AXIS else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(value: Any) -> Any:
    """MONAI lists one shape for each channel; a single one is taken as it is."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], list) else value
