"""From what a user asked to a workload that is complete and checked; imports no torch."""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from segplan.errors import NetworkError
from segplan.networks.registry import ALIASES, BY_NAME, FROM_WORKLOAD, NOT_SUPPORTED, Network
from segplan.networks.rules import PatchRule
from segplan.units import Patch
from segplan.workload import FrozenArgs, Workload


def is_factory(model: str) -> bool:
    """Whether the model is "package.module:factory" rather than a registered name."""
    return ":" in model


def network_of(model: str) -> Network:
    """The registered network of that name.

    Raises:
        NetworkError: there is none; the message names close ones.
    """
    name = ALIASES.get(model.lower(), model.lower())
    if name in BY_NAME:
        return BY_NAME[name]
    if name in NOT_SUPPORTED:
        raise NetworkError(f"{model} cannot be planned by name: {NOT_SUPPORTED[name]}.")
    close = difflib.get_close_matches(name, [*BY_NAME, *ALIASES], 1)
    hint = f"did you mean {ALIASES.get(close[0], close[0])}? " if close else ""
    raise NetworkError(
        f"no network is called '{model}': {hint}`segplan models` lists them, and your own is "
        "given as my_package.nets:make_net."
    )


@lru_cache(maxsize=1)
def _all_arguments() -> dict[str, dict[str, Any]]:
    text = files("segplan.networks").joinpath("arguments.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def arguments_of(network: Network) -> dict[str, Any]:
    """The constructor's arguments and MONAI's defaults ("required" where there is none)."""
    return _all_arguments()[network.name]


def workload_arguments(network: Network) -> dict[str, str]:
    """The constructor's arguments that the workload sets, and the options that do."""
    options = {n: o for n, o in FROM_WORKLOAD.items() if n in arguments_of(network)}
    if network.checkpoint_argument is not None:
        options[network.checkpoint_argument] = "--checkpointing"
    return options


def resolve(workload: Workload, *, check_patch: bool = True) -> Workload:
    """Fill in the network's defaults and check what can be checked without building it.

    Equal workloads come out equal: aliases are replaced, arguments that only repeat MONAI's
    default are left out, and a network's own argument for checkpointing becomes
    `checkpointing=True`. Resolving twice changes nothing.

    Args:
        workload: as asked.
        check_patch: also check that the patch trains at this batch.

    Raises:
        NetworkError: the network or an argument is unknown, or the patch does not fit the
            network; the message names what would do.
    """
    if is_factory(workload.model):
        return workload
    network = network_of(workload.model)
    known = arguments_of(network)
    given = dict(workload.model_args)
    checkpointing = workload.checkpointing
    if network.checkpoint_argument in given:
        value = given.pop(network.checkpoint_argument)
        if not isinstance(value, bool):
            raise NetworkError(
                f"{network.checkpoint_argument} must be true or false, not {value!r}."
            )
        checkpointing = checkpointing or value
    for name in given:
        if name == "spatial_dims":
            raise NetworkError("spatial_dims cannot be set: segplan plans 3D networks.")
        if name in FROM_WORKLOAD:
            raise NetworkError(
                f"{name} is not set by --model-arg: it comes from {FROM_WORKLOAD[name]}."
            )
        if name not in known:
            close = difflib.get_close_matches(name, list(known), 1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {_listed(known)}."
            raise NetworkError(f"{network.class_name} has no argument '{name}': {hint}")
    given = {
        name: value
        for name, value in given.items()
        if name in network.defaults or FrozenArgs({name: value}) != FrozenArgs({name: known[name]})
    }
    resolved = workload.replace(
        model=network.name,
        model_args={**network.defaults, **given},
        checkpointing=checkpointing,
    )
    if check_patch:
        check(resolved)
    return resolved


def _listed(known: dict[str, Any]) -> str:
    return ", ".join(name for name in known if name not in FROM_WORKLOAD)


def rule_for(workload: Workload) -> PatchRule:
    """The patch rule of a resolved workload's network.

    A factory's rule is found by trying (`probing.find_rule`), which builds it.

    Raises:
        NetworkError: an argument the rule depends on is malformed, or the factory cannot be
            built.
    """
    if is_factory(workload.model):
        from segplan.networks.probing import find_rule

        return find_rule(workload)
    network = network_of(workload.model)
    try:
        return network.rule(workload.model_args)
    except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        raise NetworkError(
            f"the arguments of {network.class_name} do not make sense together ({error}): "
            f"`segplan models {network.name}` shows the defaults."
        ) from error


def check(workload: Workload) -> None:
    """Check that the network takes the patch and can train on it at this batch.

    Raises:
        NetworkError: it does not; the message names the nearest sizes that train.
    """
    rule = rule_for(workload)
    problem = rule.problem(workload.patch, workload.batch)
    if problem is None:
        return
    raise NetworkError(
        f"{workload.model} does not train on {_size(workload.patch)}: {problem}. "
        f"Nearest valid: {_nearest(rule, workload.patch, workload.batch)}."
    )


def check_window(workload: Workload, window: Patch) -> None:
    """Check that a network trained on the workload's patch takes windows of another size.

    The trace finds out about factories (to find its rule, one would have to be built many times)
    and about networks built for their patch (some need it in training only).

    Raises:
        NetworkError: it does not; the message names the nearest sizes that it takes.
    """
    if window == workload.patch or is_factory(workload.model):
        return
    rule = rule_for(workload)
    if rule.fixed:
        return
    # In evaluation batch normalisation takes a single voxel, as it does of a batch of several.
    problem = rule.problem(window, 2)
    if problem is not None:
        raise NetworkError(
            f"{workload.model} cannot validate with windows of {_size(window)}: {problem}. "
            f"Nearest valid: {_nearest(rule, window, 2)}."
        )


def _nearest(rule: PatchRule, patch: Patch, batch: int) -> str:
    sizes = (rule.round_down(patch, batch), rule.round_up(patch, batch))
    return " and ".join(dict.fromkeys(_size(size) for size in sizes if size is not None))


def next_valid(workload: Workload, patch: Patch) -> Patch:
    """The patch that trains at the workload's batch, each side rounded up."""
    return rule_for(workload).round_up(patch, workload.batch)


def smallest_valid(workload: Workload) -> Patch:
    """The smallest patch that trains at the workload's batch."""
    return rule_for(workload).round_up((1, 1, 1), workload.batch)


def _size(patch: Patch) -> str:
    return str(patch[0]) if len(set(patch)) == 1 else "x".join(map(str, patch))
