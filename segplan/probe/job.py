"""The child process's side of a probe: a workload in, raw numbers out.

Heavy modules are imported by `preload`, in a process that has not touched a card yet.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from segplan.errors import SegplanError
from segplan.probe.messages import ProbeRequest
from segplan.probe.outcomes import KERNEL_ELEMENTS, classify, first_line, settled
from segplan.probe.watch import (
    LONGEST_STEP_S,
    StepWatch,
    WatchedReply,
    WatchedRequest,
    hold_for,
    stable,
)
from segplan.results import Outcome
from segplan.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from segplan.probe.device import CudaDevice, Device

TARGET = "segplan.probe.job:handle"
STARTUP = "segplan.probe.job:preload"
MOST_WARMUP = 10
MOST_STABLE_WARMUP = 200
"""Warm-up steps at most where the request wants them stable; its time ends most earlier."""
LENGTHY_S = 0.5
"""A step this long keeps the card busy: nothing but its first run, which loads kernels and makes
the optimizer's state, is slower than the others."""
MOST_CHANNELS = 512
"""Of a tensor as large as the patch: networks have fewer there."""
FULL_STEPS = 3
"""Steps until the optimizer's state exists and the pool has fragmented: what "fits" means."""

_device: CudaDevice | None = None


def preload() -> None:
    """Import what is slow to import; creates no CUDA context."""
    import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it)

    import segplan.probe.device
    import segplan.step.train  # noqa: F401
    from segplan.networks.lean import import_monai

    import_monai()


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run one probe on the card that CUDA_VISIBLE_DEVICES leaves.

    Args:
        request: a `WatchedRequest`.
        progress: told {"environment": ...} before anything can fail for want of memory.

    Returns:
        A `WatchedReply`.

    Raises:
        NetworkError: the network cannot be built.
        CardError: torch cannot use the card.
    """
    global _device
    from segplan.probe.device import CudaDevice

    asked = cast(WatchedRequest, request)
    try:
        if _device is None:
            _device = CudaDevice(asked["free_before"])
    except RuntimeError as error:  # not even a context fits
        return dict(_failure(error, Outcome.OUT_OF_MEMORY))
    progress({"environment": _device.environment()})
    return dict(run(asked, _device, progress, _device.watch() if asked["steps"] else None))


def run(
    request: ProbeRequest | WatchedRequest,
    device: Device,
    progress: Callable[[dict[str, Any]], None],
    watch: StepWatch | None = None,
) -> WatchedReply:
    """Build, warm up, time, clean up; every error of the step becomes an outcome.

    Args:
        request: what to run.
        device: where.
        progress: told {"step": n} after each step of the warm-up.
        watch: looks at the card around the timed steps; None: nothing is seen but their time.

    Raises:
        SegplanError: the network cannot be built as asked.
    """
    workload = Workload.from_dict(request["workload"])
    reply = _empty()
    largest = _Largest(workload)
    failed = False
    try:
        device.open(request["allocator_limit"])
        _steps(workload, cast(WatchedRequest, request), device, largest, reply, progress, watch)
    except SegplanError:
        device.clean_up()
        raise
    except Exception as error:
        failed = True
        outcome = classify(
            type(error).__name__,
            str(error),
            largest_elements=largest.elements,
            free_bytes=device.free_bytes(),
        )
        reply = {**reply, **_failure(error, outcome)}
        traceback.clear_frames(error.__traceback__)
    with contextlib.suppress(RuntimeError):  # a broken context knows no numbers
        for key, value in device.peaks().items():
            reply[key] = value  # type: ignore[literal-required]
    clean = device.clean_up()
    reply["clean"] = clean and not failed
    with contextlib.suppress(RuntimeError):
        reply["held_bytes"] = device.held_bytes()
    return reply


def _steps(
    workload: Workload,
    request: WatchedRequest,
    device: Device,
    largest: _Largest,
    reply: WatchedReply,
    progress: Callable[[dict[str, Any]], None],
    watch: StepWatch | None,
) -> None:
    """Everything that holds the card's memory, so that returning releases it."""
    from segplan.networks import build
    from segplan.step.train import backend_flags, make_batch, make_step

    began = time.monotonic()
    with warnings.catch_warnings(), backend_flags(workload):
        warnings.simplefilter("ignore")
        network = placed(build(workload), workload, device.name)
        step = make_step(workload, network, device_type=device.name)
        images, labels = make_batch(workload, device.name)
        timed = request["steps"]
        at_least = max(request["warmup"], 1, FULL_STEPS - timed)
        stable_of = request.get("stable_of", 0)
        most = MOST_STABLE_WARMUP if stable_of else MOST_WARMUP
        samples: list[float] = reply["warmup_seconds"]
        while True:
            with largest.watching(network) if not samples else contextlib.nullcontext():
                start = device.mark()
                step.run(images, labels)
                end = device.mark()
                device.synchronize()
            samples.append(device.seconds(start, end))
            progress({"step": len(samples)})
            lengthy = samples[-1] >= LENGTHY_S and not stable_of
            if len(samples) < (min(at_least, 2) if lengthy and timed else at_least):
                continue
            late = time.monotonic() - began > request["budget_s"]
            calm = stable(samples, stable_of) if stable_of else settled(samples)
            if timed == 0 or calm or late or lengthy or len(samples) >= most:
                break
        left = request["budget_s"] - (time.monotonic() - began)
        needed = max(2 if lengthy else 1, FULL_STEPS - len(samples))
        if timed:
            timed = max(needed, min(timed, int(left / max(samples[-1], 1e-6))))
        if watch is not None:
            watch.begin()
        # No synchronisation between timed steps: the host runs ahead, as it does in training.
        marks = [device.mark()]
        for _ in range(timed):
            step.run(images, labels)
            marks.append(device.mark())
        if watch is not None:
            watch.under_load()
        device.synchronize()
        reply["step_seconds"] = [device.seconds(a, b) for a, b in itertools.pairwise(marks)]
        if watch is not None:
            watch.end()
            step_s = min(reply["step_seconds"], default=math.inf)
            spare = request["budget_s"] - (time.monotonic() - began)
            busy = None
            if watch.hold is not None and step_s <= LONGEST_STEP_S and 3 * step_s <= spare:
                busy = _busy_seconds(lambda: step.run(images, labels), device, watch.hold, step_s)
            reply.update(watch.facts(reply["step_seconds"], busy))  # type: ignore[typeddict-item]


