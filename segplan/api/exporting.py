"""`export`: the recommended batch, patch, precision and checkpointing, for one's own training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segplan.api.fitting import DEFAULT_MAX_BATCH, fit
from segplan.api.json_files import read_json
from segplan.api.predicting import Progress, silent
from segplan.errors import CardError, NetworkError, RequestError
from segplan.networks import network_of, resolve, workload_arguments
from segplan.networks.resolving import is_factory
from segplan.results import Cell, Fit
from segplan.units import Patch
from segplan.workload import Workload

MAX_BUNDLE_BYTES = 2**20
"""A larger file is no bundle's configuration."""

SEVERAL_OUTPUTS = ("segresnetds", "segresnetds2")
"""Networks that return several outputs in training, whatever their arguments."""


@dataclass(frozen=True)
class NetworkCode:
    """How to write the construction of a network.

    Attributes:
        module: to import from.
        name: to import and to call.
        arguments: of the call.
        checkpoint_argument: of the constructor, where the network has its own.
        checkpoint_blocks: classes whose forward passes are to be wrapped, where checkpointing is
            on and the network has no argument for it.
        several_outputs: whether it returns several outputs to train on.
    """

    module: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_argument: str | None = None
    checkpoint_blocks: tuple[str, ...] = ()
    several_outputs: bool = False


@dataclass(frozen=True)
class Recommendation:
    """What to train with on a card.

    Attributes:
        name: of the configuration.
        workload: with the recommended patch, batch, accumulation and checkpointing.
        card: slug.
        budget: bytes the allocator may use there.
        cell: of the frontier: its memory, step and basis.
        reason: why, in a sentence.
        network: how to construct it.
    """

    name: str
    workload: Workload
    card: str
    budget: int
    cell: Cell
    reason: str
    network: NetworkCode


def recommend_for(
    workload: Workload,
    gpu: str,
    *,
    name: str = "workload",
    patches: Sequence[Patch] | None = None,
    batch: int | None = None,
    store: str | None = None,
    progress: Progress = silent,
) -> Recommendation:
    """What to train a workload with on a card.

    The patch is the workload's own, or the recommended of several; the batch is the largest that
    trains there. A wanted batch that does not fit at once is accumulated. Where nothing fits, it
    is tried with checkpointing.

    Args:
        workload: as configured; its batch is replaced.
        gpu: as for `fit`.
        name: what it is called.
        patches: to choose from; None: the workload's own.
        batch: patches of one optimizer step; None: as many as one forward pass takes.
        store: as for `fit`.
        progress: as for `fit`.

    Raises:
        CardError: nothing fits, not even with checkpointing.
        RequestError: the network, a patch, the card or the batch cannot be used as asked.
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise RequestError(f"batch must be a whole number of at least 1, not {batch!r}.")
    if batch is not None and workload.grad_accumulation > 1:
        workload = workload.replace(grad_accumulation=1)  # the batch is that of the whole step
    chosen = tuple(patches) if patches else (workload.patch,)
    tried: Fit | None = None
    for candidate in _with_checkpointing_last(workload):
        asker = _Asker(candidate, gpu, chosen, batch, store, progress)
        found = asker.answer()
        if found is None:
            tried = tried or asker.tried
            continue
        assert found.recommended is not None
        cell = found.cells[found.recommended]
        reason = found.reason
        if candidate is not workload:
            reason += "; only with checkpointing"
        trained = resolve(found.workload.replace(patch=cell.patch, batch=cell.max_batch))
        return Recommendation(
            name, trained, found.card, found.budget, cell, reason, network_code(trained)
        )
    assert tried is not None
    asked = "" if batch is None else f" at batch {batch}, not even patch by patch"
    card = f"; {tried.smallest_card} would do" if tried.smallest_card else ""
    raise CardError(f"{name} does not fit the {tried.card}{asked}: {tried.reason}{card}.")


def _with_checkpointing_last(workload: Workload) -> list[Workload]:
    """The workload, and with checkpointing where the network has it and it is off."""
    if workload.checkpointing or is_factory(workload.model):
        return [workload]
    return [workload, workload.replace(checkpointing=True)]


@dataclass
class _Asker:
    """Finds the fewest forward passes of a wanted batch that fit.

    Attributes:
        tried: the first answer, whatever it was.
    """

    workload: Workload
    gpu: str
    patches: tuple[Patch, ...]
    batch: int | None
    store: str | None
    progress: Progress
    tried: Fit | None = None

    def answer(self) -> Fit | None:
        """A fit whose recommended cell is what to train with, or None."""
        if self.batch is None:
            found = self._fit(1, DEFAULT_MAX_BATCH)
            return found if found.recommended is not None else None
        most = self.batch
        for passes in range(1, self.batch + 1):
            part = self.batch // passes
            if self.batch % passes or part > most:
                continue
            # Gradients live through the passes of a step: each number of passes is asked anew.
            found = self._fit(passes, part)
            if found.recommended is None:
                return None
            most = found.cells[found.recommended].max_batch
            if most == part:
                return found
        return None

    def _fit(self, passes: int, most: int) -> Fit:
        workload = self.workload
        if passes > 1:
            workload = workload.replace(grad_accumulation=passes)
        found = fit(
            workload, self.gpu, self.patches, max_batch=most, store=self.store,
            progress=self.progress,
        )  # fmt: skip
        self.tried = self.tried or found
        return found


def network_code(workload: Workload) -> NetworkCode:
    """How to construct a resolved workload's network (as `segplan.networks.build` does)."""
    arguments = {name: _plain(value) for name, value in workload.model_args.items()}
    if is_factory(workload.model):
        module, _, attribute = workload.model.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise NetworkError(
                f"'{workload.model[:60]}' cannot be imported by name: a snippet needs "
                "package.module:factory."
            )
        return NetworkCode(module, attribute, arguments)
    known = network_of(workload.model)
    arguments |= {"in_channels": workload.in_channels, "out_channels": workload.out_channels}
    if "spatial_dims" in workload_arguments(known):
        arguments["spatial_dims"] = 3
    if known.patch_argument is not None:
        arguments[known.patch_argument] = workload.patch
    module, name = "monai.networks.nets", known.class_name
    blocks: tuple[str, ...] = ()
    if workload.checkpointing:
        if known.checkpoint_argument is not None:
            arguments[known.checkpoint_argument] = True
        elif known.checkpoint_class is not None:
            module, name = "monai.networks.nets.unet", known.checkpoint_class
        else:
            blocks = known.checkpoint_blocks
    supervised = workload.model_args.get("deep_supervision") is True
    return NetworkCode(
        module=module,
        name=name,
        arguments=arguments,
        checkpoint_argument=known.checkpoint_argument,
        checkpoint_blocks=blocks,
        several_outputs=supervised or workload.model in SEVERAL_OUTPUTS,
    )


def _plain(value: Any) -> Any:
    """The argument as a literal of Python."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return tuple(_plain(v) for v in value) if isinstance(value, (tuple, list)) else value


def read_bundle(path: str | Path) -> dict[str, Any]:
    """The training configuration of a MONAI bundle (`configs/train.json`); nothing in it runs.

    Raises:
        RequestError: there is no such file, or it holds no JSON object.
    """
    wanted = "--bundle takes configs/train.json"
    values = read_json(path, MAX_BUNDLE_BYTES, "bundle's configuration", wanted)
    if not isinstance(values, dict):
        raise RequestError(f"{path} holds no keys: {wanted}.")
    return values
