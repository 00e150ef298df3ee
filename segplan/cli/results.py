"""`segplan results`: what has been measured."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.units import parse_patch

SHOWN = 20
"""Rows of the table unless --limit says otherwise; files and JSON hold all that match."""

_WHICH = "Which measurements"


def results(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this network.", rich_help_panel=_WHICH),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="Only cards with this in their name, like rtx-3090, or this UUID.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Only this patch: 96 or 128x128x64 (H x W x D).",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only those that ended so: fits, out_of_memory, kernel_limit, spilled, "
            "timed_out, crashed or failed.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Only the N newest. Default: {SHOWN} in the table, all in files and JSON.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The file measurements are kept in. Default: $SEGPLAN_STORE, else the user's "
            "data directory.",
            rich_help_panel="Files",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write them to a .json file (--import reads it), or a .csv file without baseline "
            "checks.",
            rich_help_panel="Files",
        ),
    ] = None,
    import_: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="First add another machine's .json file, or the .jsonl file kept while the "
            "store could not be written.",
            rich_help_panel="Files",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """List, export or import what was measured; all of it is kept as it is made.

    Another machine's measurements: segplan results --import theirs.json
    """
    opt.at_least("--limit", limit, 1)
    size = parse_patch(patch) if patch is not None else None

    from segplan.api.results_store import stored_results
    from segplan.report import json as report_json
    from segplan.report.console import make_console
    from segplan.report.stored import document, render

    table = not as_json and export is None and import_ is None
    found = stored_results(
        store,
        model=model,
        card=card,
        patch=size,
        outcome=outcome,
        limit=SHOWN if limit is None and table else limit,
        export_to=export,
        import_from=import_,
    )
    if as_json:
        report_json.write(document(found), sys.stdout)
    else:
        render(found, make_console())
