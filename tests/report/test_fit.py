"""The frontier as people see it: widths, colours, encodings and every kind of row."""

from __future__ import annotations

import dataclasses
import io

import pytest

from segplan.report.console import make_console
from segplan.report.fit import render, render_many
from segplan.results import Basis, Cell, LimitedBy
from segplan.workload import Workload
from tests.cli.fakes import USUAL, cell_of, fit_of


def shown(fit, width=80, **environment):
    stream = io.StringIO()
    render(fit, make_console(stream, width=width))
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_snapshot(width, snapshot):
    assert shown(USUAL, width) == snapshot


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal_and_no_row_wraps(width):
    lines = shown(USUAL, width).splitlines()
    assert max(len(line) for line in lines) <= width
    rows = [line for line in lines if "none" in line or "  17  " in line or "★  " in line]
    assert all("GiB" in row for row in rows)


def test_the_recommended_row_is_marked_and_the_reason_given():
    text = shown(USUAL)
    row = next(line for line in text.splitlines() if line.startswith("★ "))
    assert row.split()[1:3] == ["96³", "4"]
    assert "★ 96³ at batch 4: the largest patch" in text


def test_a_row_where_nothing_fits_says_what_it_needs():
    assert "192³: nothing fits; batch 1 needs 33.4 GiB (32.4–34.4)." in shown(USUAL)


def test_when_nothing_fits_at_all_the_smallest_card_is_named():
    fit = fit_of(cell_of((64, 64, 64), 0, 33.4), recommended=None, smallest_card="a40")
    text = shown(fit)
    assert "Nothing fits: the smallest patch needs 33.4 GiB." in text
    assert "a40" in text
    assert "★" not in text


def test_cells_without_an_answer_say_why():
    cells = (
        Cell((64, 64, 64), 0, None, None, status="timed_out", note="no answer in 600 s."),
        Cell((96, 96, 96), 64, LimitedBy.CAP, None, retries=3, basis=Basis.MEASURED),
    )
    text = shown(fit_of(*cells, recommended=1))
    assert "timed out" in text
    assert "64³: no answer in 600 s." in text
    assert "cap" in text
    assert "thrashes" in text


def test_two_bases_are_both_named():
    cells = tuple(dataclasses.replace(c, basis=Basis.EMULATED) for c in USUAL.cells)
    fit = dataclasses.replace(USUAL, cells=cells, measured_on="NVIDIA H200")
    text = shown(fit, 120)
    assert "memory emulated, step scaled on NVIDIA H200" in text
    assert "emulated, step scaled" in text


def test_rows_that_differ_in_basis_keep_the_column_at_any_width():
    first = dataclasses.replace(USUAL.cells[0], basis=Basis.MEASURED)
    fit = dataclasses.replace(USUAL, cells=(first, *USUAL.cells[1:]))
    assert "basis" in shown(fit, 70)


def test_the_title_shows_what_is_not_the_default():
    w = Workload(model_args={"feature_size": 24, "depths": (2, 2)}, checkpointing=True, grad_clip=1)
    text = shown(dataclasses.replace(USUAL, workload=w), 120)
    assert "swinunetr (depths=[2,2], feature_size=24) · 1→14 channels · fp16" in text
    assert "checkpointing · grad_clip 1.0" in text


def test_brackets_are_text_and_no_markup():
    assert "[red]" in shown(dataclasses.replace(USUAL, warnings=("[red]careful",)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch, **environment):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    render(USUAL, make_console(stream, width=80))
    return stream.getvalue()


def test_colours_on_a_terminal_none_in_a_pipe_none_with_no_color(monkeypatch):
    assert "\x1b[" in on_terminal(monkeypatch)
    assert "\x1b[" not in shown(USUAL)
    assert "\x1b[" not in on_terminal(monkeypatch, NO_COLOR="1")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_that_is_not_utf_8(encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    render(USUAL, make_console(stream, width=80))
    stream.flush()
    text = raw.getvalue().decode(encoding)
    assert text.isascii()
    assert ">    96^3" in text or "> " in text
    assert "?" not in text
    assert "128x128x64" in text


def test_several_cards_side_by_side(snapshot):
    stream = io.StringIO()
    other = dataclasses.replace(USUAL, card="rtx-4090", recommended=None)
    render_many([USUAL, other], make_console(stream, width=80))
    assert stream.getvalue() == snapshot


def test_one_of_several_is_shown_in_full():
    stream = io.StringIO()
    render_many([USUAL], make_console(stream, width=80))
    assert stream.getvalue() == shown(USUAL)
