"""Gradients that autograd sums in place, as it does outside of a trace.

Where a tensor is used twice, the engine adds the gradients of its uses, and adds into the one it
held first if nothing else holds that and it fills its memory (`InputBuffer::accumulate` in
torch/csrc/autograd/input_buffer.cpp) - but never while a dispatch mode looks on, as in a trace:
there it allocates the sum. What was seen is put right here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from segplan.trace.tape import GRADIENT, TensorMeta, Trace

SUM, IN_PLACE = "add.Tensor", "add_.Tensor"


def sum_in_place(trace: Trace, sums: Mapping[int, int]) -> None:
    """Let sums of the engine reuse the gradient that was held first.

    That it is freed right after the sum is what tells that nothing else held it.

    Args:
        trace: changed; buffers that were never needed leave gaps in `sizes`' numbering, which no
            event names.
        sums: index into `ops` of each sum that the engine made, and the buffer of its first
            summand.
    """
    events, ops = trace.events, trace.ops
    stands_for: dict[int, int] = {}
    dropped: set[int] = set()
    for index, first in sums.items():
        op = ops[index]
        until = ops[index + 1].at if index + 1 < len(ops) else len(events)
        held = stands_for.get(first, first)
        freed = next((i for i in range(op.end, until) if events[i] == -first), None)
        if op.end != op.at + 1 or freed is None or not dense(op.inputs[0]):
            continue
        made = events[op.at]
        dropped |= {op.at, freed}
        stands_for[made] = held
        if trace.kinds[made] == GRADIENT:
            trace.kinds[held] = GRADIENT
        ops[index] = dataclasses.replace(op, name=IN_PLACE)
    if not dropped:
        return
    moved = []  # where each event is now
    kept: list[int] = []
    for i, event in enumerate(events):
        moved.append(len(kept))
        if i not in dropped:
            ident = stands_for.get(abs(event), abs(event))
            kept.append(ident if event > 0 else -ident)
    moved.append(len(kept))
    trace.events[:] = kept
    trace.step_starts[:] = [moved[at] for at in trace.step_starts]
    trace.ops[:] = [dataclasses.replace(op, at=moved[op.at], end=moved[op.end]) for op in ops]


def dense(tensor: TensorMeta) -> bool:
    """Whether the elements fill one stretch of memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
