"""Measuring MONAI's data loader on this machine: first visits of cases, then later ones."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segplan.dataset.labels import evenly
from segplan.dataset.nouns import (
    CacheMode,
    LoaderRate,
    Problem,
    Sampled,
    sampled,
)
from segplan.dataset.pipeline import (
    Recipe,
    TimedDataset,
    Visit,
    collate,
    items_of,
    kernel_bytes,
    make_dataset,
    rss_bytes,
)
from segplan.dataset.scan import Case, Dataset, Progress
from segplan.errors import RequestError, WorkerError
from segplan.results import Environment
from segplan.units import GIB

PREFETCH = 2
"""Batches that each worker prepares ahead: PyTorch's default."""

BATCH_TIMEOUT_S = 600.0
"""Seconds after which a batch that does not come is given up."""

GRACE_S = 1.0
"""Seconds in which the system reports a process that has ended."""

BLOCKS = 10
"""Parts that a measurement is cut into; their rates make the interval."""

STARTS = 3
"""Epochs whose start is timed: the first may still find less in the page cache."""

FREE_SHARE = 0.8
"""Of the free memory (or disk) a measurement takes no more than this."""


@dataclass(frozen=True)
class LoaderRequest:
    """How to load, and for how long.

    Attributes:
        recipe: what the pipeline does.
        workers: processes; 0: this one.
        batch: cases in a batch.
        cache: what keeps prepared cases.
        cache_dir: folder for a cache on disk, emptied by the caller.
        seconds: of the measurement; the first visit under way is finished.
        most_cases: different cases to visit.
    """

    recipe: Recipe
    workers: int
    batch: int
    cache: CacheMode
    cache_dir: Path | None
    seconds: float
    most_cases: int


@dataclass
class _Log:
    """What has been measured so far: everything a rate is made of."""

    start_s: float
    first: list[tuple[float, Visit]] = field(default_factory=list)
    later: list[tuple[float, Visit]] = field(default_factory=list)
    faults: dict[int, Visit] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    interrupted: bool = False

    def add(self, visits: Sequence[Visit]) -> None:
        now = time.perf_counter() - self.start_s
        for visit in visits:
            if visit.fault is not None:
                self.faults[visit.index] = visit
            elif visit.index in self.seen:
                self.later.append((now, visit))
            else:
                self.seen.add(visit.index)
                self.first.append((now, visit))

    @property
    def patches(self) -> int:
        return sum(v.patches for _, v in (*self.first, *self.later))


def measure(dataset: Dataset, asked: str, request: LoaderRequest, progress: Progress) -> LoaderRate:
    """Load cases until the time is over, and tell how fast that went.

    Ctrl-C ends it early, with what was measured until then. Not measured: how a training
    process on the same host slows the loader, the memory that CUDA takes of the host, and
    network drives that other machines keep busy.

    Args:
        dataset: its usable cases have labels.
        asked: the dataset's path as a person wrote it.
        request: how, and for how long.
        progress: called with (seconds, of so many, what).

    Raises:
        RequestError: no case has a label, none can be loaded, or they need more memory than
            is free.
        WorkerError: a worker died or does not answer.
        KeyboardInterrupt: before anything was measured.
    """
    labelled = [c for c in dataset.cases if c.label is not None]
    if not labelled:
        raise RequestError(f"{asked} has no labelled case: the crops are taken around labels.")
    cases = evenly(labelled, request.most_cases)
    _check_room(cases, request)
    progress(0, int(request.seconds), "importing MONAI")
    with _quiet():
        base = _import()
        inner = make_dataset(items_of(cases), request.recipe, request.cache, request.cache_dir)
        _drop_from_page_cache(cases)
        log = _Log(time.perf_counter())
        try:
            _fill(inner, cases, request, log, progress)
            _run(inner, request, log, progress)
            _restart(inner, request, log, progress)
        except KeyboardInterrupt:
            if not log.seen:
                raise
            log.interrupted = True
    if not log.seen:
        _raise_for_none(cases, log)
    return _rate(dataset, labelled, cases, asked, request, log, base)


def _import() -> int:
    """Load what the loader needs; bytes this process then holds."""
    import monai.data
    import monai.transforms  # noqa: F401

    return rss_bytes()


