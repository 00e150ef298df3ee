"""Importing MONAI without the packages that its networks and losses never use.

`import monai` imports all of MONAI and every optional package of it that is installed: with pandas
and matplotlib alone that is a fifth of what a new process does before it can trace or probe (6.1 s
instead of 4.9 s of one core).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

GUESTS = frozenset({
    "clearml", "cucim", "cupy", "cupyx", "cv2", "gdown", "h5py", "huggingface_hub", "ignite",
    "imagecodecs", "itk", "jsonschema", "lightning", "lmdb", "matplotlib", "mlflow", "nibabel",
    "nni", "nrrd", "onnx", "onnxruntime", "onnxscript", "openslide", "optuna", "pandas", "PIL",
    "pydicom", "pytorch_lightning", "scipy", "skimage", "sklearn", "tensorboard", "tensorboardX",
    "tensorrt", "tifffile", "torch_tensorrt", "torchaudio", "torchio", "tqdm", "transformers",
    "yaml", "zarr",
})  # fmt: skip
"""Optional packages of MONAI's data, apps, engines, handlers and of its one language network
(MONAI asks for each through `optional_import` and does without, saying so only when the part
that needs it is used)."""


@contextlib.contextmanager
def _without_guests() -> Iterator[None]:
    """While inside, what is not imported yet of the guests counts as not installed."""
    absent = [name for name in GUESTS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


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
