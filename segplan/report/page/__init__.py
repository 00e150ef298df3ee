"""The HTML report: one file that opens offline, its scripts and styles within.

What a user named (experiments, cards, notes) is text everywhere: Jinja escapes it in the markup,
`embedded_json` in the data, and a Content-Security-Policy lets no script run but those whose
hashes the page carries.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import IO, TYPE_CHECKING, Any

from segplan.report.page.charts import charts
from segplan.report.page.view import page_view

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport

_VENDOR = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render(report: CapacityReport, stream: IO[str]) -> None:
    """Write the page."""
    stream.write(page(report))


def page(report: CapacityReport) -> str:
    """The page as HTML text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    scripts = [_SOURCE_MAP.sub("", _text("vendor", name)).strip() for name in _VENDOR]
    scripts.append(_text("page.js").strip())
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)  # fmt: skip
    html: str = environment.from_string(_text("page.html")).render(
        **page_view(report),
        policy=Markup(content_policy(scripts)),
        style=Markup(_text("page.css").strip()),
        scripts=[Markup(script) for script in scripts],
        data=Markup(embedded_json(charts(report))),
        licence=Markup(_licence()),
    )
    return html


def embedded_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).translate(
        _ESCAPES
    )


def content_policy(scripts: list[str]) -> str:
    """The policy under which only these scripts run, and nothing is loaded from anywhere."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _licence() -> str:
    """The notices of the scripts, for an HTML comment."""
    names = ("NOTICE.txt", "vega.LICENSE.txt")
    return "\n".join(_text("vendor", name) for name in names).replace("--", "- -")


def _text(*names: str) -> str:
    place = resources.files(__name__)
    for name in names:
        place = place / name
    return place.read_text(encoding="utf-8")
