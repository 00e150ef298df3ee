"""How long `segplan --help` takes, best and median of ten; the target is 0.5 s.

Run: python benchmarks/start_up.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def main() -> None:
    samples = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "segplan", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        samples.append(time.perf_counter() - began)
    print(f"best {min(samples):.2f} s, median {statistics.median(samples):.2f} s, target 0.50 s")


if __name__ == "__main__":
    main()
