"""`segplan bench`: the baseline check of a card that is here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from segplan.cli import options as opt
from segplan.cli.signals import sigterm_as_ctrl_c

INTERRUPTED = 130

_WHAT = "What is measured"


def bench(
    gpu: Annotated[
        str,
        typer.Option(
            metavar="CARD",
            help="Card of this machine: its number or UUID.",
            rich_help_panel="The card",
        ),
    ] = "0",
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="resnet50 or vit_b_16; repeatable. Default: both.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="fp16, bf16, tf32 (fp32 with TF32 on) or fp32 (TF32 off); repeatable. "
            "Default: fp16, tf32 and fp32.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Training steps (16-bit types by autocast) instead of inference.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Images in one pass. Default: 128; halved where it does not fit.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    channels_last: Annotated[
        bool,
        typer.Option(
            "--channels-last",
            help="Tensors in channels_last format: faster, and unlike most tables.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    zeros: Annotated[
        bool,
        typer.Option(
            "--zeros",
            help="Images of zeros, as in AutoDL's table: they draw less power than random ones.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    share: opt.Share = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Measure everything, also what an interrupted check has kept.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The file results are kept in. Default: $SEGPLAN_STORE, else the user's data "
            "directory.",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check whether a card performs as it should, with ResNet50 and ViT-B/16.

    An iteration is 1,920 images; published figures of this card and its neighbours stand beside.
    Ctrl-C ends it early and shows what was measured; the same command goes on from there.
    """
    opt.at_least("--batch", batch, 1)

    from segplan.api import benching
    from segplan.report import bench as report
    from segplan.report.console import make_console, say

    # Each iteration as it ends is all the progress there is to see.
    beside = make_console(sys.stderr)
    with sigterm_as_ctrl_c():
        found = benching.bench(
            gpu,
            networks=network,
            precisions=precision,
            train=train,
            batch=batch,
            channels_last=channels_last,
            zeros=zeros,
            share=share,
            fresh=fresh,
            store=store,
            on_series=lambda *told: say(beside, report.series_line(*told)),
            on_iteration=lambda *told: say(beside, report.iteration_line(*told)),
            on_known=lambda series: say(beside, report.known_line(series)),
        )
    if as_json:
        from segplan.report import json as report_json

        report_json.write(report.document(found), sys.stdout)
        if found.interrupted:
            say(beside, found.warnings[0])
    else:
        report.render(found, make_console())
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
