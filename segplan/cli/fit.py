"""`segplan fit`: the largest batch of each patch that a card trains."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError
from segplan.units import MIB

_CARD = "The card"
_SEARCH = "The search"

DEFAULT_RESERVE = 512 * MIB
DEFAULT_MAX_BATCH = 64


def fit(
    model: opt.Model = None,
    model_arg: opt.ModelArg = None,
    in_channels: opt.InChannels = None,
    out_channels: opt.OutChannels = None,
    config: opt.ConfigFile = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="A card that is here (0, 1, a UUID, or all: measured), or a name of "
            "`segplan gpus` like rtx-3090 (predicted). Default: 0.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="A,B|catalog", help="Several cards by name.", rich_help_panel=_CARD),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="CARD",
            help="Measure on --gpu as if it had only this card's memory.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    allocator_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bytes the allocator may use instead of the card's, like 23000MiB; "
            "a bare number is MiB.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory left free. Default: 512MiB.", rich_help_panel=_CARD
        ),
    ] = None,
    share: Annotated[
        bool | None,
        typer.Option("--share", help="Measure on a card that others use.", rich_help_panel=_CARD),
    ] = None,
    side_by_side: Annotated[
        bool | None,
        typer.Option(
            "--side-by-side",
            help="Measure the cards of --gpu all (or --gpus 0,1) at the same time, not in turn.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    patch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Voxels H x W x D: 96 or 128x128x64; repeatable. "
            "Default: 64 96 128 160 192 224, each rounded up to a valid size.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Ask the other way round: the largest patch at this batch.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Look no further than this batch. Default: 64.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    soak: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Repeat the chosen cell for N steps and report drift (measured cards).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where measurements are kept. Default: the user's data folder.",
            rich_help_panel=_SEARCH,
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
    """Find the largest batch of each patch size that a card trains."""  # fmt: skip
    values = opt.merge(
        config,
        {
            **opt.workload_options(locals()),
            "gpu": gpu,
            "gpus": None if gpus is None else [name.strip() for name in gpus.split(",")],
            "emulate": emulate,
            "patches": opt.parse_patches(patch),
            "allocator_limit": opt.parse_mib("--allocator-limit", allocator_limit),
            "reserve": opt.parse_mib("--reserve", reserve),
            "max_batch": opt.at_least("--max-batch", max_batch, 1),
            "soak": opt.at_least("--soak", soak, 0),
            "share": share,
            "store": store,
        },
    )
    # A batch in a file is that of the step; only the command line asks for the largest patch.
    question = {"batch": opt.at_least("--batch", batch, 1), "patches": _patches(values)}
    _run(values, question, bool(side_by_side), as_json)


def _patches(values: dict[str, Any]) -> list[Any] | None:
    if "patches" in values:
        return list(values["patches"])
    return [values["patch"]] if "patch" in values else None


def _run(
    values: dict[str, Any], question: dict[str, Any], side_by_side: bool, as_json: bool
) -> None:
    workload = opt.workload_of(values)
    if question["batch"] is not None:
        workload = workload.replace(batch=question["batch"])
    names = _cards(values)
    if side_by_side and names is None:
        raise RequestError("--side-by-side needs several cards: --gpu all, or --gpus 0,1.")
    settings: dict[str, Any] = {
        **question,
        "allocator_limit": values.get("allocator_limit"),
        "reserve": values.get("reserve", DEFAULT_RESERVE),
        "max_batch": values.get("max_batch", DEFAULT_MAX_BATCH),
        "store": values.get("store"),
        "share": values.get("share", False),
    }

    from segplan.report import json as report_json
    from segplan.report.console import ProgressLine, make_console

    if names is not None:
        from segplan.api.fitting import fit_many

        with ProgressLine() as progress:
            fits = fit_many(
                workload, gpus=names, side_by_side=side_by_side, progress=progress, **settings
            )
        if as_json:
            report_json.write(report_json.fits_document(fits), sys.stdout)
            return
        from segplan.report.fit import render_many

        render_many(fits, make_console())
        return

    from segplan.api.fitting import fit as find_fit

    with ProgressLine() as progress:
        found = find_fit(
            workload,
            gpu=values.get("gpu", "0"),
            emulate=values.get("emulate"),
            soak=values.get("soak", 0),
            progress=progress,
            **settings,
        )
    if as_json:
        report_json.write(report_json.fit_document(found), sys.stdout)
        return
    from segplan.report.fit import render

    render(found, make_console())


def _cards(values: dict[str, Any]) -> list[str] | None:
    """The names of several cards, or None for the one of --gpu."""
    if "gpu" in values and "gpus" in values:
        raise RequestError("give --gpu for one card or --gpus for several, not both.")
    names = values.get("gpus")
    if names is None and values.get("gpu") == "all":
        names = ["all"]
    if names is None:
        return None
    names = [name for name in names if name]
    if not names:
        raise RequestError("--gpus needs names, like rtx-3090,rtx-4090, or catalog for all.")
    for option, key in (("--as", "emulate"), ("--soak", "soak")):
        if values.get(key):
            raise RequestError(f"{option} works with one card: name it with --gpu, like --gpu 0.")
    return list(names)
