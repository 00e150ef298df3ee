"""What is known about a card that is here; None is "not available", never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a card.

    Attributes:
        pid: process number as the driver sees it (inside a container it may mean nothing).
        name: the program, or None where the driver does not tell.
        used_bytes: memory it holds, or None where the driver does not tell (Windows).
    """

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True)
class MigSlice:
    """A Multi-Instance GPU slice: a card of its own with part of the memory and of the units.

    Attributes:
        profile: such as "3g.20gb".
        memory_bytes: the slice's memory, or None.
        sm_count: its streaming multiprocessors, or None. Its speed is no fixed share of the
            whole card's.
        parent_uuid: the card it is cut from.
        parent_name: that card's product name.
    """

    profile: str
    memory_bytes: int | None
    sm_count: int | None
    parent_uuid: str
    parent_name: str


@dataclass(frozen=True)
class LocalCard:
    """A card (or a MIG slice) of this machine, as NVML reports it.

    Attributes:
        index: what `--gpu` takes: the position among the cards CUDA_VISIBLE_DEVICES leaves,
            torch's `cuda:<index>`; None for a MIG slice that is only reached by its UUID.
        nvml_index: nvidia-smi's number.
        name: product name.
        uuid: "GPU-..." or "MIG-...".
        total_bytes: all of its memory.
        reserved_bytes: what driver and firmware keep of it; torch sees total - reserved.
        free_bytes: what nobody holds at the moment.
        used_bytes: what processes hold at the moment, `reserved_bytes` not counted where known.
        processes: who holds it; None where the driver does not tell, () where nobody does.
        driver: driver version.
        cuda_driver_version: newest CUDA the driver runs, such as "13.0".
        compute_capability: (major, minor).
        mig: None, "parent" for a card that is cut into slices (nothing runs on it as a whole),
            or the slice.
        pcie_gen: PCI Express generation in use (idle cards step down).
        pcie_width: lanes in use.
        pcie_gen_max: generation that card and slot can do.
        pcie_width_max: lanes that card and slot can do.
        power_limit_w: watts it may draw.
        temperature_c: degrees Celsius.
        throttle_reasons: why its clocks are below the maximum; () for no reason, None unknown.
        wddm: Windows display driver model: memory spills to the host without an error.
        wsl2: Windows Subsystem for Linux: likewise.
        order_certain: whether `index` is surely torch's. With different models in one machine
            CUDA puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID, so start processes
            with CUDA_VISIBLE_DEVICES=<uuid>.
    """

    index: int | None
    nvml_index: int
    name: str
    uuid: str
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    driver: str | None = None
    cuda_driver_version: str | None = None
    compute_capability: tuple[int, int] | None = None
    mig: MigSlice | Literal["parent"] | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    wddm: bool = False
    wsl2: bool = False
    order_certain: bool = True

    @property
    def visible_bytes(self) -> int | None:
        """Bytes torch sees: the total less what the driver reserves; None where not known."""
        if self.total_bytes is None:
            return None
        return self.total_bytes - (self.reserved_bytes or 0)

    @property
    def spills(self) -> bool:
        """Whether memory beyond the card's is silently taken from the host (no error, slow)."""
        return self.wddm or self.wsl2
