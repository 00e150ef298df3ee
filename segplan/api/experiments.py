"""Experiments: a workload, its schedule and its dataset, from a configuration and the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segplan.api.config import Config, ScheduleSection, load_config
from segplan.errors import RequestError
from segplan.schedule import CasesPerEpoch, DatasetFacts, FixedIterations, Schedule, Validation
from segplan.workload import Workload


@dataclass(frozen=True)
class Experiment:
    """What is trained, how often, and on which data.

    Attributes:
        name: of the configuration.
        workload: its patch and batch are those of the step.
        schedule: None: only memory and step can be told.
        dataset: None: not known.
        source: where the set-up was published.
    """

    name: str
    workload: Workload
    schedule: Schedule | None = None
    dataset: DatasetFacts | None = None
    source: str | None = None


def load_experiment(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment in a preset or a YAML file.

    Args:
        name_or_path: as for `segplan.api.config.load_config`.
        overrides: keys of its schedule to replace (`epochs`, `cases`, `folds` ...).

    Raises:
        ConfigError: the file cannot be read, or holds something it should not.
        RequestError: its schedule or workload makes no sense.
    """
    return experiment_of(load_config(name_or_path), str(name_or_path), overrides)


def experiment(
    name_or_path: str | Path | None,
    workload: Workload,
    overrides: Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment whose workload is already put together, with a file's schedule and dataset.

    Args:
        name_or_path: of the configuration; None: everything is in the other arguments.
        workload: instead of the file's.
        overrides: as for `load_experiment`.

    Raises:
        RequestError: there is no schedule, or it makes no sense (ConfigError: the file's).
    """
    config = Config() if name_or_path is None else load_config(name_or_path)
    name = workload.model if name_or_path is None else str(name_or_path)
    found = experiment_of(config, name, overrides)
    if found.schedule is None:
        where = "" if name_or_path is None else f" in {name_or_path}"
        raise RequestError(
            f"there is no schedule{where}: add one (epochs, and cases or iterations), or give "
            "--epochs with --cases and --num-samples, or with --iterations."
        )
    return dataclasses.replace(found, workload=workload)


def validation_in_file(name_or_path: str | Path) -> dict[str, Any]:
    """How whole volumes are validated by a file's schedule, for `segplan.step.validate.Validation`.

    Args:
        name_or_path: of the configuration.

    Returns:
        Those of its keys that the file has: `volume` (the validation's shape, else the dataset's),
        `roi_size`, `sw_batch_size` and `overlap`, the defaults of a schedule filled in. Empty
        where the schedule validates no volumes.

    Raises:
        ConfigError: as for `load_config`.
        RequestError: the schedule makes no sense.
    """
    found = load_experiment(name_or_path)
    v = None if found.schedule is None else found.schedule.validation
    if v is None:
        return {}
    shape = v.shape
    if shape is None and found.dataset is not None:
        shape = found.dataset.shape
    values = {"volume": shape, "roi_size": v.roi}
    given = {key: value for key, value in values.items() if value is not None}
    return {**given, "sw_batch_size": v.sw_batch_size, "overlap": v.overlap}


def experiment_of(
    config: Config, name: str, overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment of a configuration that was read (arguments and errors as above)."""
    values = config.values()
    known = [field.name for field in dataclasses.fields(Workload)]
    facts = None
    if config.dataset is not None:
        facts = DatasetFacts(**config.dataset.model_dump())
    source = config.source
    return Experiment(
        name=config.name or Path(name).name.removesuffix(".yaml").removesuffix(".yml"),
        workload=Workload(**{key: value for key, value in values.items() if key in known}),
        schedule=schedule_of(config.schedule, facts, overrides),
        dataset=facts,
        source="; ".join(source) if isinstance(source, list) else source,
    )


def schedule_of(
    section: ScheduleSection | None,
    dataset: DatasetFacts | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Schedule | None:
    """The schedule of a configuration's section; None where there is none.

    Training cases that are not given are those of the dataset less those of the validation, or
    less one fold.

    Raises:
        RequestError: it lacks something or contradicts itself.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if section is None and not given:
        return None
    section = _rescheduled(section or ScheduleSection(), given)
    if section.epochs is None:
        raise RequestError("the schedule has no epochs: write epochs under schedule, or --epochs.")
    folds = section.folds or 1
    return Schedule(
        epochs=section.epochs,
        epoch=_epoch(section, dataset, folds),
        folds=folds,
        validation=_validation(section, dataset, folds),
        checkpoint_every=section.checkpoint_every,
    )


def _rescheduled(section: ScheduleSection, given: Mapping[str, Any]) -> ScheduleSection:
    """A file's section with the command line's values, and what they change in others."""
    changes = dict(given)
    if "iterations" in given:  # an epoch is something else now
        changes |= {"cases": None, "num_samples": None, "drop_last": None}
    elif {"cases", "num_samples"} & set(given):
        changes |= {"iterations": None, "validation_iterations": None}
    v = section.validation
    if "epochs" in given and v is not None and v.every is not None:
        # A validation at the end stays there; one that would never come is moved there.
        at_end = v.every == section.epochs or v.every > given["epochs"]
        every = given["epochs"] if at_end else v.every
        changes["validation"] = v.model_copy(update={"every": every})
    return section.model_copy(update=changes)


def _epoch(
    section: ScheduleSection, dataset: DatasetFacts | None, folds: int
) -> FixedIterations | CasesPerEpoch:
    if section.iterations is not None:
        for key in ("cases", "num_samples", "drop_last"):
            if getattr(section, key) is not None:
                raise RequestError(
                    f"schedule has iterations and {key}: an epoch is either so many iterations "
                    "or all cases times num_samples."
                )
        return FixedIterations(section.iterations, section.validation_iterations or 0)
    if section.validation_iterations is not None:
        raise RequestError("schedule.validation_iterations goes with schedule.iterations.")
    cases = section.cases
    if cases is None and dataset is not None and dataset.cases is not None:
        cases = dataset.cases - _validation_cases(section, dataset, folds)
    if cases is None or cases < 1:
        raise RequestError(
            "the schedule does not say what an epoch is: write cases (and num_samples) or "
            "iterations under schedule, or cases under dataset."
        )
    return CasesPerEpoch(cases, section.num_samples or 1, section.drop_last or False)


def _validation_cases(section: ScheduleSection, dataset: DatasetFacts | None, folds: int) -> int:
    if section.validation is not None and section.validation.cases is not None:
        return section.validation.cases
    cases = 0 if dataset is None else dataset.cases or 0
    return cases // folds if folds > 1 else 0


def _validation(
    section: ScheduleSection, dataset: DatasetFacts | None, folds: int
) -> Validation | None:
    if section.validation is None:
        return None
    values = {k: v for k, v in section.validation.model_dump().items() if v is not None}
    values["cases"] = _validation_cases(section, dataset, folds)
    if not values["cases"]:
        raise RequestError("schedule.validation needs cases: how many volumes are validated.")
    return Validation(**values)