def _fill(
    inner: Any, cases: Sequence[Case], request: LoaderRequest, log: _Log, progress: Progress
) -> None:
    """First visits of a cache in memory: in threads of this process, as MONAI fills it."""
    if request.cache is not CacheMode.MEMORY:
        return
    timed = TimedDataset(inner)
    with ThreadPoolExecutor(max(1, request.workers)) as pool:
        visits = [pool.submit(timed.__getitem__, place) for place in range(len(cases))]
        try:
            for future in as_completed(visits):
                log.add([future.result()[1]])
                elapsed = time.perf_counter() - log.start_s
                _tell(progress, request, elapsed, f"filling the cache, {len(log.seen)} cases")
                if elapsed > request.seconds:
                    break
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run(inner: Any, request: LoaderRequest, log: _Log, progress: Progress) -> None:
    """Visits through PyTorch's DataLoader until the time is over."""
    filled = sorted(log.seen) if request.cache is CacheMode.MEMORY else list(range(len(inner)))
    if not filled:
        return
    loader = _loader(inner, request, _Endless(filled, log.faults))
    spent = time.perf_counter() - log.start_s
    end = max(request.seconds, spent + request.seconds / 3) if spent > 0.01 else request.seconds
    with _told():
        _take(loader, log, request, end, progress)


def _restart(inner: Any, request: LoaderRequest, log: _Log, progress: Progress) -> None:
    """Short epochs of one batch for each worker: what starting and ending an epoch costs."""
    good = sorted(log.seen - set(log.faults))
    if not request.workers or not good:
        return
    count = request.workers * request.batch
    order = [good[place % len(good)] for place in range(count)]
    for _ in range(STARTS):
        _tell(progress, request, request.seconds, "starting an epoch")
        begin = time.perf_counter()
        loader = _loader(inner, request, order)
        first = last = begin
        with _told():
            for place, _batch in enumerate(loader):
                last = time.perf_counter()
                first = last if place == 0 else first
                del _batch
        del loader
        log.starts.append((first - begin) + (time.perf_counter() - last))


