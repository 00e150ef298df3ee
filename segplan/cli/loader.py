"""`segplan loader`: how fast this machine loads a dataset."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from segplan.cli import options as opt
from segplan.errors import RequestError
from segplan.units import parse_patch

INTERRUPTED = 130

_WHAT = "What is loaded"
_HOW = "How it is loaded"


def loader(
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="The dataset's folder, as `segplan scan` takes it.",
            rich_help_panel=_WHAT,
        ),
    ],
    config: opt.ConfigFile = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Worker processes; 0: none. Default: 2.", rich_help_panel=_HOW
        ),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Voxels H x W x D of a crop: 96 or 128x128x64. Default: 96.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Crops at each visit of a case. Default: 4.", rich_help_panel=_WHAT
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cases in a batch. Default: 1.", rich_help_panel=_WHAT),
    ] = None,
    spacing: Annotated[
        str | None,
        typer.Option(
            metavar="MM",
            help="Millimetres to resample to: 1 or 1.5x1.5x2. Default: the cases' median.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    intensity: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Range that becomes 0 to 1, like -175,250 for CT. Default: zero mean, unit "
            "variance.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="none (Dataset), memory (CacheDataset) or disk (PersistentDataset). "
            "Default: none.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where the cache on disk goes, to be removed afterwards. Default: the system's "
            "temporary folder.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Different cases to visit. Default: 16.", rich_help_panel=_HOW
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Time to measure. Default: 60.", rich_help_panel=_HOW),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure how fast MONAI's pipeline delivers patches on this machine, and its memory.

    Load, orientation, spacing, intensity, crops around labels, flips, turns, intensity shift.
    Ctrl-C ends it early and shows what was measured until then.
    """
    given: dict[str, Any] = {
        "workers": opt.at_least("--workers", workers, 0),
        "patch": parse_patch(patch) if patch is not None else None,
        "num_samples": opt.at_least("--num-samples", num_samples, 1),
        "batch": opt.at_least("--batch", batch, 1),
        "intensity": _parse_range(intensity),
        "cache": cache,
        "cache_dir": cache_dir,
        "cases": opt.at_least("--cases", cases, 1),
        "seconds": seconds,
    }

    from segplan.api.loading import measure_loader
    from segplan.api.scanning import parse_spacing
    from segplan.report import json as report_json
    from segplan.report import loader as report
    from segplan.report.console import ProgressLine, make_console

    given["spacing"] = parse_spacing(spacing) if spacing is not None else None
    options = {**_configured(config), **{k: v for k, v in given.items() if v is not None}}
    with ProgressLine() as progress:
        rate = measure_loader(data, progress=progress, **options)
    if as_json:
        report_json.write(report.document(rate), sys.stdout)
    else:
        report.render(rate, make_console())
    if rate.interrupted:
        raise typer.Exit(INTERRUPTED)


def _configured(config: str | None) -> dict[str, Any]:
    """What a configuration says of the loader: the patch, crops at a visit, the spacing."""
    if config is None:
        return {}
    from segplan.api.config import load_config

    loaded = load_config(config)
    found = {
        "patch": loaded.patch,
        "num_samples": loaded.schedule.num_samples if loaded.schedule is not None else None,
        "spacing": loaded.dataset.spacing if loaded.dataset is not None else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _parse_range(text: str | None) -> tuple[float, float] | None:
    """(-175, 250) from "-175,250".

    Raises:
        RequestError: the text is no range.
    """
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not low < high:
        raise RequestError(f"'{text}' is no range: write it like --intensity=-175,250.")
    return low, high
