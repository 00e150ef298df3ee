"""`segplan calibrate`: a card's operators, timed once, for predictions on it and on others."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError

_INTERRUPTED = 130


def calibrate(
    gpu: Annotated[
        str,
        typer.Option(
            metavar="CARD",
            help="Card of this machine: its number or UUID.",
            rich_help_panel="The card",
        ),
    ] = "0",
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Time on the card; the most telling operators come first.",
            rich_help_panel="What is measured",
        ),
    ] = 60.0,
    share: opt.Share = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The file results are kept in; calibrations lie in a folder beside it. Default: "
            "$SEGPLAN_STORE, else the user's data directory.",
            rich_help_panel="Output",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the calibration to this file as well.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Time a card's operators one by one, beside what the model says of them.

    With SEGPLAN_CALIBRATIONS=use, steps on this card are predicted from its own operators, and on
    others scaled from them. Ctrl-C ends it early and keeps what was timed until then.
    """
    if not 1 <= seconds <= 3600:
        raise RequestError(f"--seconds must be between 1 and 3600, not {seconds:g}.")

    from segplan.api import calibrating
    from segplan.report import calibrate as report
    from segplan.report.console import ProgressLine, make_console

    with ProgressLine() as progress:
        found = calibrating.calibrate(
            gpu, seconds=seconds, share=share, store=store, out=out, progress=progress
        )
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
    else:
        report.render(found, make_console())
    if found.interrupted:
        raise typer.Exit(_INTERRUPTED)
