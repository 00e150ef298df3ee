"""The nouns of a dataset: what it holds, what is wrong with it, how fast it loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from segplan.results import Environment
from segplan.units import Patch

Spacing = tuple[float, float, float]
"""Millimetres between voxels, in the order of the array's axes (H, W, D)."""


class Layout(StrEnum):
    """How a dataset is laid out, or which summary of it was read instead."""

    MSD = "msd"
    NNUNET = "nnunet"
    FOLDERS = "folders"
    FINGERPRINT = "fingerprint"
    DATA_STATS = "data_stats"


class ProblemKind(StrEnum):
    """What can be wrong with a file or a case."""

    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    MAYBE_TRUNCATED = "maybe_truncated"
    RGB = "rgb"
    COMPLEX = "complex"
    AXES = "axes"
    ZERO_SIZE = "zero_size"
    SPACING = "spacing"
    BIG_ENDIAN = "big_endian"
    OUTSIDE = "outside"
    MISSING_IMAGE = "missing_image"
    MISSING_LABEL = "missing_label"
    MISSING_CHANNEL = "missing_channel"
    CHANNELS = "channels"
    MISMATCH = "mismatch"
    LABEL_VALUES = "label_values"
    DOCUMENT = "document"


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file.

    Attributes:
        file: relative to the dataset's folder.
        kind: for counting.
        sentence: what is wrong.
        left_out: whether the case it belongs to was left out because of it.
    """

    file: str
    kind: ProblemKind
    sentence: str
    left_out: bool = True


@dataclass(frozen=True)
class ShapeSpread:
    """Voxels (H, W, D) over the cases, each axis on its own."""

    median: Patch
    low: Patch
    high: Patch


@dataclass(frozen=True)
class SpacingSpread:
    """Millimetres (H, W, D) over the cases, each axis on its own."""

    median: Spacing
    low: Spacing
    high: Spacing


@dataclass(frozen=True)
class LabelSample:
    """What the voxels of some labels hold.

    Attributes:
        read: labels that were read to their end.
        cases: labels there are.
        values: voxels of each value, all read labels together.
        foreground: share of voxels that belong to a class above the background.
        empty: read labels without any foreground.
    """

    read: int
    cases: int
    values: Mapping[int, int]
    foreground: float | None
    empty: int = 0


@dataclass(frozen=True)
class DatasetScan:
    """What a dataset holds; None is "not known".

    Attributes:
        path: as asked.
        layout: what was recognised.
        name: the dataset's own name, where it has one.
        found: cases there are, usable or not.
        cases: cases that can be trained on; all other numbers are about these.
        channels: image channels of each case.
        classes: classes a network needs: the background included, a label to ignore not.
            Where labels are regions (nnU-Net), one for each region.
        shape: voxels as stored; None when there are no cases.
        spacing: millimetres as stored.
        orientations: cases of each orientation ("LPS": the axes run to the left, to the
            back and up).
        bytes_on_disk: images and labels of the usable cases.
        target_spacing: as asked; axes right, front, up.
        resampled: voxels at `target_spacing`, axes turned to right, front, up first.
        labels: what a sample of the labels holds; None where it was not asked for.
        problems: every file with something wrong, in order.
    """

    path: str
    layout: Layout
    found: int
    cases: int
    name: str | None = None
    channels: int | None = None
    classes: int | None = None
    shape: ShapeSpread | None = None
    spacing: SpacingSpread | None = None
    orientations: Mapping[str, int] = field(default_factory=dict)
    bytes_on_disk: int | None = None
    target_spacing: Spacing | None = None
    resampled: ShapeSpread | None = None
    labels: LabelSample | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def bytes_per_case(self) -> int | None:
        """Bytes on disk of an image and its label together, on average."""
        if self.bytes_on_disk is None or self.cases == 0:
            return None
        return self.bytes_on_disk // self.cases

    @property
    def problem_counts(self) -> dict[str, int]:
        """Problems of each kind, most frequent first."""
        return dict(Counter(p.kind.value for p in self.problems).most_common())


class CacheMode(StrEnum):
    """What keeps prepared cases between visits."""

    NONE = "none"
    MEMORY = "memory"
    DISK = "disk"


@dataclass(frozen=True)
class Sampled:
    """A measured value with its 80 % interval and the samples behind it.

    `low` and `high` are the 10th and 90th percentile of the samples: they show how the value
    varies within one measurement, not between machines or days.
    """

    value: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class LoaderRate:
    """How fast the data loader of this machine delivers this dataset's patches.

    "Cold" is the first visit of a case, its files not in the page cache where the system lets
    us drop them; "warm" is any later visit.

    Attributes:
        path: of the dataset.
        cases: usable cases of the dataset.
        measured: different cases that were visited.
        visits: visits of cases in all, first ones included.
        workers: processes of the data loader (0: in the training process).
        cache: what keeps prepared cases.
        patch: voxels (H, W, D).
        num_samples: patches cropped from a case at each visit.
        batch: cases in a batch.
        spacing: millimetres every case is resampled to.
        patches_per_s: over later visits; over first ones when there were no others.
        first_patches_per_s: over first visits, filling the cache included.
        mb_per_s: 10^6 bytes per second that are read from files at `patches_per_s`: the
            dataset's, or those of the cache on disk; 0 from a cache in memory.
        cold_s: seconds one worker takes for the first visit of a case.
        warm_s: seconds one worker takes for a later visit; None when there was none.
        case_bytes: bytes of a prepared case (image and label as float32).
        cache_bytes: bytes of all prepared cases of the dataset, in memory or on disk.
        worker_bytes: most bytes one worker added to the host's memory.
        prefetch_bytes: bytes of the patches that wait in queues.
        host_bytes: host memory needed: this process, its workers, queues and, with
            `cache` "memory", the whole dataset's cache.
        interrupted: whether the measurement was stopped before its time.
        environment: host and versions.
        problems: cases that could not be loaded.
        notes: sentences a reader should know.
        start_s: seconds without a batch in every epoch: from its start to its first batch (the
            workers start and load a case each, files in the page cache) and from its last batch
            until they have ended; None where it was not measured, or without workers.
    """

    path: str
    cases: int
    measured: int
    visits: int
    workers: int
    cache: CacheMode
    patch: Patch
    num_samples: int
    batch: int
    spacing: Spacing
    patches_per_s: Sampled
    first_patches_per_s: Sampled | None
    mb_per_s: float
    cold_s: Sampled | None
    warm_s: Sampled | None
    case_bytes: int
    cache_bytes: int
    worker_bytes: int
    prefetch_bytes: int
    host_bytes: int
    interrupted: bool = False
    environment: Environment = field(default_factory=Environment)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    start_s: Sampled | None = None


def sampled(value: float, samples: Sequence[float]) -> Sampled:
    """A value with the 10th and 90th percentile of its samples (linear between samples).

    The interval always holds the value.
    """
    ordered = sorted(samples) or [value]
    low, high = (_percentile(ordered, share) for share in (0.1, 0.9))
    return Sampled(value, min(low, value), max(high, value), tuple(samples))


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
