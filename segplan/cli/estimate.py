"""`segplan estimate`: the memory of one training step."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError


def estimate(
    model: opt.Model = None,
    model_arg: opt.ModelArg = None,
    in_channels: opt.InChannels = None,
    out_channels: opt.OutChannels = None,
    patch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Voxels H x W x D: 96 or 128x128x64. Default: 96.",
            rich_help_panel="What is trained",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Patches in one forward pass. Default: 1.",
            rich_help_panel="What is trained",
        ),
    ] = None,
    config: opt.ConfigFile = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="Card by name, like rtx-3090; without one: tensors and allocator only.",
            rich_help_panel="The card",
        ),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of the card left free. Default: 512MiB.",
            rich_help_panel="The card",
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
    ladder: Annotated[
        bool | None,
        typer.Option(
            "--ladder/--no-ladder",
            help="What would save how much, each way computed. Default: where it does not fit.",
            rich_help_panel="Output",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Draw memory over the step: a name ending in .svg or .png.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Predict the memory of one training step, and what it is made of."""
    patches = opt.parse_patches(patch)
    if patches is not None and len(patches) > 1:
        raise RequestError("estimate takes one --patch; segplan fit takes several.")
    values = opt.merge(
        config,
        {
            "model": model,
            "model_args": opt.parse_model_args(model_arg),
            "in_channels": in_channels,
            "out_channels": out_channels,
            "patch": patches[0] if patches else None,
            "batch": batch,
            "precision": precision,
            "optimizer": optimizer,
            "loss": loss,
            "checkpointing": checkpointing,
            "memory_format": memory_format,
            "cudnn_benchmark": cudnn_benchmark,
            "zero_grad": zero_grad,
            "grad_accumulation": grad_accumulation,
            "grad_clip": grad_clip,
            "gpu": gpu,
            "reserve": opt.parse_mib("--reserve", reserve),
        },
    )
    workload = opt.workload_of(values)
    if plot is not None:
        from segplan.report.plot import check_plot

        check_plot(plot)

    from segplan.api.estimating import study
    from segplan.report import estimate as report
    from segplan.report.console import ProgressLine, make_console, say

    asked = {key: values[key] for key in ("reserve",) if values.get(key) is not None}
    with ProgressLine() as progress:
        found = study(workload, gpu=values.get("gpu"), ladder=ladder, progress=progress, **asked)
    if plot is not None:
        from segplan.report.plot import write_plot

        written = write_plot(found, plot)
        say(make_console(sys.stderr), f"wrote {written}")
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        return
    report.render(found, make_console())
