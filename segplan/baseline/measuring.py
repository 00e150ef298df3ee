"""The measurement loop: 1,920 images per iteration, five iterations, warm-up outside the count."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from segplan.baseline.networks import CLASSES, IMAGE
from segplan.baseline.results import Method, Mode, Series, method_of
from segplan.errors import CardError
from segplan.step.train import AMP_DTYPES, backend_flags
from segplan.workload import Workload

LEAST_WARMUP_PASSES = 3
WARMUP_S = 2.0
"""Seconds of work before the count: clocks rise, and cuDNN chooses its algorithms."""

_MEMORY = re.compile(
    r"out of memory|ALLOC_FAILED|ALLOCATION_FAILED|unable to find an engine", re.IGNORECASE
)

Told = Callable[[int, float], None]
"""Called with (0, 0.0) when the count begins, then with each iteration's number and seconds."""


@dataclass(frozen=True)
class Request:
    """One series to measure.

    Attributes:
        network: as `segplan.baseline.results.NETWORKS` names it.
        precision: "fp16", "bf16", "tf32" or "fp32".
        mode: inference or training.
        batch: images in one pass; None: the largest power of two that divides `images` and fits.
        images: of one iteration.
        iterations: how many are timed.
        channels_last: put tensors in channels_last format.
        zeros: images of zeros, as in AutoDL's table, instead of random ones.
    """

    network: str
    precision: str
    mode: Mode
    batch: int | None
    images: int
    iterations: int
    channels_last: bool = False
    zeros: bool = False


class Runner(Protocol):
    """One pass over a batch."""

    def __call__(self, images: Tensor) -> None:
        """Enqueue the pass."""


def measure(
    request: Request,
    make: Callable[[], nn.Module],
    told: Told,
    *,
    device: str = "cuda",
    clock: Callable[[], float] = time.perf_counter,
) -> Series:
    """Measure one series.

    The batch is halved until it fits, before anything counts. Iterations are timed by
    the wall clock between two waits for the card, as the published tables are.

    Args:
        request: what to measure.
        make: builds the network.
        told: called when the count begins and after each iteration.
        device: "cuda"; a test may run it on the "cpu".
        clock: seconds.

    Raises:
        CardError: not even one image fits.
    """
    batch = request.batch or request.images & -request.images
    while True:
        try:
            seconds = _attempt(request, make, batch, told, device, clock)
            break
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not _MEMORY.search(f"{type(error).__name__} {error}"):
                raise
        # Outside the handler: the exception has gone, and with it what the attempt held.
        _clean_up(device)
        if batch == 1:
            raise CardError(
                f"not even one image of {request.network} ({request.precision}) fits the memory "
                "that is free: free the card and run bench again."
            )
        batch //= 2
    return Series(
        network=request.network,
        precision=request.precision,
        mode=request.mode,
        method=method_of(request.precision, request.mode),
        batch=batch,
        images=request.images,
        seconds=tuple(seconds),
        channels_last=request.channels_last,
        zeros=request.zeros,
        asked_batch=request.batch or request.images & -request.images,
    )


def _attempt(
    request: Request,
    make: Callable[[], nn.Module],
    batch: int,
    told: Told,
    device: str,
    clock: Callable[[], float],
) -> list[float]:
    """Seconds of each iteration with this batch; everything it holds goes when it returns."""
    sizes = [batch] * (request.images // batch)
    if request.images % batch:
        sizes.append(request.images % batch)
    # cuDNN chooses by measuring, as timm's and NVIDIA's benchmark scripts let it.
    flags = Workload(precision=request.precision, cudnn_benchmark=True)
    with backend_flags(flags):
        run = _runner(request, make(), device)
        images = _images(request, min(batch, request.images), device)
        began, passes = clock(), 0
        while passes < LEAST_WARMUP_PASSES or clock() - began < WARMUP_S:
            for size in sorted(set(sizes), reverse=True):  # cuDNN chooses for each shape
                run(images[:size])
            _synchronize(device)
            passes += 1
        told(0, 0.0)
        seconds: list[float] = []
        for number in range(1, request.iterations + 1):
            start = clock()
            for size in sizes:
                run(images[:size])
            _synchronize(device)
            seconds.append(clock() - start)
            told(number, seconds[-1])
    _clean_up(device)
    return seconds


def _images(request: Request, batch: int, device: str) -> Tensor:
    shape = (batch, 3, IMAGE, IMAGE)
    make = torch.zeros if request.zeros else torch.randn
    images = make(shape, device=device, dtype=torch.float32)
    if method_of(request.precision, request.mode) is Method.CAST:
        images = images.to(AMP_DTYPES[request.precision])
    return images.to(memory_format=_layout(request))


def _layout(request: Request) -> torch.memory_format:
    return torch.channels_last if request.channels_last else torch.contiguous_format


def _runner(request: Request, network: nn.Module, device: str) -> Runner:
    method = method_of(request.precision, request.mode)
    network = network.to(device)
    if method is Method.CAST:
        network = network.to(AMP_DTYPES[request.precision])
    if request.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if request.mode is Mode.INFERENCE:
        network.eval()

        def infer(images: Tensor) -> None:
            with torch.inference_mode():
                network(images)

        return infer
    return _trainer(request, network, device)


def _trainer(request: Request, network: nn.Module, device: str) -> Runner:
    """SGD with momentum on cross-entropy, as timm's and NVIDIA's benchmark scripts train."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=request.precision == "fp16")
    dtype = AMP_DTYPES.get(request.precision)
    labels = torch.randint(0, CLASSES, (request.images,), device=device)

    def train(images: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = functional.cross_entropy(network(images), labels[: images.shape[0]])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _clean_up(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def series_plain(series: Series) -> dict[str, Any]:
    """A series as JSON values: what the child process answers."""
    return {
        "network": series.network,
        "precision": series.precision,
        "mode": series.mode.value,
        "method": series.method.value,
        "batch": series.batch,
        "images": series.images,
        "seconds": list(series.seconds),
        "channels_last": series.channels_last,
        "zeros": series.zeros,
        "asked_batch": series.asked_batch,
    }
