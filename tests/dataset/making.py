"""Small datasets and odd files, written by the tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np


def volume(shape=(12, 10, 8), *, label: bool = False, dtype: Any = None) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    if label:
        data = np.zeros(shape, dtype or np.uint8)
        data[2:6, 2:6, 2:6] = 1
        return data
    return random.normal(0, 100, shape).astype(dtype or np.int16)


def affine(spacing=(1.0, 1.0, 1.0), orientation: str = "RAS") -> np.ndarray:
    turn = nib.orientations.axcodes2ornt(orientation)
    matrix = np.eye(4)
    matrix[:3, :3] = 0
    for axis, (world, sign) in enumerate(turn):
        matrix[int(world), axis] = sign * spacing[axis]
    return matrix


def write(path: Path, data: np.ndarray, matrix: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(data, affine() if matrix is None else matrix), path)
    return path


def pair(root: Path, name: str, *, ending: str = ".nii.gz", channels: int = 1, **more: Any) -> None:
    """A case in nnU-Net's layout."""
    matrix = affine(more.get("spacing", (1.0, 1.0, 1.0)), more.get("orientation", "RAS"))
    shape = more.get("shape", (12, 10, 8))
    for channel in range(channels):
        write(root / "imagesTr" / f"{name}_{channel:04d}{ending}", volume(shape), matrix)
    write(root / "labelsTr" / f"{name}{ending}", volume(shape, label=True), matrix)


def nnunet(root: Path, cases: int = 3, channels: int = 1, **more: Any) -> Path:
    for number in range(cases):
        pair(root, f"case_{number}", channels=channels, **more)
    names = {str(n): f"channel {n}" for n in range(channels)}
    labels = {"background": 0, "organ": 1}
    describe(root, channel_names=names, labels=labels, file_ending=".nii.gz", numTraining=cases)
    return root


def decathlon(root: Path, cases: int = 3, **more: Any) -> Path:
    matrix = affine(more.get("spacing", (1.0, 1.0, 1.0)), more.get("orientation", "RAS"))
    shape = more.get("shape", (12, 10, 8))
    training = []
    for number in range(cases):
        name = f"case_{number}.nii.gz"
        write(root / "imagesTr" / name, volume(shape), matrix)
        write(root / "labelsTr" / name, volume(shape[:3], label=True), matrix)
        training.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    labels = {"0": "background", "1": "organ"}
    describe(root, name="Made", modality={"0": "CT"}, labels=labels, training=training)
    return root


def describe(root: Path, **document: Any) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset.json").write_text(json.dumps(document), encoding="utf-8")


def described(root: Path) -> dict[str, Any]:
    return json.loads((root / "dataset.json").read_text(encoding="utf-8"))


def header(path: Path, **fields: Any) -> Path:
    """A NIfTI file without voxels whose header holds just these fields."""
    big = fields.pop("big_endian", False)
    made = nib.Nifti1Header(endianness=">" if big else "<")
    made.set_data_dtype(np.int16)
    made.set_data_shape((4, 4, 4))
    made["vox_offset"] = 352
    for key, value in fields.items():
        made[key] = value
    raw = made.binaryblock + bytes(4) + bytes(128)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.name.endswith(".gz") else raw)
    return path
