"""Write docs/cli.md from --help, so that it cannot go stale (a test compares the two)."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
INTRO = """# The command line

This page is made by `docs/make_cli.py` from `--help`; do not edit it.

Exit status: 0 an answer was produced (also "nothing fits"), 2 the request is wrong or the card is
busy, 1 something failed on the way, 130 interrupted. Answers go to standard output, everything
else to standard error. `--debug`, anywhere on the line, shows the traceback of an unexpected error.
"""


def command_names() -> list[str]:
    """The commands, sorted."""
    import typer.main

    from segplan.cli.main import app

    return sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def help_text(*words: str) -> str:
    """The help of a command as plain text, 100 columns wide."""
    from segplan.cli.main import main

    fixed = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb", "NO_COLOR": "1"}
    before = {name: os.environ.get(name) for name in fixed}
    os.environ.update(fixed)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()).strip()


def page() -> str:
    """The whole page."""
    parts = [INTRO, f"```text\n{help_text()}\n```\n"]
    parts += [f"## segplan {n}\n\n```text\n{help_text(n)}\n```\n" for n in command_names()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
