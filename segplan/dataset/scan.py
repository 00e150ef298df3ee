"""Reading all headers of a dataset, and what they add up to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from segplan.dataset.headers import Header, HeaderFault, read_header
from segplan.dataset.labels import evenly, read_label
from segplan.dataset.layouts import CaseFiles, Listing
from segplan.dataset.nouns import (
    DatasetScan,
    LabelSample,
    Layout,
    Problem,
    ProblemKind,
    Spacing,
)
from segplan.dataset.statistics import resampled_shape, shape_spread, spacing_spread
from segplan.units import Patch

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what) as work goes on."""

THREADS = 8
"""Reading a header waits for the disk (or the network) more than it computes."""

SPACING_TOLERANCE = 1e-3
"""An image and its label whose spacings differ by more than this share do not match."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Case:
    """One case whose headers can be trained on."""

    files: CaseFiles
    image: Header
    label: Header | None
    channels: int
    stored_bytes: int

    def resampled(self, target: Spacing) -> Patch:
        """Voxels at another spacing, axes turned to right, front and up first."""
        order = self.image.to_ras
        shape, spacing = self.image.shape, self.image.spacing
        return resampled_shape(
            (shape[order[0]], shape[order[1]], shape[order[2]]),
            (spacing[order[0]], spacing[order[1]], spacing[order[2]]),
            target,
        )


@dataclass(frozen=True)
class Dataset:
    """A listed folder after its headers were read."""

    listing: Listing
    cases: tuple[Case, ...]
    channels: int | None
    problems: tuple[Problem, ...]


def read_dataset(listing: Listing, progress: Progress) -> Dataset:
    """Read the headers of every case; what is wrong with one never loses another.

    Cases without a label are left out unless no case has one.
    """
    problems = list(listing.problems)
    cases: list[Case] = []
    names = listing.cases

    def examine(files: CaseFiles) -> tuple[Case | None, list[Problem]]:
        return _examine(files, listing)

    results = [
        result
        for _, result in sorted(
            _parallel(examine, names, progress, "reading headers"), key=lambda item: item[0]
        )
    ]
    for case, found in results:
        problems += found
        if case is not None:
            cases.append(case)
    cases = _labelled(cases, listing, problems)
    cases, channels = _same_channels(cases, listing, problems)
    return Dataset(listing, tuple(cases), channels, tuple(problems))


def summarise(dataset: Dataset, asked: str, target: Spacing | None = None) -> DatasetScan:
    """What the usable cases add up to; `target` is the spacing to resample to."""
    cases, listing = dataset.cases, dataset.listing
    orientations = Counter(c.image.orientation or "unknown" for c in cases)
    return DatasetScan(
        path=asked,
        layout=listing.layout,
        found=listing.found,
        cases=len(cases),
        name=listing.name,
        channels=dataset.channels,
        classes=listing.classes,
        shape=shape_spread([c.image.shape for c in cases]) if cases else None,
        spacing=spacing_spread([c.image.spacing for c in cases]) if cases else None,
        orientations=dict(orientations.most_common()),
        bytes_on_disk=sum(c.stored_bytes for c in cases),
        target_spacing=target,
        resampled=shape_spread([c.resampled(target) for c in cases]) if cases and target else None,
        problems=dataset.problems,
    )


def add_labels(scan: DatasetScan, dataset: Dataset, sample: int, progress: Progress) -> DatasetScan:
    """The scan with what the voxels of a sample of labels hold.

    Classes become known where no description gave them: the largest value plus one.

    Args:
        scan: of `dataset`.
        dataset: whose labels are read.
        sample: most labels to read, evenly spread over the cases.
        progress: called as labels are read.
    """
    labelled = [(c, c.label) for c in dataset.cases if c.label is not None]
    chosen = evenly(labelled, sample)
    root, listing = dataset.listing.root, dataset.listing
    problems: list[Problem] = []
    values: Counter[int] = Counter()
    read = empty = 0

    def one(pair: tuple[Case, Header]) -> tuple[dict[int, int] | None, Problem | None]:
        try:
            return read_label(pair[1]).values, None
        except HeaderFault as fault:
            return None, Problem(_relative(pair[1].path, root), fault.kind, str(fault), False)

    for place, (found, problem) in sorted(
        _parallel(one, chosen, progress, "reading labels"), key=lambda item: item[0]
    ):
        if found is None:
            problems += [problem] if problem else []
            continue
        read += 1
        values.update(found)
        empty += not any(v > 0 and v != listing.ignored for v in found)
        unknown = sorted(v for v in found if listing.values and v not in listing.values)
        negative = [v for v in found if v < 0]
        if unknown or negative:
            text = ", ".join(str(v) for v in (unknown or negative)[:5])
            why = "that dataset.json does not name" if unknown else "below zero"
            sentence = f"It holds values {why}: {text}."
            file = _relative(chosen[place][1].path, root)
            problems.append(Problem(file, ProblemKind.LABEL_VALUES, sentence, False))
    total = sum(values.values())
    front = sum(n for v, n in values.items() if v > 0 and v != listing.ignored)
    classes = scan.classes
    if classes is None and values and max(values) > 0:
        classes = max(values) + 1
    return replace(
        scan,
        classes=classes,
        labels=LabelSample(
            read, len(labelled), dict(sorted(values.items())), front / total if total else None,
            empty,
        ),
        problems=(*scan.problems, *problems),
    )  # fmt: skip


def _examine(files: CaseFiles, listing: Listing) -> tuple[Case | None, list[Problem]]:
    """One case's headers, and everything wrong with them."""
    problems: list[Problem] = []
    images: list[Header] = []
    label: Header | None = None
    usable = True
    for path in files.images:
        header = _header(path, listing, problems)
        usable = usable and header is not None
        images += [header] if header is not None else []
    if files.label is not None:
        label = _header(files.label, listing, problems)
        usable = usable and label is not None
    if not usable or not images:
        return None, problems
    first = images[0]
    for other in images[1:]:
        if other.shape != first.shape:
            sentence = (
                f"Its {_text(other.shape)} voxels differ from channel 0's {_text(first.shape)}."
            )
            problems.append(_fault(other, listing, ProblemKind.MISMATCH, sentence))
            return None, problems
    by_file = len(images) > 1 or listing.layout is Layout.NNUNET
    if by_file and any(i.channels > 1 for i in images):
        sentence = "It has four axes, where each channel has its own file."
        problems.append(_fault(first, listing, ProblemKind.AXES, sentence))
        return None, problems
    if label is not None:
        bad = _label_fault(first, label)
        if bad is not None:
            kind, sentence, left_out = bad
            problems.append(_fault(label, listing, kind, sentence, left_out))
            if left_out:
                return None, problems
    channels = sum(i.channels for i in images)
    if first.channels > 1 and listing.channels is None:
        sentence = f"It has four axes: the last ({first.channels}) is taken for channels."
        problems.append(_fault(first, listing, ProblemKind.AXES, sentence, False))
    stored = sum(i.stored_bytes for i in images) + (label.stored_bytes if label else 0)
    return Case(files, first, label, channels, stored), problems


