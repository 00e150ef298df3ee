"""`segplan export`: the recommended settings for MONAI bundles, Lightning, or plain Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError, SegplanError

_WHAT = "What is trained"
_OUTPUT = "Output"

FORMATS = ("monai", "lightning", "python")


def export(
    config: opt.ConfigFile = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="A name of `segplan gpus` like rtx-3090 (predicted), or 0 (measured).",
            rich_help_panel="The card",
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="monai (a bundle's overrides, JSON), lightning, or python. Default: python.",
            show_default=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = "python",
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The bundle's configs/train.json, to name what it holds; without: the Model "
            "Zoo's usual names.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    model: opt.Model = None,
    model_arg: opt.ModelArg = None,
    in_channels: opt.InChannels = None,
    out_channels: opt.OutChannels = None,
    patch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Voxels H x W x D: 96 or 128x128x64; of several the recommended one.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Patches of one optimizer step, accumulated where they do not fit at once. "
            "Default: as many as fit.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    precision: opt.Precision = None,
    optimizer: opt.Optimizer = None,
    loss: opt.Loss = None,
    checkpointing: opt.Checkpointing = None,
    memory_format: opt.MemoryFormat = None,
    cudnn_benchmark: opt.CudnnBenchmark = None,
    grad_clip: opt.GradClip = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Default: standard output.", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Write the recommended batch, patch, precision and checkpointing for your own training."""
    if to not in FORMATS:
        raise RequestError(f"--to must be one of {', '.join(FORMATS)}, not '{to}'.")
    if bundle is not None and to != "monai":
        raise RequestError("--bundle goes with --to monai.")
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise RequestError(f"there is no folder {Path(out).parent}: make it first.")
    values = opt.merge(
        config,
        {
            **opt.workload_options(locals()),
            "patches": opt.parse_patches(patch),
            "gpu": gpu,
        },
    )
    if values.get("gpu") is None:
        raise RequestError("no card is named: give --gpu a name, like rtx-3090, or 0.")
    if to == "lightning":  # it sets gradients to None between the forward and backward pass
        values["zero_grad"] = "before_backward"
    workload = opt.workload_of(values)

    from segplan.api.exporting import read_bundle, recommend_for
    from segplan.report import export as report
    from segplan.report.console import ProgressLine, fitting_text, make_console, say

    held = read_bundle(bundle) if bundle is not None else None
    with ProgressLine() as progress:
        found = recommend_for(
            workload,
            values["gpu"],
            name=Path(config).stem if config else workload.model,
            patches=values.get("patches"),
            batch=opt.at_least("--batch", batch, 1),
            store=values.get("store"),
            progress=progress,
        )
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        return
    if to == "monai":
        text = json.dumps(report.monai_override(found, held), indent=2) + "\n"
        for note in report.monai_notes(found):
            say(make_console(sys.stderr), f"Note: {note}")
    else:
        text = report.SNIPPETS[to](found)
    if out is None:
        sys.stdout.write(fitting_text(text, make_console()))
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SegplanError(f"{out} cannot be written: {error.strerror or error}.") from error
    say(make_console(sys.stderr), f"wrote {out}")
