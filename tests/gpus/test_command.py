from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from segplan.api.cards import list_cards
from segplan.cli.gpus import gpus
from segplan.errors import CardError
from segplan.gpus import catalogue
from segplan.report.gpus import render, to_json
from segplan.results import SCHEMA_VERSION
from tests.gpus.fake_pynvml import MIB, FakeGpu, FakeNvml, FakeProcess, NVMLError, mig_a100

Use = Callable[..., FakeNvml]


def shown(width: int = 80, **kwargs: object) -> str:
    stream = io.StringIO()
    render(list_cards(**kwargs), Console(file=stream, width=width))  # type: ignore[arg-type]
    return stream.getvalue()


def test_cards_here_come_first_and_fit_80_columns(use_nvml: Use) -> None:
    busy = FakeGpu(used=9000 * MIB, processes=[FakeProcess(7, 8192 * MIB)], driver_model=0)
    use_nvml([busy, mig_a100()], names={7: r"C:\tools\python.exe"})
    text = shown()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "\x1b" not in text
    assert text.index("NVIDIA GeForce RTX 3090, rtx-3090") < text.index("titan-xp")
    assert "14.9 free of 23.7 GiB" in text  # (24576 - 308 - 9000) / 1024 = 14.9
    assert "in use by python.exe (pid 7, 8.0 GiB)" in text
    assert "spills to the host" in text
    assert "MIG slice, --gpu MIG-c0000000" in text
    for card in catalogue():
        assert card.slug in text


def test_no_gpu_says_why_and_still_lists(use_nvml: Use) -> None:
    use_nvml(init_error=NVMLError(12))
    text = shown()
    assert "Why: no NVIDIA driver is installed." in text
    assert "rtx-3090" in text
    use_nvml([])
    assert "shows no card" in shown()


def test_one_card_shows_source_and_verification(use_nvml: Use) -> None:
    text = shown(name="RTX 3090", width=200)
    assert "71.0 TFLOPS" in text
    assert "whitepaper" in text
    assert "142 by formula" in text
    assert max(len(line.rstrip()) for line in shown(name="RTX 3090").splitlines()) <= 80


def test_one_local_card(use_nvml: Use) -> None:
    use_nvml()
    text = shown(name="0")
    assert "RTX 3090" in text
    assert "gen 1 x8 now, gen 4 x16 at most" in text
    with pytest.raises(CardError, match="there is no GPU 3"):
        list_cards("3")


def test_users_cards_are_listed_and_are_no_markup(use_nvml: Use, tmp_path: Path) -> None:
    use_nvml([])
    path = tmp_path / "mine.yaml"
    path.write_text("name: '[red]Mine[/red]'\nmemory_gib: 30\nsource: '[bold]x'")
    assert "red-mine-red" in shown(cards_file=path)
    assert "[red]Mine[/red]" in shown(name="red-mine-red", cards_file=path)
    assert "[bold]x" in shown(name=str(path))


def test_json(use_nvml: Use) -> None:
    use_nvml([mig_a100()])
    document = json.loads(to_json(list_cards()))
    assert document["schema_version"] == SCHEMA_VERSION
    assert [card["uuid"][:4] for card in document["here"]] == ["GPU-", "MIG-", "MIG-"]
    assert document["here_slugs"] == ["a100-sxm4-40gb", None, None]
    row = next(card for card in document["catalogue"] if card["slug"] == "rtx-3090")
    assert row["rates"]["fp16"] == 71e12
    assert row["memory_nominal"] == 24 * 2**30
    one = json.loads(to_json(list_cards("a40")))
    assert one["card"]["slug"] == "a40"


def test_command(use_nvml: Use) -> None:
    use_nvml(init_error=NVMLError(9))
    app = typer.Typer()
    app.command()(gpus)
    runner = CliRunner()
    result = runner.invoke(app, ["--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["unavailable"] == "the NVIDIA driver is not loaded"
    result = runner.invoke(app, ["h200"])
    assert result.exit_code == 0
    assert "141 GiB HBM3e" in result.stdout
    assert isinstance(runner.invoke(app, ["rtx-309"]).exception, CardError)


def test_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, segplan.cli.gpus; "
        "print([m for m in ('torch', 'monai', 'pandas', 'scipy', 'pynvml') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
