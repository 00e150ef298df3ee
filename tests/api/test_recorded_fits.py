"""Fits that ran on a real H200 (benchmarks/measured_fits.py): their promises, and how they show."""

import io
import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from segplan.report.console import make_console
from segplan.report.fit import render
from segplan.results import Basis, Fit, LimitedBy
from segplan.units import MIB

RUNS = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "data" / "h200_fits.json").read_text("utf-8")
)
UNLIMITED = [name for name in RUNS if not name.endswith("-23000")]


def fit_of(name):
    return TypeAdapter(Fit).validate_python(RUNS[name]["document"])


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_fit(name):
    fit = fit_of(name)
    basis = Basis.EMULATED if "-as-" in name else Basis.MEASURED
    assert fit.measured_on == "NVIDIA H200"
    for cell in fit.cells:
        assert (cell.status, cell.basis) == ("ok", basis)
        capped = cell.max_batch == 64
        assert cell.limited_by in ((LimitedBy.CAP,) if capped else (LimitedBy.MEMORY,))
        if cell.max_batch:
            assert cell.step.basis is Basis.MEASURED
            assert cell.step.low <= cell.step.seconds <= cell.step.high
            # An allocator limit is met to its rounding.
            assert cell.memory.peak_allocated <= cell.memory.peak_reserved <= fit.budget + 2 * MIB
    best = fit.cells[fit.recommended]
    assert best.max_batch >= 2
    text = io.StringIO()
    render(fit, make_console(text, width=100))
    assert basis.value in text.getvalue()
    assert "H200" in text.getvalue()


def test_the_prediction_saves_probes():
    cells = [cell for name in UNLIMITED for cell in fit_of(name).cells]
    small = [cell.probes for cell in cells if cell.max_batch <= 16]
    large = [cell.probes for cell in cells if cell.max_batch > 16]
    assert sum(small) <= 2.5 * len(small)
    assert sum(large) <= 6 * len(large)
