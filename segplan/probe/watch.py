"""What else a timed step tells: is it stable, held back, waiting for the host, and what it draws.

The decisions are plain functions of samples; `CardWatch` reads the card from NVML and `StepWatch`
puts both around the timed steps of a probe. No torch.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from types import TracebackType
from typing import Any, Self

from segplan.gpus.local import LocalCard, MigSlice
from segplan.gpus.nvml import _THROTTLE, _ask, _processes
from segplan.probe.messages import ProbeReply, ProbeRequest
from segplan.results import Basis, Measurement, StepTime

LEVEL = 0.80
"""Confidence of every interval segplan gives."""

STABLE_OF = 3
"""Samples on each side of a comparison that decides whether a warm-up is over."""

STABLE_SHARE = 0.02
NOISY_SHARE = 0.10
"""Interquartile range by median above which samples are noisy (as torch.utils.benchmark warns)."""

HOST_BOUND_SHARE = 0.10
"""Share of a step the card must wait for the host before the step counts as host-bound."""

LEAST_ENERGY_S = 1.0
"""Shortest stretch the energy counter is read over: it moves about ten times a second, so that a
second is good to about 10 %."""

LONGEST_STEP_S = 0.5
"""Longest step that is asked whether the host holds it up: a host enqueues the some thousand
kernels of a step in less, and the question costs two steps more."""

ANOTHER_PROCESS = "another process"


def stable(samples: Sequence[float], of: int = STABLE_OF, share: float = STABLE_SHARE) -> bool:
    """Whether the median of the last `of` samples is within `share` of that of the `of` before.

    Args:
        samples: seconds, oldest first.
        of: samples in each median.
        share: of the shorter of the two medians.
    """
    if len(samples) < 2 * of:
        return False
    last = statistics.median(samples[-of:])
    before = statistics.median(samples[-2 * of : -of])
    return abs(last - before) <= share * min(last, before)


def median_interval(samples: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """(median, low, high): the narrowest pair of samples that holds the true median so surely.

    Between the r-th smallest and the r-th largest of n independent samples the median lies with
    probability 1 - 2 Σ_{i<r} C(n, i) / 2ⁿ, whatever their distribution (David & Nagaraja, Order
    Statistics, 3rd ed., 7.1). Fewer than four samples cannot reach 80 %: theirs are the extremes.

    Args:
        samples: at least one.
        level: between 0 and 1.
    """
    ordered = sorted(samples)
    n = len(ordered)
    outside, r = 1.0, 1  # r = 1: the extremes
    while 2 * (r + 1) <= n:
        outside += comb(n, r)
        if 1 - 2 * outside / 2**n < level:
            break
        r += 1
    return statistics.median(ordered), ordered[r - 1], ordered[n - r]


def step_time_of(measured: Measurement) -> StepTime | None:
    """The median of a probe's own samples, with its 80 % interval; None where there are none."""
    if not measured.step_seconds:
        return None
    median, low, high = median_interval(measured.step_seconds)
    return StepTime(median, low, high, Basis.MEASURED, host_bound=measured.host_bound)


def noisy(samples: Sequence[float], share: float = NOISY_SHARE) -> bool:
    """Whether the middle half of the samples spreads over more than a share of their median."""
    if len(samples) < 4:
        return False
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low > share * middle


def host_bound(
    step_s: float | None, busy_s: float | None, share: float = HOST_BOUND_SHARE
) -> bool | None:
    """Whether the card waits for the host during a step.

    The time the host takes to enqueue a step does not tell: with fp16 the gradient scaler waits
    for the card in every step, so that both take the same time always.

    Args:
        step_s: seconds of a step as it runs in training.
        busy_s: seconds of the same step with all of its work enqueued before the card begins.
        share: of the step.

    Returns:
        None where one of the two is not known.
    """
    if step_s is None or busy_s is None or step_s <= 0:
        return None
    return step_s - busy_s > share * step_s


def energy_per_step(
    before_j: float | None, after_j: float | None, steps: int, seconds: float
) -> float | None:
    """Joules of one step by the card's counter; None where that is not known or too coarse."""
    if before_j is None or after_j is None or steps < 1:
        return None
    if seconds < LEAST_ENERGY_S or after_j <= before_j:  # the counter starts anew with the driver
        return None
    return (after_j - before_j) / steps


@dataclass(frozen=True)
class CardState:
    """A card at one moment; None is "not told".

    Attributes:
        at_s: seconds on the monotonic clock.
        reasons: why the clocks are held back; () for no reason.
        energy_j: joules since the driver was loaded.
        power_w: draw.
        power_limit_w: most it may draw.
        power_default_w: most it may draw unless somebody changes it.
        temperature_c: degrees Celsius.
        sm_mhz: clock of the multiprocessors.
        pcie_gen: generation in use.
        pcie_width: lanes in use.
        processes: numbers of the processes that hold its memory.
    """

    at_s: float
    reasons: tuple[str, ...] | None = None
    energy_j: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    sm_mhz: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    processes: tuple[int, ...] | None = None