def _busy_seconds(
    run: Callable[[], None], device: Device, hold: Callable[[float], None], step_s: float
) -> float:
    """Seconds the card works on one step that the host has enqueued before the card begins.

    The queue of launches holds about a thousand, so a step of many more small kernels still waits
    a little for the host: what comes out is an upper bound.
    """
    hold(hold_for(step_s))
    start = device.mark()
    run()
    end = device.mark()
    device.synchronize()
    return device.seconds(start, end)


def placed(network: nn.Module, workload: Workload, device: str) -> nn.Module:
    """The network on the card, its 5-D weights in the workload's memory format."""
    from segplan.step.train import MEMORY_FORMAT

    memory_format = MEMORY_FORMAT[workload.memory_format]
    for parameter in network.parameters():
        if parameter.dim() == 5:  # only these have a channels_last_3d format
            parameter.data = parameter.data.contiguous(memory_format=memory_format)
    return network.to(device)


class _Largest:
    """Elements of the largest tensor that modules were given, returned, or were about to make."""

    def __init__(self, workload: Workload) -> None:
        h, w, d = workload.patch
        channels = max(workload.in_channels, workload.out_channels)
        voxels = workload.batch * h * w * d
        self.elements = voxels * channels
        self.in_reach = voxels * MOST_CHANNELS >= KERNEL_ELEMENTS

    @contextlib.contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Look at every module's tensors while inside, where one may be too large for kernels.

        Elsewhere the step is left as it is: hooks decide how long tensors are held.
        """
        if not self.in_reach:
            yield
            return
        handles = [m.register_forward_pre_hook(self._before) for m in network.modules()]
        handles += [m.register_forward_hook(self._after) for m in network.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        import torch

        for tensor in inputs:
            if not isinstance(tensor, torch.Tensor):
                continue
            self._see(tensor.numel())
            channels = getattr(module, "out_channels", None)
            if isinstance(channels, int) and tensor.dim() == 5 and hasattr(module, "weight"):
                self._see(_convolved(module, tensor.shape, channels))

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        if isinstance(output, torch.Tensor):
            self._see(output.numel())

    def _see(self, elements: int) -> None:
        self.elements = max(self.elements, elements)


def _convolved(module: nn.Module, shape: Any, channels: int) -> int:
    """Elements a 3D convolution is about to make, borders left out."""
    elements: int = shape[0] * channels
    strides = getattr(module, "stride", (1, 1, 1))
    up = bool(getattr(module, "transposed", False))
    for size, stride in zip(shape[2:], strides, strict=False):
        elements *= size * stride if up else -(-size // stride)
    return elements


def _empty() -> WatchedReply:
    return {
        "outcome": Outcome.FITS.value,
        "message": None,
        "step_seconds": [],
        "warmup_seconds": [],
        "peak_allocated": None,
        "peak_reserved": None,
        "process_bytes": None,
        "context_bytes": None,
        "held_bytes": None,
        "allocator_retries": None,
        "clean": False,
    }


def _failure(error: BaseException, outcome: Outcome) -> WatchedReply:
    message = first_line(type(error).__name__, str(error))
    return {**_empty(), "outcome": outcome.value, "message": message}