def _label_fault(image: Header, label: Header) -> tuple[ProblemKind, str, bool] | None:
    if label.channels > 1:
        return ProblemKind.AXES, f"A label with four axes ({label.channels} volumes).", True
    if label.shape != image.shape:
        sentence = f"Its {_text(label.shape)} voxels differ from its image's {_text(image.shape)}."
        return ProblemKind.MISMATCH, sentence, True
    pairs = zip(label.spacing, image.spacing, strict=True)
    if any(abs(a - b) > SPACING_TOLERANCE * max(a, b) for a, b in pairs):
        return ProblemKind.MISMATCH, "Its spacing differs from its image's.", False
    if label.orientation != image.orientation:
        return ProblemKind.MISMATCH, "Its orientation differs from its image's.", False
    return None


def _header(path: Path, listing: Listing, problems: list[Problem]) -> Header | None:
    file = _relative(path, listing.root)
    try:
        header = read_header(path)
    except HeaderFault as fault:
        problems.append(Problem(file, fault.kind, str(fault)))
        return None
    problems += [Problem(file, kind, sentence, False) for kind, sentence in header.notes]
    return header


def _labelled(cases: list[Case], listing: Listing, problems: list[Problem]) -> list[Case]:
    kept = [c for c in cases if c.label is not None]
    if not kept:
        if cases:
            sentence = "No case has a label: all are counted."
            problems.append(Problem(".", ProblemKind.MISSING_LABEL, sentence, False))
        return cases
    for case in cases:
        if case.label is None:
            sentence = "There is no label for this image."
            problems.append(_fault(case.image, listing, ProblemKind.MISSING_LABEL, sentence))
    return kept


def _same_channels(
    cases: list[Case], listing: Listing, problems: list[Problem]
) -> tuple[list[Case], int | None]:
    """The cases with as many channels as the description, or else as most cases, have."""
    if not cases:
        return cases, listing.channels
    usual = listing.channels
    if usual is None or listing.layout is Layout.MSD:
        counted = Counter(c.channels for c in cases).most_common()
        usual = usual if usual in dict(counted) else counted[0][0]
    kept = [c for c in cases if c.channels == usual]
    for case in cases:
        if case.channels != usual:
            sentence = f"It has {case.channels} channels, most others {usual}."
            problems.append(_fault(case.image, listing, ProblemKind.CHANNELS, sentence))
    return kept, usual


def _fault(
    header: Header, listing: Listing, kind: ProblemKind, sentence: str, left_out: bool = True
) -> Problem:
    return Problem(_relative(header.path, listing.root), kind, sentence, left_out)


def _relative(path: Path, root: Path) -> str:
    try:
        return str(path.relative_to(root))
    except ValueError:
        return str(path)


def _text(shape: Patch) -> str:
    return " x ".join(str(n) for n in shape)


def _parallel(
    function: Callable[[_Item], _Result], items: Sequence[_Item], progress: Progress, what: str
) -> Iterator[tuple[int, _Result]]:
    """The function's results with their places, as they come; an interrupt waits for none."""
    numbered: Iterable[tuple[int, _Item]] = iter(enumerate(items))
    threads = min(THREADS, 2 * (os.cpu_count() or 1) + 2)
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        # No more waiting than is needed: a million futures would only take memory.
        running: dict[Future[_Result], int] = {}
        while True:
            for place, item in islice(numbered, 4 * threads - len(running)):
                running[pool.submit(function, item)] = place
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                done += 1
                progress(done, len(items), what)
                yield running.pop(future), future.result()
