"""The card as the probe's child process sees it: limits, clocks, peaks. Needs CUDA."""

from __future__ import annotations

import gc
import math
import os
import platform
from pathlib import Path
from typing import Any, Protocol

import torch

from segplan.errors import CardError
from segplan.gpus.local import LocalCard
from segplan.probe.watch import CardWatch, StepWatch

_HIGHEST_CLOCK_HZ = 2e9
"""About the highest clock of any card; `CudaDevice.hold` counts cycles."""


class Device(Protocol):
    """What `job.run` needs of a card; a test gives one without a GPU."""

    name: str

    def open(self, allocator_limit: int | None) -> None:
        """Reset the statistics and set the limit."""

    def mark(self) -> Any:
        """A point in the card's stream of work."""

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two marks, once the card has reached the later one."""

    def synchronize(self) -> None:
        """Wait for the card."""

    def peaks(self) -> dict[str, int | None]:
        """Peaks and retries since `open`: the memory fields of a `ProbeReply`."""

    def free_bytes(self) -> int | None:
        """Bytes free on the card, or None."""

    def clean_up(self) -> bool:
        """Release everything; whether nothing is left but what was there at the start."""

    def held_bytes(self) -> int | None:
        """Bytes the process holds now."""


def fraction_for(limit: int, total: int) -> float:
    """The share of a card that torch turns back into exactly `limit` bytes, rounding down."""
    if limit >= total:
        return 1.0
    fraction = limit / total
    while int(fraction * total) < limit:
        fraction = math.nextafter(fraction, math.inf)
    while int(fraction * total) > limit:
        fraction = math.nextafter(fraction, 0.0)
    return fraction


class CudaDevice:
    """The first card this process sees (its parent chose it with CUDA_VISIBLE_DEVICES).

    Raises:
        CardError: torch cannot use it.
    """

    name = "cuda"

    def __init__(self, free_before: int | None = None) -> None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.mem_get_info(0)
        except (RuntimeError, AssertionError) as error:
            if "out of memory" in str(error):
                raise
            build = "" if torch.version.cuda else f" (torch {torch.__version__} has no CUDA)"
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CardError(
                f"PyTorch cannot use the card{build}: {line.rstrip('.')}. Install a CUDA "
                "build of torch, or name a card to predict instead, for example --gpu rtx-3090."
            ) from error
        self._free_before = free_before
        self._retries = 0
        self._environment: dict[str, str | None] = {}
        self._card_watch: CardWatch | None = None
        self._baseline = torch.cuda.memory_allocated(0)

    def open(self, allocator_limit: int | None) -> None:
        """Reset the statistics and set the limit."""
        total = torch.cuda.mem_get_info(0)[1]
        limit = total if allocator_limit is None else allocator_limit
        torch.cuda.set_per_process_memory_fraction(fraction_for(limit, total), 0)
        torch.cuda.reset_peak_memory_stats(0)
        self._retries = self._retries_so_far()

    def mark(self) -> torch.cuda.Event:
        """An event recorded in the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events."""
        return float(start.elapsed_time(end)) / 1000

    def synchronize(self) -> None:
        """Wait for the card, so that errors of kernels surface."""
        torch.cuda.synchronize(0)

    def peaks(self) -> dict[str, int | None]:
        """Peaks since `open`; the driver's figure is of now, while the pool is still held."""
        reserved = torch.cuda.memory_reserved(0)
        process = self.held_bytes()
        context = None if process is None else max(0, process - reserved)
        if context is None and self._free_before is not None:
            free = self.free_bytes()
            context = None if free is None else max(0, self._free_before - free - reserved)
        return {
            "peak_allocated": torch.cuda.max_memory_allocated(0),
            "peak_reserved": torch.cuda.max_memory_reserved(0),
            "process_bytes": process,
            "context_bytes": context,
            "allocator_retries": self._retries_so_far() - self._retries,
        }

    def free_bytes(self) -> int | None:
        """Bytes free on the card; None once the context is broken."""
        try:
            return int(torch.cuda.mem_get_info(0)[0])
        except RuntimeError:
            return None

    def clean_up(self) -> bool:
        """Collect garbage, drop cuBLAS's workspaces and the cache."""
        try:
            gc.collect()
            torch.cuda.synchronize(0)
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None:
                clear()
            torch.cuda.empty_cache()
            return bool(torch.cuda.memory_allocated(0) <= self._baseline)
        except RuntimeError:  # the context is broken
            return False

    def held_bytes(self) -> int | None:
        """What the driver accounts to this process.

        Inside a container the driver numbers processes differently; the only process on the
        card is then this one if it holds at least what the allocator does.
        """
        card = _local_card()
        if card is None or card.processes is None:
            return None
        for process in card.processes:
            if process.pid == os.getpid():
                return process.used_bytes
        if len(card.processes) == 1:
            used = card.processes[0].used_bytes
            if used is not None and used >= torch.cuda.memory_reserved(0):
                return used
        return None

    def environment(self) -> dict[str, str | None]:
        """Card and versions, as `Environment` names them."""
        if not self._environment:
            card = _local_card()
            self._environment = {
                **versions(),
                "card_name": torch.cuda.get_device_properties(0).name,
                "card_uuid": card.uuid if card else None,
                "driver": card.driver if card else None,
            }
        return self._environment

    def hold(self, seconds: float) -> None:
        """Keep the card busy for at least so long; the host does not wait.

        It spins for clock cycles: at a clock below 2 GHz it takes longer.
        """
        torch.cuda._sleep(int(seconds * _HIGHEST_CLOCK_HZ))

    def watch(self) -> StepWatch:
        """A watch on this card around timed steps."""
        if self._card_watch is None:
            card = _local_card()
            self._card_watch = CardWatch(card) if card is not None else None
        read = self._card_watch.read if self._card_watch is not None else None
        return StepWatch(read, self.hold)

    @staticmethod
    def _retries_so_far() -> int:
        return int(torch.cuda.memory_stats(0).get("num_alloc_retries", 0))


def versions() -> dict[str, str | None]:
    """The software's versions, as `Environment` names them."""
    import monai

    import segplan

    return {
        "cuda": torch.version.cuda,
        "cudnn": cudnn_text(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "torch": str(torch.__version__),
        "monai": str(monai.__version__),
        "segplan": segplan.__version__,
        "python": platform.python_version(),
        "host_cpu": _host_cpu(),
    }


def _local_card() -> LocalCard | None:
    """This process's card as NVML sees it, or None."""
    from segplan.gpus.nvml import local_cards

    try:
        cards = local_cards()
    except CardError:
        return None
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    for card in cards:
        if wanted and card.uuid == wanted:
            return card
    return next((card for card in cards if card.index == 0), None)


def cudnn_text(number: int | None) -> str | None:
    """cuDNN's version as text: 91501 is 9.15.1, and before version 9, 8902 was 8.9.2."""
    if number is None:
        return None
    major = 10_000 if number >= 90_000 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _host_cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None
