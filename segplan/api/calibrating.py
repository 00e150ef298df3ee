"""`calibrate`: a card's operators, timed one by one, for predictions on it and on others."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import segplan
from segplan.api.bench_series import CardWorker
from segplan.api.benching import card_here
from segplan.api.calibrations import calibrations_folder, rates_by_precision
from segplan.api.measuring import refuse_busy
from segplan.api.recording import EnvironmentAhead
from segplan.baseline.health import Health, findings
from segplan.baseline.operator_job import STARTUP, TARGET
from segplan.errors import RequestError, SegplanError
from segplan.gpus import LocalCard, MigSlice, as_card, only_visible
from segplan.probe.watch import CardState, CardWatch, held_back
from segplan.timing.correction import residuals
from segplan.timing.model import NotTimeable, Rates, shipped_calibration
from segplan.timing.operators import (
    Operator,
    OperatorTime,
    OperatorTimes,
    operators_request,
    shipped_operators,
    times_plain,
)
from segplan.timing.work import KINDS
from segplan.worker import Worker, WorkerCrashed, WorkerFailed, WorkerTimedOut

SECONDS = 60.0
LONGEST_OPERATOR_S = 60.0
"""Seconds after the end of the time in which the last operator must have ended."""

MOST_CRASHES = 5
LOOK_EVERY = 50
"""Operators between two looks at the card: a look takes the host some milliseconds."""

NOISY_SHARE = 0.2

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what) as work goes on."""


@dataclass(frozen=True)
class KindTimes:
    """Operators of one kind, beside the model of step times without them.

    Attributes:
        kind: of work, as `segplan.timing.work.KINDS` names it.
        operators: how many were timed.
        ratio: median of measured over modelled time.
        low: its tenth percentile.
        high: its ninetieth.
    """

    kind: str
    operators: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationRun:
    """A calibration of a card that is here.

    Attributes:
        card: slug.
        card_name: as the driver names it.
        times: the operators' times.
        by_kind: how they stand to the model; () where the card's figures are not known.
        refused: operators that could not be timed, by why.
        spent_s: seconds on the card.
        noisy: share of operators whose samples differ by more than a fifth.
        health: what was seen of the card, in sentences.
        kept_at: the file predictions take it from, or None.
        interrupted: whether it was ended before its time.
        warnings: sentences a reader should know.
    """

    card: str
    card_name: str
    times: OperatorTimes
    by_kind: tuple[KindTimes, ...]
    refused: Mapping[str, int]
    spent_s: float
    noisy: float
    health: tuple[str, ...]
    kept_at: str | None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()


