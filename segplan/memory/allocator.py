"""PyTorch's CUDA caching allocator, replayed without a GPU.

A replica of the native backend (`c10/cuda/CUDACachingAllocator.cpp`, class
`DeviceCachingAllocator`): the same blocks are found, split, merged, cached and
released in the same order, so that peak allocated and reserved bytes, retries
and the out-of-memory point follow from a sequence of requests alone. Names in
the docstrings below are that file's. Rules and constants are those of torch 2.6
to 2.14; where they differ (`large_segment_size`), the setting says so.

Known limitations: one stream, no private pools (CUDA graphs), no `recordStream`,
no free-memory callbacks. The driver is assumed to hand out memory in exactly the
sizes asked for and to have no fragmentation of its own. Where `cudaMalloc` puts a
segment is a model (`AddressSpace`); it decides only between free blocks of the
very same size, because best fit orders by (size, address).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

MIB: Final = 2**20
MIN_BLOCK_SIZE: Final = 512
"""`kMinBlockSize`: every size is rounded up to a multiple of this."""
SMALL_SIZE: Final = MIB
"""`kSmallSize`: the largest request served by the small pool."""
SMALL_BUFFER: Final = 2 * MIB
"""`kSmallBuffer`: segments (and pages) of the small pool."""
LARGE_BUFFER: Final = 20 * MIB
"""`kLargeBuffer`: segments for requests under `MIN_LARGE_ALLOC`, and page of the large pool."""
MIN_LARGE_ALLOC: Final = 10 * MIB
"""`kMinLargeAlloc`: from here on a request gets a segment of its own size."""
ROUND_LARGE: Final = 2 * MIB
"""`kRoundLarge`: to which such a segment is rounded up."""

REGION: Final = 32 * MIB
"""Granularity in which the driver reserves addresses (recorded with torch 2.11.0+cu130, driver
580)."""

FIRST_REGION: Final = 512 * MIB
"""About what fills from below before regions are reserved downward (as recorded)."""

Trace = Callable[[str, int, int], None]
"""Receives (action, address, bytes); actions are named as in torch's memory snapshots."""

_IN_USE, _FREE, _UNMAPPED = 0, 1, 2
_SHIFT = 48  # CUDA addresses have at most 48 bits: (size << 48) | address orders by both
_UNLIMITED = 2**62
_VIRTUAL_RANGE = 2**40  # address space of one expandable segment; torch takes 9/8 of the card
_NO_SPLIT = 2**62


@dataclass(frozen=True)
class Settings:
    """What `PYTORCH_ALLOC_CONF` can change about the native allocator (sizes in bytes).

    Attributes:
        expandable_segments: grow one virtual range per pool by pages instead of
            asking for segments.
        max_split_size: blocks of at least this size are not split; None: no bound.
        roundup_power2_divisions: None (off), one number for all sizes, or a mapping
            from interval (a power of two, in bytes: sizes from it up to the next
            power of two) to divisions. The lowest interval also rules everything
            below 1 MiB if it is 1 MiB; intervals not named are off; 64 GiB and more
            count as the 32 GiB interval.
        large_segment_size: segments for requests of 1 to 10 MiB, and the page of the
            large pool (`large_segment_size_mb` of newer releases).
        garbage_collection_threshold: share of the limit above which old cached
            blocks are released before growing; 0: off. Needs a limit.
        max_non_split_rounding: how much larger an unsplittable block may be than the
            request it serves; None: `large_segment_size`.
    """

    expandable_segments: bool = False
    max_split_size: int | None = None
    roundup_power2_divisions: int | Mapping[int, int] | None = field(default=None, hash=False)
    large_segment_size: int = LARGE_BUFFER
    garbage_collection_threshold: float = 0.0
    max_non_split_rounding: int | None = None


DEFAULTS: Final = Settings()


class OutOfMemory(Exception):
    """`torch.OutOfMemoryError`: no segment could be had, even after releasing the cache."""

    def __init__(self, size: int, segment: int, reserved: int) -> None:
        super().__init__(size, segment, reserved)
        self.size, self.segment, self.reserved = size, segment, reserved

    def __str__(self) -> str:
        return (
            f"{self.size} bytes asked for, {self.segment} more do not fit next to "
            f"{self.reserved} reserved bytes"
        )


