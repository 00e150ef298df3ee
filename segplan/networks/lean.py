"""Importing MONAI without the packages that its networks and losses never use.

`import monai` imports all of MONAI and every optional package of it that is installed: with pandas
and matplotlib alone that is a fifth of what a new process does before it can trace or probe (6.1 s
instead of 4.9 s of one core).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

GUESTS = frozenset({
    "clearml", "cucim", "cupy", "cupyx", "cv2", "h5py", "huggingface_hub", "ignite", "imagecodecs",
    "itk", "lightning", "lmdb", "matplotlib", "mlflow", "nni", "nrrd", "onnx", "onnxruntime",
    "onnxscript", "openslide", "optuna", "pandas", "pydicom", "pytorch_lightning", "skimage",
    "sklearn", "tensorboard", "tensorboardX", "tensorrt", "tifffile", "torch_tensorrt",
    "torchaudio", "torchio", "transformers", "zarr",
})  # fmt: skip
"""Optional packages of MONAI's data, apps, engines, handlers and of its one language network
(MONAI asks for each through `optional_import` and does without, saying so only when the part
that needs it is used)."""


class _Absent(importlib.abc.MetaPathFinder):
    """Says of the guests that they are not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in GUESTS:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None


@contextlib.contextmanager
def _without_guests() -> Iterator[None]:
    finder = _Absent()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_monai() -> None:
    """Import MONAI's networks and losses; for processes that only build and run networks.

    The guests can be imported as usual afterwards; only MONAI's own uses of them are off in
    this process. Does nothing where MONAI is imported already.
    """
    if "monai" in sys.modules:
        return
    importlib.import_module("torch")
    with _without_guests():
        importlib.import_module("monai.losses")
        importlib.import_module("monai.networks.nets")
