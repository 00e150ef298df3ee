"""`segplan models`: the networks that have names."""

from __future__ import annotations

from typing import Annotated

import typer

from segplan.api.networks import describe_model, list_models
from segplan.report import models as report
from segplan.report.console import make_console


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show all that is known about one network."),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
) -> None:
    """Show the networks segplan knows by name, and which patches they take."""
    result = list_models() if name is None or not name.strip() else describe_model(name.strip())
    if json_:
        typer.echo(report.to_json(result))
    else:
        report.render(result, make_console())
