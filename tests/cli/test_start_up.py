"""Starting quickly: what the command line must not load."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "monai", "pandas", "scipy", "pydantic", "numpy", "yaml", "pynvml")


def loaded_after(program: str) -> set[str]:
    code = program + "\nimport sys, json; print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_command_line_loads_nothing_heavy():
    program = (
        "import importlib, pkgutil, segplan.cli\n"
        "for m in pkgutil.iter_modules(segplan.cli.__path__):\n"
        "    importlib.import_module('segplan.cli.' + m.name)"
    )
    assert loaded_after(program).isdisjoint(HEAVY)


def test_the_help_loads_nothing_heavy():
    program = (
        "import contextlib, io\n"
        "from segplan.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert main(['--help']) == 0"
    )
    assert loaded_after(program).isdisjoint(HEAVY)
    # The help of a command: typer itself reads the options' types with pydantic.
    command = program.replace("['--help']", "['fit', '--help']")
    assert loaded_after(command).isdisjoint(set(HEAVY) - {"pydantic"})
