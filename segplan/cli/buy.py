"""`segplan buy`: what to buy for a lab's experiments."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError


def buy(
    problem: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="YAML file with demands, offers, servers, years and the price of power.",
            show_default=False,
        ),
    ],
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="MONEY",
            help="All that may be spent over the years, power and rent included. "
            "Default: the file's.",
        ),
    ] = None,
    years: Annotated[
        float | None,
        typer.Option(metavar="N", help="Years over which costs add up. Default: the file's."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Draw cost against days: a name ending in .svg.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find what to buy: the cheapest plan that meets the deadlines, the fastest for a budget."""
    for name, value in (("--budget", budget), ("--years", years)):
        if value is not None and not 0 < value < 1e9:
            raise RequestError(f"{name} must be a number above 0, not {value:g}.")

    from segplan.report import buy as report
    from segplan.report.console import ProgressLine, make_console, say

    file = None if plot is None else report.check_picture(plot)
    from segplan.api.buying import buy as find

    with ProgressLine() as progress:
        found = find(problem, progress, budget=budget, years=years)
    if file is not None:
        try:
            file.write_text(report.picture(found), encoding="utf-8")
        except OSError as error:
            raise RequestError(f"--plot {file} cannot be written: {error.strerror}.") from error
        say(make_console(sys.stderr), f"wrote {file}")
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        return
    report.render(found, make_console())
