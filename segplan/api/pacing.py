"""What a data loader's rate means for an experiment."""

from __future__ import annotations

import math

from segplan.api.experiments import Experiment
from segplan.dataset.nouns import LoaderRate, Sampled
from segplan.errors import RequestError
from segplan.results import Basis, Duration
from segplan.schedule import CasesPerEpoch, LoaderPace

LEAST_PATCHES_PER_S = 1e-6
"""A patch in eleven days: a slower loader is a mistake, and its times overflow."""


def loader_pace(loader: float | LoaderRate | None) -> LoaderPace | None:
    """The pace of a loader, for `segplan.schedule.training_seconds`.

    Args:
        loader: patches per second, or what `segplan loader` measured; None: it keeps up.

    Raises:
        RequestError: the rate or the start is no time that can be.
    """
    if loader is None:
        return None
    if not isinstance(loader, LoaderRate):
        rate = Sampled(loader, loader, loader)
        _check_rate(rate)
        return LoaderPace(_each(1, rate))
    start = loader.start_s
    _check_rate(loader.patches_per_s)
    if start is not None and not 0 <= start.low <= start.value <= start.high < math.inf:
        raise RequestError(
            f"a loader starts within some seconds, not {start.value:g} ({start.low:g} to "
            f"{start.high:g})."
        )
    cases = loader.workers * loader.batch
    return LoaderPace(
        patch=_each(1, loader.patches_per_s),
        case=_each(loader.num_samples, loader.patches_per_s),
        start=None if start is None else Duration(
            start.value, start.low, start.high, Basis.MEASURED
        ),
        patches_at_once=cases * loader.num_samples,
        cases_at_once=loader.workers,
        beside_steps=loader.workers > 0,
    )  # fmt: skip


def loader_note(loader: LoaderRate, experiment: Experiment) -> str | None:
    """A sentence where the loader was measured with other crops than the experiment's."""
    w, schedule = experiment.workload, experiment.schedule
    epoch = None if schedule is None else schedule.epoch
    samples = epoch.num_samples if isinstance(epoch, CasesPerEpoch) else loader.num_samples
    if (loader.patch, loader.num_samples) == (w.patch, samples):
        return None
    return (
        f"The loader was measured with {_crops(loader.num_samples, loader.patch)} of a case, and "
        f"the experiment takes {_crops(samples, w.patch)}: measure it with those."
    )


def _crops(count: int, patch: tuple[int, int, int]) -> str:
    return f"{count} crop{'s' * (count != 1)} of {'x'.join(map(str, patch))}"


def _check_rate(rate: Sampled) -> None:
    if not LEAST_PATCHES_PER_S <= rate.value < math.inf:
        raise RequestError(
            f"a loader delivers at least {LEAST_PATCHES_PER_S:g} patches per second, not "
            f"{rate.value:g}."
        )
    if not 0 <= rate.low <= rate.value <= rate.high < math.inf:
        raise RequestError(
            f"a loader's rate lies in its interval: {rate.value:g} patches per second is not "
            f"within {rate.low:g} to {rate.high:g}."
        )


def _each(patches: int, rate: Sampled) -> Duration:
    """Seconds for so many patches at a rate."""
    low = patches / rate.high
    slowest = rate.low if rate.low >= LEAST_PATCHES_PER_S else rate.value
    return Duration(patches / rate.value, low, patches / slowest, Basis.MEASURED)
