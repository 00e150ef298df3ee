from __future__ import annotations

import gzip
import os
from importlib import resources
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from segplan.dataset.headers import HeaderFault, read_header
from segplan.dataset.nouns import ProblemKind
from tests.dataset.making import affine, header, volume, write

NIBABEL = Path(str(resources.files("nibabel"))) / "tests" / "data"


def fault(path: Path) -> HeaderFault:
    with pytest.raises(HeaderFault) as caught:
        read_header(path)
    return caught.value


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_what_a_header_says(tmp_path, ending):
    matrix = affine((0.8, 0.9, 5.0), "LPS")
    path = write(tmp_path / f"a{ending}", volume((12, 10, 8)), matrix)
    found = read_header(path)
    assert found.shape == (12, 10, 8)
    assert found.spacing == pytest.approx((0.8, 0.9, 5.0))
    assert (found.orientation, found.to_ras) == ("LPS", (0, 1, 2))
    assert found.channels == 1
    assert found.stored_bytes == path.stat().st_size
    assert found.notes == ()


def test_axes_in_another_order(tmp_path):
    path = write(tmp_path / "a.nii", volume((12, 10, 8)), affine((1.0, 2.0, 3.0), "SRA"))
    found = read_header(path)
    assert found.orientation == "SRA"
    # The axis that runs right-left is the array's second, front-back its third.
    assert found.to_ras == (1, 2, 0)
    assert found.spacing == pytest.approx((1.0, 2.0, 3.0))


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_versions_of_nifti(tmp_path, kind):
    nib.save(kind(volume(), affine()), tmp_path / "a.nii.gz")
    assert read_header(tmp_path / "a.nii.gz").shape == (12, 10, 8)


@pytest.mark.parametrize("kind", [nib.AnalyzeImage, nib.Spm2AnalyzeImage, nib.Nifti1Pair])
def test_pairs_of_header_and_image(tmp_path, kind):
    nib.save(kind(volume(), affine((1.0, 1.0, 2.0))), tmp_path / "a.img")
    found = read_header(tmp_path / "a.hdr")
    sizes = [(tmp_path / f"a.{e}").stat().st_size for e in ("hdr", "img")]
    assert found.stored_bytes == sum(sizes)
    assert found.spacing == pytest.approx((1.0, 1.0, 2.0))
    image = (tmp_path / "a.img").read_bytes()
    (tmp_path / "a.img").write_bytes(image[:-1])
    assert fault(tmp_path / "a.hdr").kind is ProblemKind.TRUNCATED
    (tmp_path / "a.img").unlink()
    assert "missing" in str(fault(tmp_path / "a.hdr"))


def test_big_endian(tmp_path):
    image = nib.Nifti1Image(volume(), affine(), nib.Nifti1Header(endianness=">"))
    nib.save(image, tmp_path / "a.nii")
    found = read_header(tmp_path / "a.nii")
    assert found.shape == (12, 10, 8)
    assert [kind for kind, _ in found.notes] == [ProblemKind.BIG_ENDIAN]


def test_four_axes_and_one_that_counts_for_nothing(tmp_path):
    assert read_header(write(tmp_path / "a.nii", volume((4, 4, 4, 3)))).channels == 3
    assert read_header(write(tmp_path / "b.nii", volume((4, 4, 4, 1)))).channels == 1
    assert fault(write(tmp_path / "c.nii", volume((4, 4, 4, 2, 2)))).kind is ProblemKind.AXES
    assert fault(write(tmp_path / "d.nii", volume((4, 4)))).kind is ProblemKind.AXES


def test_colours_and_complex_numbers(tmp_path):
    rgb = np.zeros((4, 4, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert fault(write(tmp_path / "a.nii.gz", rgb)).kind is ProblemKind.RGB
    numbers = np.zeros((4, 4, 4), np.complex64)
    assert fault(write(tmp_path / "b.nii.gz", numbers)).kind is ProblemKind.COMPLEX


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_an_axis_without_voxels(tmp_path, ending):
    path = header(tmp_path / f"a{ending}", dim=[3, 4, 0, 4, 1, 1, 1, 1])
    assert fault(path).kind is ProblemKind.ZERO_SIZE


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0, 1e30])
def test_a_spacing_that_is_none(tmp_path, bad):
    path = header(tmp_path / "a.nii", pixdim=[1, 1, bad, 1, 0, 0, 0, 0])
    found = fault(path)
    assert found.kind is ProblemKind.SPACING
    rows = {"srow_x": [2, 0, 0, 0], "srow_y": [0, 3, 0, 0], "srow_z": [0, 0, 4, 0]}
    mended = header(tmp_path / "b.nii", pixdim=[1, 1, bad, 1, 0, 0, 0, 0], sform_code=1, **rows)
    assert read_header(mended).spacing == (2.0, 3.0, 4.0)
    assert [kind for kind, _ in read_header(mended).notes] == [ProblemKind.SPACING]


