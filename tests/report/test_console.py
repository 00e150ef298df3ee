from __future__ import annotations

import io

from segplan.report import console as c


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_a_terminal_is_an_occasional_line(monkeypatch):
    clock = iter([0.0, 1.0, 9.0, 10.0, 11.0])
    monkeypatch.setattr(c.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with c.ProgressLine(stream) as progress:
        for i in range(5):
            progress(i, 5, f"{64 + i}³")
    # The first call, and the first one ten seconds after it.
    assert stream.getvalue() == "[0/5] 64³\n[3/5] 67³\n"


def test_progress_on_a_terminal_leaves_nothing_behind(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with c.ProgressLine(stream) as progress:
        progress(1, 4, "96³ [batch 2]")
    text = stream.getvalue()
    assert "96³ [batch 2]" in text
    assert text.endswith("\x1b[2K")  # the line is wiped


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with c.ProgressLine(stream) as progress:
        progress(1, 4, "96³")
    assert stream.getvalue() == "[1/4] 96³\n"


def test_an_error_inside_progress_comes_out(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    try:
        with c.ProgressLine(stream):
            raise ValueError
    except ValueError:
        pass
    else:
        raise AssertionError


def test_text_a_terminal_cannot_show():
    console = c.make_console(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert c.fitting_text("96³ × 2 ≥ ★ é", console) == "96^3 x 2 >= > ?"
