"""The child process's side of a trace: a workload in, a trace of its training or validation out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from segplan.units import Patch
from segplan.workload import Workload

if TYPE_CHECKING:
    from segplan.step.validate import Validation

TARGET = "segplan.trace.job:handle"


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Trace one workload at one batch, or its validation.

    Args:
        request: {"workload": a resolved workload as a dict} and, for a validation,
            {"validation": a `Validation` as a dict}.
        progress: not used: a trace takes a second or two.

    Returns:
        {"trace": `tape.trace_to_json`}.

    Raises:
        NetworkError: the network cannot be built or refuses the input.
    """
    import warnings

    from segplan.errors import NetworkError, SegplanError
    from segplan.networks import build
    from segplan.networks.lean import import_monai
    from segplan.networks.resolving import is_factory
    from segplan.step.validate import Validation
    from segplan.trace.compiler import postpone
    from segplan.trace.tape import trace_to_json
    from segplan.trace.tracer import trace_step, trace_validation
    from segplan.trace.values import without_random_values

    import_monai()
    postpone()
    workload = Workload.from_dict(request["workload"])
    asked = request.get("validation")
    validation = None if asked is None else Validation.from_dict(asked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nullcontext() if is_factory(workload.model) else without_random_values():
            network = build(workload)
        try:
            if validation is None:
                trace = trace_step(workload, network, repeats=not is_factory(workload.model))
            else:
                trace = trace_validation(workload, network, validation)
        except SegplanError:
            raise
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            hint = "" if validation is None else "; windows of the patch's size are taken"
            raise NetworkError(
                f"{workload.model} cannot {_what(workload, validation)} "
                f"({type(error).__name__}: {first[:200].rstrip('. ')}){hint}."
            ) from error
    return {"trace": trace_to_json(trace)}


def _what(workload: Workload, validation: Validation | None) -> str:
    if validation is None:
        return f"train on a patch of {_size(workload.patch)} at batch {workload.batch}"
    return f"validate with windows of {_size(validation.window(workload.patch))}"


def _size(patch: Patch) -> str:
    return "x".join(map(str, patch))
