from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from segplan.api.scanning import parse_spacing, scan
from segplan.dataset.nouns import Layout, ProblemKind
from segplan.errors import RequestError
from tests.dataset.making import (
    affine,
    decathlon,
    describe,
    described,
    header,
    nnunet,
    pair,
    volume,
    write,
)


def kinds(found):
    return [(p.file, p.kind) for p in found.problems]


def test_the_decathlon(tmp_path):
    root = decathlon(tmp_path, 3, spacing=(0.5, 0.5, 2.0), orientation="LAS")
    write(root / "imagesTr" / "._case_0.nii.gz", volume())  # what macOS leaves behind
    found = scan(root)
    assert (found.layout, found.name, found.found, found.cases) == (Layout.MSD, "Made", 3, 3)
    assert (found.channels, found.classes) == (1, 2)
    assert found.shape.median == found.shape.low == found.shape.high == (12, 10, 8)
    assert found.spacing.median == pytest.approx((0.5, 0.5, 2.0))
    assert found.orientations == {"LAS": 3}
    sizes = [(root / d / f"case_{n}.nii.gz").stat().st_size for d in ("imagesTr", "labelsTr")
             for n in range(3)]  # fmt: skip
    assert found.bytes_on_disk == sum(sizes)
    assert found.bytes_per_case == sum(sizes) // 3
    assert found.problems == ()
    assert scan(root / "dataset.json").cases == 3


def test_a_fourth_axis_of_the_decathlon_is_the_channels(tmp_path):
    root = decathlon(tmp_path, 2, shape=(8, 8, 8, 4))
    describe(root, **{**described(root), "modality": {str(n): "MR" for n in range(4)}})
    found = scan(root)
    assert (found.cases, found.channels, found.problems) == (2, 4, ())


def test_names_without_the_channels_number(tmp_path):
    """nnU-Net version 1 lists case.nii.gz and stores case_0000.nii.gz and so on."""
    root = nnunet(tmp_path, 2, channels=2)
    training = [
        {"image": f"./imagesTr/case_{n}.nii.gz", "label": f"./labelsTr/case_{n}.nii.gz"}
        for n in range(2)
    ]
    describe(root, training=training, modality={"0": "T1", "1": "T2"}, labels={"0": "background"})
    found = scan(root)
    assert (found.layout, found.cases, found.channels) == (Layout.MSD, 2, 2)


