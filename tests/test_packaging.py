"""The built wheel works when installed elsewhere: code, presets and catalogue are in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from segplan.api.config import preset_names

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, built from a copy of the source, was installed."""
    work = tmp_path_factory.mktemp("packaging")
    source = work / "source"
    skip = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "benchmarks"
    )
    shutil.copytree(ROOT, source, ignore=skip)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work)]
    done = subprocess.run([*build, str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = work.glob("*.whl")
    target = work / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run([*pip, *options, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def python(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python away from the source, with the installed copy first on the path."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=installed.parent, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_the_installed_copy_is_the_one_that_runs(installed):
    done = python(installed, "-c", "import segplan; print(segplan.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(installed)
    done = python(installed, "-m", "segplan.cli.main", "--version")
    assert done.stdout.startswith("segplan "), done.stderr


@pytest.mark.slow
def test_presets_are_in_the_wheel(installed):
    program = (
        "import json; from segplan.api.config import load_config, preset_names, _preset_folder\n"
        "print(json.dumps([str(_preset_folder()), preset_names()]))\n"
        "[load_config(name) for name in preset_names()]"
    )
    done = python(installed, "-c", program)
    assert done.returncode == 0, done.stderr
    folder, names = json.loads(done.stdout)
    assert str(installed) in folder
    assert names == preset_names()


@pytest.mark.slow
def test_data_files_are_in_the_wheel(installed):
    for path in (ROOT / "segplan").rglob("*"):
        if path.suffix in (".csv", ".json", ".typed", ".py") and "__pycache__" not in path.parts:
            assert (installed / path.relative_to(ROOT)).is_file(), path


@pytest.mark.slow
def test_the_catalogue_is_in_the_wheel(installed):
    done = python(installed, "-m", "segplan.cli.main", "gpus", "rtx-3090")
    assert done.returncode == 0, done.stderr
    assert "3090" in done.stdout