def calibrate(
    gpu: str = "0",
    *,
    seconds: float = SECONDS,
    share: bool = False,
    store: str | None = None,
    out: str | None = None,
    progress: Progress = lambda *_: None,
    worker_factory: Callable[[Mapping[str, str]], CardWorker] | None = None,
    operators: Sequence[Operator] | None = None,
) -> CalibrationRun:
    """Time a card's operators one by one, and keep them for predictions.

    Ctrl-C ends it early; what was timed until then is kept.

    Args:
        gpu: index or UUID of a card of this machine.
        seconds: on the card; the most telling operators come first.
        share: measure although other processes use the card.
        store: the file results are kept in; the calibration lies in a folder beside it. None:
            $SEGPLAN_STORE, else the user's data directory.
        out: another file to write it to, or None.
        progress: told of each operator.
        worker_factory: makes the process that measures; a test gives another.
        operators: what to time; None: segplan's list.

    Raises:
        CardError: there is no such card here, it is busy, or torch cannot use it.
        RequestError: the time is too short, or `out` cannot be written.
        WorkerError: the process that measures died too often.
    """
    if not 1 <= seconds <= 3600:
        raise RequestError(f"seconds must be between 1 and 3600, not {seconds:g}.")
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise RequestError(f"{out} cannot be written: its folder does not exist.")
    local = card_here(gpu, "calibrate")
    refuse_busy(local, share)
    wanted = list(shipped_operators() if operators is None else operators)
    environment = EnvironmentAhead(local)
    make = worker_factory or _real_worker
    env = only_visible(local)
    with CardWatch(local) as watch:
        run = _Run(wanted, seconds, watch, progress, lambda: make(env))
        try:
            run.all()
        except KeyboardInterrupt:
            run.interrupted = True
    if not run.samples:
        if run.interrupted:
            raise KeyboardInterrupt
        why = max(run.refused, key=run.refused.__getitem__, default="none was begun in time")
        raise SegplanError(f"No operator could be timed: {why}.")
    known = environment.get()
    times = OperatorTimes(
        card=as_card(local).slug,
        card_name=local.name,
        card_uuid=local.uuid,
        times=tuple(OperatorTime(wanted[i], run.samples[i]) for i in sorted(run.samples)),
        wanted=len(wanted),
        software={
            "torch": known.torch, "cuda": known.cuda, "cudnn": known.cudnn,
            "driver": known.driver, "segplan": segplan.__version__,
        },
        throttled=run.held_back(),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    return _kept(_concluded(local, times, run), store, out)


class _Run:
    """The operators' times as they come in; starts the process anew where one kills it."""

    def __init__(
        self,
        wanted: Sequence[Operator],
        seconds: float,
        watch: CardWatch,
        progress: Progress,
        make: Callable[[], CardWorker],
    ) -> None:
        self.wanted, self.left_s, self.watch, self.make = wanted, seconds, watch, make
        self.progress = progress
        self.samples: dict[int, tuple[float, ...]] = {}
        self.refused: dict[str, int] = {}
        self.states: list[CardState] = []
        self.build: str | None = None
        self.spent_s = 0.0
        self.interrupted = False
        self.crashes = 0
        self._at = -1

    def all(self) -> None:
        """Time all operators, or as many as there is time for."""
        plain = operators_request(self.wanted)
        first = 0
        while first < len(self.wanted) and self.left_s > 0:
            self._at = first - 1
            worker = self.make()
            began = self.watch.read().at_s
            try:
                with contextlib.closing(worker):
                    worker.start()
                    request = {**plain, "first": first, "seconds": self.left_s}
                    reply = worker.call(request, self.left_s + LONGEST_OPERATOR_S, self._heard)
                self.spent_s += float(reply["spent"])
                return
            except (WorkerCrashed, WorkerFailed, WorkerTimedOut) as error:
                self.crashes += 1
                if self.crashes > MOST_CRASHES or self._at < first:
                    raise
                self._refuse(str(error))
                took = self.watch.read().at_s - began
                self.left_s -= took
                self.spent_s += took
                first = self._at + 1

    def held_back(self) -> tuple[str, ...] | None:
        """Why the card was held back, and whether another process came after the first operator
        (a process of ours that was started anew would look like one)."""
        first = self.states[0] if self.states and not self.crashes else None
        return held_back(self.states, newcomers_of=first)

    def _heard(self, news: dict[str, Any]) -> None:
        if "build" in news:
            self.build = str(news["build"])
        if "at" not in news:
            return
        self._at = int(news["at"])
        if "seconds" in news:
            self.samples[self._at] = tuple(float(s) for s in news["seconds"])
        elif "why_not" in news:
            self._refuse(str(news["why_not"]))
        else:
            return
        if self._at % LOOK_EVERY == 0:
            self.states.append(self.watch.read())
        self.progress(self._at + 1, len(self.wanted), "timing operators")

    def _refuse(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1


def _concluded(local: LocalCard, times: OperatorTimes, run: _Run) -> CalibrationRun:
    card = as_card(local)
    by_kind: tuple[KindTimes, ...] = ()
    warnings = []
    try:
        by_kind = _by_kind(times, rates_by_precision(card))
    except NotTimeable as error:
        warnings.append(
            f"Predictions cannot use this calibration: {error}. Describe the card in a YAML file "
            "(segplan gpus says how)."
        )
    timed = len(times.times)
    if timed < times.wanted - sum(run.refused.values()):
        warnings.append(
            f"{timed} of {times.wanted} operators were timed before the time was over; the most "
            "telling came first. --seconds gives more."
        )
    last = run.states[-1] if run.states else CardState(0.0)
    health = Health(
        throttled=times.throttled,
        power_limit_w=last.power_limit_w or local.power_limit_w,
        power_default_w=last.power_default_w,
        build=run.build,
        is_slice=isinstance(local.mig, MigSlice),
    )
    noisy = [t for t in times.times if t.spread > NOISY_SHARE]
    return CalibrationRun(
        card=times.card,
        card_name=times.card_name,
        times=times,
        by_kind=by_kind,
        refused=dict(sorted(run.refused.items(), key=lambda item: -item[1])),
        spent_s=run.spent_s,
        noisy=len(noisy) / timed,
        health=tuple(s.replace("run bench", "run calibrate") for s in findings(health)),
        kept_at=None,
        interrupted=run.interrupted,
        warnings=tuple(warnings),
    )


def _by_kind(times: OperatorTimes, rates: dict[str, Rates]) -> tuple[KindTimes, ...]:
    import numpy as np

    table, errors, _ = residuals(times.times, rates, shipped_calibration())
    found = []
    for number in np.unique(table.kind):
        ratios = np.exp(errors[table.kind == number])
        low, high = np.quantile(ratios, (0.1, 0.9))
        found.append(
            KindTimes(
                KINDS[number], len(ratios), statistics.median(ratios.tolist()), float(low),
                float(high),
            )
        )  # fmt: skip
    return tuple(found)


def _kept(run: CalibrationRun, store: str | None, out: str | None) -> CalibrationRun:
    """Write it where predictions look for it, and to `out`; a failure is told, not raised."""
    text = json.dumps(times_plain(run.times), separators=(",", ":")) + "\n"
    told = list(run.warnings)
    kept_at = None
    folder = calibrations_folder(store)
    if folder is not None:
        path = folder / f"{_file_name(run.times)}.json"
        try:
            _write(path, text)
            kept_at = str(path)
        except OSError as error:
            told.append(
                f"The calibration was not kept: {path} cannot be written "
                f"({error.strerror or error}). Name another place with --store PATH."
            )
    if out is not None:
        try:
            _write(Path(out), text)
        except OSError as error:
            told.append(f"{out} cannot be written ({error.strerror or error}).")
    return dataclasses.replace(run, kept_at=kept_at, warnings=tuple(told))


def _file_name(times: OperatorTimes) -> str:
    text = times.card_uuid or times.card
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in text)


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _real_worker(env: Mapping[str, str]) -> CardWorker:
    return Worker(TARGET, env=env, startup=STARTUP)
