"""Write the pictures of the README and the docs from real runs (`make docs`)."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from segplan import Workload, fit
from segplan.report.fit import render

IMAGES = Path(__file__).with_name("images")


def fit_picture(model: str, gpu: str, path: Path) -> None:
    """What `segplan fit --model MODEL --gpu GPU` prints on a terminal, as an SVG."""
    result = fit(Workload(model=model), gpu=gpu)
    console = Console(
        record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        markup=False, emoji=False, highlight=False,
    )  # fmt: skip
    console.print(f"$ segplan fit --model {model} --gpu {gpu}", style="bold")
    render(result, console)
    path.parent.mkdir(exist_ok=True)
    path.write_text(console.export_svg(title="segplan fit"), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    fit_picture("swinunetr", "rtx-3090", IMAGES / "fit.svg")
