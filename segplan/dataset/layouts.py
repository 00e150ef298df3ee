"""Which files of a folder are images and labels, and which belong together."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segplan.dataset.documents import read_json
from segplan.dataset.headers import stem_of, suffix_of
from segplan.dataset.nouns import Layout, Problem, ProblemKind
from segplan.errors import RequestError

MAX_DEPTH = 8
"""Folders below the dataset's that are looked into."""

MAX_FILES = 1_000_000
"""A folder with more files than this is a whole disk, not a dataset."""

IMAGE_FOLDERS = frozenset(
    "imagestr images image imgs img volumes volume vols scans scan ct mr".split()
)
LABEL_FOLDERS = frozenset(
    "labelstr labels label masks mask segmentations segmentation segs seg annotations gt "
    "groundtruth".split()
)
TEST_FOLDERS = frozenset("imagests labelsts".split())
_IMAGE_WORDS = "images|image|img|volume|vol|scan"
_LABEL_WORDS = "labels|label|segmentation|seg|masks|mask|gt"
_WORD = re.compile(
    rf"^(?P<first>{_IMAGE_WORDS}|{_LABEL_WORDS})(?=[-_. \d])[-_. ]*"
    rf"|[-_. ](?P<last>{_IMAGE_WORDS}|{_LABEL_WORDS})$"
)
_IS_LABEL = re.compile(_LABEL_WORDS)


@dataclass(frozen=True)
class CaseFiles:
    """The files of one case: an image in one or several files, one a channel, and its label."""

    name: str
    images: tuple[Path, ...]
    label: Path | None


@dataclass(frozen=True)
class Listing:
    """What a folder lists, before any image was opened.

    Attributes:
        layout: as recognised.
        root: the dataset's folder.
        cases: in the order of their names.
        found: cases there are, those with a problem included.
        name: the dataset's own name.
        channels: as its description says.
        classes: as its description says.
        ignored: label value that is to be ignored.
        values: label values its description names; empty where there is none.
        problems: files that are missing or may not be read.
    """

    layout: Layout
    root: Path
    cases: tuple[CaseFiles, ...]
    found: int
    name: str | None = None
    channels: int | None = None
    classes: int | None = None
    ignored: int | None = None
    values: frozenset[int] = frozenset()
    problems: tuple[Problem, ...] = ()


def list_folder(root: Path) -> Listing:
    """The cases of a folder.

    Raises:
        RequestError: there is no such folder, it cannot be read, or it holds no images.
    """
    document: Any = None
    problems: list[Problem] = []
    if (root / "dataset.json").exists():
        try:
            document = read_json(root / "dataset.json")
            if not isinstance(document, dict):
                document = None
                raise RequestError("It holds no keys.")
        except RequestError as error:
            sentence = f"{error} The folders are read instead."
            problems.append(Problem("dataset.json", ProblemKind.DOCUMENT, sentence, False))
    if isinstance(document, dict) and isinstance(document.get("training"), list):
        listing = _msd(root, document)
    elif isinstance(document, dict) and ("channel_names" in document or "file_ending" in document):
        listing = _nnunet(root, document)
    else:
        listing = _folders(root)
    if listing.found == 0:
        raise RequestError(
            f"no NIfTI images found in {root}: name the folder that holds imagesTr and labelsTr, "
            "or a dataset.json."
        )
    return replace(listing, problems=(*problems, *listing.problems))


# Medical Segmentation Decathlon -------------------------------------------------------------


