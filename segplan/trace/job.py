"""The child process's side of a trace: a workload in, a trace out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segplan.workload import Workload

TARGET = "segplan.trace.job:handle"


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Trace one workload at one batch.

    Args:
        request: {"workload": a resolved workload as a dict}.
        progress: not used: a trace takes a second or two.

    Returns:
        {"trace": `tape.trace_to_json`}.

    Raises:
        NetworkError: the network cannot be built or refuses the input.
    """
    import warnings

    from segplan.errors import NetworkError, SegplanError
    from segplan.networks import build
    from segplan.trace.tape import trace_to_json
    from segplan.trace.tracer import trace_step

    workload = Workload.from_dict(request["workload"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = build(workload)
        try:
            trace = trace_step(workload, network)
        except SegplanError:
            raise
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise NetworkError(
                f"{workload.model} cannot train on a patch of "
                f"{'x'.join(map(str, workload.patch))} at batch {workload.batch} "
                f"({type(error).__name__}: {first[:200]})."
            ) from error
    return {"trace": trace_to_json(trace)}
