"""The `segplan` command: which commands there are, and what an error turns into.

Exit status: 0 an answer was produced (also "nothing fits"), 2 the request is wrong or the card
is busy, 1 something failed on the way, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from segplan import __version__
from segplan.cli import (
    bench,
    buy,
    calibrate,
    compare,
    days,
    estimate,
    export,
    fit,
    gpus,
    loader,
    models,
    report,
    results,
    scan,
)
from segplan.errors import SegplanError

INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"segplan {__version__}")
        raise typer.Exit


@app.callback()
def segplan(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """What 3D medical segmentation training fits a GPU: measured, emulated or predicted."""


def _example(line: str) -> str:
    return f"Example: segplan {line}"


app.command(epilog=_example("fit --model swinunetr --gpu rtx-3090"))(fit.fit)
app.command(epilog=_example("estimate --model swinunetr --patch 96 --gpu rtx-3090"))(
    estimate.estimate
)
app.command(epilog=_example("compare --model swinunetr --batch 2 --gpus rtx-3090,a40"))(
    compare.compare
)
app.command(epilog=_example("days --config btcv-swinunetr --gpus rtx-3090,a40"))(days.days)
app.command(epilog=_example("gpus rtx-3090"))(gpus.gpus)
app.command(epilog=_example("bench --gpu 0"))(bench.bench)
app.command(epilog=_example("calibrate --gpu 0"))(calibrate.calibrate)
app.command(epilog=_example("scan Task09_Spleen --spacing 1.5x1.5x2"))(scan.scan)
app.command(epilog=_example("loader --data Task09_Spleen --workers 4"))(loader.loader)
app.command(epilog=_example("models swinunetr"))(models.models)
app.command(
    epilog=_example("report --config btcv-swinunetr --gpus rtx-3090,a40 --out report.html")
)(report.report)
app.command(epilog=_example("export --config btcv-swinunetr --gpu rtx-3090 --to monai"))(
    export.export
)
app.command(epilog=_example("buy docs/examples/offers-example.yaml"))(buy.buy)
app.command(epilog=_example("results --card rtx-3090"))(results.results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; no exception but SystemExit escapes.

    Args:
        arguments: those of the process unless given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # wherever it stands: people add it at the end
    words = [word for word in words if word != "--debug"]
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (like `| head`): nothing more to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SegplanError as error:
        if debug:
            raise
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception as error:
        if debug:
            raise
        text = _usage_error(error)
        if text is not None:
            if text:
                _complain(text)
            return 2
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _complain("no space is left on the device that the output goes to.")
            return 1
        first = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
        _complain(f"unexpected {what} (run with --debug for the traceback)")
        return 1
    if status == INTERRUPTED:
        _complain("interrupted; what was measured is kept.")
    return status


def _run(words: list[str]) -> int:
    # Outside of its standalone mode typer hands errors on; an exit comes back as its status.
    result = app(args=words, prog_name="segplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _usage_error(error: Exception) -> str | None:
    """The sentence of typer's own complaint about the command line, or None for other errors.

    Told by its methods: typer's Click is private, and so is its class. The text is empty where
    the help has been printed instead.
    """
    describe = getattr(error, "format_message", None)
    if describe is None:
        return None
    text = str(describe()).strip()
    if not text:
        return ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "segplan"
    text = text if text.endswith((".", "?", ")")) else text + "."
    return f"{text} See: {path} --help"


def _complain(text: str) -> None:
    """One line on standard error, whatever its encoding."""
    encoding = sys.stderr.encoding or "utf-8"
    line = f"segplan: {text}".encode(encoding, "replace").decode(encoding)
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
