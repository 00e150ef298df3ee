"""Time the operators of `segplan calibrate` on a card and write them to a file.

Run on a machine with the card:
    python benchmarks/measure_operators.py OUT.json [--seconds 90] [--gpu 0]

Writes OUT.json (what `segplan/timing/h200_operators.json` holds of an H200) and prints how the
operators stand to the model. Ended early by Ctrl-C or SIGTERM, it writes what it has.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from segplan.api.calibrating import calibrate
from segplan.report.calibrate import render
from segplan.report.console import make_console


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--gpu", default="0")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()

    def tell(done: int, total: int, _text: str) -> None:
        if done % 100 == 0 or done == total:
            print(f"{done}/{total} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    found = calibrate(
        arguments.gpu, seconds=arguments.seconds, store=":memory:", out=arguments.out,
        share=True, progress=tell,
    )  # fmt: skip
    render(found, make_console())
    for why, count in found.refused.items():
        print(f"refused {count}: {why}")
    print(f"{Path(arguments.out).stat().st_size} bytes, {time.monotonic() - began:.1f} s in all")


if __name__ == "__main__":
    main()
