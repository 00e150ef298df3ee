"""Further steps of a trace without running them: a step that begins as the last one did.

A step's allocations follow from what is there when it begins. The second step finds gradients
and the optimizer's state, which the first did not; the third finds what the second did, if the
second left behind what it found, and then it is the second once more.
"""

from __future__ import annotations

from segplan.trace.tape import Op, Trace


def settled(trace: Trace) -> bool:
    """Whether the last step left behind what it found.

    What it freed of earlier steps must be, in order, of the sizes, kinds and modules of what is
    left of its own. Nothing that was there before the first step may be gone.
    """
    return _replaced(trace) is not None


def repeat_step(trace: Trace, sums: dict[int, int]) -> None:
    """Append the last step once more, with buffers of its own.

    Arguments of operators are the last step's, also where an optimizer counts its steps in them.

    Args:
        trace: gets the step.
        sums: of some operators a buffer, by index into `ops`; gets those of the step, too.

    Raises:
        ValueError: the step is not `settled`.
    """
    replaced = _replaced(trace)
    if replaced is None:
        raise ValueError("the last step did not leave behind what it found")
    begin, end = trace.step_starts[-1], len(trace.events)
    step = len(trace.step_starts) - 1
    first, beyond = _first_made(trace, begin), len(trace.sizes)
    more = beyond - first

    def again(ident: int) -> int:
        return ident + more if ident >= first else replaced.get(ident, ident)

    for event in trace.events[begin:end]:
        trace.events.append(again(event) if event > 0 else -again(-event))
    for row in (trace.sizes, trace.kinds):
        row += row[first:beyond]
    trace.modules += trace.modules[first:beyond]
    moved = end - begin
    last = [index for index, op in enumerate(trace.ops) if op.step == step]
    for index in last:
        o = trace.ops[index]
        if index in sums:
            sums[len(trace.ops)] = again(sums[index])
        trace.ops.append(
            Op(o.name, o.phase, step + 1, o.at + moved, o.end + moved, o.inputs, o.outputs, o.args)
        )
    trace.step_starts.append(end)


def _first_made(trace: Trace, begin: int) -> int:
    """The first buffer that is made from an event on."""
    return next((e for e in trace.events[begin:] if e > 0), len(trace.sizes))


def _replaced(trace: Trace) -> dict[int, int] | None:
    """For each buffer that the last step freed of earlier ones, its own in that place.

    None where the step is not `settled`.
    """
    begin = trace.step_starts[-1]
    first = _first_made(trace, begin)
    freed = {-e for e in trace.events[begin:] if e < 0}
    found = sorted(ident for ident in freed if ident < first)
    left = [ident for ident in range(first, len(trace.sizes)) if ident not in freed]
    if found and found[0] < _first_made(trace, trace.step_starts[0]):
        return None

    def look(ident: int) -> tuple[int, int, str]:
        return trace.sizes[ident], trace.kinds[ident], trace.modules[ident]

    if list(map(look, found)) != list(map(look, left)):
        return None
    return dict(zip(found, left, strict=True))
