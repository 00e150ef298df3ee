"""`segplan estimate`: the memory of one training step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError
from segplan.units import Patch, parse_patch

if TYPE_CHECKING:
    from segplan.step.validate import Validation

_VALIDATION = "Validation of whole volumes"
SCHEDULE = "schedule"


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
    gpus_per_job: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="GPUs that train together (DistributedDataParallel); the batch is that of each.",
            rich_help_panel="The card",
        ),
    ] = 1,
    validate: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|schedule",
            help="Also validate volumes of this size by sliding windows: 512x512x300, the "
            "largest one as resampled; or the typical one of --config. Window and overlap are "
            "those of the file's schedule, where it has any.",
            rich_help_panel=_VALIDATION,
        ),
    ] = None,
    roi_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Window. Default: the patch.", rich_help_panel=_VALIDATION
        ),
    ] = None,
    sw_batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Windows in one forward pass. Default: 4.",
            rich_help_panel=_VALIDATION,
        ),
    ] = None,
    overlap: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of a window that the next one repeats. Default: 0.25.",
            rich_help_panel=_VALIDATION,
        ),
    ] = None,
    stitch: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Where the output is put together and scored: gpu or cpu. Default: gpu.",
            rich_help_panel=_VALIDATION,
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
    """Predict the memory of one training step, and what it is made of.

    Example: segplan estimate --gpu rtx-3090 --batch 2 --validate 512x512x300
    """
    patches = opt.parse_patches(patch)
    if patches is not None and len(patches) > 1:
        raise RequestError("estimate takes one --patch; segplan fit takes several.")
    values = opt.merge(
        config,
        {
            **opt.workload_options(locals()),
            "patch": patches[0] if patches else None,
            "batch": batch,
            "gpu": gpu,
            "reserve": opt.parse_mib("--reserve", reserve),
        },
    )
    workload = opt.workload_of(values)
    windows = {"sw_batch_size": sw_batch_size, "overlap": overlap, "stitch": stitch}
    validation = _validation(validate, roi_size, windows, config)
    if plot is not None:
        from segplan.report.plot import check_plot

        check_plot(plot)

    from segplan.api.estimating import study
    from segplan.report import estimate as report
    from segplan.report.console import ProgressLine, make_console, say

    asked = {key: values[key] for key in ("reserve",) if values.get(key) is not None}
    with ProgressLine() as progress:
        found = study(
            workload,
            gpu=values.get("gpu"),
            ladder=ladder,
            validation=validation,
            gpus_per_job=gpus_per_job,
            progress=progress,
            **asked,
        )
    if plot is not None:
        from segplan.report.plot import write_plot

        written = write_plot(found, plot)
        say(make_console(sys.stderr), f"wrote {written}")
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        return
    report.render(found, make_console())


def _validation(
    volume: str | None,
    roi_size: str | None,
    windows: Mapping[str, object],
    config: str | None = None,
) -> Validation | None:
    """The validation asked for: the command line wins over the file's schedule.

    Raises:
        RequestError: a value is no size or out of range, or there is no volume.
    """
    given = {name: value for name, value in windows.items() if value is not None}
    if roi_size is not None:
        given["roi_size"] = _voxels("--roi-size", roi_size)
    if volume is None:
        if given:
            name = next(iter(given)).replace("_", "-")
            raise RequestError(f"--{name} needs --validate with the size of a volume.")
        return None
    from segplan.api.experiments import validation_in_file
    from segplan.step.validate import Validation

    in_file = {} if config is None else validation_in_file(config)
    if volume != SCHEDULE:
        given["volume"] = _voxels("--validate", volume)
    elif "volume" not in in_file:
        where = "there is no --config" if config is None else f"{config} names no volume"
        raise RequestError(
            f"--validate schedule takes the volume of a file's schedule, and {where}: give a size, "
            "or a shape under dataset or schedule.validation."
        )
    return Validation.from_dict({**in_file, **given})


def _voxels(option: str, text: str) -> Patch:
    try:
        return parse_patch(text)
    except RequestError as error:
        raise RequestError(
            f"{option}: '{text}' is no size: write it like 96 or 512x512x300 (H x W x D)."
        ) from error
