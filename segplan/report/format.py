"""The one place where numbers become text: units, intervals, and no false digits.

Everything here returns text in Unicode ("96³", "10.2–11.1"); `console.py` turns it into ASCII
where the terminal cannot show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from segplan.units import GIB, KIB, MIB, Patch

UNKNOWN = "–"
"""Shown for what is not known: never a zero."""


def patch(sizes: Sequence[int]) -> str:
    """ "96³" for a cube, "128×128×64" (H×W×D) otherwise."""
    if len(set(sizes)) == 1:
        return f"{sizes[0]}³"
    return "×".join(str(s) for s in sizes)


def patch_option(sizes: Patch) -> str:
    """A patch as the command line takes it: "96" or "128x128x64"."""
    return str(sizes[0]) if len(set(sizes)) == 1 else "x".join(str(s) for s in sizes)


def memory(n: int | None) -> str:
    """Bytes as "9.1 GiB", "512 MiB", or "–" where unknown."""
    if n is None:
        return UNKNOWN
    unit, name = _memory_unit(n)
    return f"{_memory_number(n, unit)} {name}"


def memory_interval(value: int, low: int, high: int) -> str:
    """ "10.5 GiB (10.2–11.1)"; without the interval where it is no wider than the rounding."""
    unit, _ = _memory_unit(value)
    ends = (_memory_number(low, unit), _memory_number(high, unit))
    if ends[0] == ends[1]:
        return memory(value)
    return f"{memory(value)} ({ends[0]}–{ends[1]})"


def _memory_unit(n: int) -> tuple[int, str]:
    if abs(n) >= GIB or n == 0:
        return GIB, "GiB"
    # 1023.7 MiB would print as "1024 MiB": show it as "1.0 GiB".
    if abs(n) >= MIB:
        return (GIB, "GiB") if round(abs(n) / MIB) >= 1024 else (MIB, "MiB")
    return KIB, "KiB"


def _memory_number(n: int, unit: int) -> str:
    value = n / unit
    return f"{value:.1f}" if unit == GIB and round(abs(value), 1) < 100 else f"{value:.0f}"


def significant(value: float, digits: int) -> str:
    """A number rounded to so many significant digits, without an exponent ("310", "0.032")."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    # Rounding up may have gained a digit: 9.96 at two digits is 10, not 10.0.
    places = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else places
    return f"{rounded:.{max(places, 0)}f}"


def digits_of(value: float, low: float, high: float) -> int:
    """How many digits an interval leaves significant: 2 or 3.

    The last digit shown is of the order of half the interval's width, as
    `torch.utils.benchmark` trims its measurements.
    """
    half = (high - low) / 2
    if value <= 0 or half <= 0:
        return 3
    return min(3, max(2, -math.floor(math.log10(half / value))))


def seconds(s: float | None, digits: int = 2) -> str:
    """Seconds as "310 ms", "1.4 s", "3 min", "2.5 h" or "–" where unknown."""
    if s is None:
        return UNKNOWN
    scale, name = _time_unit(s)
    return f"{significant(s / scale, digits)} {name}"


def seconds_interval(value: float, low: float, high: float) -> str:
    """ "310 ms (290–330)": the value and its interval in one unit, significant digits only."""
    digits = digits_of(value, low, high)
    scale, name = _time_unit(value)
    place = digits - 1 - math.floor(math.log10(value / scale))
    shown = [f"{round(v / scale, place):.{max(place, 0)}f}" for v in (value, low, high)]
    text = f"{shown[0]} {name}"
    return text if shown[1] == shown[2] else f"{text} ({shown[1]}–{shown[2]})"


def _time_unit(s: float) -> tuple[float, str]:
    for scale, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if s >= scale * (2 if scale > 1 else 1):
            return scale, name
    return 1e-3, "ms"


def rate(per_second: float | None, digits: int = 2) -> str:
    """Something per second, like "12" or "0.85"; "–" where unknown."""
    return UNKNOWN if per_second is None else significant(per_second, digits)


def percent(fraction: float | None, digits: int = 2) -> str:
    """ "12 %" from 0.12; "–" where unknown."""
    return UNKNOWN if fraction is None else f"{significant(100 * fraction, digits)} %"


def count(n: int) -> str:
    """A large number of things: "62.2 M", "4.8 k", "812"."""
    for scale, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= scale:
            return f"{n / scale:.1f} {name}"
    return str(n)
