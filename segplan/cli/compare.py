"""`segplan compare`: one workload on many cards."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError


def compare(
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Cards by name, like rtx-3090,a40,a100-sxm4-80gb, or catalog for all of them.",
            rich_help_panel="The cards",
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
            help="Voxels H x W x D of the equal work: 96 or 128x128x64. Default: 96.",
            rich_help_panel="What is trained",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Patches in one step of the equal work. Default: 1.",
            rich_help_panel="What is trained",
        ),
    ] = None,
    config: opt.ConfigFile = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of each card left free. Default: 512MiB.",
            rich_help_panel="The cards",
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Look for no larger batch. Default: 64.", rich_help_panel="The cards"
        ),
    ] = None,
    precision: opt.Precision = None,
    optimizer: opt.Optimizer = None,
    loss: opt.Loss = None,
    checkpointing: opt.Checkpointing = None,
    memory_format: opt.MemoryFormat = None,
    cudnn_benchmark: opt.CudnnBenchmark = None,
    zero_grad: opt.ZeroGrad = None,
    grad_accumulation: opt.GradAccumulation = None,
    grad_clip: opt.GradClip = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare cards on one workload: what each holds, how fast, and why the order is so."""
    patches = opt.parse_patches(patch)
    if patches is not None and len(patches) > 1:
        raise RequestError("compare takes one --patch, the equal work; segplan fit takes several.")
    values = opt.merge(
        config,
        {
            **opt.workload_options(locals()),
            "patch": patches[0] if patches else None,
            "batch": batch,
            "gpus": gpus.split(",") if gpus is not None else None,
            "reserve": opt.parse_mib("--reserve", reserve),
            "max_batch": opt.at_least("--max-batch", max_batch, 1),
        },
    )
    workload = opt.workload_of(values)
    names = values.get("gpus") or ([values["gpu"]] if values.get("gpu") else None)
    if not names:
        raise RequestError("no card is named: say --gpus rtx-3090,a40, or --gpus catalog.")

    from segplan.api.comparing import compare as compare_cards
    from segplan.report import compare as report
    from segplan.report.console import ProgressLine, make_console

    asked = {k: values[k] for k in ("reserve", "max_batch") if values.get(k) is not None}
    with ProgressLine() as progress:
        found = compare_cards(workload, names, progress=progress, **asked)
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        return
    report.render(found, make_console())