def _msd(root: Path, document: Mapping[str, Any]) -> Listing:
    """dataset.json of the Decathlon (medicaldecathlon.com) and of MONAI's data lists.

    `training` is a list of {"image", "label"}; an image may be a list of files, and nnU-Net
    version 1 leaves the channel's number off the names.
    """
    cases, problems = [], []
    for number, entry in enumerate(document["training"]):
        pair = entry if isinstance(entry, dict) else {"image": entry}
        images, bad = [], None
        for name in _as_list(pair.get("image")):
            path, bad = _inside(root, name, number)
            if path is None:
                break
            images += _channels_of(path)
        label = None
        if bad is None and pair.get("label") is not None:
            label, bad = _inside(root, pair["label"], number)
        if bad is None and not images:
            bad = Problem(
                f"dataset.json, training {number}", ProblemKind.MISSING_IMAGE,
                "It names no image.",
            )  # fmt: skip
        if bad is not None:
            problems.append(bad)
        else:
            cases.append(CaseFiles(stem_of(images[0].name), tuple(images), label))
    classes, ignored, values = label_values(document.get("labels"))
    modality = document.get("modality", document.get("channel_names"))
    return Listing(
        Layout.MSD, root, tuple(cases), len(document["training"]),
        name=text_of(document.get("name")),
        channels=len(modality) if isinstance(modality, (dict, list)) and modality else None,
        classes=classes, ignored=ignored, values=values, problems=tuple(problems),
    )  # fmt: skip


def _inside(root: Path, name: Any, number: int) -> tuple[Path | None, Problem | None]:
    """A file that dataset.json names, if it lies below the folder."""
    where = f"dataset.json, training {number}"
    if not isinstance(name, str) or not name or "\0" in name:
        return None, Problem(where, ProblemKind.DOCUMENT, "It holds no file's name.")
    base = os.path.abspath(root)
    path = os.path.normpath(os.path.join(base, name))
    if os.path.commonpath([base, path]) != base:
        sentence = f"It names a file outside of the folder ({name[:200]}), which is not read."
        return None, Problem(where, ProblemKind.OUTSIDE, sentence)
    return root / os.path.relpath(path, base), None


def _channels_of(path: Path) -> list[Path]:
    if path.exists():
        return [path]
    suffix, stem = suffix_of(path.name) or "", stem_of(path.name)
    found: list[Path] = []
    while (file := path.with_name(f"{stem}_{len(found):04d}{suffix}")).exists():
        found.append(file)
    return found or [path]


# nnU-Net version 2 --------------------------------------------------------------------------


def _nnunet(root: Path, document: Mapping[str, Any]) -> Listing:
    """nnU-Net's raw format: imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz.

    Source: MIC-DKFZ/nnUNet, documentation/dataset_format.md.
    """
    ending = document.get("file_ending", ".nii.gz")
    if not isinstance(ending, str) or suffix_of("x" + ending) is None:
        raise RequestError(
            f"the images in {root} end in {str(ending)[:20]!r}: only NIfTI and Analyze are read."
        )
    names = document.get("channel_names", document.get("modality"))
    channels = len(names) if isinstance(names, (dict, list)) and names else 1
    problems: list[Problem] = []
    listed = document.get("dataset")
    if isinstance(listed, dict):
        cases = _listed(root, listed, problems)
        found = len(listed)
    else:
        cases, found = _matched(root, ending, channels, problems)
    classes, ignored, values = label_values(document.get("labels"))
    return Listing(
        Layout.NNUNET, root, tuple(cases), found, name=text_of(document.get("name")),
        channels=channels, classes=classes, ignored=ignored, values=values,
        problems=tuple(problems),
    )  # fmt: skip


def _listed(root: Path, listed: Mapping[str, Any], problems: list[Problem]) -> list[CaseFiles]:
    cases = []
    for name, entry in listed.items():
        entry = entry if isinstance(entry, dict) else {}
        files = [_inside(root, f, 0) for f in [*_as_list(entry.get("images")), entry.get("label")]]
        bad = next((b for _, b in files if b is not None), None)
        paths = [p for p, _ in files if p is not None]
        if bad is None and len(paths) > 1:
            cases.append(CaseFiles(name, tuple(paths[:-1]), paths[-1]))
        else:
            sentence = bad.sentence if bad else "It names no image."
            kind = bad.kind if bad else ProblemKind.MISSING_IMAGE
            problems.append(Problem(f"dataset.json, dataset {name[:100]}", kind, sentence))
    return cases


