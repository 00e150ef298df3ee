"""The networks segplan knows, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from segplan.api.networks import ModelDescription, ModelSummary
from segplan.report import format as fmt
from segplan.report.console import fitting_text, make_table, say
from segplan.results import SCHEMA_VERSION, to_plain

Models = Sequence[ModelSummary] | ModelDescription


def to_json(result: Models) -> str:
    """The list, as "models", or the one network as one JSON document."""
    plain = to_plain(result)
    content = plain if isinstance(result, ModelDescription) else {"models": plain}
    return json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2)


def render(result: Models, console: Console) -> None:
    """Write the list, or the one network that was asked for, to a terminal or a text stream."""
    if isinstance(result, ModelDescription):
        _one(result, console)
    else:
        _list(result, console)


def _list(models: Sequence[ModelSummary], console: Console) -> None:
    table = make_table(console)
    table.add_column("model", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("M", justify="right", no_wrap=True)
    table.add_column("patch sides")
    table.add_column("checkpointing")
    for model in models:
        table.add_row(
            *(
                fitting_text(text, console)
                for text in (
                    model.name,
                    model.family,
                    fmt.significant(model.parameters_m, 3),
                    model.patch_rule,
                    model.checkpointing,
                )
            )
        )
    console.print(table)
    say(
        console,
        "M: million parameters with segplan's defaults, 1 channel in, 14 classes. All about one: "
        "`segplan models NAME`. Your own network: --model my_package.nets:make_net.",
    )


def _one(model: ModelDescription, console: Console) -> None:
    summary = model.summary
    say(console, f"{summary.name} (monai.networks.nets.{summary.class_name})", "bold")
    smallest = f"{fmt.patch_option(model.smallest_patch)} at batch 1"
    if model.smallest_patch_batched != model.smallest_patch:
        smallest += f", {fmt.patch_option(model.smallest_patch_batched)} from batch 2"
    checkpointing = summary.checkpointing
    if model.checkpoint_blocks:
        checkpointing += f" ({', '.join(model.checkpoint_blocks)})"
    rule = summary.patch_rule + (", built anew for each size" if model.fixed else "")
    rows = [
        ("family", summary.family),
        ("parameters", f"{fmt.significant(summary.parameters_m, 3)} M (1 channel in, 14 classes)"),
        ("patch sides", rule),
        ("smallest patch", smallest),
        ("checkpointing", checkpointing),
        ("width", model.width_argument or "not one argument"),
        ("note", model.note),
        ("example", model.example),
    ]
    console.print(_grid([row for row in rows if row[1]], console))
    console.print()
    say(console, "Arguments (--model-arg NAME=VALUE), with their defaults:")
    ours = set(model.set_by_segplan)
    console.print(
        _grid(
            [
                (name, _value(value) + (" (set by segplan)" if name in ours else ""))
                for name, value in model.arguments.items()
            ],
            console,
        )
    )
    others = ", ".join(f"{name} ({option})" for name, option in model.set_by_options.items())
    say(console, f"Set by other options: {others}.")


def _grid(rows: Sequence[tuple[str, str]], console: Console) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(f"  {label}", fitting_text(value, console))
    return table


def _value(value: object) -> str:
    """A default as `--model-arg` takes it: YAML, which JSON is."""
    return value if isinstance(value, str) and value else json.dumps(value)