def test_voxels_that_are_missing(tmp_path):
    path = write(tmp_path / "a.nii", volume())
    path.write_bytes(path.read_bytes()[:-1])
    found = fault(path)
    # 352 bytes of header, 12 x 10 x 8 voxels of two bytes.
    assert found.kind is ProblemKind.TRUNCATED
    assert "2,271 bytes of the 2,272" in str(found)


def test_missing_voxels_of_a_gzip_file_are_suspected(tmp_path):
    path = write(tmp_path / "a.nii.gz", volume((40, 40, 40)))
    path.write_bytes(path.read_bytes()[:-100])
    assert [kind for kind, _ in read_header(path).notes] == [ProblemKind.MAYBE_TRUNCATED]


def test_blocked_gzip_is_not_suspected(tmp_path):
    plain = write(tmp_path / "a.nii", volume()).read_bytes()
    packed = gzip.compress(plain, mtime=0)
    # Flag 4: an extra field; bgzip's is of the subfield "BC" and six bytes long.
    blocked = packed[:3] + b"\x04" + packed[4:10] + b"\x06\x00BC\x02\x00\x00\x00" + packed[10:]
    empty = gzip.compress(b"", mtime=0)
    (tmp_path / "b.nii.gz").write_bytes(blocked + empty)
    assert read_header(tmp_path / "b.nii.gz").notes == ()


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("length", [0, 3, 100, 347])
def test_a_file_that_ends_in_its_header(tmp_path, ending, length):
    raw = header(tmp_path / "whole.nii").read_bytes()[:length]
    path = tmp_path / f"a{ending}"
    path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    assert fault(path).kind is ProblemKind.TRUNCATED


def test_sizes_beyond_measure_allocate_nothing(tmp_path):
    huge = [3, 32767, 32767, 32767, 1, 1, 1, 1]
    for ending in (".nii", ".nii.gz"):
        found = fault(header(tmp_path / f"a{ending}", dim=huge))
        assert found.kind is ProblemKind.TRUNCATED


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    raw = header(tmp_path / "whole.nii").read_bytes()
    path = tmp_path / "a.nii.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(raw)
        for _ in range(64):
            file.write(bytes(2**20))
    assert read_header(path).shape == (4, 4, 4)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.nii.gz", b"no gzip at all" * 50, "no gzip file"),
        ("a.nii.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 600, "broken gzip"),
        ("a.nii", b"x" * 1000, "NIfTI header"),
        ("a.nii.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
        ("a.nii", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
    ],
)
def test_what_is_no_image(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    assert words in str(fault(tmp_path / name))


def test_pipes_folders_and_broken_links_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.nii")
    (tmp_path / "folder.nii").mkdir()
    (tmp_path / "link.nii").symlink_to("link.nii")
    for name in ("pipe.nii", "folder.nii", "link.nii", "none.nii"):
        assert fault(tmp_path / name).kind is ProblemKind.UNREADABLE


@pytest.mark.skipif(not NIBABEL.is_dir(), reason="nibabel was installed without its test data")
def test_every_image_of_nibabels_own():
    """What nibabel itself loads is read alike; a pair's header without voxels is not."""
    names = [p for p in NIBABEL.iterdir() if p.name.endswith((".nii", ".nii.gz"))]
    assert len(names) >= 6
    for path in names:
        image = nib.load(path)
        if isinstance(image, nib.Cifti2Image):  # a surface, behind a header of six axes
            assert fault(path).kind is ProblemKind.AXES
            continue
        found = read_header(path)
        assert (*found.shape, found.channels)[: len(image.shape)] == image.shape
        norms = np.sqrt((image.affine[:3, :3] ** 2).sum(axis=0))
        assert found.spacing == pytest.approx(tuple(norms))
        assert found.orientation == "".join(nib.aff2axcodes(image.affine))
        big = image.header.endianness == ">"
        assert ([k for k, _ in found.notes] == [ProblemKind.BIG_ENDIAN]) == big
    assert "missing" in str(fault(NIBABEL / "analyze.hdr"))