def test_nnunet(tmp_path):
    root = nnunet(tmp_path, 3, channels=2)
    (root / "imagesTr" / "case_1_0001.nii.gz").unlink()
    (root / "labelsTr" / "case_2.nii.gz").unlink()
    write(root / "labelsTr" / "case_9.nii.gz", volume(label=True))
    found = scan(root)
    assert (found.layout, found.found, found.cases, found.channels) == (Layout.NNUNET, 4, 1, 2)
    assert kinds(found) == [
        ("imagesTr/case_1_0000.nii.gz", ProblemKind.MISSING_CHANNEL),
        ("labelsTr/case_9.nii.gz", ProblemKind.MISSING_IMAGE),
        ("imagesTr/case_2_0000.nii.gz", ProblemKind.MISSING_LABEL),
    ]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ({"background": 0, "liver": 1, "tumour": 2}, 3),
        ({"background": 0, "liver": 1, "ignore": 2}, 2),
        # Regions have an output each, the background has none.
        ({"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}, 3),
        ({"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}, 2),
        ({"0": "background", "1": "liver"}, 2),
        ({"background": "nothing"}, None),
        ([], None),
    ],
)
def test_classes(tmp_path, labels, classes):
    root = nnunet(tmp_path, 1)
    describe(root, **{**described(root), "labels": labels})
    assert scan(root).classes == classes


def test_other_endings_are_refused(tmp_path):
    root = nnunet(tmp_path, 1)
    describe(root, **{**described(root), "file_ending": ".mha"})
    with pytest.raises(RequestError, match="only NIfTI"):
        scan(root)


@pytest.mark.parametrize(
    ("images", "labels", "channels"),
    [
        (["images/a", "images/b"], ["labels/a", "labels/b"], 1),
        (["imagesTr/a_0000", "imagesTr/a_0001", "imagesTr/b_0000", "imagesTr/b_0001"],
         ["labelsTr/a", "labelsTr/b"], 2),
        (["Training/img/img0001", "Training/img/img0002"],
         ["Training/label/label0001", "Training/label/label0002"], 1),  # BTCV
        (["volume-0", "volume-1"], ["segmentation-0", "segmentation-1"], 1),  # LiTS
        (["p1/p1_flair", "p1/p1_t1", "p2/p2_flair", "p2/p2_t1"],
         ["p1/p1_seg", "p2/p2_seg"], 2),  # BraTS
        (["a", "b"], ["a_mask", "b_mask"], 1),
    ],
)  # fmt: skip
def test_plain_folders(tmp_path, images, labels, channels):
    for name in images:
        write(tmp_path / f"{name}.nii.gz", volume())
    for name in labels:
        write(tmp_path / f"{name}.nii.gz", volume(label=True))
    write(tmp_path / "imagesTs" / "test.nii.gz", volume())
    found = scan(tmp_path, labels=True)
    assert (found.layout, found.found, found.cases) == (Layout.FOLDERS, 2, 2)
    assert (found.channels, found.classes, found.problems) == (channels, 2, ())


def test_images_alone(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.nii.gz", volume())
    found = scan(tmp_path, labels=True)
    assert (found.cases, found.classes, found.labels.cases) == (2, None, 0)
    assert kinds(found) == [(".", ProblemKind.MISSING_LABEL)]


def test_one_of_each_oddity_never_loses_the_rest(tmp_path):
    root = nnunet(tmp_path, 2)
    images = root / "imagesTr"
    for name in "abcdefghij":
        pair(root, name)
    write(images / "a_0000.nii.gz", volume((12, 10, 8, 5)))
    write(images / "b_0000.nii.gz", np.zeros((12, 10, 8), [("R", "u1"), ("G", "u1"), ("B", "u1")]))
    (images / "c_0000.nii.gz").write_bytes((images / "d_0000.nii.gz").read_bytes()[:60])
    header(images / "d_0000.nii.gz", dim=[3, 12, 0, 8, 1, 1, 1, 1])
    header(images / "e_0000.nii.gz", pixdim=[1, np.nan, 1, 1, 0, 0, 0, 0])
    header(images / "f_0000.nii.gz", dim=[3, 30000, 30000, 30000, 1, 1, 1, 1])
    write(images / "g_0000.nii.gz", volume((12, 10, 9)))
    (images / "h_0000.nii.gz").write_bytes(b"not an image")
    write(root / "labelsTr" / "i.nii.gz", volume(label=True), affine((1.0, 1.0, 3.0)))
    header(root / "labelsTr" / "j.nii.gz", big_endian=True)
    found = scan(root)
    # i's spacing is only told; j's label is big-endian and of another size.
    assert (found.found, found.cases) == (12, 3)
    assert found.problem_counts == {
        "mismatch": 3, "truncated": 2, "axes": 1, "rgb": 1, "zero_size": 1, "spacing": 1,
        "unreadable": 1, "big_endian": 1,
    }  # fmt: skip
    told = {p.file for p in found.problems if not p.left_out}
    assert told == {"labelsTr/i.nii.gz", "labelsTr/j.nii.gz"}


def test_cases_with_other_channels_are_left_out(tmp_path):
    for name, shape in (("a", (6, 6, 6)), ("b", (6, 6, 6)), ("c", (6, 6, 6, 2))):
        write(tmp_path / "images" / f"{name}.nii", volume(shape))
        write(tmp_path / "labels" / f"{name}.nii", volume((6, 6, 6), label=True))
    found = scan(tmp_path)
    assert (found.cases, found.channels) == (2, 1)
    assert found.problem_counts == {"axes": 1, "channels": 1}


def test_mixed_shapes(tmp_path):
    for name, depth in (("a", 8), ("b", 10), ("c", 30)):
        pair(tmp_path, name, shape=(12, 10, depth), spacing=(1.0, 1.0, 40 / depth))
    found = scan(tmp_path, spacing=(2.0, 1.0, 2.0))
    assert found.shape.median == (12, 10, 10)
    assert (found.shape.low, found.shape.high) == ((12, 10, 8), (12, 10, 30))
    # Each is 12 x 10 x 40 mm.
    assert found.resampled.median == found.resampled.high == (6, 10, 20)


def test_axes_are_turned_before_resampling(tmp_path):
    pair(tmp_path, "a", shape=(20, 12, 10), spacing=(3.0, 1.0, 1.0), orientation="SRA")
    found = scan(tmp_path, spacing=(1.0, 1.0, 6.0))
    assert found.shape.median == (20, 12, 10)
    assert found.resampled.median == (12, 10, 10)


def test_labels(tmp_path):
    root = nnunet(tmp_path, 3)
    data = volume(label=True)
    data[0, 0, 0] = 7
    write(root / "labelsTr" / "case_0.nii.gz", data)
    write(root / "labelsTr" / "case_1.nii.gz", np.zeros((12, 10, 8), np.float32))
    found = scan(root, labels=True)
    # 4 x 4 x 4 voxels of class 1 in two of three labels, and one voxel more.
    assert found.labels.values == {0: 3 * 960 - 129, 1: 128, 7: 1}
    assert found.labels.foreground == pytest.approx(129 / 2880)
    assert (found.labels.read, found.labels.cases, found.labels.empty) == (3, 3, 1)
    assert found.classes == 2
    (problem,) = found.problems
    assert (problem.file, problem.left_out) == ("labelsTr/case_0.nii.gz", False)
    assert "does not name: 7" in problem.sentence
    assert scan(root, labels=True, sample=1).labels.read == 1


def test_labels_to_ignore_are_no_foreground(tmp_path):
    root = nnunet(tmp_path, 1)
    describe(root, **{**described(root), "labels": {"background": 0, "organ": 2, "ignore": 1}})
    assert scan(root, labels=True).labels.foreground == 0


def test_truncation_beyond_the_header_is_noticed_with_labels(tmp_path):
    root = nnunet(tmp_path, 2)
    path = write(root / "labelsTr" / "case_0.nii.gz", volume((12, 10, 8), label=True, dtype="f8"))
    path.write_bytes(path.read_bytes()[:-30])
    assert scan(root).problem_counts == {"maybe_truncated": 1}
    found = scan(root, labels=True)
    assert found.problem_counts == {"maybe_truncated": 1, "truncated": 1}
    assert (found.labels.read, found.cases) == (1, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.arange(2000.0).reshape(20, 10, 10), "more than 1,000"),
        (np.full((20, 10, 10), 0.5), "no class's number"),
        (np.full((20, 10, 10), np.nan), "no class's number"),
    ],
)
def test_labels_that_are_none(tmp_path, data, words):
    root = nnunet(tmp_path, 1, shape=(20, 10, 10))
    write(root / "labelsTr" / "case_0.nii.gz", data)
    assert words in scan(root, labels=True).problems[0].sentence


def test_files_outside_of_the_folder_are_not_read(tmp_path):
    root = decathlon(tmp_path / "set", 1)
    secret = write(tmp_path / "secret.nii.gz", volume())
    document = described(root)
    label = "labelsTr/case_0.nii.gz"
    for name in ("../secret.nii.gz", str(secret), "imagesTr/../../secret.nii.gz", "a\0b", 7, ""):
        document["training"].append({"image": name, "label": label})
    describe(root, **document)
    found = scan(root)
    assert (found.found, found.cases) == (7, 1)
    assert found.problem_counts == {"outside": 3, "document": 3}


def test_links_in_circles_end(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "images" / f"{name}.nii.gz", volume())
        write(tmp_path / "labels" / f"{name}.nii.gz", volume(label=True))
    (tmp_path / "images" / "again").symlink_to(tmp_path)
    (tmp_path / "images" / "c.nii.gz").symlink_to("c.nii.gz")
    found = scan(tmp_path)
    assert found.cases == 2
    assert kinds(found) == [("images/c.nii.gz", ProblemKind.UNREADABLE)]


def test_a_broken_description_does_not_lose_the_folders(tmp_path):
    root = nnunet(tmp_path, 2)
    for text in ("{", "[" * 100_000, "7", "[]", '{"a": 1' + "0" * 5000 + "}"):
        (root / "dataset.json").write_text(text)
        found = scan(root)
        assert (found.layout, found.cases) == (Layout.FOLDERS, 2)
        assert kinds(found) == [("dataset.json", ProblemKind.DOCUMENT)]


@pytest.mark.parametrize("what", ["none", "empty", "pipe", "text", "long"])
def test_no_dataset(tmp_path, what):
    paths = {name: tmp_path / name for name in ("none", "empty", "pipe", "text")}
    paths["empty"].mkdir()
    os.mkfifo(paths["pipe"])
    paths["text"].write_text("hello")
    with pytest.raises(RequestError):
        scan(paths.get(what, "x" * 5000))


def test_copies_of_a_dataset_scan_alike(tmp_path):
    root = nnunet(tmp_path / "a", 2)
    shutil.copytree(root, tmp_path / "b")
    first, second = scan(root), scan(tmp_path / "b")
    assert first.shape == second.shape
    assert first.bytes_on_disk == second.bytes_on_disk


def test_progress_is_silent_at_first(tmp_path):
    calls = []
    scan(nnunet(tmp_path, 2), progress=lambda *a: calls.append(a))
    assert calls == []


@pytest.mark.parametrize(
    ("text", "spacing"),
    [("1", (1, 1, 1)), ("1.5x1.5x2", (1.5, 1.5, 2)), ("1,2,3", (1, 2, 3)), (" 2×2×4 ", (2, 2, 4))],
)
def test_spacings(text, spacing):
    assert parse_spacing(text) == spacing


@pytest.mark.parametrize("text", ["", "1x2", "axbxc", "0", "-1", "nan", "inf", "1e-9", "1x1x1x1"])
def test_spacings_that_are_none(text):
    with pytest.raises(RequestError, match="spacing"):
        parse_spacing(text)
