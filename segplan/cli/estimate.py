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
        },
    )
    workload = opt.workload_of(values)
    card = values.get("gpu")

    from segplan.api.estimating import estimate as find_estimate
    from segplan.report import json as report_json
    from segplan.report.console import ProgressLine, make_console

    with ProgressLine() as progress:
        found = find_estimate(workload, gpu=card, progress=progress)
    if as_json:
        report_json.write(report_json.estimate_document(found, workload, card), sys.stdout)
        return
    from segplan.report.estimate import render

    render(found, workload, card, make_console())
