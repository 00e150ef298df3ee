from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.gpus.fake_pynvml import FakeNvml


@pytest.fixture
def use_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Puts a `FakeNvml` in the place of `pynvml`, with no CUDA variables set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    def use(*args: object, **kwargs: object) -> FakeNvml:
        fake = FakeNvml(*args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return use
