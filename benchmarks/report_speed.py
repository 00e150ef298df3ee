"""How long a report of 6 workloads on 12 cards takes from its saved JSON, and how large it is.

Usage: python benchmarks/report_speed.py [SAVED.json]

The bar: at most 5 s a form, from start to end of the command, and an HTML page below 3 MB. The
saved report of the tests is repeated to 6 workloads and 12 cards, unless a file is named.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from segplan import CapacityReport, read_report
from segplan.report.page.sentences import document

SAVED = Path(__file__).parents[1] / "tests" / "report" / "saved_report.json"
WORKLOADS, CARDS = 6, 12
BAR_S, BAR_BYTES = 5.0, 3_000_000


def enlarged(report: CapacityReport) -> CapacityReport:
    """The report repeated to 6 workloads and 12 cards."""
    slugs = [report.cards[i % len(report.cards)].slug for i in range(CARDS)]
    by_slug = {card.slug: card for card in report.cards}
    cards = tuple(
        dataclasses.replace(by_slug[slug], slug=f"{slug}-{i}") for i, slug in enumerate(slugs)
    )
    workloads = []
    for n in range(WORKLOADS):
        part = report.workloads[n % len(report.workloads)]
        entries = {entry.card: entry for entry in part.entries}
        workloads.append(
            dataclasses.replace(
                part,
                name=f"{part.name}-{n}",
                entries=tuple(
                    dataclasses.replace(entries[slug], card=f"{slug}-{i}")
                    for i, slug in enumerate(slugs)
                ),
            )
        )
    return dataclasses.replace(report, cards=cards, workloads=tuple(workloads))


def main() -> int:
    """Print a row for each form; 1 where a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "saved.json"
        if len(sys.argv) > 1:
            saved.write_bytes(Path(sys.argv[1]).read_bytes())
        else:
            saved.write_text(json.dumps(document(enlarged(read_report(SAVED)))))
        print(f"{'form':6} {'seconds':>8} {'bytes':>10}")
        missed = False
        for ending in ("html", "md", "csv", "json"):
            out = Path(folder) / f"report.{ending}"
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "segplan.cli.main", "report", "--from", str(saved),
                 "--out", str(out)],
                check=True, capture_output=True,
            )  # fmt: skip
            took = time.perf_counter() - start
            missed |= took > BAR_S or (ending == "html" and out.stat().st_size > BAR_BYTES)
            print(f"{ending:6} {took:8.2f} {out.stat().st_size:10,}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
