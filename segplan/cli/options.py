"""The options that commands share, and how they meet a configuration file.

Every option defaults to None here, "not given": a value on the command line wins over the
configuration, which wins over the defaults of `Workload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from segplan.errors import RequestError
from segplan.units import Patch, parse_bytes, parse_patch
from segplan.workload import Workload

_WHAT = "What is trained"
_HOW = "How it is trained"

Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network: a name of `segplan models`, or package.module:factory. Default: swinunetr.",
        rich_help_panel=_WHAT,
    ),
]
ModelArg = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Argument of the network, like feature_size=24 or depths=[2,2,2,2]; repeatable.",
        rich_help_panel=_WHAT,
    ),
]
InChannels = Annotated[
    int | None,
    typer.Option(metavar="N", help="Image channels. Default: 1.", rich_help_panel=_WHAT),
]
OutChannels = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Classes, background included. Default: 14.", rich_help_panel=_WHAT
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="fp32 (TF32 off), tf32, or fp16 or bf16 (autocast). Default: fp16.",
        rich_help_panel=_HOW,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="adamw, adam, or sgd (momentum 0.99, Nesterov). Default: adamw.",
        rich_help_panel=_HOW,
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="dicece, dice, ce or dicefocal. Default: dicece.",
        rich_help_panel=_HOW,
    ),
]
Checkpointing = Annotated[
    bool | None,
    typer.Option(
        "--checkpointing/--no-checkpointing",
        help="Recompute activations in the backward pass: less memory, more time.",
        rich_help_panel=_HOW,
    ),
]
MemoryFormat = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="contiguous or channels_last_3d. Default: contiguous.",
        rich_help_panel=_HOW,
    ),
]
CudnnBenchmark = Annotated[
    bool | None,
    typer.Option(
        "--cudnn-benchmark/--no-cudnn-benchmark",
        help="Let cuDNN try its algorithms first: faster steps, more memory.",
        rich_help_panel=_HOW,
    ),
]
ZeroGrad = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="before_forward (MONAI, nnU-Net) or before_backward (Lightning). "
        "Default: before_forward.",
        rich_help_panel=_HOW,
    ),
]
GradAccumulation = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Forward and backward passes per optimizer step. Default: 1.",
        rich_help_panel=_HOW,
    ),
]
GradClip = Annotated[
    float | None,
    typer.Option(
        metavar="NORM", help="Largest gradient norm; not clipped unless given.",
        rich_help_panel=_HOW,
    ),
]  # fmt: skip
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE|PRESET",
        help="YAML file with these options as keys, or a preset like btcv-swinunetr; "
        "the command line wins.",
        rich_help_panel=_WHAT,
    ),
]
Share = Annotated[
    bool,
    typer.Option(
        "--share",
        help="Measure although other processes use the card.",
        rich_help_panel="The card",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document.", rich_help_panel="Output"),
]

_WORKLOAD_KEYS = tuple(Workload().to_dict())
_WORKLOAD_OPTIONS = tuple(
    key for key in _WORKLOAD_KEYS if key not in ("model_args", "patch", "batch")
)


def merge(config: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's values with those of the command line on top.

    Args:
        config: a file's path or a preset's name, or None.
        given: the command line's values; None means "not given".
    """
    values: dict[str, Any] = {}
    if config is not None:
        from segplan.api.config import load_config  # late: pydantic takes a tenth of a second

        values = load_config(config).values()
    new = {key: value for key, value in given.items() if value is not None}
    if "gpu" in new or "gpus" in new:
        values.pop("gpu", None)
        values.pop("gpus", None)
    if "patches" in new:
        values.pop("patch", None)
    # Arguments of another network would only be refused.
    same_model = new.get("model", values.get("model")) == values.get("model")
    arguments = {
        **(values.get("model_args") or {} if same_model else {}),
        **new.pop("model_args", {}),
    }
    return {**values, **new, "model_args": arguments}


def workload_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The workload's options among a command's arguments (`locals()` of the command)."""
    found = {key: arguments[key] for key in _WORKLOAD_OPTIONS if key in arguments}
    return {**found, "model_args": parse_model_args(arguments["model_arg"])}


def workload_of(values: Mapping[str, Any]) -> Workload:
    """The workload in merged values; whatever is no part of a workload is left aside."""
    return Workload(**{key: values[key] for key in _WORKLOAD_KEYS if key in values})


def parse_model_args(texts: list[str] | None) -> dict[str, Any]:
    """`name=value` texts as a mapping; values are YAML scalars or lists.

    Raises:
        RequestError: a text has no "=", or its value is no YAML.
    """
    values: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise RequestError(
                f"'{text}' is no model argument: write --model-arg name=value, "
                "like feature_size=24."
            )
        values[name.strip()] = _yaml_value(name.strip(), value)
    return values


def _yaml_value(name: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RequestError(
            f"the value of --model-arg {name} cannot be read: '{text}'; write a number, text, "
            "true, false or a list like [2,2,2,2]."
        ) from error


def parse_patches(texts: list[str] | None) -> list[Patch] | None:
    """`--patch` values as sizes, doubles dropped; None where none was given."""
    if not texts:
        return None
    return list(dict.fromkeys(parse_patch(text) for text in texts))


def parse_mib(option: str, text: str | None) -> int | None:
    """A memory size as bytes; a bare number is MiB.

    Raises:
        RequestError: the text is no size, naming the option.
    """
    if text is None:
        return None
    try:
        return parse_bytes(text, default_unit="MiB")
    except RequestError as error:
        raise RequestError(f"{option}: {error}") from error


def at_least(option: str, value: int | None, least: int) -> int | None:
    """The value, checked.

    Raises:
        RequestError: it is below `least`.
    """
    if value is not None and value < least:
        raise RequestError(f"{option} must be at least {least}, not {value}.")
    return value
