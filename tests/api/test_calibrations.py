"""Which timed operators a prediction rests on, and what it is called then."""

from __future__ import annotations

import json
import os
import sys

import pytest

from segplan import Workload, step_time
from segplan.api import calibrations
from segplan.api.calibrations import timed_card_for, timed_here
from segplan.gpus import find_card
from segplan.results import Basis
from segplan.timing.model import kernel_seconds, rates_of, shipped_calibration
from segplan.timing.operators import times_plain
from segplan.timing.work import work_table
from segplan.units import MIB
from tests.gpus.fake_pynvml import FakeGpu, FakeNvml
from tests.timing.timed import convolution, stream, timed, times

RTX = FakeGpu()
A100 = FakeGpu(name="NVIDIA A100-SXM4-80GB", uuid="GPU-a100", total=81920 * MIB, capability=(8, 0))
OPS = [
    *(convolution(c, c, s) for c in (16, 32, 64) for s in (16, 32, 64)),
    *(stream(2, 16, s, s, s) for s in (16, 32, 64)),
]


def calibration(card, uuid, factor=1.0, made_at="2026-01-01T00:00:00+00:00"):
    rates = rates_of(find_card(card), "fp16")
    modelled = kernel_seconds(work_table(OPS), rates, shipped_calibration())
    found = [timed(op, factor * float(s)) for op, s in zip(OPS, modelled, strict=True)]
    return times(*found, card=find_card(card).slug, uuid=uuid, made_at=made_at)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with an RTX 3090 and an A100, and a folder for its calibrations."""
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "results.sqlite"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([RTX, A100]))
    monkeypatch.setattr(calibrations, "_MADE", {})
    monkeypatch.setattr(calibrations, "_shipped", lambda: None)
    folder = tmp_path / "calibrations"
    folder.mkdir()

    def keep(found, name=None):
        path = folder / f"{name or found.card_uuid}.json"
        path.write_text(json.dumps(times_plain(found)))
        return path

    return keep


def of(name, own=None):
    timed = timed_card_for(find_card(name), timed_here() if own is None else own)
    return None if timed is None else timed.card.slug


def test_without_any_calibration_there_is_none(machine):
    assert of("rtx-3090") is None


def test_a_card_that_is_here_serves_itself_and_all_others(machine):
    machine(calibration("rtx-3090", RTX.uuid))
    assert {of(name) for name in ("rtx-3090", "a40", "h200")} == {"rtx-3090"}


def test_of_two_the_one_of_the_same_generation_is_taken(machine):
    machine(calibration("rtx-3090", RTX.uuid, made_at="2026-02-01T00:00:00+00:00"))
    machine(calibration("a100-sxm4-80gb", A100.uuid))
    assert of("a40") == "rtx-3090"
    assert of("a100-pcie-40gb") == "a100-sxm4-80gb"
    assert of("rtx-4090") == "rtx-3090"  # the later of both


def test_a_card_that_is_not_here_does_not_count(machine):
    machine(calibration("rtx-3090", "GPU-of-another-machine"))
    assert of("rtx-3090") is None


def test_a_damaged_file_is_passed_over(machine):
    path = machine(calibration("rtx-3090", RTX.uuid))
    assert of("a40") == "rtx-3090"
    path.write_text(path.read_text()[:-20])
    os.utime(path, ns=(1, 1))
    assert of("a40") is None


def test_what_is_shipped_serves_its_own_card_and_those_without(machine, monkeypatch):
    shipped = calibrations._timed(calibration("h200", None), find_card("h200"), here=False)
    monkeypatch.setattr(calibrations, "_shipped", lambda: shipped)
    assert of("a40") == of("h200") == find_card("h200").slug
    machine(calibration("rtx-3090", RTX.uuid))
    assert of("h200") == find_card("h200").slug
    assert of("a40") == "rtx-3090"


def test_steps_on_other_cards_are_scaled_from_a_card_that_is_here(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("SEGPLAN_CACHE", str(tmp_path / "traces"))  # one trace serves all
    workload = Workload(
        model="unet", model_args={"channels": (16, 32, 64), "strides": (2, 2)},
        patch=(128, 128, 128), batch=2,
    )  # fmt: skip
    before = {name: step_time(workload, name) for name in ("a40", "rtx-3090")}
    machine(calibration("rtx-3090", RTX.uuid, factor=3.0))
    assert {name: step_time(workload, name) for name in before} == before  # unless asked for
    monkeypatch.setenv(calibrations.SWITCH, "use")
    after = {name: step_time(workload, name) for name in before}
    assert after["a40"].basis is Basis.SCALED
    assert after["rtx-3090"].basis is Basis.PREDICTED
    assert {t.basis for t in before.values()} == {Basis.PREDICTED}
    for name, step in after.items():
        assert step.seconds > 1.2 * before[name].seconds
