"""What a data loader's rate means for an experiment."""

from __future__ import annotations

from segplan.api.experiments import Experiment
from segplan.dataset.nouns import LoaderRate, Sampled
from segplan.errors import RequestError
from segplan.results import Basis, Duration
from segplan.schedule import CasesPerEpoch, LoaderPace


def loader_pace(loader: float | LoaderRate | None) -> LoaderPace | None:
    """The pace of a loader, for `segplan.schedule.training_seconds`.

    Args:
        loader: patches per second, or what `segplan loader` measured; None: it keeps up.

    Raises:
        RequestError: the rate is not above 0.
    """
    if loader is None:
        return None
    if not isinstance(loader, LoaderRate):
        if not 0 < loader < float("inf"):
            raise RequestError(f"a loader delivers more than 0 patches per second, not {loader:g}.")
        return LoaderPace(_each(1, Sampled(loader, loader, loader)))
    start = loader.start_s
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


def _each(patches: int, rate: Sampled) -> Duration:
    """Seconds for so many patches at a rate."""
    low = patches / rate.high
    high = patches / rate.low if rate.low > 0 else patches / rate.value
    return Duration(patches / rate.value, low, high, Basis.MEASURED)
