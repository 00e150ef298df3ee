"""docs/accuracy.md: each benchmark writes its own part and leaves the others alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"
PARTS = ("memory", "measured fits", "step time", "timed operators", "days")
TITLE = "# Accuracy\n"


def write_part(name: str, text: str) -> None:
    """Replace one part of the document (or add it, in the order of `PARTS`)."""
    parts = _read()
    parts[name] = text.strip() + "\n"
    body = "\n".join(_wrap(part, parts[part]) for part in PARTS if part in parts)
    DOCUMENT.write_text(f"{TITLE}\n{body}", encoding="utf-8")
    print(f"wrote the part on {name} of {DOCUMENT.name}")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def _wrap(name: str, text: str) -> str:
    return f"<!-- part: {name} -->\n{text}<!-- end: {name} -->\n"


def _read() -> dict[str, str]:
    if not DOCUMENT.exists():
        return {}
    found = re.findall(
        r"<!-- part: (.+?) -->\n(.*?)<!-- end: \1 -->", DOCUMENT.read_text("utf-8"), re.DOTALL
    )
    return dict(found)
