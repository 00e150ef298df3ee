"""What passes between the prober and its child process."""

from __future__ import annotations

from typing import Any, TypedDict


class ProbeRequest(TypedDict):
    """One probe.

    Attributes:
        workload: a resolved workload, as `Workload.to_dict` gives it.
        allocator_limit: bytes the allocator may hold, or None.
        warmup: full steps before timing, at least.
        steps: timed steps; 0 only asks whether it trains.
        budget_s: seconds after which no step is run that is not needed.
        free_before: bytes free on the card before this process touched it, or None.
    """

    workload: dict[str, Any]
    allocator_limit: int | None
    warmup: int
    steps: int
    budget_s: float
    free_before: int | None


class ProbeReply(TypedDict):
    """How it went; None is "not known".

    Attributes:
        outcome: an `Outcome`.
        message: the error's first line, or None.
        step_seconds: raw samples, warm-up left out.
        warmup_seconds: raw samples of the warm-up.
        peak_allocated: bytes.
        peak_reserved: bytes.
        process_bytes: bytes the driver accounts to the process at the end of the last step.
        context_bytes: bytes of the process outside the allocator.
        held_bytes: bytes the process still holds after cleaning up.
        allocator_retries: times the allocator released its cache and tried again.
        clean: whether the process may run another probe.
    """

    outcome: str
    message: str | None
    step_seconds: list[float]
    warmup_seconds: list[float]
    peak_allocated: int | None
    peak_reserved: int | None
    process_bytes: int | None
    context_bytes: int | None
    held_bytes: int | None
    allocator_retries: int | None
    clean: bool
