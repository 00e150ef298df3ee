"""`segplan gpus`: the cards here and in the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from segplan.api.cards import list_cards
from segplan.report import gpus as report


def gpus(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show all that is known about one card: a name, 0, or a UUID."
        ),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    cards: Annotated[
        Path | None,
        typer.Option("--cards", metavar="FILE", help="A YAML file that describes your own cards."),
    ] = None,
) -> None:
    """Show the cards of this machine and the cards segplan knows."""
    listing = list_cards(name, cards)
    if json_:
        typer.echo(report.to_json(listing))
    else:
        report.render(listing, Console())
