"""The command line's documentation cannot go stale."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def make_cli() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cli", DOCS / "make_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current():
    written = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert written == make_cli().page(), "run docs/make_cli.py"


COMMANDS = """
bench buy calibrate compare days estimate export fit gpus loader models report results scan
""".split()


def test_the_commands_are_those_of_the_design():
    assert make_cli().command_names() == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name):
    assert "Example" in make_cli().help_text(name)
