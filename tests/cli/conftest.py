from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from segplan.cli.main import main
from tests.cli.fakes import FakeApi


@dataclass
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def run(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command line in this process, 80 columns wide, without a terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*words: str) -> Ran:
        status = main(words)
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return run
