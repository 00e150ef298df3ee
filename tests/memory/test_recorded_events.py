"""The allocator against every event of real runs: addresses, sizes, order, retries, failures.

Recorded on one NVIDIA H200 (torch 2.11.0+cu130) by `record_allocations.handle` through
`benchmarks/measure_memory.py --parts record`: three steps in a fresh process, some under limits
that make the allocator give its cache back, and one that fails.
"""

import gzip
import json
from pathlib import Path

import pytest

from segplan.memory.allocator import Allocator, OutOfMemory, Settings

RECORDED = Path(__file__).parent / "recorded"
NAMES = (
    "unet_near_limit", "unet_failing", "swinunetr_near_limit", "unet_expandable",
    "dynunet_fp32_batch_11", "segresnet_batch_10", "unetr_batch_23",
)  # fmt: skip
MIB = 2**20


def load(name):
    with gzip.open(RECORDED / f"{name}.json.gz", "rt") as file:
        return json.load(file)


def addresses(events, expandable):
    """Where the driver put each segment, or each pool's virtual range, in order of need."""
    if not expandable:
        return iter([address for action, address, _ in events if action == "segment_alloc"])
    first = {}
    for action, address, size in events:
        if action == "segment_map":
            first.setdefault(size > 2 * MIB, address)  # pages of 2 MiB: the small pool
    return iter(first.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_allocator_does_what_the_real_one_did_event_by_event(name):
    run = load(name)
    expandable = "expandable_segments:True" in (run["alloc_conf"] or "")
    places = addresses(run["events"], expandable)
    seen = []
    allocator = Allocator(
        run["limit_mib"] and run["limit_mib"] * MIB,
        Settings(expandable_segments=expandable),
        segment_address=lambda _size: next(places),
        trace=lambda *event: seen.append(list(event)),
    )
    for action, address, size in run["events"]:
        if action == "alloc":
            assert allocator.malloc(size) == address
        elif action == "free_completed":
            allocator.free(address)
        elif action == "oom":
            with pytest.raises(OutOfMemory):
                allocator.malloc(size)
    real = [event for event in run["events"] if event[0] != "oom"]
    assert [event for event in seen if event[0] != "oom"] == real
    assert allocator.peak_allocated == run["peak_allocated"]
    assert allocator.peak_reserved == run["peak_reserved"]
    assert (allocator.retries, allocator.ooms) == (run["retries"], run["ooms"])
    held = sorted((segment.address, segment.size) for segment in allocator.segments())
    assert held == sorted(map(tuple, run["segments"]))


def test_the_recorded_runs_hold_what_they_are_for():
    runs = [load(name) for name in NAMES]
    assert sum(len(run["events"]) for run in runs) > 30_000
    assert any(run["retries"] and run["outcome"] == "fits" for run in runs)
    assert any(run["ooms"] for run in runs)
    assert any(event[0] == "segment_free" for run in runs for event in run["events"])
