"""The nouns of a schedule: how often what is trained, and on which data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from segplan.errors import RequestError
from segplan.units import Patch


@dataclass(frozen=True)
class StepSize:
    """What one training step sees.

    Attributes:
        batch: patches in one forward pass on one GPU.
        accumulation: forward passes of one optimizer step.
        gpus: GPUs that train together, each on patches of its own.
    """

    batch: int
    accumulation: int = 1
    gpus: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "accumulation", "gpus"):
            _whole(name, getattr(self, name), 1)

    @property
    def per_gpu(self) -> int:
        """Patches per GPU per step."""
        return self.batch * self.accumulation

    @property
    def patches(self) -> int:
        """Patches per step over all GPUs."""
        return self.per_gpu * self.gpus


@dataclass(frozen=True)
class FixedIterations:
    """An epoch is a number of steps, whatever the dataset (nnU-Net: 250, then 50 to validate).

    A larger batch or more GPUs make such an epoch no shorter: it sees more patches.

    Attributes:
        iterations: training steps.
        validation_iterations: forward passes on patches like those of training, after them.
    """

    iterations: int
    validation_iterations: int = 0

    def __post_init__(self) -> None:
        _whole("iterations", self.iterations, 1)
        _whole("validation_iterations", self.validation_iterations, 0)

    def steps(self, _size: StepSize) -> int:
        """Training steps of one epoch."""
        return self.iterations

    def patches(self, size: StepSize) -> int:
        """Patches trained on in one epoch, over all GPUs."""
        return self.iterations * size.patches


@dataclass(frozen=True)
class CasesPerEpoch:
    """An epoch visits every case once and crops `num_samples` patches from it (MONAI).

    With several GPUs each gets an equal share of the cases, rounded up by repeating some, as
    `torch.utils.data.DistributedSampler` does.

    Attributes:
        cases: training cases (of one fold).
        num_samples: patches cropped at each visit.
        drop_last: leave an incomplete last batch out; otherwise it counts as a step.
    """

    cases: int
    num_samples: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        _whole("cases", self.cases, 1)
        _whole("num_samples", self.num_samples, 1)

    def _share(self, size: StepSize) -> int:
        """Patches of one epoch on one GPU."""
        return math.ceil(self.cases / size.gpus) * self.num_samples

    def steps(self, size: StepSize) -> int:
        """Training steps of one epoch.

        Raises:
            RequestError: `drop_last` leaves nothing.
        """
        patches = self._share(size)
        batches = patches // size.batch if self.drop_last else math.ceil(patches / size.batch)
        if batches == 0:
            raise RequestError(
                f"an epoch has {patches} patches for each GPU and drop_last leaves none of them "
                f"at batch {size.batch}: use a smaller batch, or drop_last: false."
            )
        return math.ceil(batches / size.accumulation)

    def patches(self, size: StepSize) -> int:
        """Patches trained on in one epoch, over all GPUs."""
        patches = self._share(size)
        if self.drop_last:
            patches -= patches % size.batch
        return patches * size.gpus


@dataclass(frozen=True)
class Validation:
    """Whole volumes by sliding window, every so many epochs.

    Attributes:
        cases: volumes each time (of one fold).
        every: epochs between two validations; as many as the schedule has: only at its end.
        shape: voxels of a typical volume (H, W, D), resampled; None: the dataset's.
        roi: voxels of a window; None: the training patch.
        overlap: share of a window that its neighbour covers too.
        sw_batch_size: windows in one forward pass.
        passes: forward passes of each window (8 with mirroring along three axes).
        seconds_per_volume: measured; None: predicted from the training step.
    """

    cases: int
    every: int = 1
    shape: Patch | None = None
    roi: Patch | None = None
    overlap: float = 0.25
    sw_batch_size: int = 1
    passes: int = 1
    seconds_per_volume: float | None = None

    def __post_init__(self) -> None:
        for name in ("cases", "every", "sw_batch_size", "passes"):
            _whole(name, getattr(self, name), 1)
        if not 0 <= self.overlap < 1:
            raise RequestError(f"overlap must be at least 0 and below 1, not {self.overlap:g}.")
        seconds = self.seconds_per_volume
        if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
            raise RequestError(f"seconds_per_volume must be above 0, not {seconds:g}.")


@dataclass(frozen=True)
class Schedule:
    """A whole experiment: epochs of one of two kinds, folds, validation and checkpoints.

    Attributes:
        epochs: of one fold.
        epoch: what one epoch is.
        folds: trainings of the experiment, one after the other.
        validation: whole volumes every so many epochs; None: never.
        checkpoint_every: epochs between two saved checkpoints; None: none are counted.
    """

    epochs: int
    epoch: FixedIterations | CasesPerEpoch
    folds: int = 1
    validation: Validation | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        _whole("epochs", self.epochs, 1)
        _whole("folds", self.folds, 1)
        if self.checkpoint_every is not None:
            _whole("checkpoint_every", self.checkpoint_every, 1)
        if self.validation is not None and self.validation.every > self.epochs:
            raise RequestError(
                f"validation every {self.validation.every} epochs never happens in {self.epochs}: "
                f"for one at the end say every: {self.epochs}."
            )

    @property
    def fixed(self) -> bool:
        """Whether an epoch is a number of steps, whatever the batch."""
        return isinstance(self.epoch, FixedIterations)

    def steps_per_epoch(self, size: StepSize) -> int:
        """Training steps of one epoch."""
        return self.epoch.steps(size)

    def steps(self, size: StepSize) -> int:
        """Training steps of the whole experiment, all folds."""
        return self.steps_per_epoch(size) * self.epochs * self.folds

    def patches(self, size: StepSize) -> int:
        """Patches trained on in the whole experiment, over all GPUs and folds."""
        return self.epoch.patches(size) * self.epochs * self.folds

    @property
    def validations(self) -> int:
        """Times that whole volumes are validated, all folds."""
        return 0 if self.validation is None else self.epochs // self.validation.every * self.folds

    @property
    def volumes(self) -> int:
        """Volumes validated in the whole experiment, all folds."""
        return 0 if self.validation is None else self.validations * self.validation.cases

    @property
    def validation_iterations(self) -> int:
        """Forward passes on training-sized batches in the whole experiment, all folds."""
        if isinstance(self.epoch, FixedIterations):
            return self.epoch.validation_iterations * self.epochs * self.folds
        return 0

    @property
    def checkpoints(self) -> int:
        """Checkpoints saved, all folds."""
        every = self.checkpoint_every
        return 0 if every is None else self.epochs // every * self.folds


@dataclass(frozen=True)
class DatasetFacts:
    """What a configuration says about a dataset; None is "not known".

    Attributes:
        cases: labelled cases, those for validation included.
        channels: image channels.
        classes: classes, the background included.
        shape: voxels of a typical case (H, W, D) at `spacing`.
        spacing: millimetres between voxels (H, W, D) that cases are resampled to.
        bytes_per_case: image and label as they lie on disk.
        foreground: share of voxels above the background.
        path: where it is.
    """

    cases: int | None = None
    channels: int | None = None
    classes: int | None = None
    shape: Patch | None = None
    spacing: tuple[float, float, float] | None = None
    bytes_per_case: int | None = None
    foreground: float | None = None
    path: str | None = None


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(f"{name} must be a whole number of at least {least}, not {value!r}.")
