"""Data parallelism: the gradient buckets of DistributedDataParallel, and NCCL beside the allocator.

With `gradient_as_bucket_view=False`, the default, gradients stay where autograd puts them and are
copied into buckets, flat tensors of the parameters' dtype that are reduced across GPUs: a second
copy of all gradients that stays from construction on (torch.nn.parallel.DistributedDataParallel,
documentation of `gradient_as_bucket_view`).

- At construction there is one bucket for all (`_ddp_init_helper`: without
  `find_unused_parameters` the first limit is unbounded).
- At the start of the second forward pass it is replaced (`Reducer::rebuild_buckets` in
  torch/csrc/distributed/c10d/reducer.cpp; `initialize_buckets` frees the old ones first): a
  bucket is full when it reaches 1 MiB (the first) or 25 MiB (`bucket_cap_mb`), in the order in
  which gradients become ready. That order is taken to be the reverse of the parameters' here.

Limitations: one dtype; every parameter is trained; the flat copies by which the first weights are
sent round before the first step are left out, because far less is allocated then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from segplan.trace.tape import BUFFER, GRADIENT, PARAMETER, Trace
from segplan.units import MIB

FIRST_BUCKET: Final = MIB
"""`kDefaultFirstBucketBytes` of reducer.hpp."""
BUCKET: Final = 25 * MIB
"""`kDefaultBucketBytesCap` of reducer.hpp."""

_COMMUNICATOR_OF_TWO: Final = 544 * MIB
_COMMUNICATOR: Final = 688 * MIB


@dataclass(frozen=True)
class DataParallel:
    """What a job over several GPUs of one host adds on each of them (bytes).

    Attributes:
        gpus: that train together.
        buckets: of each gradient bucket, in order; they are counted as gradients.
        communicator: NCCL's buffers, outside the allocator: assumed, not measured here.
    """

    gpus: int
    buckets: tuple[int, ...]
    communicator: int


def data_parallel(trace: Trace, gpus: int) -> DataParallel | None:
    """What a job over so many GPUs adds to a traced step; None for one GPU."""
    if gpus < 2:
        return None
    return DataParallel(gpus, tuple(bucket_sizes(_parameters(trace))), communicator_bytes(gpus))


def communicator_bytes(gpus: int) -> int:
    """Bytes that NCCL takes of each GPU for one communicator; 0 for one GPU.

    Assumed from one public measurement: 544 MiB among two and 688 MiB among more of four A100
    with NVLink (github.com/NVIDIA/nccl/issues/964). It grows with the number of channels, which
    follows the links' speed, and is less over PCIe.
    """
    if gpus < 2:
        return 0
    return _COMMUNICATOR_OF_TWO if gpus == 2 else _COMMUNICATOR


def bucket_sizes(parameters: Sequence[int]) -> list[int]:
    """Bytes of each bucket, in the order of reduction.

    Follows `compute_bucket_assignment_by_size` of reducer.cpp for parameters of one dtype: a
    bucket is closed once it holds at least its limit.

    Args:
        parameters: bytes of each, in order of registration.
    """
    found: list[int] = []
    size = 0
    for parameter in reversed(parameters):
        size += parameter
        if size >= (BUCKET if found else FIRST_BUCKET):
            found.append(size)
            size = 0
    return [*found, size] if size else found


def with_buckets(trace: Trace) -> Trace:
    """The trace with DDP's buckets: one for all before the first step, the usual ones after it."""
    parameters = _parameters(trace)
    if not parameters:
        return trace
    setup = [
        i for i, e in enumerate(trace.events[: trace.step_starts[0]])
        if e > 0 and trace.kinds[e] in (PARAMETER, BUFFER)
    ]  # fmt: skip
    first = len(trace.sizes)
    rebuilt = bucket_sizes(parameters)
    inserted = {setup[-1] + 1: [first]}
    rebuild_at = next((op.at for op in trace.ops if op.step == 1), None)
    sizes = [sum(parameters)]
    if rebuild_at is not None:
        sizes += rebuilt
        inserted[rebuild_at] = [-first, *range(first + 1, first + 1 + len(rebuilt))]

    def moved(at: int) -> int:
        return at + sum(len(new) for before, new in inserted.items() if before <= at)

    events: list[int] = []
    for i, event in enumerate(trace.events):
        events += inserted.get(i, ())
        events.append(event)
    return Trace(
        batch=trace.batch,
        events=events,
        sizes=[*trace.sizes, *sizes],
        kinds=[*trace.kinds, *[GRADIENT] * len(sizes)],
        modules=[*trace.modules, *[""] * len(sizes)],
        ops=[dataclasses.replace(op, at=moved(op.at), end=moved(op.end)) for op in trace.ops],
        step_starts=[moved(at) for at in trace.step_starts],
    )


def _parameters(trace: Trace) -> list[int]:
    """Bytes of the parameters, in order of registration."""
    return [
        size for size, kind in zip(trace.sizes[1:], trace.kinds[1:], strict=True)
        if kind == PARAMETER
    ]  # fmt: skip
