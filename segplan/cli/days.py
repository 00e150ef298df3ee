"""`segplan days`: how long an experiment takes on each card."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError

if TYPE_CHECKING:
    from segplan.dataset.nouns import LoaderRate

_WHAT = "What is trained"
_SCHEDULE = "How often"
_CARDS = "The cards"


def days(
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="FILE|PRESET",
            help="YAML file with workload, schedule and dataset, or a preset like "
            "btcv-swinunetr; repeatable; the command line wins.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="A,B|catalog", help="Cards by name.", rich_help_panel=_CARDS),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="One card, like rtx-3090, or one that is here (0): its measured steps are taken.",
            rich_help_panel=_CARDS,
        ),
    ] = None,
    gpus_per_job: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="GPUs that train one experiment together, each with the batch. Default: 1.",
            show_default=False,
            rich_help_panel=_CARDS,
        ),
    ] = 1,
    loader_patches_per_s: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Patches per second that the data loader delivers for one experiment; "
            "without: it keeps up.",
            rich_help_panel=_CARDS,
        ),
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What segplan loader --json measured, instead: its rate, and the start of an "
            "epoch.",
            rich_help_panel=_CARDS,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where measurements of a card that is here are kept. Default: the user's data "
            "folder.",
            rich_help_panel=_CARDS,
        ),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of a card left free. Default: 512MiB.",
            rich_help_panel=_CARDS,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Epochs of a fold.", rich_help_panel=_SCHEDULE)
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Training cases: an epoch visits each once.",
            rich_help_panel=_SCHEDULE,
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Patches cropped from a case at each visit. Default: 1.",
            rich_help_panel=_SCHEDULE,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Training steps of an epoch, whatever the cases (nnU-Net: 250).",
            rich_help_panel=_SCHEDULE,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Trainings, one after the other. Default: 1.",
            rich_help_panel=_SCHEDULE,
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
            help="Voxels H x W x D: 96 or 128x128x64. Default: 96.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Patches in one forward pass on one GPU. Default: 1.",
            rich_help_panel=_WHAT,
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
    """Predict how long an experiment takes on each card, and what it asks of the data loader."""
    patches = opt.parse_patches(patch)
    if patches is not None and len(patches) > 1:
        raise RequestError("days takes one --patch; segplan fit takes several.")
    opt.at_least("--gpus-per-job", gpus_per_job, 1)
    given = {
        **opt.workload_options(locals()),
        "patch": patches[0] if patches else None,
        "batch": opt.at_least("--batch", batch, 1),
        "gpu": gpu,
        "gpus": None if gpus is None else [name.strip() for name in gpus.split(",")],
        "reserve": opt.parse_mib("--reserve", reserve),
        "store": store,
    }
    schedule = {
        "epochs": opt.at_least("--epochs", epochs, 1),
        "cases": opt.at_least("--cases", cases, 1),
        "num_samples": opt.at_least("--num-samples", num_samples, 1),
        "iterations": opt.at_least("--iterations", iterations, 1),
        "folds": opt.at_least("--folds", folds, 1),
    }
    if iterations is not None and (cases is not None or num_samples is not None):
        raise RequestError(
            "give --iterations, or --cases and --num-samples: an epoch is one of them."
        )
    if loader is not None and loader_patches_per_s is not None:
        raise RequestError("give --loader or --loader-patches-per-s, not both.")
    configs: list[str | None] = [*config] if config else [None]
    values = [opt.merge(name, given) for name in configs]
    options = {
        "gpus_per_job": gpus_per_job,
        "loader": loader_patches_per_s if loader is None else _read(loader),
        "store": _store(values),
    }
    free = max((merged["reserve"] for merged in values if "reserve" in merged), default=None)
    if free is not None:
        options["reserve"] = free
    _run(configs, values, schedule, _cards(values), options, as_json)


def _run(
    configs: list[str | None],
    values: list[dict[str, Any]],
    schedule: dict[str, Any],
    names: list[str],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    from segplan.api import planning
    from segplan.api.experiments import experiment
    from segplan.report import days as report
    from segplan.report.console import ProgressLine, make_console

    experiments = [
        experiment(name, opt.workload_of(merged), schedule)
        for name, merged in zip(configs, values, strict=True)
    ]
    with ProgressLine() as progress:
        plans = planning.plan_days(experiments, names, progress=progress, **options)
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(experiments, plans), sys.stdout)
        return
    report.render(experiments, plans, make_console())


def _cards(values: list[dict[str, Any]]) -> list[str]:
    """The cards of the command line or the files, each once."""
    found: list[str] = []
    for merged in values:
        if "gpu" in merged and "gpus" in merged:
            raise RequestError("give --gpu for one card or --gpus for several, not both.")
        found += merged.get("gpus") or [merged[key] for key in ("gpu",) if key in merged]
    names = list(dict.fromkeys(name for name in found if name))
    if not names:
        raise RequestError("name the cards: --gpus rtx-3090,a40, or --gpus catalog for all known.")
    return names


def _store(values: list[dict[str, Any]]) -> str | None:
    """The one store that is named.

    Raises:
        RequestError: several are.
    """
    names = list(dict.fromkeys(merged["store"] for merged in values if "store" in merged))
    if len(names) > 1:
        raise RequestError(f"several stores are named: {', '.join(names)}; give one with --store.")
    return names[0] if names else None


def _read(path: str) -> LoaderRate:
    from segplan.api.loading import read_loader

    return read_loader(path)
