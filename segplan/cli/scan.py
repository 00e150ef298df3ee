"""`segplan scan`: what a dataset on disk holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError


def scan(
    path: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="The dataset's folder; or an nnU-Net dataset_fingerprint.json or a MONAI "
            "data-stats YAML, read instead.",
        ),
    ],
    spacing: Annotated[
        str | None,
        typer.Option(
            metavar="MM",
            help="Show the size at this spacing too: 1 or 1.5x1.5x2, axes right, front, up.",
            rich_help_panel="What is read",
        ),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="Read the voxels of a sample of the labels: values, foreground, truncation.",
            rich_help_panel="What is read",
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Labels to read; implies --labels. Default: 20.",
            rich_help_panel="What is read",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the result as YAML that --config takes.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what a dataset holds, from image headers: no voxels are read unless asked for.

    Layouts: Medical Segmentation Decathlon, nnU-Net v2 raw, folders of images and labels.
    """
    opt.at_least("--sample", sample, 1)
    if out is not None and not out.lower().endswith((".yaml", ".yml")):
        raise RequestError(f"'{out}' is no place to write to: end its name in .yaml.")

    from segplan.api import scanning
    from segplan.report import json as report_json
    from segplan.report import scan as report
    from segplan.report.console import ProgressLine, make_console, say

    target = scanning.parse_spacing(spacing) if spacing is not None else None
    with ProgressLine() as progress:
        found = scanning.scan(
            path,
            spacing=target,
            labels=labels or sample is not None,
            sample=sample or scanning.SAMPLE,
            progress=progress,
        )
    if out is not None:
        written = scanning.write_section(found, out)
        say(make_console(sys.stderr), f"wrote {written}")
    if as_json:
        report_json.write(report.document(found), sys.stdout)
    else:
        report.render(found, make_console())
