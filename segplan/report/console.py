"""Where reports go: consoles that suit a terminal, a pipe, NO_COLOR and non-UTF-8 output."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import IO, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

_ASCII = str.maketrans(
    {
        "★": ">", "×": "x", "³": "^3", "–": "-", "—": "-", "·": "|", "→": "->", "≤": "<=",
        "≥": ">=", "…": "...", "’": "'", "“": '"', "”": '"', "µ": "u", "±": "+/-", "≈": "~",
    }
)  # fmt: skip

_ASCII_RULE = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

PLAIN_INTERVAL_S = 10.0
"""Seconds between two lines of progress where the output is no terminal."""


def make_console(stream: IO[str] | None = None, *, width: int | None = None) -> Console:
    """A console on a stream (standard output unless given) that prints text as it is.

    With NO_COLOR set there are no escape codes at all, bold and dim included.
    """
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream if stream is not None else sys.stdout,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=plain or None,
        color_system=None if plain else "auto",
    )


def fitting_text(text: str, console: Console) -> str:
    """The text with every character the console's encoding can show; the rest in ASCII."""
    encoding = console.encoding
    if encoding.startswith("utf"):
        return text
    return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)


def make_table(console: Console, *, header: bool = True) -> Table:
    """An empty table without frame: a bold header with a rule below it, two blanks between."""
    return Table(
        box=_ASCII_RULE if console.options.ascii_only else box.SIMPLE_HEAD,
        show_edge=False,
        show_header=header,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )


def fits_width(table: Table, console: Console) -> bool:
    """Whether the console is wide enough for the table as it is, no cell folded or cut."""
    unbounded = console.options.update(max_width=10_000)
    return console.measure(table, options=unbounded).maximum <= console.width


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a paragraph, wrapped at words."""
    console.print(fitting_text(text, console), style=style)


class ProgressLine:
    """Progress on standard error: a bar on a terminal, an occasional line elsewhere.

    Used as a context manager; call it as `progress(done, total, text)`.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._console = make_console(stream if stream is not None else sys.stderr)
        self._bar: Progress | None = None
        self._last_s: float | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show that `done` of `total` are finished and what is under way."""
        text = fitting_text(text, self._console)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=text)
            return
        now = time.monotonic()
        if self._last_s is None or now - self._last_s >= PLAIN_INTERVAL_S:
            self._last_s = now
            say(self._console, f"[{done}/{total}] {text}")
