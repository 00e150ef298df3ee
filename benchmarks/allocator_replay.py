"""How fast the allocator replay is: events a second on a made-up training step.

The step allocates activations going forward, frees them backward with a gradient
and a short-lived workspace for each, and keeps parameters throughout: sizes from a
3D network (many small vectors, few large feature maps). Usage:

    python benchmarks/allocator_replay.py [--layers 1250] [--repeat 5]
"""

from __future__ import annotations

import argparse
import random
import time

from segplan.memory.allocator import Settings
from segplan.memory.replay import replay

MIB = 2**20


def step(layers: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Ops and sizes of three training steps of about 16 events a layer in all."""
    random_ = random.Random(seed)
    sizes: list[int] = []
    ops: list[int] = []

    def allocate(size: int) -> int:
        sizes.append(size)
        ops.append(len(sizes) - 1)
        return len(sizes) - 1

    feature = [random_.choice([4096, 2**16, 3 * MIB // 2, 9 * MIB, 40 * MIB, 113 * MIB])
               for _ in range(layers // 4)]  # fmt: skip
    for _ in feature:
        allocate(random_.randint(64, 4 * MIB))
    for _ in range(3):
        saved = []
        for size in feature:
            workspace = allocate(random_.randint(1, 30) * MIB // 2)
            saved.append((allocate(size), allocate(random_.randint(64, 8192))))
            ops.append(workspace)
            temporary = allocate(size)
            ops.append(temporary)
        gradient = None
        for (activation, statistics), size in zip(reversed(saved), reversed(feature), strict=True):
            workspace = allocate(random_.randint(1, 30) * MIB // 2)
            new = allocate(size)
            ops.extend([workspace, activation, statistics])
            if gradient is not None:
                ops.append(gradient)
            gradient = new
        if gradient is not None:
            ops.append(gradient)
    return ops, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=1900)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    ops, sizes = step(options.layers)
    free = replay(ops, sizes)
    tight = free.peak_reserved * 97 // 100
    cases = [
        ("no limit", None, Settings()),
        ("97 % of peak reserved", tight, Settings()),
        ("expandable segments", None, Settings(expandable_segments=True)),
        ("max_split_size 128 MiB", None, Settings(max_split_size=128 * MIB)),
    ]
    print(f"{len(ops)} events, peak reserved {free.peak_reserved // MIB} MiB")
    for name, limit, settings in cases:
        seconds = []
        for _ in range(options.repeat):
            start = time.perf_counter()
            result = replay(ops, sizes, limit, settings)
            seconds.append(time.perf_counter() - start)
        best = min(seconds)
        events = len(ops) if result.out_of_memory_at is None else result.out_of_memory_at
        print(
            f"{name:>24}: {best * 1e3:6.1f} ms, {events / best / 1e3:5.0f} thousand events a second"
            f", {result.retries} retries, {'trains' if result.trains else 'out of memory'}"
        )


if __name__ == "__main__":
    main()
