"""`bench`: ResNet50 and ViT-B/16 on a card that is here, beside published figures."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import segplan
from segplan.api.bench_keeping import BenchKeeper, usable
from segplan.api.bench_series import CardWorker, HealthSeen, IterationTold, measure_series
from segplan.api.measuring import refuse_busy
from segplan.api.recording import EnvironmentAhead
from segplan.baseline.comparing import judge_card
from segplan.baseline.health import Health
from segplan.baseline.job import STARTUP, TARGET
from segplan.baseline.published import published
from segplan.baseline.results import (
    DEFAULT_PRECISIONS,
    IMAGES,
    ITERATIONS,
    NETWORKS,
    PRECISIONS,
    Bench,
    Mode,
    Series,
)
from segplan.errors import CardError, RequestError
from segplan.gpus import (
    GpuKind,
    LocalCard,
    NvmlUnavailable,
    as_card,
    only_visible,
    parse_gpus,
    select,
)
from segplan.gpus.nvml import local_cards
from segplan.probe.watch import CardWatch
from segplan.results import Environment
from segplan.worker import Worker


def bench(
    gpu: str = "0",
    *,
    networks: Sequence[str] | None = None,
    precisions: Sequence[str] | None = None,
    train: bool = False,
    batch: int | None = None,
    channels_last: bool = False,
    zeros: bool = False,
    share: bool = False,
    fresh: bool = False,
    store: str | None = None,
    on_series: Callable[[str, str], None] = lambda *_: None,
    on_iteration: IterationTold = lambda *_: None,
    on_known: Callable[[Series], None] = lambda _: None,
    worker_factory: Callable[[Mapping[str, str]], CardWorker] | None = None,
) -> Bench:
    """Measure the baseline networks on a card of this machine and judge the card by them.

    Each series is stored as it ends. Ctrl-C ends the check early, with what there is; the same
    call goes on from there, within a day and while all that matters is the same.

    Args:
        gpu: its index or UUID.
        networks: "resnet50", "vit_b_16"; None: both.
        precisions: "fp16", "bf16", "tf32", "fp32"; None: fp16, tf32 and fp32.
        train: training steps instead of inference.
        batch: images in one pass; None: 128, less where that does not fit.
        channels_last: tensors in channels_last format.
        zeros: images of zeros, as AutoDL's table has them, instead of random ones.
        share: measure although other processes use the card.
        fresh: measure everything, also what an interrupted check has kept.
        store: file the result is kept in; None: the default one.
        on_series: called with network and precision as a series begins to warm up.
        on_iteration: called after each iteration.
        on_known: called with a series that an interrupted check has kept.
        worker_factory: makes the process that measures; a test gives another.

    Raises:
        CardError: there is no such card here, it is busy, or torch cannot use it.
        RequestError: an unknown network or precision.
        WorkerError: the process that measures died; what was measured is stored.
        KeyboardInterrupt: before the first series ended.
    """
    nets = NETWORKS if networks is None else tuple(dict.fromkeys(networks))
    _check("network", nets, NETWORKS)
    if precisions is not None:
        _check("precision", precisions, PRECISIONS)
    if batch is not None and batch < 1:
        raise RequestError(f"batch must be at least 1, not {batch}.")
    local = card_here(gpu)
    refuse_busy(local, share)
    chosen, warnings = _precisions(precisions, local)
    requests: list[dict[str, Any]] = [
        {
            "network": network, "precision": precision,
            "mode": (Mode.TRAINING if train else Mode.INFERENCE).value, "batch": batch,
            "images": IMAGES, "iterations": ITERATIONS, "channels_last": channels_last,
            "zeros": zeros,
        }
        for network in nets for precision in chosen
    ]  # fmt: skip
    worker = (worker_factory or _real_worker)(only_visible(local))
    with contextlib.closing(worker), CardWatch(local) as watch:
        run = _Run(local, requests, store, watch, warnings)
        try:
            worker.start()
            if not fresh:
                run.take_up()
            for request in requests:
                name = request["network"], request["precision"]
                if name in run.known:
                    on_known(run.known[name])
                    run.add(run.known[name])
                    continue
                on_series(*name)
                run.add(measure_series(worker, request, watch, run.health, on_iteration))
        except KeyboardInterrupt:
            if not run.series:
                raise
        except BaseException:
            if run.series:
                run.finish()
            raise
    return run.finish()


class _Run:
    """The series of a check as they come in, each stored at once."""

    def __init__(
        self,
        local: LocalCard,
        requests: Sequence[Mapping[str, Any]],
        store: str | None,
        watch: CardWatch,
        warnings: Sequence[str],
    ) -> None:
        self.local, self.requests, self.warnings = local, requests, tuple(warnings)
        self.mode = Mode(requests[0]["mode"])
        self.keeper = BenchKeeper(store)
        self.health = HealthSeen(local, watch.read().power_limit_w or local.power_limit_w)
        self.series: list[Series] = []
        self.known: dict[tuple[str, str], Series] = {}
        self._environment = EnvironmentAhead(local)

    @property
    def environment(self) -> Environment:
        """Card and software."""
        return dataclasses.replace(
            self._environment.get(),
            segplan=segplan.__version__,
            python=platform.python_version(),
        )

    def take_up(self) -> None:
        """Take what an interrupted check of the very same has measured."""
        flags = bool(self.requests[0]["channels_last"]), bool(self.requests[0]["zeros"])
        now = self.health.seen()
        found = self.keeper.unfinished(
            self.mode, flags, self.environment, now.power_limit_w, now.others
        )
        if found is None:
            return
        at = datetime.now(UTC)
        for request in self.requests:
            for series in found.series:
                if usable(series, request, at):
                    self.known[series.network, series.precision] = series
        if self.known:
            self.health.earlier = found.health
        if len(self.known) == len(found.series):
            self.keeper.replace_unfinished()

    def add(self, series: Series) -> None:
        """One more; it is stored before this returns."""
        self.series.append(series)
        self.keeper.keep(self.concluded())

    def finish(self) -> Bench:
        """The check with all that was measured; kept once more, as it may have been cut short."""
        found = self.concluded()
        self.keeper.keep(found)
        return dataclasses.replace(found, warnings=(*found.warnings, *self.keeper.warnings))

    def concluded(self) -> Bench:
        """The check as far as it has come."""
        done, count = len(self.series), len(self.requests)
        warnings = []
        if done < count:
            warnings.append(
                f"Interrupted after {done} of {count} series: the same command goes on from "
                "there, within a day."
            )
        known = [s for s in self.series if s in self.known.values()]
        if known:
            since = min(s.made_at or "" for s in known).replace("T", " ")[:16]
            warnings.append(
                f"{len(known)} of {count} series were measured before an interruption, from "
                f"{since} UTC on: --fresh measures all of them now."
            )
        return _concluded(
            self.local, self.mode, tuple(self.series), self.health.seen(), self.environment,
            (*warnings, *self.warnings), interrupted=done < count,
        )  # fmt: skip


def card_here(gpu: str, command: str = "bench") -> LocalCard:
    """The card of this machine that `gpu` names, for a command that measures one.

    Raises:
        CardError: it names no card of this machine, or there is none; the message says the fix.
    """
    requests = parse_gpus(gpu)
    if len(requests) != 1 or requests[0].kind is not GpuKind.LOCAL:
        raise CardError(
            f"{command} measures one card of this machine, and '{gpu[:80]}' is none: write "
            "--gpu 0; segplan estimate and segplan fit predict cards by name."
        )
    reason = "the driver shows no card, or CUDA_VISIBLE_DEVICES leaves none"
    try:
        cards = local_cards()
    except NvmlUnavailable as error:
        cards, reason = (), error.reason
    if not cards:
        raise CardError(
            f"{command} measures a card of this machine, and no NVIDIA GPU is usable here "
            f"({reason}): run it on the machine with the card."
        )
    return select(requests[0].text, cards)


def _concluded(
    local: LocalCard,
    mode: Mode,
    series: tuple[Series, ...],
    health: Health,
    environment: Environment,
    warnings: tuple[str, ...],
    *,
    interrupted: bool,
) -> Bench:
    card = as_card(local)
    comparisons, verdict = judge_card(
        series, card, local.name, mode, environment.torch, health, published()
    )
    return Bench(
        card=card.slug,
        card_name=local.name,
        mode=mode,
        series=series,
        comparisons=comparisons,
        verdict=verdict,
        health=health,
        environment=environment,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=warnings,
        interrupted=interrupted,
    )


def _check(what: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise RequestError(f"bench knows no {what} '{value[:40]}': use {', '.join(known)}.")


def _precisions(asked: Sequence[str] | None, local: LocalCard) -> tuple[tuple[str, ...], list[str]]:
    """(what is measured, sentences on what is not)."""
    capability = local.compute_capability
    old = capability is not None and capability < (8, 0)
    if asked is None and old:
        return (
            tuple(p for p in DEFAULT_PRECISIONS if p != "tf32"),
            [f"The {local.name} has no TF32: its fp32 is what every table calls fp32."],
        )
    chosen = DEFAULT_PRECISIONS if asked is None else tuple(dict.fromkeys(asked))
    if capability is not None and old and "bf16" in chosen:
        raise CardError(
            f"the {local.name} has no bf16 (that takes compute capability 8.0, and it has "
            f"{capability[0]}.{capability[1]}): leave --precision bf16 out."
        )
    return chosen, []


def _real_worker(env: Mapping[str, str]) -> CardWorker:
    return Worker(TARGET, env=env, startup=STARTUP)
