"""Headers, JSON and YAML from anywhere: an answer or one sentence, no traceback, no hang.

SEGPLAN_FUZZ sets the examples of each test (100 without it, some 900 in all; 250 are 2,250).
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segplan.api.scanning import scan, section
from segplan.cli.main import main
from segplan.dataset.headers import Header, HeaderFault, read_header
from segplan.dataset.nouns import DatasetScan
from segplan.errors import RequestError
from segplan.report import scan as report
from segplan.report.console import make_console
from tests.dataset.making import affine, header, nnunet, volume
from tests.dataset.test_summaries import FINGERPRINT, SUMMARY, case
from tests.report.test_json import validator

EXAMPLES = int(os.environ.get("SEGPLAN_FUZZ", "100"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=20_000,  # milliseconds: only a hang takes as long
    suppress_health_check=list(HealthCheck),
)
SCHEMA = validator("scan.schema.json")


def check(path: Path | str) -> DatasetScan | None:
    """A scan ends in an answer that can be shown in every way, or in one sentence (None)."""
    caught = None
    try:
        found = scan(path, labels=True, spacing=(0.5, 1.0, 2.0))
    except RequestError as error:
        caught = str(error)
    if caught is not None:
        assert len(caught.splitlines()) == 1
        return None
    SCHEMA.validate(json.loads(json.dumps(report.document(found), allow_nan=False)))
    with open(os.devnull, "w", encoding="utf-8") as stream:
        report.render(found, make_console(stream, width=80))
    assert yaml.safe_load(yaml.safe_dump(section(found))) == section(found)
    return found


def plain(kind: type) -> bytes:
    made = kind()
    made.set_data_dtype(np.int16)
    made.set_data_shape((4, 4, 4))
    return made.binaryblock


BLOCKS = [
    plain(nib.Nifti1Header),
    plain(nib.Nifti2Header),
    plain(nib.AnalyzeHeader),
    nib.Nifti1Header(endianness=">").binaryblock,
    plain(nib.nifti1.Nifti1PairHeader),
]
POKES = st.lists(st.tuples(st.integers(4, 539), st.binary(min_size=1, max_size=8)), max_size=6)


def poked(block: bytes, pokes: list[tuple[int, bytes]]) -> bytes:
    raw = bytearray(block)
    for place, data in pokes:
        if place + len(data) <= len(raw):
            raw[place : place + len(data)] = data
    return bytes(raw)


@fuzz
@given(
    st.sampled_from(BLOCKS), POKES, st.sampled_from([".nii", ".nii.gz", ".hdr", ".img"]),
    st.binary(max_size=200), st.integers(0, 700),
)  # fmt: skip
def test_headers_with_any_bytes_in_them(block, pokes, ending, rest, keep):
    raw = (poked(block, pokes) + rest)[: keep if keep > 300 else None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{ending}"
        path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
        if ending == ".hdr":
            path.with_suffix(".img").write_bytes(rest)
        found: Header | str
        try:
            found = read_header(path)
        except HeaderFault as fault:
            found = str(fault)
        if isinstance(found, str):
            assert len(found.splitlines()) == 1
        else:
            assert min(found.shape) > 0
            assert all(0 < s < 1e5 for s in found.spacing)


ANY_FLOAT = st.floats(width=32)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "dim": st.lists(st.integers(-(2**15), 2**15 - 1), min_size=8, max_size=8)
        | st.tuples(st.integers(0, 7), *[st.sampled_from([0, 1, 2, 4, 32767, -1])] * 7).map(list),
        "pixdim": st.lists(ANY_FLOAT, min_size=8, max_size=8),
        "datatype": st.integers(-(2**15), 2**15 - 1)
        | st.sampled_from([0, 1, 2, 4, 16, 64, 128, 256, 512, 1536, 2304]),
        "vox_offset": ANY_FLOAT | st.sampled_from([0.0, 352.0]),
        "scl_slope": ANY_FLOAT,
        "scl_inter": ANY_FLOAT,
        "sform_code": st.integers(-5, 10),
        "qform_code": st.integers(-5, 10),
        "quatern_b": ANY_FLOAT,
        "quatern_c": ANY_FLOAT,
        "quatern_d": ANY_FLOAT,
        "srow_x": st.lists(ANY_FLOAT, min_size=4, max_size=4),
        "srow_y": st.lists(ANY_FLOAT, min_size=4, max_size=4),
        "srow_z": st.lists(ANY_FLOAT, min_size=4, max_size=4),
        "intent_code": st.integers(-5, 3000),
        "xyzt_units": st.integers(0, 255),
        "big_endian": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def two_cases(tmp_path_factory):
    return nnunet(tmp_path_factory.mktemp("fuzz"), 2, shape=(4, 4, 4))


@fuzz
@given(FIELDS, st.sampled_from(["imagesTr/odd_0000.nii.gz", "labelsTr/odd.nii.gz"]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_odd_fields_of_a_header_never_lose_the_rest(two_cases, fields, name):
    for other in ("imagesTr/odd_0000.nii.gz", "labelsTr/odd.nii.gz"):
        header(two_cases / other)
    header(two_cases / name, **fields)
    found = check(two_cases)
    assert found is not None
    assert found.found == 3
    assert found.cases in (2, 3)
    if found.cases == 2:
        assert any("odd" in p.file for p in found.problems)


@fuzz
@given(st.binary(max_size=2000), st.booleans())
def test_any_bytes_as_an_image(data, packed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.nii.gz"
        path.write_bytes(gzip.compress(data) if packed else data)
        check(folder)


@fuzz
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4), st.booleans())
def test_damage_anywhere_in_a_gzip_file(two_cases, place, data, cut):
    raw = bytearray(gzip.compress(nib.Nifti1Image(volume((9, 9, 9)), affine()).to_bytes()))
    place %= len(raw)
    raw[place : place + len(data)] = data
    (two_cases / "labelsTr" / "odd.nii.gz").write_bytes(raw[:place] if cut else raw)
    check(two_cases)


KEYS = st.text(max_size=6) | st.sampled_from(["image", "label", "0", "ignore"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["imagesTr/case_0_0000.nii.gz", "../x.nii.gz", "/etc/passwd", "a\0", "0"])
)  # fmt: skip
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def over(base: dict, keys: list[str]) -> st.SearchStrategy:
    """A document with some of its entries replaced by anything."""
    return st.dictionaries(st.sampled_from(keys), ANYTHING, max_size=4).map(lambda d: {**base, **d})


DESCRIPTION = ["training", "labels", "modality", "channel_names", "file_ending", "name", "dataset",
               "numTraining"]  # fmt: skip


@fuzz
@given(over({}, DESCRIPTION) | over({"channel_names": {"0": "CT"}}, DESCRIPTION) | ANYTHING)
def test_any_description(two_cases, document):
    (two_cases / "dataset.json").write_text(json.dumps(document), encoding="utf-8")
    check(two_cases)


@fuzz
@given(over(FINGERPRINT, list(FINGERPRINT)) | ANYTHING)
def test_any_fingerprint(document):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dataset_fingerprint.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        check(path)


CASE = case([90, 100, 30], [1.0, 1.0, 2.0])
SOME_CASE = over(CASE, list(CASE)) | over({}, ["image_stats"]).map(lambda d: {**CASE, **d})
STATS = (
    st.lists(SOME_CASE, max_size=3).map(lambda c: {"stats_by_cases": c})
    | over(SUMMARY["stats_summary"], list(SUMMARY["stats_summary"])).map(
        lambda s: {"stats_summary": s}
    )
    | over(SUMMARY["stats_summary"]["image_stats"], ["shape", "spacing", "channels"]).map(
        lambda i: {"stats_summary": {**SUMMARY["stats_summary"], "image_stats": i}}
    )
)


@fuzz
@given(STATS | ANYTHING)
def test_any_statistics(document):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stats.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        check(path)


@fuzz
@given(st.text(max_size=200) | st.text("{}[]:,&*!<>?-|#'\"\n a1", max_size=200))
def test_any_text_as_yaml_and_json(text):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.yaml", "a.json"):
            (Path(folder) / name).write_bytes(text.encode("utf-8", "surrogatepass"))
            check(Path(folder) / name)


@settings(fuzz, max_examples=max(20, EXAMPLES // 5))
@given(POKES, st.sampled_from(["", "--labels", "--json"]))
def test_the_command_never_shows_a_traceback(two_cases, capsys, pokes, word):
    block = poked(plain(nib.Nifti1Header), pokes)
    (two_cases / "dataset.json").write_text("{}")
    path = two_cases / "imagesTr" / "odd_0000.nii.gz"
    path.write_bytes(gzip.compress(block + struct.pack("<i", 0) + bytes(128)))
    status = main(["scan", str(two_cases), *([word] if word else [])])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert "Traceback" not in out + err