def round_size(size: int, settings: Settings = DEFAULTS) -> int:
    """Bytes a request is rounded up to (`round_size`, `roundup_power2_next_division`)."""
    if size < MIN_BLOCK_SIZE:
        return MIN_BLOCK_SIZE
    divisions = _divisions(size, settings.roundup_power2_divisions)
    if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
        if size & (size - 1) == 0:
            return size
        step = (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)
        return -(-size // step) * step
    return -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def _divisions(size: int, rule: int | Mapping[int, int] | None) -> int:
    """`AcceleratorAllocatorConfig::roundup_power2_divisions`: 16 intervals from 1 MiB up."""
    if rule is None or isinstance(rule, int):
        return rule or 0
    interval = min(max(size.bit_length() - 1, 20), 35)
    return rule.get(1 << interval, 0)


def segment_size(rounded: int, settings: Settings = DEFAULTS) -> int:
    """Bytes asked of the driver for a request of `rounded` bytes (`get_allocation_size`)."""
    if rounded <= SMALL_SIZE:
        return SMALL_BUFFER
    if rounded < MIN_LARGE_ALLOC:
        return settings.large_segment_size
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE


class AddressSpace:
    """Where `cudaMalloc` puts segments, as seen on Linux: the newest lie lowest.

    The driver has a first region, which fills from below. Then it reserves regions of whole
    32 MiB, each as high as one fits below what is taken (as the kernel maps memory), and puts a
    segment at a region's start. What is left at a region's end serves later segments that fit,
    the lowest first. A region all of whose segments were given back is given back too.

    This is a model of the driver, not a replica: what else the process maps moves addresses. It
    has 95 % of the pairs of equal segments in the order in which they were recorded
    (`tests/memory/recorded`), and that order decides which of two equal blocks is taken, and with
    it whether a step trains near its limit: the same requests with the recorded addresses end in
    the very same failure.
    """

    def __init__(self, top: int = 2**46, first: int = FIRST_REGION) -> None:
        self._top = top
        self._regions = [(top - first, top)] if first else []  # (address, end), sorted, disjoint
        self._gaps = list(self._regions)  # within regions, sorted, disjoint

    def take(self, size: int) -> int:
        """Address of `size` bytes."""
        size = -(-size // ROUND_LARGE) * ROUND_LARGE
        for i, (address, end) in enumerate(self._gaps):
            if end - address >= size:
                if end - address == size:
                    del self._gaps[i]
                else:
                    self._gaps[i] = (address + size, end)
                return address
        room = -(-size // REGION) * REGION
        below = self._top
        for i in range(len(self._regions) - 1, -1, -1):
            if below - self._regions[i][1] >= room:
                break
            below = self._regions[i][0]
        address = below - room
        insort(self._regions, (address, below))
        if size < room:
            insort(self._gaps, (address + size, below))
        return address

    def give(self, address: int, size: int) -> None:
        """Takes back what `take` returned."""
        end = address + -(-size // ROUND_LARGE) * ROUND_LARGE
        region = self._regions[bisect_left(self._regions, (address + 1,)) - 1]
        i = bisect_left(self._gaps, (address, end))
        if i < len(self._gaps) and self._gaps[i][0] == end and end < region[1]:
            end = self._gaps.pop(i)[1]
        if i > 0 and self._gaps[i - 1][1] == address and address > region[0]:
            i -= 1
            address = self._gaps.pop(i)[0]
        if (address, end) == region:
            self._regions.remove(region)
        else:
            self._gaps.insert(i, (address, end))


class _Block:
    """`Block`: a piece of a segment; `born` and `origin` are set only where they are used."""

    __slots__ = ("address", "born", "next", "origin", "pool", "prev", "requested", "size", "state")

    address: int
    born: int  # `gc_count_base`
    next: _Block | None
    origin: int  # first address of the expandable segment
    pool: _Pool
    prev: _Block | None
    requested: int
    size: int
    state: int

    def __init__(self, address: int, size: int, pool: _Pool, prev: _Block | None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = None
        self.requested = 0
        self.state = _IN_USE


class _Pool:
    """`BlockPool`: free blocks by (size, address), in two lists kept side by side."""

    __slots__ = ("blocks", "calls", "keys", "page", "small", "unmapped")

    def __init__(self, small: bool, page: int) -> None:
        self.small = small
        self.page = page
        self.keys: list[int] = []
        self.blocks: list[_Block] = []
        self.unmapped: list[_Block] = []  # by address
        self.calls = 0  # `get_free_blocks_call_count`

    def insert(self, block: _Block) -> None:
        block.born = self.calls
        key = (block.size << _SHIFT) | block.address
        i = bisect_left(self.keys, key)
        self.keys.insert(i, key)
        self.blocks.insert(i, block)

    def remove(self, block: _Block) -> None:
        i = bisect_left(self.keys, (block.size << _SHIFT) | block.address)
        del self.keys[i]
        del self.blocks[i]


@dataclass(frozen=True)
class BlockInfo:
    """A block as it is now: `requested` is 0 unless it is in use."""

    address: int
    size: int
    requested: int
    in_use: bool


@dataclass(frozen=True)
class SegmentInfo:
    """A segment (or one contiguous mapped range of an expandable one) and its blocks."""

    address: int
    size: int
    small: bool
    blocks: tuple[BlockInfo, ...]


_Plan = tuple[int, int, list[int], list[_Block], int, _Pool, int]


class Allocator:
    """`DeviceCachingAllocator` for one device and one stream.

    Args:
        limit: bytes torch allows itself (`set_per_process_memory_fraction`): growing
            fails when reserved plus the segment exceeds it. With expandable segments
            torch compares the size rounded to 2 MiB but maps whole pages, so reserved
            may end up to one page (20 MiB) above the limit: replicated.
        settings: what `PYTORCH_ALLOC_CONF` says.
        capacity: bytes the driver has to give. Without expandable segments this acts
            as `limit` does, except that garbage collection needs a `limit`.
        segment_address: puts a segment of so many bytes at an address (recorded ones,
            for verification); None: `AddressSpace`.
        trace: called with ("alloc", address, requested), ("free_completed", address,
            requested), ("segment_alloc" | "segment_free" | "segment_map" |
            "segment_unmap", address, size) and ("oom", reserved, rounded).

    Attributes:
        allocated: bytes of the blocks in use, unsplit blocks counted whole.
        reserved: bytes held from the driver.
        requested: bytes asked for by the blocks in use, before rounding.
        peak_allocated, peak_reserved, peak_requested: the most these have been.
        retries: `num_alloc_retries`, each of which released the whole cache.
        ooms: `num_ooms`.
    """

    def __init__(
        self,
        limit: int | None = None,
        settings: Settings = DEFAULTS,
        *,
        capacity: int | None = None,
        segment_address: Callable[[int], int] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.settings = settings
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = self.peak_requested = 0
        self.retries = self.ooms = 0
        self._granted, self._denied = 0, _UNLIMITED
        self._trace = trace
        self._capacity = _UNLIMITED if capacity is None else capacity
        space = AddressSpace()
        self._place = segment_address or space.take
        self._give_back = None if segment_address else space.give
        self._small = _Pool(True, SMALL_BUFFER)
        self._large = _Pool(False, settings.large_segment_size)
        self._live: dict[int, _Block] = {}
        self._plans: dict[int, _Plan] = {}
        self._max_split = settings.max_split_size or _UNLIMITED
        self._slack = settings.max_non_split_rounding or settings.large_segment_size
        self.set_limit(limit)

    @property
    def active(self) -> int:
        """`active_bytes`: with one stream, what is allocated."""
        return self.allocated

    @property
    def same_limits(self) -> range:
        """Limits with which all since the beginning would have been the same.

        What happens depends on the limit only through what it granted and denied (with garbage
        collection also otherwise: then there is just the limit itself).
        """
        if self._collect:
            return range(self._limit, self._limit + 1)
        return range(self._granted, self._denied)

    def set_limit(self, limit: int | None) -> None:
        """`setMemoryFraction`: takes effect at the next growth, releases nothing."""
        self.limit = limit
        self._limit = _UNLIMITED if limit is None else limit
        self._collect = limit is not None and self.settings.garbage_collection_threshold > 0
        self._plain = (
            not self._collect
            and not self.settings.expandable_segments
            and self._max_split == _UNLIMITED
        )

    # The two hot paths: a replay spends its time here.

    def _plan(self, size: int) -> _Plan:
        """What does not depend on the state: rounding, pool, split rule, segment size."""
        rounded = round_size(size, self.settings)
        pool = self._small if rounded <= SMALL_SIZE else self._large
        # `should_split`: the least remainder that is cut off.
        if pool.small or self.settings.expandable_segments:
            least = MIN_BLOCK_SIZE
        else:
            least = SMALL_SIZE + 1 if rounded < self._max_split else _NO_SPLIT
        plan = (
            rounded, rounded << _SHIFT, pool.keys, pool.blocks, least, pool,
            segment_size(rounded, self.settings),
        )  # fmt: skip
        self._plans[size] = plan
        return plan

    def malloc(self, size: int) -> int:
        """Address of a block of at least `size` bytes; 0 for 0 bytes (a null pointer).

        `malloc` and `alloc_found_block`.

        Raises:
            OutOfMemory: where torch would raise it.
        """
        if size <= 0:
            return 0
        plan = self._plans.get(size) or self._plan(size)
        rounded, key, keys, blocks, least, pool, segment = plan
        i = bisect_left(keys, key)
        if self._plain:
            if i < len(keys):
                del keys[i]
                block = blocks.pop(i)
            else:
                block = self._grow(size, rounded, pool, segment)
        else:
            block = self._get_free_block(rounded, pool, i) or self._grow(
                size, rounded, pool, segment
            )
        remaining = block.size - rounded
        if remaining >= least:
            rest = block
            prev = rest.prev
            block = _Block(rest.address, rounded, pool, prev)
            if prev is not None:
                prev.next = block
            block.next = rest
            rest.prev = block
            rest.address += rounded
            rest.size = remaining
            rest.state = _FREE
            key = (remaining << _SHIFT) | rest.address
            i = bisect_left(keys, key)
            keys.insert(i, key)
            blocks.insert(i, rest)
            if not self._plain:
                rest.born = pool.calls
                if self.settings.expandable_segments:
                    block.origin = rest.origin
        else:
            rounded = block.size
            block.state = _IN_USE
        block.requested = size
        total = self.allocated = self.allocated + rounded
        if total > self.peak_allocated:
            self.peak_allocated = total
        total = self.requested = self.requested + size
        if total > self.peak_requested:
            self.peak_requested = total
        if self._trace is not None:
            self._trace("alloc", block.address, size)
        self._live[block.address] = block
        return block.address

    def free(self, handle: int) -> None:
        """Gives a block back to the cache; 0 is ignored.

        `free`, `free_block` and `try_merge_blocks`.

        Raises:
            KeyError: nothing is allocated at that address.
        """
        if not handle:
            return
        block = self._live.pop(handle)
        size = block.size
        self.allocated -= size
        self.requested -= block.requested
        if self._trace is not None:
            self._trace("free_completed", block.address, block.requested)
        pool = block.pool
        keys, blocks = pool.keys, pool.blocks
        near = block.prev
        if near is not None and near.state == _FREE:
            i = bisect_left(keys, (near.size << _SHIFT) | near.address)
            del keys[i]
            del blocks[i]
            size += near.size
            block.address = near.address
            block.prev = near = near.prev
            if near is not None:
                near.next = block
        near = block.next
        if near is not None and near.state == _FREE:
            i = bisect_left(keys, (near.size << _SHIFT) | near.address)
            del keys[i]
            del blocks[i]
            size += near.size
            block.next = near = near.next
            if near is not None:
                near.prev = block
        block.size = size
        block.state = _FREE
        block.born = pool.calls
        key = (size << _SHIFT) | block.address
        i = bisect_left(keys, key)
        keys.insert(i, key)
        blocks.insert(i, block)

    def empty_cache(self) -> None:
        """`emptyCache`: gives wholly free segments (or pages) back to the driver."""
        self._release_cached_blocks()

    def reset_peaks(self) -> None:
        """`resetPeakStats`."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved
        self.peak_requested = self.requested

    def segments(self) -> list[SegmentInfo]:
        """`snapshot`: every segment with its blocks, by address."""
        heads: dict[int, _Block] = {}
        for block in (*self._small.blocks, *self._large.blocks, *self._live.values()):
            while block.prev is not None and block.prev.state != _UNMAPPED:
                block = block.prev
            heads[block.address] = block
        found = []
        for address in sorted(heads):
            rows = []
            item: _Block | None = heads[address]
            while item is not None and item.state != _UNMAPPED:
                in_use = item.state == _IN_USE
                rows.append(
                    BlockInfo(item.address, item.size, item.requested if in_use else 0, in_use)
                )
                item = item.next
            size = sum(row.size for row in rows)
            found.append(SegmentInfo(address, size, heads[address].pool.small, tuple(rows)))
        return found

    # Searching and growing.

    def _get_free_block(self, rounded: int, pool: _Pool, i: int) -> _Block | None:
        """`get_free_block` beyond plain best fit; `i` is the place of the best fit."""
        if self._collect:
            pool.calls += 1
        blocks = pool.blocks
        if i == len(blocks):
            return None
        if self.settings.expandable_segments:
            # A block that can still grow counts with the size it can grow to.
            while i + 1 < len(blocks) and _reach(blocks[i + 1]) < _reach(blocks[i]):
                i += 1
        block = blocks[i]
        if rounded < self._max_split <= block.size:
            return None
        if rounded >= self._max_split and block.size >= rounded + self._slack:
            return None
        del pool.keys[i]
        del blocks[i]
        return block

    def _grow(self, size: int, rounded: int, pool: _Pool, segment: int) -> _Block:
        """The part of `malloc` after no cached block was found.

        Raises:
            OutOfMemory: the cache was released and it still does not fit.
        """
        if self._collect:
            self._garbage_collect()
        block = self._alloc_block(rounded, pool, segment)
        if block is None and self._release_available_cached_blocks(rounded, pool):
            block = self._alloc_block(rounded, pool, segment)
        if block is None:
            self._release_cached_blocks()
            self.retries += 1
            block = self._alloc_block(rounded, pool, segment)
        if block is None:
            self.ooms += 1
            if self._trace is not None:
                self._trace("oom", self.reserved, rounded)
            raise OutOfMemory(size, segment, self.reserved)
        return block

    def _alloc_block(self, rounded: int, pool: _Pool, segment: int) -> _Block | None:
        """`alloc_block`: a new segment, or more pages; None where that fails."""
        wanted = self.reserved + segment
        if wanted > self._limit:
            self._denied = min(self._denied, wanted)
            return None
        self._granted = max(self._granted, wanted)
        if self.settings.expandable_segments:
            return self._try_allocate_expandable_block(rounded, pool)
        if self.reserved + segment > self._capacity:
            return None
        block = _Block(self._place(segment), segment, pool, None)
        self._reserve(segment)
        if self._trace is not None:
            self._trace("segment_alloc", block.address, segment)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    # Releasing.

    def _release_available_cached_blocks(self, rounded: int, pool: _Pool) -> bool:
        """`release_available_cached_blocks`: oversize blocks, only as many as are needed."""
        if self._max_split == _UNLIMITED or self.settings.expandable_segments:
            return False  # torch stops with an internal error on oversize expandable blocks
        wanted = max(rounded, self._max_split)
        i = bisect_left(pool.keys, wanted << _SHIFT)
        if i < len(pool.keys):
            self._release_block(pool.blocks[i])
            return True
        released = 0
        while released < wanted and pool.blocks and pool.blocks[-1].size >= self._max_split:
            released += pool.blocks[-1].size
            self._release_block(pool.blocks[-1])
        return released >= wanted

    def _release_cached_blocks(self) -> None:
        """`release_cached_blocks`: whatever is wholly free, large pool first."""
        for pool in (self._large, self._small):
            for block in pool.blocks.copy():
                if self.settings.expandable_segments:
                    self._unmap_block(block)
                elif block.prev is None and block.next is None:
                    self._release_block(block)

    def _release_block(self, block: _Block) -> None:
        """`release_block`: `cudaFree` of a segment that is one free block."""
        block.pool.remove(block)
        self.reserved -= block.size
        if self._give_back is not None:
            self._give_back(block.address, block.size)
        if self._trace is not None:
            self._trace("segment_free", block.address, block.size)

    def _garbage_collect(self) -> None:
        """`garbage_collect_cached_blocks`: release large cached segments older than average."""
        allowed = int(self.settings.garbage_collection_threshold * self._limit)
        target = self.reserved - allowed
        if target <= 0:
            return
        pool = self._large
        old = [b for b in pool.blocks if b.prev is None and b.next is None]
        total_age = sum(pool.calls - b.born for b in old)
        reclaimed, freed = 0, True
        while reclaimed < target and freed and old:
            threshold = total_age / len(old)
            freed = False
            kept = []
            for block in old:
                age = pool.calls - block.born
                if age >= threshold:
                    freed = True
                    reclaimed += block.size
                    total_age -= age
                    self._release_block(block)
                else:
                    kept.append(block)
            old = kept

    # Expandable segments.

    def _try_allocate_expandable_block(self, rounded: int, pool: _Pool) -> _Block | None:
        """`try_allocate_expandable_block`: free and unmapped neighbours, mapped as needed."""
        block = self._find_expandable_block(rounded, pool)
        if block.state == _UNMAPPED and not self._map_block(block, min(block.size, rounded)):
            return None
        while block.size < rounded:
            after = block.next
            assert after is not None
            if not self._map_block(after, min(rounded - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _find_expandable_block(self, rounded: int, pool: _Pool) -> _Block:
        """`find_expandable_block`: lowest address with room, else a new virtual range."""
        for unmapped in pool.unmapped:
            start = unmapped
            if start.prev is not None and start.prev.state != _IN_USE:
                start = start.prev
            room, block = 0, start
            while room < rounded and block.state != _IN_USE:
                room += block.size
                if block.next is None:
                    break
                block = block.next
            if room >= rounded:
                return start
        size = -(-_VIRTUAL_RANGE // pool.page) * pool.page
        fresh = _Block(self._place(size), size, pool, None)
        fresh.state = _UNMAPPED
        fresh.origin = fresh.address
        self._insert_unmapped(fresh)
        return fresh

    def _map_block(self, block: _Block, size: int) -> bool:
        """`map_block`: back the front of an unmapped block with whole pages."""
        pool = block.pool
        size = -(-size // pool.page) * pool.page
        if self.reserved + size > self._capacity:
            return False
        pool.unmapped.remove(block)
        if size < block.size:
            rest = _Block(block.address + size, block.size - size, pool, block)
            rest.state = _UNMAPPED
            rest.origin = block.origin
            rest.next = block.next
            if rest.next is not None:
                rest.next.prev = rest
            block.next = rest
            block.size = size
            self._insert_unmapped(rest)
        if self._trace is not None:
            self._trace("segment_map", block.address, size)
        block.state = _FREE
        self._merge(block)
        pool.insert(block)
        self._reserve(size)
        return True

    def _unmap_block(self, block: _Block) -> None:
        """`unmap_block`: give back the whole pages inside a free block."""
        pool, page, origin = block.pool, block.pool.page, block.origin
        end = block.address + block.size
        first = origin + -(-(block.address - origin) // page) * page
        last = origin + (end - origin) // page * page
        if first >= last:
            return
        pool.remove(block)
        if first > block.address:
            before = _Block(block.address, first - block.address, pool, block.prev)
            before.state, before.origin, before.next = _FREE, origin, block
            if before.prev is not None:
                before.prev.next = before
            block.prev = before
            pool.insert(before)
        if end > last:
            after = _Block(last, end - last, pool, block)
            after.state, after.origin, after.next = _FREE, origin, block.next
            if after.next is not None:
                after.next.prev = after
            block.next = after
            pool.insert(after)
        block.address, block.size, block.state = first, last - first, _UNMAPPED
        self._merge(block)
        self.reserved -= last - first
        if self._trace is not None:
            self._trace("segment_unmap", first, last - first)
        if block.prev is None and block.next is None:  # `release_expandable_segment`
            if self._give_back is not None:
                self._give_back(block.address, block.size)
        else:
            self._insert_unmapped(block)

    def _merge(self, block: _Block) -> None:
        """`try_merge_blocks` with both neighbours in the same state (free or unmapped)."""
        for near in (block.prev, block.next):
            if near is None or near.state != block.state:
                continue
            if block.state == _FREE:
                block.pool.remove(near)
            else:
                block.pool.unmapped.remove(near)
            if near is block.prev:
                block.address = near.address
                block.prev = near.prev
                if near.prev is not None:
                    near.prev.next = block
            else:
                block.next = near.next
                if near.next is not None:
                    near.next.prev = block
            block.size += near.size

    def _insert_unmapped(self, block: _Block) -> None:
        unmapped = block.pool.unmapped
        unmapped.insert(bisect_left([b.address for b in unmapped], block.address), block)


def _reach(block: _Block) -> int:
    """Size of a block with the unmapped range behind it (`expandable_size`)."""
    after = block.next
    return block.size + (after.size if after is not None and after.state == _UNMAPPED else 0)