def _loader(inner: Any, request: LoaderRequest, sampler: Any) -> Any:
    """PyTorch's DataLoader over the cases; its items tell of their visits."""
    from torch.utils.data import DataLoader

    workers = request.workers
    more: dict[str, Any] = {}
    if workers:
        context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        more = {
            "prefetch_factor": PREFETCH, "timeout": BATCH_TIMEOUT_S,
            "worker_init_fn": _begin_worker, "multiprocessing_context": context,
        }  # fmt: skip
    return DataLoader(
        TimedDataset(inner),  # type: ignore[arg-type]
        batch_size=request.batch, sampler=sampler, num_workers=workers,
        collate_fn=collate, **more,
    )  # fmt: skip


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What a loader raises, as a sentence.

    Raises:
        WorkerError: a worker died or does not answer.
    """
    failure = None
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        failure = _sentence(error)
    # Only now, with the error gone, are the loader's workers: while PyTorch watches them, a
    # dead one raises anywhere.
    if failure is not None:
        raise WorkerError(failure)


def _take(loader: Any, log: _Log, request: LoaderRequest, end: float, progress: Progress) -> None:
    try:
        for _patches, visits in loader:
            del _patches
            log.add(visits)
            elapsed = time.perf_counter() - log.start_s
            _tell(progress, request, elapsed, f"loading, {log.patches} patches")
            if elapsed >= end:
                return
    except (OSError, EOFError):
        # A worker that was killed leaves a broken pipe first; PyTorch tells more in a moment.
        time.sleep(GRACE_S)
        raise


class _Endless:
    """The cases in order once, then shuffled for ever; those that failed only once."""

    def __init__(self, indices: Sequence[int], faults: dict[int, Visit]) -> None:
        self._indices = list(indices)
        self._faults = faults

    def __iter__(self) -> Iterator[int]:
        shuffle = random.Random(0)
        yield from self._indices
        while True:
            left = [i for i in self._indices if i not in self._faults]
            if not left:
                return
            shuffle.shuffle(left)
            yield from left


def _begin_worker(worker: int) -> None:
    from monai.data.utils import worker_init_fn

    worker_init_fn(worker)  # the random state of every transform, as MONAI's loader does
    # Ctrl-C reaches the whole group; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A thread that hands on tensors as the parent leaves would print its traceback.
    sys.excepthook = lambda *_: None


def _tell(progress: Progress, request: LoaderRequest, elapsed: float, text: str) -> None:
    total = int(request.seconds)
    progress(min(int(elapsed), total), total, text)


def _sentence(error: Exception) -> str:
    text = str(error)
    if "timed out" in text:
        return (
            f"the loader's workers gave no batch for {BATCH_TIMEOUT_S:.0f} s: a drive does not "
            "answer, or a case is too large; try --workers 0 --cases 1."
        )
    died = "exited unexpectedly" in text or "killed by signal" in text
    if died or isinstance(error, (ConnectionError, EOFError)):
        return (
            "a loader worker was killed, most often because memory or /dev/shm ran out: use fewer "
            "--workers, a smaller --batch or --cache none (in Docker, a larger --shm-size)."
        )
    lines = text.strip().splitlines()
    return f"the loader stopped: {lines[0][:200] if lines else type(error).__name__}"


def _raise_for_none(cases: Sequence[Case], log: _Log) -> None:
    """Nothing was loaded: say so, and why.

    Raises:
        RequestError: always.
    """
    if log.faults:
        place = min(log.faults)
        fault = log.faults[place].fault
        why = f"{cases[place].files.name}: {fault[1] if fault else ''}"
        raise RequestError(f"none of {len(log.faults)} cases can be loaded. {why}")
    raise RequestError("no case was loaded in that time: give more --seconds.")


# What the samples add up to -----------------------------------------------------------------


def _rate(
    dataset: Dataset,
    labelled: Sequence[Case],
    cases: Sequence[Case],
    asked: str,
    request: LoaderRequest,
    log: _Log,
    base: int,
) -> LoaderRate:
    visits = [v for _, v in (*log.first, *log.later)]
    prepared = round(statistics.fmean(v.prepared_bytes for _, v in log.first))
    began = log.first[-1][0]
    # Whatever came with the last first visits was under way beside them.
    later = [(t, v) for t, v in log.later if t > began]
    first_rate = _throughput(log.first, 0.0, request)
    rate = _throughput(later, began, request) if len(later) > 1 else first_rate
    recipe = request.recipe
    read = {
        CacheMode.NONE: statistics.fmean(cases[v.index].stored_bytes for v in visits),
        CacheMode.DISK: float(prepared),
        CacheMode.MEMORY: 0.0,
    }[request.cache]
    cache_bytes = prepared * len(labelled)
    worker_bytes = max(v.added_bytes for v in visits)
    prefetch = _prefetch_bytes(dataset.channels or 1, request)
    held = cache_bytes if request.cache is CacheMode.MEMORY else 0
    return LoaderRate(
        path=asked, cases=len(labelled), measured=len(log.seen), visits=len(visits),
        workers=request.workers, cache=request.cache, patch=recipe.patch,
        num_samples=recipe.num_samples, batch=request.batch, spacing=recipe.spacing,
        patches_per_s=rate, first_patches_per_s=first_rate,
        mb_per_s=rate.value / recipe.num_samples * read / 1e6,
        cold_s=_seconds([v for _, v in log.first]), warm_s=_seconds([v for _, v in log.later]),
        case_bytes=prepared, cache_bytes=cache_bytes, worker_bytes=worker_bytes,
        prefetch_bytes=prefetch,
        host_bytes=base + max(1, request.workers) * worker_bytes + prefetch + held,
        interrupted=log.interrupted, environment=_environment(),
        problems=tuple(_problems(dataset, cases, log)),
        notes=tuple(_notes(request, later, log)),
        start_s=sampled(statistics.median(log.starts), log.starts) if log.starts else None,
    )  # fmt: skip


def _throughput(
    arrivals: Sequence[tuple[float, Visit]], start: float, request: LoaderRequest
) -> Sampled:
    """Patches per second from `start` on, with those of at most ten parts.

    A part holds at least one batch of each worker: they come in bursts.
    """
    least = max(1, request.workers) * request.batch
    size = max(least, -(-len(arrivals) // BLOCKS))
    rates, begin = [], start
    for place in range(0, len(arrivals), size):
        part = arrivals[place : place + size]
        took = part[-1][0] - begin
        if len(part) == size and took > 0:
            rates.append(sum(v.patches for _, v in part) / took)
        begin = part[-1][0]
    whole = sum(v.patches for _, v in arrivals) / max(arrivals[-1][0] - start, 1e-9)
    return sampled(whole, rates)


def _seconds(visits: Sequence[Visit]) -> Sampled | None:
    if not visits:
        return None
    times = [v.seconds for v in visits]
    return sampled(statistics.median(times), times)


def _problems(dataset: Dataset, cases: Sequence[Case], log: _Log) -> Iterator[Problem]:
    root = dataset.listing.root
    for place, visit in sorted(log.faults.items()):
        if visit.fault is not None:
            path = cases[place].image.path
            file = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
            yield Problem(file, *visit.fault)


def _notes(
    request: LoaderRequest, later: Sequence[tuple[float, Visit]], log: _Log
) -> Iterator[str]:
    if len(later) <= 1:
        yield "No case was visited twice: the rate is that of first visits; give more --seconds."
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is not None and request.workers > cores:
        yield f"{request.workers} workers share {cores} cores."
    if not hasattr(os, "posix_fadvise"):
        yield "First visits may have found their files in the page cache already."
    if log.faults:
        yield f"{len(log.faults)} of the visited cases cannot be loaded."


def _environment() -> Environment:
    import monai
    import torch

    import segplan

    return Environment(
        torch=str(torch.__version__), monai=str(monai.__version__), segplan=segplan.__version__,
        python=platform.python_version(), host_cpu=_host_cpu(),
    )  # fmt: skip


def _host_cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or None
    except OSError:
        pass
    return platform.processor() or None


# Room for it --------------------------------------------------------------------------------


def _prefetch_bytes(channels: int, request: LoaderRequest) -> int:
    """Bytes of the patches that wait: each worker's batches ahead, and the one in use."""
    h, w, d = request.recipe.patch
    batch = h * w * d * 4 * (channels + 1) * request.recipe.num_samples * request.batch
    return batch * (PREFETCH * request.workers + 1)


