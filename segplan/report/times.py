"""Times with their intervals as text."""

from __future__ import annotations

from segplan.report import format as fmt
from segplan.results import Duration, StepTime


def interval(time: StepTime | Duration | None) -> str:
    """ "3.4 days (2.9–4.1)"; "–" where not known, or nothing takes time."""
    if time is None or time.seconds <= 0:
        return fmt.UNKNOWN
    return fmt.seconds_interval(time.seconds, time.low, time.high)


def middle(time: StepTime | Duration | None) -> str:
    """ "3.4 days"; "–" where not known."""
    return fmt.seconds(None if time is None else time.seconds)
