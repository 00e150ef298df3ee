"""Steps that were measured on a card of this machine, from the store."""

from __future__ import annotations

import os

from segplan.errors import RequestError
from segplan.gpus import GpuKind, parse_gpus, select
from segplan.probe.watch import step_time_of
from segplan.results import Outcome, StepTime
from segplan.store import Store
from segplan.store.paths import MEMORY, store_path
from segplan.workload import Workload


def is_here(text: str) -> bool:
    """Whether a name means a card of this machine ("0", a UUID)."""
    return all(request.kind is GpuKind.LOCAL for request in parse_gpus(text))


def known_step(workload: Workload, gpu: str, store: str | None) -> StepTime | None:
    """The newest measured step of the very same workload on the very same card, or None.

    The allocator's limit may have been any: a step that fits takes as long under all of them,
    unless the allocator had to give memory back in between. Such a step is the last choice.

    Args:
        workload: resolved; its patch and batch are the step's.
        gpu: names a card of this machine.
        store: file measurements are kept in; None: the default one.

    Raises:
        CardError: there is no such card here.
        RequestError: the file does not exist.
        StoreError: it cannot be read.
    """
    where = store_path(store)
    if where != MEMORY and not os.path.exists(where):  # looking is no reason to make the file
        if store is not None:
            raise RequestError(f"there is no store {store}: segplan fit --store makes it.")
        return None
    uuid = select(gpu).uuid
    with Store.open(store) as opened:
        found = opened.find(workload=workload, card_uuid=uuid, outcome=Outcome.FITS)
    timed = [m for m in found if m.step_seconds]
    if not timed:
        return None
    return step_time_of(next((m for m in timed if not m.allocator_retries), timed[0]))
