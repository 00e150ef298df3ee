"""Networks: which there are, and all that is known about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from segplan.networks import (
    NETWORKS,
    Network,
    PatchRule,
    arguments_of,
    network_of,
    resolve,
    rule_for,
    workload_arguments,
)
from segplan.units import Patch
from segplan.workload import FrozenArgs, Workload


@dataclass(frozen=True)
class ModelSummary:
    """A network in one line.

    Attributes:
        name: what `--model` takes.
        class_name: the class in `monai.networks.nets`.
        family: "convolutional", "transformer" or "hybrid".
        parameters_m: millions of parameters with the defaults, 1 channel in, 14 classes and,
            where the size matters, 96 x 96 x 96.
        patch_rule: which patches it takes with the defaults, in words.
        checkpointing: how `--checkpointing` recomputes activations, in words.
    """

    name: str
    class_name: str
    family: str
    parameters_m: float
    patch_rule: str
    checkpointing: str


@dataclass(frozen=True)
class ModelDescription:
    """All that is known about a network.

    Attributes:
        summary: its line in the list.
        arguments: what `--model-arg` takes, with the defaults of MONAI or, where it sets
            others, of segplan; "required" where there is none.
        set_by_segplan: the arguments whose default is segplan's, not MONAI's.
        set_by_options: the arguments that come from other options, and from which.
        divisor: every side must be a multiple of this (H, W, D).
        smallest_patch: smallest patch that trains at batch 1.
        smallest_patch_batched: smallest patch that trains at batch 2 and more.
        fixed: the network is built for one patch size.
        checkpoint_blocks: classes of the modules that `--checkpointing` recomputes, where MONAI
            has no checkpointing of its own.
        width_argument: the argument that scales the width, or None.
        note: what a user should know, or "".
        example: a command line that plans it.
    """

    summary: ModelSummary
    arguments: Mapping[str, object] = field(default_factory=FrozenArgs)
    set_by_segplan: tuple[str, ...] = ()
    set_by_options: Mapping[str, str] = field(default_factory=FrozenArgs)
    divisor: Patch = (1, 1, 1)
    smallest_patch: Patch = (1, 1, 1)
    smallest_patch_batched: Patch = (1, 1, 1)
    fixed: bool = False
    checkpoint_blocks: tuple[str, ...] = ()
    width_argument: str | None = None
    note: str = ""
    example: str = ""


def list_models() -> tuple[ModelSummary, ...]:
    """The networks segplan knows by name, in the registry's order."""
    return tuple(_summary(network, _rule(network)) for network in NETWORKS)


def describe_model(name: str) -> ModelDescription:
    """All that is known about one network.

    Args:
        name: its name or an alias, like "swinunetr" or "nnunet".

    Raises:
        NetworkError: there is none of that name; the message names close ones.
    """
    network = network_of(name)
    rule = _rule(network)
    from_options = workload_arguments(network)
    ours = dict(network.defaults)
    arguments = {
        argument: ours.get(argument, default)
        for argument, default in arguments_of(network).items()
        if argument not in from_options
    }
    patch = rule.round_up((96, 96, 96), 1)
    size = str(patch[0]) if len(set(patch)) == 1 else "x".join(map(str, patch))
    return ModelDescription(
        summary=_summary(network, rule),
        arguments=FrozenArgs(arguments),
        set_by_segplan=tuple(sorted(ours)),
        set_by_options=FrozenArgs(from_options),
        divisor=rule.divisor,
        smallest_patch=rule.round_up((1, 1, 1), 1),
        smallest_patch_batched=rule.round_up((1, 1, 1), 2),
        fixed=rule.fixed,
        checkpoint_blocks=network.checkpoint_blocks,
        width_argument=network.width_argument,
        note=network.note,
        example=f"segplan estimate --model {network.name} --patch {size} --gpu rtx-3090",
    )


def _rule(network: Network) -> PatchRule:
    return rule_for(resolve(Workload(model=network.name), check_patch=False))


def _summary(network: Network, rule: PatchRule) -> ModelSummary:
    return ModelSummary(
        name=network.name,
        class_name=network.class_name,
        family=network.family,
        parameters_m=network.parameters_m,
        patch_rule=rule.words(),
        checkpointing=network.checkpointing,
    )
