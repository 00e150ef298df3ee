"""`bench`: ResNet50 and ViT-B/16 on a card that is here, beside published figures."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import segplan
from segplan.api.measuring import BUSY_BYTES, refuse_busy
from segplan.api.recording import EnvironmentAhead
from segplan.baseline.comparing import compare, judge
from segplan.baseline.health import Health, findings
from segplan.baseline.job import STARTUP, TARGET
from segplan.baseline.published import published
from segplan.baseline.results import (
    DEFAULT_PRECISIONS,
    IMAGES,
    ITERATIONS,
    NETWORKS,
    PRECISIONS,
    Comparison,
    Method,
    Mode,
    Series,
    Verdict,
)
from segplan.errors import CardError, RequestError, SegplanError, StoreError
from segplan.gpus import GpuKind, LocalCard, MigSlice, NvmlUnavailable, as_card, parse_gpus, select
from segplan.gpus.nvml import local_cards
from segplan.probe.watch import CardState, CardWatch, energy_per_step, held_back
from segplan.results import Environment, to_plain
from segplan.store import Store
from segplan.worker import Worker

SERIES_TIMEOUT_S = 1800.0
"""Seconds a series may take. The slowest figure of the tables is a T4's 99 images/s (ViT-B/16 in
fp32): training at a third of that, 9,600 images take about five minutes."""

SAMPLE_S = 0.2
"""Seconds between two looks at the card."""

IterationTold = Callable[[str, str, int, float, float], None]
"""Called with network, precision, iteration from 1, images per second and seconds."""


@dataclass(frozen=True)
class Bench:
    """A baseline check.

    Attributes:
        card: slug.
        card_name: as the driver names it.
        mode: inference or training.
        series: one for each network and precision.
        comparisons: published figures for each, the same card's first.
        verdict: whether the card performs as it should.
        health: what was seen of the card.
        environment: card and software.
        made_at: UTC time, ISO 8601.
        warnings: sentences a reader should know.
    """

    card: str
    card_name: str
    mode: Mode
    series: tuple[Series, ...]
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    health: Health
    environment: Environment
    made_at: str
    warnings: tuple[str, ...] = ()


class CardWorker(Protocol):
    """What measuring a card needs of a worker; a test gives another."""

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""

    @property
    def pid(self) -> int | None:
        """The process's number."""

    def start(self) -> Any:
        """Begin to import; returns at once."""

    def call(
        self,
        request: dict[str, Any],
        timeout_s: float,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """One answer."""

    def close(self) -> None:
        """End it."""


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
    store: str | None = None,
    on_series: Callable[[str, str], None] = lambda *_: None,
    on_iteration: IterationTold = lambda *_: None,
    worker_factory: Callable[[Mapping[str, str]], CardWorker] | None = None,
) -> Bench:
    """Measure the baseline networks on a card of this machine and judge the card by them.

    Args:
        gpu: its index or UUID.
        networks: "resnet50", "vit_b_16"; None: both.
        precisions: "fp16", "bf16", "tf32", "fp32"; None: fp16, tf32 and fp32.
        train: training steps instead of inference.
        batch: images in one pass; None: 128, less where that does not fit.
        channels_last: tensors in channels_last format.
        zeros: images of zeros, as AutoDL's table has them, instead of random ones.
        share: measure although other processes use the card.
        store: file the result is kept in; None: the default one.
        on_series: called with network and precision as a series begins to warm up.
        on_iteration: called after each iteration.
        worker_factory: makes the process that measures; a test gives another.

    Raises:
        CardError: there is no such card here, it is busy, or torch cannot use it.
        RequestError: an unknown network or precision.
        WorkerError: the process that measures died.
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
    mode = Mode.TRAINING if train else Mode.INFERENCE
    environment = EnvironmentAhead(local)
    asked = [(network, precision) for network in nets for precision in chosen]
    series: list[Series] = []
    health = _Health(local)
    make = worker_factory or _real_worker
    worker = make({"CUDA_VISIBLE_DEVICES": local.uuid or str(local.index or 0)})

    def finished() -> Bench:
        return _concluded(
            local, mode, tuple(series), health.seen(), environment.get(), tuple(warnings)
        )

    try:
        with contextlib.closing(worker), CardWatch(local) as watch:
            worker.start()
            for network, precision in asked:
                on_series(network, precision)
                request = {
                    "network": network, "precision": precision, "mode": mode.value,
                    "batch": batch, "images": IMAGES, "iterations": ITERATIONS,
                    "channels_last": channels_last, "zeros": zeros,
                }  # fmt: skip
                series.append(_measured(worker, request, watch, health, on_iteration))
    except BaseException:
        if series:  # Ctrl-C loses nothing that was measured
            with contextlib.suppress(StoreError):
                _keep(finished(), store)
        raise
    found = finished()
    try:
        _keep(found, store)
    except StoreError as error:
        told = f"The check was not stored: {error} Or keep it with --json."
        found = dataclasses.replace(found, warnings=(*found.warnings, told))
    return found


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


def document(found: Bench) -> dict[str, Any]:
    """A check as JSON values; what is computed from the samples is written out."""
    plain: dict[str, Any] = to_plain(found)
    for values, series in zip(plain["series"], found.series, strict=True):
        values |= {"images_per_s": series.images_per_s, "rates": list(series.rates)}
    for values, comparison in zip(plain["comparisons"], found.comparisons, strict=True):
        values |= {"ratio": comparison.ratio, "slow": comparison.slow}
    return plain


def _concluded(
    local: LocalCard,
    mode: Mode,
    series: tuple[Series, ...],
    health: Health,
    environment: Environment,
    warnings: tuple[str, ...],
) -> Bench:
    card = as_card(local)
    comparisons = [
        comparison
        for one in series
        for comparison in compare(one, card, environment.torch, published())
    ]
    return Bench(
        card=card.slug,
        card_name=local.name,
        mode=mode,
        series=series,
        comparisons=tuple(comparisons),
        verdict=judge(series, comparisons, local.name, findings(health)),
        health=health,
        environment=dataclasses.replace(
            environment, segplan=segplan.__version__, python=platform.python_version()
        ),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=warnings,
    )


def _keep(found: Bench, path: str | None) -> None:
    with Store.open(path) as store:
        store.add_bench(document(found))


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


def _measured(
    worker: CardWorker,
    request: dict[str, Any],
    watch: CardWatch,
    health: _Health,
    on_iteration: IterationTold,
) -> Series:
    """One series, with what was seen of the card meanwhile."""
    sampler = _Sampler(watch)

    def heard(news: dict[str, Any]) -> None:
        if "build" in news:
            health.build = str(news["build"])
        if "iteration" not in news:
            return
        number, seconds = int(news["iteration"]), float(news["seconds"])
        sampler.mark(begin=number == 0)
        if number:
            rate = request["images"] / seconds
            on_iteration(request["network"], request["precision"], number, rate, seconds)

    with sampler:
        reply = worker.call(request, SERIES_TIMEOUT_S, heard)
    try:
        series = Series(
            **{
                **reply,
                "mode": Mode(reply["mode"]),
                "method": Method(reply["method"]),
                "seconds": tuple(float(s) for s in reply["seconds"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SegplanError(f"The child process's answer makes no sense ({error!r}).") from error
    states = sampler.counted
    health.states += states
    images = len(series.seconds) * series.images
    energy = None
    if len(states) > 1:
        first, last = states[0], states[-1]
        energy = energy_per_step(first.energy_j, last.energy_j, images, last.at_s - first.at_s)
    draws = [s.power_w for s in states if s.power_w is not None]
    clocks = [s.sm_mhz for s in states if s.sm_mhz is not None]
    return dataclasses.replace(
        series,
        energy_j_per_image=energy,
        throttled=held_back(states),
        power_w=statistics.fmean(draws) if draws else None,
        temperature_c=max((s.temperature_c for s in states if s.temperature_c), default=None),
        sm_mhz=round(statistics.median(clocks)) if clocks else None,
    )


class _Sampler:
    """Looks at the card every now and then, in a thread, while the count goes on."""

    def __init__(self, watch: CardWatch) -> None:
        self._watch = watch
        self._states: list[CardState] = []
        self._marks: list[float] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, *, begin: bool) -> None:
        """A look at the beginning of the count, or at the end of an iteration."""
        with self._lock:
            if begin:  # of the batch that fits: what was seen before counts no more
                self._states.clear()
                self._marks.clear()
            self._states.append(self._watch.read())
            self._marks.append(self._states[-1].at_s)

    @property
    def counted(self) -> list[CardState]:
        """What was seen from the beginning of the count to the end of its last iteration."""
        if not self._marks:
            return []
        return [s for s in self._states if self._marks[0] <= s.at_s <= self._marks[-1]]

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with self._lock:
                self._states.append(self._watch.read())


class _Health:
    """Gathers what is seen of the card."""

    def __init__(self, local: LocalCard) -> None:
        self._local = local
        self.build: str | None = None
        self.states: list[CardState] = []

    def seen(self) -> Health:
        """All of it together; links and limits as they were under load."""
        states, local = self.states, self._local
        widths = [s.pcie_width for s in states if s.pcie_width is not None]
        gens = [s.pcie_gen for s in states if s.pcie_gen is not None]
        heat = [s.temperature_c for s in states if s.temperature_c is not None]
        last = states[-1] if states else CardState(0.0)
        others = None
        if local.processes is not None:
            others = sum((p.used_bytes or 0) >= BUSY_BYTES for p in local.processes)
        return Health(
            throttled=held_back(states),
            power_limit_w=last.power_limit_w or local.power_limit_w,
            power_default_w=last.power_default_w,
            temperature_c=max(heat, default=None),
            pcie_gen=max(gens, default=None),
            pcie_gen_max=local.pcie_gen_max,
            pcie_width=max(widths, default=None),
            pcie_width_max=local.pcie_width_max,
            others=others,
            build=self.build,
            is_slice=isinstance(local.mig, MigSlice),
        )


def _real_worker(env: Mapping[str, str]) -> CardWorker:
    return Worker(TARGET, env=env, startup=STARTUP)
