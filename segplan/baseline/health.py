"""What about a card may slow it down, in sentences: the worst first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SEVERE = {
    "temperature (hardware)": "it is too hot (the hardware slows it down): look at its cooling",
    "temperature (software)": "it is too hot (the driver slows it down): look at its cooling",
    "hardware slowdown": "the hardware slows it down: look at its cooling and power cables",
    "power brake": "the server's power brake slows it down: look at its power supply",
    "another process": "another process used the card meanwhile: run bench when it is free",
    "sync boost": "its clocks follow a slower card (sync boost): leave the boost group",
    "application clocks": "its clocks are set below the highest: reset them with nvidia-smi -rac",
    "display clocks": "a display holds its clocks back",
}
POWER_LIMIT = "power limit"

_LESS = 0.995  # limits are read in milliwatts and may be rounded


@dataclass(frozen=True)
class Health:
    """What was seen of the card before and during the check; None is "not told".

    Attributes:
        throttled: every reason its clocks were held back under load; () for none.
        power_limit_w: most it may draw.
        power_default_w: most it may draw unless somebody changes it.
        temperature_c: highest under load.
        pcie_gen: generation in use under load.
        pcie_gen_max: what card and slot can do.
        pcie_width: lanes in use under load.
        pcie_width_max: what card and slot can do.
        others: processes of others that held memory of it when the check began.
        build: torch's kernels for it: "native", "ptx" or "none".
        is_slice: whether it is a MIG slice.
    """

    throttled: tuple[str, ...] | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    others: int | None = None
    build: str | None = None
    is_slice: bool = False


def findings(health: Health) -> tuple[str, ...]:
    """What may slow the card down, a sentence each, the gravest first."""
    found = [_sentence(_SEVERE[r]) for r in _SEVERE if r in (health.throttled or ())]
    lowered = _lowered(health)
    if lowered is not None:
        limit, default = lowered
        found.append(
            f"Its power limit is {limit:.0f} W, below its default of {default:.0f} W: raise it "
            f"with nvidia-smi -pl {default:.0f}."
        )
    if health.build == "ptx":
        found.append(
            "This build of torch has no kernels of its own for the card, only code compiled at "
            "load: install a build that has."
        )
    if health.others:
        found.append(
            f"{_count(health.others)} held memory of the card when the check began: its figures "
            "may be too low."
        )
    if health.is_slice:
        found.append("It is a MIG slice: no published figure is of the same part of the card.")
    found += _pcie(health)
    return tuple(found)


def at_its_power_limit(health: Health) -> str | None:
    """Such as "its power limit of 700 W (the default)", where that held its clocks back, or None.

    A limit that somebody has lowered is among the `findings`.
    """
    limit, default = health.power_limit_w, health.power_default_w
    if POWER_LIMIT not in (health.throttled or ()) or _lowered(health) is not None:
        return None
    at = "" if limit is None else f" of {limit:.0f} W"
    return f"its power limit{at}{' (the default)' if limit and default else ''}"


def _lowered(health: Health) -> tuple[float, float] | None:
    """(limit, default) in watts where somebody has lowered the limit."""
    limit, default = health.power_limit_w, health.power_default_w
    if limit is None or default is None or limit >= default * _LESS:
        return None
    return limit, default


def _pcie(health: Health) -> list[str]:
    found = []
    width, widest = health.pcie_width, health.pcie_width_max
    if width is not None and widest is not None and width < widest:
        found.append(
            f"It has {width} PCIe lanes of {widest}: these figures need none, loading data does; "
            "look at the slot and the riser."
        )
    gen, newest = health.pcie_gen, health.pcie_gen_max
    if gen is not None and newest is not None and gen < newest:
        found.append(
            f"Its PCIe runs at generation {gen} of {newest} under load: loading data may wait."
        )
    return found


def _count(n: int) -> str:
    return "1 other process" if n == 1 else f"{n} other processes"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
