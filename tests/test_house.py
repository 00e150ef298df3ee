"""The house keeps its rules: imports go one way."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_go_only_down_the_list_of_rooms():
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command is not None, "import-linter is not installed: pip install -e '.[test]'"
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_is_in_the_contract():
    rooms = {p.parent.name for p in (ROOT / "segplan").glob("*/__init__.py")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    listed = {name.strip().removeprefix("segplan.") for row in layers for name in row.split("|")}
    assert rooms <= listed