def _matched(
    root: Path, ending: str, channels: int, problems: list[Problem]
) -> tuple[list[CaseFiles], int]:
    labels = {f.name[: -len(ending)]: f for f in _files(root / "labelsTr", ending)}
    images: dict[str, dict[int, Path]] = defaultdict(dict)
    for file in _files(root / "imagesTr", ending):
        match = re.fullmatch(r"(.+)_(\d{4})", file.name[: -len(ending)])
        if match is None:
            sentence = f"Its name lacks the channel's number (_0000{ending})."
            problems.append(_problem(root, file, ProblemKind.MISSING_CHANNEL, sentence))
        else:
            images[match[1]][int(match[2])] = file
    cases = []
    for name in sorted(images):
        missing = [n for n in range(channels) if n not in images[name]]
        if missing:
            text = ", ".join(f"_{n:04d}" for n in missing)
            first = images[name][min(images[name])]
            sentence = f"Channels of this case are missing: {text}."
            problems.append(_problem(root, first, ProblemKind.MISSING_CHANNEL, sentence))
            continue
        files = tuple(images[name][n] for n in range(channels))
        cases.append(CaseFiles(name, files, labels.get(name)))
    for name in sorted(set(labels) - set(images)):
        sentence = "There is no image for this label."
        problems.append(_problem(root, labels[name], ProblemKind.MISSING_IMAGE, sentence))
    return cases, len(set(images) | set(labels))


def label_values(value: Any) -> tuple[int | None, int | None, frozenset[int]]:
    """Classes, the value to ignore, and all values of a `labels` entry.

    Both {"0": "background"} (Decathlon) and {"background": 0} (nnU-Net) are read; where a
    label is a region (a list of values), a network has one output for each region.
    """
    if not isinstance(value, dict) or not value:
        return None, None, frozenset()
    pairs: list[tuple[str, list[int]]] = []
    for key, entry in value.items():
        if str(key).isdecimal() and isinstance(entry, str):
            pairs.append((entry, [int(key)]))
            continue
        numbers = [n for n in _as_list(entry) if isinstance(n, int) and not isinstance(n, bool)]
        if not numbers:
            return None, None, frozenset()
        pairs.append((str(key), numbers))
    ignored = next((n[0] for name, n in pairs if name.lower() == "ignore"), None)
    kept = [(name, n) for name, n in pairs if name.lower() != "ignore"]
    if any(len(n) > 1 for _, n in kept):
        kept = [(name, n) for name, n in kept if n != [0]]
    values = frozenset(n for _, numbers in pairs for n in numbers)
    return (len(kept) or None), ignored, values


# Plain folders ------------------------------------------------------------------------------


@dataclass
class _Group:
    """Images and labels of one place, by what their names have in common."""

    images: list[tuple[str, Path]]
    labels: dict[str, Path]
    folders: set[Path]


def _folders(root: Path) -> Listing:
    """Images and labels in folders of such names, or told apart by words in their names."""
    groups: dict[tuple[str, ...], _Group] = defaultdict(lambda: _Group([], {}, set()))
    for file in _walk(root):
        relative = file.relative_to(root)
        place: list[str] = []
        in_labels = in_images = False
        for part in relative.parts[:-1]:
            low = part.lower()
            if low in LABEL_FOLDERS:
                in_labels = True
            elif low in IMAGE_FOLDERS:
                in_images = True
            else:
                place.append(part)
        key, says_label = _key(stem_of(file.name))
        group = groups[tuple(place)]
        if in_labels or (says_label and not in_images):
            group.labels[key] = file
        else:
            group.images.append((key, file))
            group.folders.add(file.parent)
    cases: list[CaseFiles] = []
    problems: list[Problem] = []
    for where in sorted(groups):
        _pair(root, where, groups[where], cases, problems)
    return Listing(
        Layout.FOLDERS, root, tuple(cases), len(cases) + len(problems), name=None,
        problems=tuple(problems),
    )  # fmt: skip