def held_back(
    states: Sequence[CardState], newcomers_of: CardState | None = None
) -> tuple[str, ...] | None:
    """Every reason in any of the states, and "another process" where one came meanwhile.

    Args:
        states: under load.
        newcomers_of: the state before: a process that is not in it came meanwhile.

    Returns:
        None where no state tells any reason.
    """
    told = [state.reasons for state in states if state.reasons is not None]
    found = list(dict.fromkeys(reason for reasons in told for reason in reasons))
    if newcomers_of is not None and newcomers_of.processes is not None:
        there = set(newcomers_of.processes)
        if any(set(state.processes or ()) - there for state in states):
            found.append(ANOTHER_PROCESS)
    return tuple(found) if told or found else None


class CardWatch:
    """Reads one card's state from NVML, as often as asked; made to be used as a context manager.

    What a driver refuses is None. Of a MIG slice neither the energy nor the power is known: NVML
    counts the whole card's.

    Args:
        card: the card.
        clock: seconds.
    """

    def __init__(self, card: LocalCard, clock: Callable[[], float] = time.monotonic) -> None:
        self._card, self._clock = card, clock
        self._nvml: Any = None
        self._handle: Any = None
        with contextlib.suppress(Exception):  # then every state says that nothing is told
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = nvml.nvmlDeviceGetHandleByIndex(card.nvml_index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None:
            _ask(self._nvml, "nvmlShutdown")
        self._nvml = self._handle = None

    def read(self) -> CardState:
        """The state now; takes some milliseconds."""
        if self._handle is None:
            return CardState(self._clock())
        nvml, handle = self._nvml, self._handle
        bits = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # its name before driver 535
            bits = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        reasons = None
        if bits is not None:
            reasons = tuple(text for bit, text in _THROTTLE.items() if bits & bit)
        whole = not isinstance(self._card.mig, MigSlice)
        processes = _processes(nvml, handle)
        return CardState(
            at_s=self._clock(),
            reasons=reasons,
            energy_j=_thousandth(_ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle))
            if whole
            else None,
            power_w=_thousandth(_ask(nvml, "nvmlDeviceGetPowerUsage", handle)) if whole else None,
            power_limit_w=_thousandth(_ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)),
            power_default_w=_thousandth(
                _ask(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
            ),
            temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, 0),
            sm_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, 1),  # NVML_CLOCK_SM
            pcie_gen=_ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=_ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            processes=None if processes is None else tuple(p.pid for p in processes),
        )


def _thousandth(value: Any) -> float | None:
    """Milliwatts or millijoules as watts or joules."""
    return None if value is None else float(value) / 1000


class WatchedRequest(ProbeRequest, total=False):
    """A probe's request that may ask for a warm-up until `stable`.

    Attributes:
        stable_of: samples in each median; 0: until two steps take the same time.
    """

    stable_of: int


class WatchedReply(ProbeReply, total=False):
    """A probe's reply with what was seen around the timed steps.

    Attributes:
        energy_j_per_step: joules.
        host_bound: whether the card waited for the host.
        throttled: why the card was held back.
        busy_seconds: one step with all of its work enqueued ahead.
    """

    energy_j_per_step: float | None
    host_bound: bool | None
    throttled: list[str] | None
    busy_seconds: float | None


class StepWatch:
    """Looks at the card before, during and after the timed steps.

    It is asked between steps only, so it costs the steps nothing.

    Args:
        card: reads the card's state, or None.
        hold: keeps the card busy for so many seconds without the host waiting, or None.
    """

    def __init__(
        self,
        card: Callable[[], CardState] | None = None,
        hold: Callable[[float], None] | None = None,
    ) -> None:
        self._read = card or (lambda: CardState(time.monotonic()))
        self.hold = hold
        self.before: CardState | None = None
        self.loaded: CardState | None = None
        self.after: CardState | None = None

    def facts(self, step_seconds: Sequence[float], busy_s: float | None) -> dict[str, Any]:
        """The keys a `WatchedReply` has beyond a `ProbeReply`'s."""
        before, loaded, after = self.before, self.loaded, self.after
        step_s = statistics.median(step_seconds) if step_seconds else None
        energy = None
        if before is not None and after is not None:
            energy = energy_per_step(
                before.energy_j, after.energy_j, len(step_seconds), after.at_s - before.at_s
            )
        # Idle again, the card may show no reason any more: only `loaded` counts for the clocks.
        reasons = held_back([loaded], before) if loaded is not None else None
        return {
            "energy_j_per_step": energy,
            "host_bound": host_bound(step_s, busy_s),
            "throttled": None if reasons is None else list(reasons),
            "busy_seconds": busy_s,
        }

    def begin(self) -> None:
        """Call with the card idle, right before the timed steps."""
        self.before = self._read()

    def under_load(self) -> None:
        """Call when all timed steps are enqueued and the card still works on them."""
        self.loaded = self._read()

    def end(self) -> None:
        """Call when the card has finished them."""
        self.after = self._read()


def hold_for(step_s: float) -> float:
    """Seconds to keep the card busy, so that the host has enqueued a whole step meanwhile."""
    return 1.25 * step_s


def facts_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """What a `Measurement` takes of a `WatchedReply`; None where the reply tells nothing.

    Raises:
        TypeError: a value is of another kind.
        ValueError: likewise.
    """
    energy, bound = reply.get("energy_j_per_step"), reply.get("host_bound")
    reasons = reply.get("throttled")
    return {
        "energy_j_per_step": None if energy is None else float(energy),
        "host_bound": None if bound is None else bool(bound),
        "throttled": None if reasons is None else tuple(str(reason) for reason in reasons),
    }
