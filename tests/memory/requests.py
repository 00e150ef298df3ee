"""Sequences of requests to an allocator, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from segplan.memory.allocator import MIB, OutOfMemory, Settings

EXPANDABLE = Settings(expandable_segments=True)

SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 60 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 12 * MIB, 11 * MIB, 21 * MIB]),
)


@st.composite
def programs(draw, complete=False):
    """(ops, sizes): each buffer allocated once, and freed at most once after that."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=40))
    ops: list[int] = []
    live: list[int] = []
    for number in range(len(sizes)):
        ops.append(number)
        live.append(number)
        while live and draw(st.booleans()):
            ops.append(live.pop(draw(st.integers(0, len(live) - 1))))
    if complete:
        ops.extend(live)
    return ops, sizes


ANY_SETTINGS = st.sampled_from(
    [
        Settings(),
        EXPANDABLE,
        Settings(max_split_size=20 * MIB),
        Settings(max_split_size=32 * MIB, roundup_power2_divisions=4),
        Settings(garbage_collection_threshold=0.6),
        Settings(expandable_segments=True, large_segment_size=30 * MIB),
    ]
)
LIMITS = st.one_of(st.none(), st.integers(20, 400).map(lambda n: n * MIB))


def drive(allocator, ops, sizes, check=lambda: None):
    """Runs a program through the public interface; the index that fails, or None."""
    held = {}
    for index, number in enumerate(ops):
        if number in held:
            allocator.free(held.pop(number))
        else:
            try:
                held[number] = allocator.malloc(sizes[number])
            except OutOfMemory:
                return index
        check()
    return None
