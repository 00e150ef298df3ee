"""Cards side by side: real predictions of a small network, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from segplan import Workload, fit
from segplan.api.comparing import compare
from segplan.cli.main import main

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "compare.schema.json"
SMALL = ["--model", "basicunet", "--model-arg", "features=[8,8,16,16,32,8]", "--patch", "64"]
W = Workload(model="basicunet", model_args={"features": [8, 8, 16, 16, 32, 8]}, patch=(64, 64, 64))
CARDS = ["rtx-3090", "a40", "titan-xp"]


@pytest.fixture(scope="module")
def found():
    return compare(W.replace(batch=2), CARDS, max_batch=16)


def test_the_quickest_comes_first_and_every_card_is_there(found):
    seconds = [row.million.seconds for row in found.cards]
    assert seconds == sorted(seconds)
    assert sorted(row.card for row in found.cards) == sorted(CARDS)


def test_a_row_is_what_fit_says(found):
    row = next(row for row in found.cards if row.card == "rtx-3090")
    cell = fit(W, gpu="rtx-3090", patches=[W.patch], max_batch=16).cells[0]
    assert (row.max_batch, row.limited_by) == (cell.max_batch, cell.limited_by)
    assert row.fits is (cell.max_batch >= 2)


def test_the_best_batch_has_the_most_patches_a_second(found):
    for row in found.cards:
        assert row.patches_per_second >= 2 / row.step.seconds * 0.999
        assert row.million.seconds == pytest.approx(1e6 / row.patches_per_second)
        assert row.million.low < row.million.seconds < row.million.high


def test_neighbours_are_told_apart_in_a_sentence_each(found):
    assert len(found.reasons) == len(CARDS) - 1
    assert any("tensor cores" in note for row in found.cards for note in row.notes)
    assert "600 MiB assumed" in found.warnings[0]


def test_the_document_follows_its_schema(capsys):
    status = main(["compare", *SMALL, "--gpus", "rtx-3090,a40", "--max-batch", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))


def test_the_table_fits_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["compare", *SMALL, "--gpus", "rtx-3090,a40", "--max-batch", "2"])
    out = capsys.readouterr().out
    assert "rtx-3090" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no card is named"),
        (["--gpus", "a4"], "did you mean a40?"),
        (["--gpus", "a40", "--patch", "64", "--patch", "96"], "compare takes one --patch"),
        (["--gpus", "a40", "--batch", "0"], "at least 1"),
    ],
)
def test_what_is_refused(words, said, capsys):
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