def _key(stem: str) -> tuple[str, bool]:
    """A name without the words that say what it is ("img0001", "x_seg"), and whether a label."""
    low = stem.lower()
    says_label = False
    for _ in range(2):
        match = _WORD.search(low)
        if match is None:
            break
        word = match["first"] or match["last"]
        says_label = says_label or _IS_LABEL.fullmatch(word) is not None
        low = (low[: match.start()] + low[match.end() :]) or low
    return low, says_label


def _pair(
    root: Path,
    place: Sequence[str],
    group: _Group,
    cases: list[CaseFiles],
    problems: list[Problem],
) -> None:
    """Put the images of one place to its labels; the unmatched stay without."""
    exact = {key for key, _ in group.images} & set(group.labels)
    found: dict[str, list[Path]] = defaultdict(list)
    alone = []
    for key, file in group.images:
        owner = key if key in exact else _owner(key, group.labels.keys() - exact)
        if owner is None and len(group.labels) == 1 and place and not exact:
            # A folder for each case: its only label belongs to all that lies beside it.
            label = next(iter(group.labels))
            owner = label if group.labels[label].parent == file.parent else None
        if owner is None:
            alone.append(CaseFiles(stem_of(file.name), (file,), None))
        else:
            found[owner].append(file)
    new = [
        CaseFiles(stem_of(files[0].name), tuple(files), group.labels[key])
        for key, files in found.items()
    ]
    cases += sorted([*new, *alone], key=lambda case: case.name)
    for key in sorted(group.labels.keys() - found.keys()):
        sentence = "There is no image for this label."
        problems.append(_problem(root, group.labels[key], ProblemKind.MISSING_IMAGE, sentence))


def _owner(key: str, labels: set[str]) -> str | None:
    """The longest label whose name an image's begins with ("case_1" of "case_1_0000")."""
    parts = [m.start() for m in re.finditer(r"[-_. ]", key)]
    return next((key[:end] for end in reversed(parts) if key[:end] in labels), None)


def _walk(root: Path) -> Iterator[Path]:
    """Image files below a folder, sorted; links are followed, but never round in circles."""
    seen: set[tuple[int, int]] = set()
    count = 0
    for folder, folders, files in os.walk(root, followlinks=True):
        here = Path(folder)
        try:
            info = here.stat()
        except OSError:
            folders[:] = []
            continue
        if (info.st_dev, info.st_ino) in seen or len(here.relative_to(root).parts) > MAX_DEPTH:
            folders[:] = []
            continue
        seen.add((info.st_dev, info.st_ino))
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f.lower() not in TEST_FOLDERS
        )
        count += len(files)
        if count > MAX_FILES:
            raise RequestError(f"{root} holds more than {MAX_FILES:,} files: name one dataset.")
        yield from (here / f for f in sorted(files) if _is_image(f))


def _files(folder: Path, ending: str) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return []
        raise RequestError(f"{folder} cannot be read: {error.strerror}.") from error
    return [folder / n for n in sorted(names) if n.endswith(ending) and not n.startswith(".")]


def _is_image(name: str) -> bool:
    """Whether a file is listed: of a pair only the header is (macOS leaves "._" files)."""
    suffix = suffix_of(name)
    return suffix is not None and not suffix.startswith(".img") and not name.startswith(".")


def _problem(root: Path, file: Path, kind: ProblemKind, sentence: str) -> Problem:
    return Problem(str(file.relative_to(root)), kind, sentence)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def text_of(value: Any) -> str | None:
    """A description's text, shortened; None for anything else."""
    return value[:200] if isinstance(value, str) and value else None