def _prepared_bytes(case: Case, recipe: Recipe) -> int:
    """Bytes of a prepared case, image and label as float32, padded to the patch."""
    sizes = [max(n, p) for n, p in zip(case.resampled(recipe.spacing), recipe.patch, strict=True)]
    return sizes[0] * sizes[1] * sizes[2] * 4 * (case.channels + 1)


def _check_room(cases: Sequence[Case], request: LoaderRequest) -> None:
    """Refuse what this machine cannot hold, before it tries.

    Raises:
        RequestError: memory, shared memory or disk would run out.
    """
    prepared = [_prepared_bytes(c, request.recipe) for c in cases]
    stored = [4 * c.image.voxels * (c.channels + 1) // c.image.channels for c in cases]
    # A worker holds a case as stored and as prepared at the same time.
    at_once = max(1, request.workers) * max(p + s for p, s in zip(prepared, stored, strict=True))
    waiting = _prefetch_bytes(max(c.channels for c in cases), request)
    held = sum(prepared) if request.cache is CacheMode.MEMORY else 0
    free = _available_memory()
    if free is not None and at_once + waiting + held > FREE_SHARE * free:
        raise RequestError(
            f"loading would take {(at_once + waiting + held) / GIB:.1f} GiB of the host's memory, "
            f"and {free / GIB:.1f} GiB are free: use fewer --workers or --cases, a smaller --patch "
            "or a coarser --spacing."
        )
    shared = _free_space(Path("/dev/shm"))
    if request.workers and shared is not None and waiting > shared:
        raise RequestError(
            f"the workers' queues take {waiting / GIB:.1f} GiB of shared memory, and /dev/shm has "
            f"{shared / GIB:.1f} GiB: use fewer --workers, or a larger --shm-size in Docker."
        )
    if request.cache is CacheMode.DISK and request.cache_dir is not None:
        space = _free_space(request.cache_dir)
        if space is not None and sum(prepared) > FREE_SHARE * space:
            raise RequestError(
                f"the cache takes {sum(prepared) / GIB:.1f} GiB, and {request.cache_dir} has "
                f"{space / GIB:.1f} GiB: use fewer --cases, or name another --cache-dir."
            )


def _available_memory() -> int | None:
    return kernel_bytes(Path("/proc/meminfo"), "MemAvailable")


def _free_space(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _drop_from_page_cache(cases: Sequence[Case]) -> None:
    """Let the first visits read the disk; needs no rights, and is only a request."""
    if not hasattr(os, "posix_fadvise"):
        return
    for case in cases:
        label = [case.files.label] if case.files.label is not None else []
        for path in (*case.files.images, *label):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MONAI's and nibabel's remarks about single files off the terminal."""
    loggers = [logging.getLogger(name) for name in ("nibabel.global", "LoadImage", "monai")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
