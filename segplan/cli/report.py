"""`segplan report`: what each card does for each workload, as a page, tables or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError, SegplanError

if TYPE_CHECKING:
    from segplan.api.report_nouns import CapacityReport

_WHAT = "What is reported"
_OUTPUT = "Output"

ENDINGS = (".html", ".md", ".csv", ".json")


def report(
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIG]...", help="More configurations.", show_default=False),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="FILE|PRESET",
            help="YAML file with workload and schedule, or a preset like btcv-swinunetr; several "
            "may follow.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|catalog",
            help="Cards by name, like rtx-3090,a40; or all that are known.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Measurements to use where they answer the question. Default: the user's.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    saved: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE.json",
            help="Write a report that was made before (--out FILE.json) in another form.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Ends in .html (one page that opens offline), .md, .csv or .json.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Report what each card trains, how long it takes, and what would change that."""
    names = [*(config or []), *(more or [])]
    if out is None and not as_json:
        raise RequestError("give --out a file that ends in .html, .md, .csv or .json, or --json.")
    target = check_out(out) if out is not None else None
    found = _saved(saved, names, gpus) if saved is not None else _made(names, gpus, store)
    from segplan.report.console import make_console, say
    from segplan.report.page.sentences import summary

    if target is not None:
        write(found, target)
        say(make_console(sys.stderr), f"wrote {target}")
    if as_json:
        render(found, ".json", sys.stdout)
        return
    for line in summary(found):
        say(make_console(), line)


def check_out(name: str) -> Path:
    """The file to write, before anything is computed.

    Raises:
        RequestError: its ending is unknown, or its folder is not there.
    """
    path = Path(name)
    if path.suffix.lower() not in ENDINGS:
        raise RequestError(f"'{name}' is no report's name: end it in {', '.join(ENDINGS)}.")
    if not path.absolute().parent.is_dir():
        raise RequestError(f"there is no folder {path.parent}: make it first.")
    if path.is_dir():
        raise RequestError(f"{name} is a folder: name a file.")
    return path


def _saved(saved: str, names: list[str], gpus: str | None) -> CapacityReport:
    if names or gpus is not None:
        raise RequestError("--from holds workloads and cards already: leave --config, --gpus out.")
    from segplan.api.report_reading import read_report

    return read_report(saved)


def _made(names: list[str], gpus: str | None, store: str | None) -> CapacityReport:
    if not names:
        raise RequestError("no workload is named: give --config a preset or a YAML file.")
    if gpus is None:
        raise RequestError("no card is named: give --gpus names, like rtx-3090,a40, or catalog.")
    from segplan.api.experiments import load_experiment
    from segplan.api.reporting import make_report
    from segplan.report.console import ProgressLine

    experiments = [load_experiment(name) for name in names]
    with ProgressLine() as progress:
        return make_report(experiments, [gpus], store=store, progress=progress)


def render(found: CapacityReport, ending: str, stream: Any) -> None:
    """Write the report in the form of a file's ending."""
    if ending == ".html":
        from segplan.report.page import render as render_page

        render_page(found, stream)
    elif ending == ".md":
        from segplan.report.markdown import render as render_markdown

        render_markdown(found, stream)
    elif ending == ".csv":
        from segplan.report import tables

        stream.write(tables.csv_text(tables.answers_frame(found)))
    else:
        from segplan.report import json as report_json
        from segplan.report.page.sentences import document

        report_json.write(document(found), stream)


def write(found: CapacityReport, path: Path) -> None:
    """Write a file that is either the whole report or what was there before.

    Raises:
        SegplanError: it cannot be written.
    """
    partial = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", newline="\n", dir=path.absolute().parent,
            prefix=f".{path.name}.", delete=False,
        ) as file:  # fmt: skip
            partial = file.name
            render(found, path.suffix.lower(), file)
        os.chmod(partial, 0o666 & ~_umask())
        os.replace(partial, path)
        partial = None
    except OSError as error:
        raise SegplanError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
