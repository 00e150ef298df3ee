from __future__ import annotations

import json

import pytest
import yaml

from segplan.api.scanning import scan
from segplan.dataset.nouns import Layout
from segplan.errors import RequestError
from tests.dataset.making import describe, nnunet

FINGERPRINT = {
    "foreground_intensity_properties_per_channel": {"0": {"mean": 1.0}, "1": {"mean": 2.0}},
    "median_relative_size_after_cropping": 1.0,
    "shapes_after_crop": [[20, 100, 90], [30, 110, 95], [40, 120, 100]],
    "spacings": [[5.0, 0.8, 0.7], [4.0, 0.8, 0.7], [3.0, 0.8, 0.7]],
}


def write(path, value):
    text = json.dumps(value) if path.suffix == ".json" else yaml.safe_dump(value)
    path.write_text(text, encoding="utf-8")
    return path


def case(shape, spacing, share=20.0):
    return {
        "image_filepath": "a.nii.gz",
        "image_stats": {"channels": 2, "shape": [shape, shape], "spacing": [spacing, spacing]},
        "label_stats": {
            "labels": [0, 1],
            "label": [{"foreground_percentage": 100 - share}, {"foreground_percentage": share}],
        },
    }


SUMMARY = {
    "stats_summary": {
        "n_cases": 12,
        "image_stats": {
            "channels": {"median": 1, "max": 1},
            "shape": {"min": [80, 90, 20], "median": [90.5, 100.0, 30.0], "max": [99, 120, 40]},
            "spacing": {"min": [1.0, 1.0, 2.0], "median": [1.0, 1.0, 4.0], "max": [1.0, 1.0, 5.0]},
        },
        "label_stats": {"labels": [0, 1, 2]},
    }
}


def test_a_fingerprint_is_turned_to_the_arrays_order(tmp_path):
    write(tmp_path / "dataset_fingerprint.json", FINGERPRINT)
    describe(tmp_path, name="Spleen", labels={"background": 0, "spleen": 1})
    for path in (tmp_path, tmp_path / "dataset_fingerprint.json"):
        found = scan(path, spacing=(0.7, 0.8, 2.0))
        assert (found.layout, found.name) == (Layout.FINGERPRINT, "Spleen")
        assert (found.cases, found.channels, found.classes) == (3, 2, 2)
        assert found.shape.median == (95, 110, 30)
        assert found.spacing.median == (0.7, 0.8, 4.0)
        # 20 x 5, 30 x 4 and 40 x 3 mm in slices of 2 mm.
        assert found.resampled.low[2] == 50
        assert found.resampled.high[2] == 60
        assert found.bytes_on_disk is None


def test_a_fingerprint_is_read_instead_of_images(tmp_path):
    nnunet(tmp_path, 1)
    write(tmp_path / "dataset_fingerprint.json", FINGERPRINT)
    assert scan(tmp_path).layout is Layout.FINGERPRINT


@pytest.mark.parametrize("bad", [[0, 1, 1], [1, 1], "x", None, [1, 1, float("nan")], [10**400] * 3])
def test_a_bad_case_of_a_fingerprint_is_named(tmp_path, bad):
    value = {**FINGERPRINT, "shapes_after_crop": [[20, 100, 90], bad, [40, 120, 100]]}
    write(tmp_path / "dataset_fingerprint.json", value)
    found = scan(tmp_path)
    assert (found.found, found.cases) == (3, 2)
    assert found.problems[0].file == "case 1"


def test_monais_statistics_by_case(tmp_path):
    cases = [case([90, 100, 30], [1.0, 1.0, 2.0]), case([80, 90, 40], [1.0, 1.0, 3.0], 10.0), {}]
    path = write(tmp_path / "datastats_by_case.yaml", {"stats_by_cases": cases})
    found = scan(path, spacing=(2.0, 2.0, 2.0))
    assert (found.layout, found.found, found.cases) == (Layout.DATA_STATS, 3, 2)
    assert (found.channels, found.classes) == (2, 2)
    assert found.shape.low == (80, 90, 30)
    assert found.resampled.high == (45, 50, 60)
    assert found.labels.foreground == pytest.approx(0.15)


def test_monais_summary(tmp_path):
    found = scan(write(tmp_path / "datastats.yaml", SUMMARY), spacing=(1.0, 1.0, 2.0))
    assert (found.cases, found.channels, found.classes) == (12, 1, 3)
    assert found.shape.median == (90, 100, 30)
    assert found.resampled.median == (90, 100, 60)
    assert scan(tmp_path).cases == 12


def test_aliases_as_pyyaml_writes_them(tmp_path):
    spacing = [1.0, 1.0, 2.0]
    cases = [case([90, 100, 30], spacing), case([90, 100, 30], spacing)]
    path = write(tmp_path / "stats.yaml", {"stats_by_cases": cases})
    assert "*id001" in path.read_text()
    assert scan(path).cases == 2


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch made']",
        "stats_by_cases: !!python/object/new:os.system ['touch made']",
        "a: &a {b: 1}\nc: {<<: *a}",
        "[" * 20_000,
        "{a: " * 20_000,
        "a: &a [*a, *a]\nstats_summary: *a",
        "? [1, 2]\n: 3",
        "stats_by_cases: 2021-13-45",
        "stats_summary: {n_cases: " + "9" * 5000 + "}",
        "", "7", "[]", "a: 'b", "\x00", "stats_summary: {}", "stats_by_cases: []",
    ],
)  # fmt: skip
def test_harmful_and_useless_yaml(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stats.yaml").write_text(text)
    with pytest.raises(RequestError):
        scan("stats.yaml")
    assert not (tmp_path / "made").exists()


def test_large_and_binary_files_are_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{")
    with (tmp_path / "b.json").open("wb") as file:
        file.truncate(65 * 2**20)
    for name, words in (("a.json", "is no text"), ("b.json", "larger than")):
        with pytest.raises(RequestError, match=words):
            scan(tmp_path / name)
