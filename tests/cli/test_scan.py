from __future__ import annotations

import json

import pytest
import yaml

from segplan.dataset.nouns import DatasetScan, Layout, Problem, ProblemKind, ShapeSpread
from segplan.report import scan as report
from tests.dataset.making import decathlon, header, nnunet, volume, write
from tests.report.test_json import validator


@pytest.fixture
def root(tmp_path):
    root = decathlon(tmp_path / "Task00_Made", 4, spacing=(0.793, 0.793, 5.0), orientation="LAS")
    header(root / "imagesTr" / "case_3.nii.gz", dim=[3, 12, 0, 8, 1, 1, 1, 1])
    return root


def test_a_table(run, root):
    ran = run("scan", str(root), "--labels", "--spacing", "1x1x2")
    assert (ran.status, ran.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in ran.out.splitlines()}
    assert "3 of 4 usable" in ran.out
    assert "12×10×8" in lines["shape"]
    assert "0.793×0.793×5 mm" in lines["spacing"]
    # 9.5 and 7.9 mm, and 40 mm in slices of 2 mm.
    assert "10×8×20" in lines["at 1×1×2 mm"]
    assert "LAS 3" in lines["orientation"]
    assert "0, 1" in lines["label values"]
    assert "6.7 %" in lines["foreground"]  # 64 of 960 voxels
    assert "Axis without voxels: 1, left out" in ran.out
    assert "imagesTr/case_3.nii.gz: An axis has no voxels: 12 x 0 x 8." in ran.out


def test_eighty_columns_are_enough(run, tmp_path):
    root = nnunet(tmp_path, 2)
    for number in range(6):
        write(root / "labelsTr" / f"{'long_name_' * 8}{number}.nii.gz", volume(label=True))
    ran = run("scan", str(root), "--labels")
    assert ran.status == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "and 3 more (--json lists all)" in ran.out


def test_json(run, root):
    ran = run("scan", str(root), "--json", "--labels")
    document = json.loads(ran.out)
    validator("scan.schema.json").validate(document)
    assert ran.err == ""
    assert (document["found"], document["cases"]) == (4, 3)
    assert document["labels"]["values"] == {"0": 3 * 896, "1": 3 * 64}
    assert document["problem_counts"] == {"zero_size": 1}
    assert document["problems"][0]["file"] == "imagesTr/case_3.nii.gz"


def test_a_section_that_other_commands_take(run, root, tmp_path):
    out = tmp_path / "made.yaml"
    ran = run("scan", str(root), "--out", str(out), "--spacing", "1x1x2", "--labels")
    assert ran.status == 0
    assert "wrote" in ran.err
    values = yaml.safe_load(out.read_text())
    stored = sum(f.stat().st_size for f in root.rglob("case_[0-2].nii.gz"))
    assert values == {
        "in_channels": 1,
        "out_channels": 2,
        "dataset": {
            "cases": 3, "channels": 1, "classes": 2, "shape": [10, 8, 20],
            "spacing": [1.0, 1.0, 2.0], "bytes_per_case": stored // 3,
            "foreground": pytest.approx(64 / 960), "path": str(root),
        },
    }  # fmt: skip


def test_a_section_without_classes_says_so(run, tmp_path):
    for name in "ab":
        write(tmp_path / "images" / f"{name}.nii", volume())
        write(tmp_path / "labels" / f"{name}.nii", volume(label=True))
    run("scan", str(tmp_path), "--out", str(tmp_path / "o.yaml"))
    text = (tmp_path / "o.yaml").read_text()
    assert "--labels" in text
    values = yaml.safe_load(text)
    assert "out_channels" not in values
    assert "classes" not in values["dataset"]
    run("scan", str(tmp_path), "--out", str(tmp_path / "o.yaml"), "--sample", "1")
    assert yaml.safe_load((tmp_path / "o.yaml").read_text())["out_channels"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no folder or file 'nowhere'"),
        (["{root}", "--spacing", "fine"], "no spacing"),
        (["{root}", "--sample", "0"], "--sample must be at least 1"),
        (["{root}", "--out", "made.json"], ".yaml"),
        (["{root}", "--out", "no/where.yaml"], "cannot be written"),
    ],
)
def test_bad_requests(run, root, words, message):
    ran = run("scan", *(w.format(root=root) for w in words))
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err


def test_nothing_usable_is_an_answer_but_no_section(run, tmp_path):
    header(tmp_path / "a.nii.gz", dim=[3, 12, 0, 8, 1, 1, 1, 1])
    ran = run("scan", str(tmp_path))
    assert (ran.status, ran.err) == (0, "")
    assert "0 of 1 usable" in ran.out
    ran = run("scan", str(tmp_path), "--out", str(tmp_path / "o.yaml"))
    assert ran.status == 2
    assert "no usable case" in ran.err
    assert not (tmp_path / "o.yaml").exists()


def test_names_that_harm_a_terminal_are_shown_harmless(capsys):
    size = ShapeSpread((4, 4, 4), (4, 4, 4), (4, 4, 4))
    bad = Problem("a\x1b[31m\udcff.nii", ProblemKind.UNREADABLE, "It is broken\x07.")
    found = DatasetScan("x", Layout.FOLDERS, 2, 1, name="\x1b]0;title\x07", shape=size,
                        problems=(bad,))  # fmt: skip
    report.render(found, report.Console(width=80))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a?[31m?.nii: It is broken?." in out
