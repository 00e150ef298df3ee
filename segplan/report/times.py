"""Times with their intervals as text."""

from __future__ import annotations

import math

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


def brief(time: StepTime | Duration | None) -> str:
    """ "880 ms ±30 %": the interval as one number; "–" where not known."""
    if time is None or time.seconds <= 0:
        return fmt.UNKNOWN
    width = math.sqrt(time.high / time.low) - 1 if time.low > 0 else 0.0
    text = fmt.seconds(time.seconds, fmt.digits_of(time.seconds, time.low, time.high))
    return text if width < 0.005 else f"{text} ±{fmt.percent(width)}"
