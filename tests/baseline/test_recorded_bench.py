"""A check that ran on a real H200: what today's code says of it, and how it shows."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from segplan.baseline.comparing import judge_card
from segplan.baseline.documents import bench_from_dict, bench_to_dict
from segplan.baseline.published import published
from segplan.baseline.results import Standing
from segplan.gpus import find_card
from segplan.report.bench import document, render
from segplan.report.console import make_console
from tests.report.test_json import validator

ROOT = Path(__file__).parents[2]
RUN = json.loads((ROOT / "benchmarks" / "data" / "h200_bench.json").read_text("utf-8"))
GUIDE = (ROOT / "docs" / "how-to" / "check-a-card.md").read_text("utf-8")


@pytest.fixture(scope="module")
def found():
    kept = bench_from_dict(RUN["document"])
    comparisons, verdict = judge_card(
        kept.series, find_card("h200"), kept.card_name, kept.mode, kept.environment.torch,
        kept.health, published(),
    )  # fmt: skip
    return dataclasses.replace(kept, comparisons=comparisons, verdict=verdict)


def shown(found, width):
    stream = io.StringIO()
    render(found, make_console(stream, width=width))
    return stream.getvalue()


def test_the_figures_are_the_samples(found):
    assert [s.name for s in found.series] == [
        "ResNet50 fp16", "ResNet50 tf32", "ResNet50 fp32",
        "ViT-B/16 fp16", "ViT-B/16 tf32", "ViT-B/16 fp32",
    ]  # fmt: skip
    for series, kept in zip(found.series, RUN["document"]["series"], strict=True):
        assert series.images_per_s == pytest.approx(kept["images_per_s"])
        assert max(series.seconds) / min(series.seconds) < 1.06


def test_the_verdict(found):
    assert found.verdict.standing is Standing.AS_EXPECTED
    assert found.verdict.findings == ()  # a card at its default limit is a healthy card
    assert found.verdict.sentence == (
        "The NVIDIA H200 performs as it should by its neighbours (H800): 2 of 3 figures lie where "
        "bandwidth and rate put them, 1 above, though those are not quite alike (software not "
        "stated; zeros as images)."
    )
    above, alone, training, power = found.verdict.notes
    assert "ViT-B/16 fp16 is 1.18 times the most that the H800's figure promises" in above
    assert "3 of 6 series have nothing published beside them" in alone
    assert "ResNet50 fp32, ViT-B/16 tf32 and fp32" in alone
    assert "published for training" in training
    assert power.startswith(
        "It reached its power limit of 700 W (the default) in ViT-B/16 fp16, tf32 and fp32, "
        "which lowers its clock to 1695 MHz from 1980 MHz"
    )


def test_its_document(found):
    plain = document(found)
    validator("bench.schema.json").validate(plain)
    del plain["schema_version"]
    assert bench_from_dict(plain) == found
    assert bench_to_dict(bench_from_dict(plain)) == plain


def test_it_fits_eighty_columns(found):
    text = shown(found, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "9800 (9487–9965)" in text


def test_the_guide_shows_it(found):
    block = GUIDE.split("```text\n")[1].split("```")[0]
    expected = "\n".join(line.rstrip() for line in shown(found, 88).splitlines())
    assert block.strip() == expected.strip()
