"""Seconds that `segplan scan` takes for 1,000 cases: the target is at most 20 s on two cores.

Small gzipped volumes are written to a temporary folder in the Decathlon's layout; only their
headers are read, so that their size does not matter beyond the first block of each file.

Run: python benchmarks/scan_speed.py
     python benchmarks/scan_speed.py --cases 200 --size 96
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np

from segplan.api.scanning import scan


def write(root: Path, cases: int, size: int) -> None:
    random = np.random.default_rng(0)
    for name in ("imagesTr", "labelsTr"):
        (root / name).mkdir(parents=True)
    training = []
    image = nib.Nifti1Image(random.normal(0, 100, (size,) * 3).astype(np.int16), np.eye(4))
    label = nib.Nifti1Image((random.random((size,) * 3) > 0.9).astype(np.uint8), np.eye(4))
    nib.save(image, root / "image.nii.gz")
    nib.save(label, root / "label.nii.gz")
    texts = (root / "image.nii.gz").read_bytes(), (root / "label.nii.gz").read_bytes()
    for number in range(cases):
        name = f"case_{number:04d}.nii.gz"
        (root / "imagesTr" / name).write_bytes(texts[0])
        (root / "labelsTr" / name).write_bytes(texts[1])
        training.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    labels = {"0": "background", "1": "organ"}
    document = {"name": "made", "labels": labels, "modality": {"0": "CT"}, "training": training}
    (root / "dataset.json").write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--size", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "dataset"
        write(root, options.cases, options.size)
        print("| what | cases | cores | seconds |\n|---|---|---|---|")
        for what, more in (("headers", {}), ("headers, again", {}), ("--labels", {"labels": True})):
            start = time.perf_counter()
            found = scan(root, **more)
            seconds = time.perf_counter() - start
            assert found.cases == options.cases
            assert not found.problems
            print(f"| {what} | {found.cases} | {os.cpu_count()} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
