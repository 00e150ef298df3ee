"""One image file's header: NIfTI-1, NIfTI-2 or Analyze 7.5, plain or gzipped, no voxels.

nibabel interprets the header; the bytes are read here, so that no file can make a scan
allocate or decompress more than a header's worth.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spm2analyze import Spm2AnalyzeHeader

from segplan.dataset.documents import first_line
from segplan.dataset.nouns import ProblemKind, Spacing
from segplan.errors import RequestError
from segplan.units import Patch

SUFFIXES = (".nii.gz", ".nii", ".hdr.gz", ".hdr", ".img.gz", ".img")
"""Names that an image may end in; a pair is listed by its header."""

NIFTI1_BYTES, NIFTI2_BYTES = 348, 540
_MAX_COMPRESSED = 256 * 1024
"""Bytes of a gzip file in which its first 540 bytes must be found (its own header may take
64 KiB)."""

_DEFLATE_RATIO = 1032
"""Deflate cannot shrink data further (zlib's technical details, zlib.net/zlib_tech.html)."""

_RGB_CODES = (128, 2304)
_COMPLEX_CODES = (32, 1792, 2048)
_NONSENSE = (
    ValueError, TypeError, LookupError, ArithmeticError, struct.error,
    nib.spatialimages.HeaderDataError, nib.spatialimages.HeaderTypeError,
)  # fmt: skip
"""What nibabel and numpy raise on headers that make no sense."""

_quiet = logging.getLogger("segplan.dataset.headers")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

_ANALYZE: Any = Spm2AnalyzeHeader


class HeaderFault(RequestError):
    """Why a file cannot be trained on; `kind` counts it."""

    def __init__(self, kind: ProblemKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True)
class Header:
    """What an image file says about itself.

    Attributes:
        path: of the file, or of a pair's header.
        shape: voxels (H, W, D), the order of the array's axes as nibabel and MONAI give it.
        channels: length of the fourth axis; 1 without one.
        spacing: millimetres along these axes.
        orientation: where the axes run to, like "RAS"; None where the file does not say.
        to_ras: which array axis runs right-left, front-back and up-down, in this order.
        stored_bytes: bytes on disk, both files of a pair.
        data_path: the file that holds the voxels.
        data_offset: bytes before the first voxel.
        dtype: type of the stored voxels, byte order included.
        slope: what stored voxels are multiplied with.
        inter: what is added then.
        notes: what is odd about it without being a reason to leave it out.
    """

    path: Path
    shape: Patch
    channels: int
    spacing: Spacing
    orientation: str | None
    to_ras: tuple[int, int, int]
    stored_bytes: int
    data_path: Path
    data_offset: int
    dtype: np.dtype[Any]
    slope: float = 1.0
    inter: float = 0.0
    notes: tuple[tuple[ProblemKind, str], ...] = ()

    @property
    def voxels(self) -> int:
        """Voxels of all channels."""
        return self.shape[0] * self.shape[1] * self.shape[2] * self.channels


def suffix_of(name: str) -> str | None:
    """The suffix of an image's name, or None for other files."""
    low = name.lower()
    return next((s for s in SUFFIXES if low.endswith(s)), None)


def stem_of(name: str) -> str:
    """An image's name without its suffix."""
    suffix = suffix_of(name)
    return name[: -len(suffix)] if suffix else name


def read_header(path: Path) -> Header:
    """Read one file's header.

    Raises:
        HeaderFault: the file cannot be trained on; the message is a sentence without the name.
    """
    try:
        return _read_header(path)
    except HeaderFault:
        raise
    except OSError as error:
        raise HeaderFault(
            ProblemKind.UNREADABLE, f"It cannot be read: {error.strerror or error}."
        ) from error
    except zlib.error as error:
        raise HeaderFault(ProblemKind.UNREADABLE, "It is a broken gzip file.") from error
    except _NONSENSE as error:
        raise HeaderFault(
            ProblemKind.UNREADABLE, f"Its header is broken: {first_line(error)}."
        ) from error


def _read_header(path: Path) -> Header:
    head_size = _size(path)
    block = _first_bytes(path, head_size)
    kind, raw = _interpret(block, path)
    single = kind in (nib.Nifti1Header, nib.Nifti2Header)
    data_path = path if single else _partner(path)
    data_size = head_size if single else _size(data_path)
    stored = head_size if single else head_size + data_size

    dtype = _dtype(raw)
    shape, channels = _shape(raw)
    pixdim = np.array(raw["pixdim"][1:4], dtype=float)
    raw.check_fix(logger=_quiet, error_level=40)  # what nibabel.load does: raises or mends
    offset = _offset(raw, single)
    notes = []
    if raw.endianness == ">":
        notes.append((ProblemKind.BIG_ENDIAN, "It is big-endian; it is read all the same."))
    promised = offset + dtype.itemsize * channels * shape[0] * shape[1] * shape[2]
    notes += _check_size(data_path, data_size, promised)
    spacing, orientation, to_ras, odd = _geometry(raw, pixdim)
    notes += odd
    slope, inter = _scaling(raw)
    return Header(
        path, shape, channels, spacing, orientation, to_ras, stored, data_path, offset,
        dtype, slope, inter, tuple(notes),
    )  # fmt: skip


def _size(path: Path) -> int:
    """Bytes of a regular file; opening anything else (a pipe) could wait for ever."""
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise HeaderFault(ProblemKind.UNREADABLE, "It is no regular file.")
    if info.st_size == 0:
        raise HeaderFault(ProblemKind.TRUNCATED, "It is empty.")
    return info.st_size


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _first_bytes(path: Path, size: int) -> bytes:
    """The first 540 bytes (fewer where the file has no more), decompressed."""
    with path.open("rb") as file:
        block = _gunzip(file) if _is_gzip(path) else file.read(NIFTI2_BYTES)
    if len(block) < NIFTI1_BYTES:
        if block.startswith(b"version https://git-lfs"):
            raise HeaderFault(
                ProblemKind.UNREADABLE, "It is a Git LFS pointer, not the image: run git lfs pull."
            )
        raise HeaderFault(
            ProblemKind.TRUNCATED, f"It ends within its header, after {len(block)} bytes."
        )
    return block


def _gunzip(file: Any) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    block, taken = b"", 0
    while len(block) < NIFTI2_BYTES and taken < _MAX_COMPRESSED and not unpacker.eof:
        chunk = file.read(4096)
        if not chunk:
            break
        if taken == 0 and not chunk.startswith(b"\x1f\x8b"):
            if chunk.startswith(b"version https://git-lfs"):
                return bytes(chunk[:100])
            raise HeaderFault(ProblemKind.UNREADABLE, "It is named .gz but is no gzip file.")
        taken += len(chunk)
        block += unpacker.decompress(chunk, NIFTI2_BYTES - len(block))
    return block


def _interpret(block: bytes, path: Path) -> tuple[Any, Any]:
    """nibabel's class for the header, and the header, nothing of it checked yet."""
    for order in "<>":
        size = struct.unpack(order + "i", block[:4])[0]
        if size == NIFTI2_BYTES and len(block) >= NIFTI2_BYTES:
            magic = block[4:8]
            kinds: dict[bytes, Any] = {
                b"n+2\0": nib.Nifti2Header,
                b"ni2\0": nib.nifti2.Nifti2PairHeader,
            }
            length = NIFTI2_BYTES
        elif size == NIFTI1_BYTES:
            magic = block[344:348]
            kinds = {b"n+1\0": nib.Nifti1Header, b"ni1\0": nib.nifti1.Nifti1PairHeader}
            length = NIFTI1_BYTES
        else:
            continue
        kind = kinds.get(magic)
        if kind is None and length == NIFTI1_BYTES and _is_pair(path):
            kind = _ANALYZE
        if kind is not None:
            return kind, kind(block[:length], endianness=order, check=False)
    raise HeaderFault(ProblemKind.UNREADABLE, "It does not begin with a NIfTI header.")


def _is_pair(path: Path) -> bool:
    return (suffix_of(path.name) or "").startswith((".hdr", ".img"))


def _partner(path: Path) -> Path:
    """The file with the voxels of a pair."""
    stem = stem_of(path.name)
    for ending in (".img", ".img.gz", ".IMG"):
        partner = path.with_name(stem + ending)
        if partner.exists():
            return partner
    raise HeaderFault(ProblemKind.UNREADABLE, "The .img file that belongs to it is missing.")


def _dtype(raw: Any) -> np.dtype[Any]:
    code = int(raw["datatype"])
    if code in _RGB_CODES:
        raise HeaderFault(ProblemKind.RGB, "It holds colours (RGB), not one number a voxel.")
    if code in _COMPLEX_CODES:
        raise HeaderFault(ProblemKind.COMPLEX, "It holds complex numbers.")
    dtype = raw.get_data_dtype()
    if dtype.itemsize == 0 or dtype.kind not in "iuf":
        raise HeaderFault(ProblemKind.UNREADABLE, f"Its data type ({code}) is none of numbers.")
    found: np.dtype[Any] = np.dtype(dtype)
    return found


def _shape(raw: Any) -> tuple[Patch, int]:
    sizes = [int(n) for n in raw.get_data_shape()]
    text = " x ".join(str(n) for n in sizes)
    if not sizes or min(sizes) <= 0:
        raise HeaderFault(ProblemKind.ZERO_SIZE, f"An axis has no voxels: {text or 'no axes'}.")
    while len(sizes) > 3 and sizes[-1] == 1:
        sizes.pop()
    if len(sizes) not in (3, 4):
        raise HeaderFault(
            ProblemKind.AXES, f"It has {len(sizes)} axes ({text}); a volume has three."
        )
    return (sizes[0], sizes[1], sizes[2]), sizes[3] if len(sizes) == 4 else 1


def _offset(raw: Any, single: bool) -> int:
    offset = int(raw["vox_offset"])
    if single and offset == 0:
        return int(raw.single_vox_offset)
    if offset < 0:
        raise HeaderFault(ProblemKind.UNREADABLE, f"Its voxels are said to begin at {offset}.")
    return offset


def _check_size(path: Path, size: int, promised: int) -> list[tuple[ProblemKind, str]]:
    """Tell from the file's size (and a gzip file's trailer) whether voxels are missing.

    Raises:
        HeaderFault: they are for certain.
    """
    if not _is_gzip(path):
        if size < promised:
            raise HeaderFault(
                ProblemKind.TRUNCATED,
                f"It holds {size:,} bytes of the {promised:,} that its header promises.",
            )
        return []
    if size * _DEFLATE_RATIO < promised:
        raise HeaderFault(
            ProblemKind.TRUNCATED,
            f"Its {size:,} compressed bytes cannot hold the {promised:,} that its header promises.",
        )
    with path.open("rb") as file:
        start = file.read(16)
        file.seek(-4, os.SEEK_END)
        unpacked = struct.unpack("<I", file.read(4))[0]
    # A gzip file ends with its unpacked size (modulo 2^32; RFC 1952, 2.3.1). Blocked gzip
    # (bgzip, subfield "BC" of the extra field) ends with that of an empty block.
    if unpacked == promised % 2**32 or start[12:14] == b"BC":
        return []
    return [
        (
            ProblemKind.MAYBE_TRUNCATED,
            f"Its last bytes do not confirm the {promised:,} bytes that its header promises: it "
            "may be truncated.",
        )
    ]


def _geometry(
    raw: Any, pixdim: np.ndarray[Any, Any]
) -> tuple[Spacing, str | None, tuple[int, int, int], list[tuple[ProblemKind, str]]]:
    """Spacing, orientation and axes: from the affine, as MONAI reads them, else from pixdim."""
    notes = []
    stored_ok = _sane(pixdim)
    text = " x ".join(f"{p:g}" for p in pixdim)
    with np.errstate(all="ignore"):
        affine = np.asarray(raw.get_best_affine(), dtype=float)[:3, :3]
        norms = np.sqrt((affine**2).sum(axis=0))
        affine_ok = _sane(norms)
    has_sform = "sform_code" in raw.keys() and int(raw["sform_code"]) > 0  # noqa: SIM118
    if affine_ok and (has_sform or stored_ok):
        spacing = norms
    elif stored_ok:
        spacing = pixdim
    else:
        raise HeaderFault(ProblemKind.SPACING, f"Its spacing ({text}) is none.")
    if not stored_ok:
        notes.append((ProblemKind.SPACING, f"Its spacing ({text}) is none; its affine has one."))
    orientation, to_ras = _orientation(affine) if affine_ok else (None, (0, 1, 2))
    h, w, d = (float(s) for s in spacing)
    return (h, w, d), orientation, to_ras, notes


def _sane(spacing: np.ndarray[Any, Any]) -> bool:
    """Whether all are between 0.1 micrometres and 10 metres; a NaN is not."""
    return bool(((spacing >= 1e-4) & (spacing <= 1e4)).all())


def _orientation(affine: np.ndarray[Any, Any]) -> tuple[str | None, tuple[int, int, int]]:
    full = np.eye(4)
    full[:3, :3] = affine
    turn: Any = nib.io_orientation
    axcodes: Any = nib.orientations.ornt2axcodes
    found = turn(full)
    if not np.isfinite(found).all():  # an affine that flattens an axis
        return None, (0, 1, 2)
    order = [int(a) for a in np.argsort(found[:, 0])]
    return "".join(axcodes(found)), (order[0], order[1], order[2])


def _scaling(raw: Any) -> tuple[float, float]:
    slope, inter = raw.get_slope_inter()
    return (1.0 if slope is None else float(slope), 0.0 if inter is None else float(inter))
