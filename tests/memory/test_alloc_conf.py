"""Text of `PYTORCH_ALLOC_CONF` to settings; torch itself is asked where it can be."""

from __future__ import annotations

import pytest
import torch

from segplan.errors import RequestError
from segplan.memory.alloc_conf import (
    conf_from_environment,
    parse_alloc_conf,
    settings_from_environment,
)
from segplan.memory.allocator import MIB, Settings, round_size


def test_nothing_set_is_the_default():
    assert settings_from_environment({}) == Settings()
    assert parse_alloc_conf("").settings == Settings()


def test_all_at_once():
    conf = parse_alloc_conf(
        "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],large_segment_size_mb:40,"
        "max_non_split_rounding_mb:64,per_process_memory_fraction:0.5,backend:native"
    )
    rest = {2**n * MIB: 8 for n in range(11, 16)}
    assert conf.settings == Settings(
        expandable_segments=True,
        max_split_size=128 * MIB,
        roundup_power2_divisions={512 * MIB: 2, 1024 * MIB: 4, **rest},
        large_segment_size=40 * MIB,
        garbage_collection_threshold=0.8,
        max_non_split_rounding=64 * MIB,
    )
    assert conf.memory_fraction == 0.5
    assert conf.warnings == ()


def test_the_cuda_variable_wins_and_a_difference_is_told():
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30",
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"}  # fmt: skip
    conf = conf_from_environment(both)
    assert conf.settings.max_split_size == 40 * MIB
    assert "both set" in conf.warnings[0]
    both["PYTORCH_ALLOC_CONF"] = both["PYTORCH_CUDA_ALLOC_CONF"]
    assert conf_from_environment(both).warnings == ()
    del both["PYTORCH_CUDA_ALLOC_CONF"]
    assert settings_from_environment(both).max_split_size == 40 * MIB


def test_the_environment_is_the_default(monkeypatch):
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert settings_from_environment() == Settings(expandable_segments=True)


def test_unknown_keys_and_other_backends_are_told():
    conf = parse_alloc_conf("foo:[1,2],expandable_segments:True,backend:cudaMallocAsync")
    assert conf.settings == Settings(expandable_segments=True)
    assert "'foo'" in conf.warnings[0]
    assert "cudaMallocAsync is not modelled" in conf.warnings[1]
    assert parse_alloc_conf("pinned_num_register_threads:8").warnings == ()


REFUSED = [
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb",
    "max_split_size_mb=128",
    "max_split_size_mb:128,",
    "large_segment_size_mb:10",
    "max_split_size_mb:20,large_segment_size_mb:40",
    "max_non_split_rounding_mb:5",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.5",
    "expandable_segments:true",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[100:2]",
]


@pytest.fixture
def ask_torch():
    """torch's own parser, from the release on whose bounds are followed; undone afterwards."""
    if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 13):
        yield None
        return
    yield torch._C._accelerator_setAllocatorSettings
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")


@pytest.mark.parametrize("text", REFUSED)
def test_refused_as_torch_refuses(text, ask_torch):
    with pytest.raises(RequestError, match=r"PYTORCH_ALLOC_CONF.*write"):
        parse_alloc_conf(text)
    if ask_torch is not None and text != "max_split_size_mb:128,":
        with pytest.raises((ValueError, RuntimeError)):
            ask_torch(text)


@pytest.mark.parametrize(
    "text",
    [
        # Stricter than torch, which reads these as 128 and as no bound.
        "max_split_size_mb:128MB",
        "max_split_size_mb:-1",
        "max_split_size_mb:[20]",
        "expandable_segments:True;max_split_size_mb:20",
        "expandable_segments:",
        "roundup_power2_divisions:[256:1",
        "roundup_power2_divisions:[256]",
        "per_process_memory_fraction:2",
        "per_process_memory_fraction:half",
        "backend:other",
        ":",
        "a:b]",
    ],
)
def test_refused(text):
    with pytest.raises(RequestError, match="write"):
        parse_alloc_conf(text)


@pytest.mark.parametrize(
    ("text", "rounded"),
    [
        ("roundup_power2_divisions:4", 1280),
        ("roundup_power2_divisions:1", 1200),
        ("roundup_power2_divisions:[1:4,>:2]", 1280),
        ("roundup_power2_divisions:[>:2]", 1200),  # the lowest interval is not above anything
        ("roundup_power2_divisions:[64:4]", 1280),  # the first named rules below it
        ("roundup_power2_divisions:[64:0,>:8]", 1200),
    ],
)
def test_divisions_round(text, rounded):
    assert round_size(1200 * 1024, parse_alloc_conf(text).settings) == rounded * 1024
