"""Build a network on the CPU, random weights, checkpointing as asked."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from segplan.errors import NetworkError
from segplan.networks.registry import Network
from segplan.networks.resolving import arguments_of, is_factory, network_of
from segplan.workload import Workload

if TYPE_CHECKING:
    from torch import nn


def build(workload: Workload) -> nn.Module:
    """The network of a resolved workload.

    Raises:
        NetworkError: it cannot be imported or built; the first line of the cause is named.
    """
    if is_factory(workload.model):
        if workload.checkpointing:
            raise NetworkError(
                f"segplan does not know where {workload.model} could checkpoint: turn it on "
                "inside the factory, and leave --checkpointing out."
            )
        return _from_factory(workload)
    known = network_of(workload.model)
    return _registered(workload, known)


def _registered(workload: Workload, known: Network) -> nn.Module:
    arguments = {name: _own(value) for name, value in workload.model_args.items()}
    takes = arguments_of(known)
    arguments |= {"in_channels": workload.in_channels, "out_channels": workload.out_channels}
    if "spatial_dims" in takes:
        arguments["spatial_dims"] = 3
    if known.patch_argument is not None:
        arguments[known.patch_argument] = workload.patch
    class_name, module_name = known.class_name, "monai.networks.nets"
    if workload.checkpointing and known.checkpoint_argument is not None:
        arguments[known.checkpoint_argument] = True
    elif workload.checkpointing and known.checkpoint_class is not None:
        class_name, module_name = known.checkpoint_class, "monai.networks.nets.unet"
    make = getattr(importlib.import_module(module_name), class_name, None)
    if make is None:
        import monai

        raise NetworkError(
            f"MONAI {monai.__version__} has no {class_name}: pip install --upgrade monai."
        )
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            network: nn.Module = make(**arguments)
        except Exception as error:
            given = {"in_channels": workload.in_channels, **workload.model_args}
            raise NetworkError(
                f"{known.class_name} cannot be built with "
                f"{', '.join(f'{name}={value}' for name, value in given.items())}: "
                f"{_first_line(error)}."
            ) from error
    if workload.checkpointing and known.checkpoint_blocks:
        checkpoint_blocks(network, known.checkpoint_blocks)
    return network


def _from_factory(workload: Workload) -> nn.Module:
    from torch import nn

    module_name, _, attribute = workload.model.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise NetworkError(
                f"{workload.model} cannot be imported ({_first_line(error)}): name a module "
                "that `python -c 'import ...'` finds from this folder."
            ) from error
        factory: Any = module
        for part in attribute.split("."):
            factory = getattr(factory, part, None)
        if not callable(factory):
            raise NetworkError(
                f"{module_name} has nothing to call named '{attribute}': give a function or "
                "class that returns the network."
            )
        try:
            network = factory(**_factory_arguments(factory, workload))
        except Exception as error:
            raise NetworkError(f"{workload.model} raised {_first_line(error)}.") from error
    if not isinstance(network, nn.Module):
        raise NetworkError(
            f"{workload.model} returned {type(network).__name__}, not a torch.nn.Module."
        )
    return network


def _factory_arguments(factory: Callable[..., Any], workload: Workload) -> dict[str, Any]:
    arguments = {name: _own(value) for name, value in workload.model_args.items()}
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return arguments
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in ("in_channels", "out_channels"):
        if (name in parameters or takes_all) and name not in arguments:
            arguments[name] = getattr(workload, name)
    return arguments


def checkpoint_blocks(network: nn.Module, classes: tuple[str, ...]) -> int:
    """Recompute the activations of the outermost blocks of these classes; how many there are.

    The forward method is wrapped, so parameters keep their names.
    """
    from torch.utils.checkpoint import checkpoint

    wrapped: list[str] = []
    for name, module in network.named_modules():
        if type(module).__name__ not in classes:
            continue
        if any(name.startswith(outer + ".") for outer in wrapped):
            continue
        plain = module.forward

        def recompute(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
            return checkpoint(_plain, *args, use_reentrant=False, **kwargs)

        module.forward = recompute
        wrapped.append(name)
    return len(wrapped)


def _own(value: Any) -> Any:
    """A copy that the constructor may keep and change: the workload's own stays as it is."""
    if isinstance(value, tuple):
        return tuple(_own(v) for v in value)
    if isinstance(value, dict):
        return {name: _own(v) for name, v in value.items()}
    return value


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: {lines[0][:200].rstrip(' .')}"
