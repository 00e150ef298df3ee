"""A stand-in for `pynvml` on machines without a GPU: busy, failing, MIG, two cards.

fake = FakeNvml(cards=[FakeGpu(), FakeGpu(name="NVIDIA A40")])
monkeypatch.setitem(sys.modules, "pynvml", fake)
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__({GPU_IS_LOST: "GPU is lost"}.get(value, f"error {value}"))


@dataclass
class FakeProcess:
    pid: int
    usedGpuMemory: int | None  # the name NVML gives it


@dataclass
class FakeGpu:
    name: str | bytes = "NVIDIA GeForce RTX 3090"
    uuid: str = "GPU-11111111-aaaa-bbbb-cccc-000000000000"
    total: int | None = 24576 * MIB
    reserved: int | None = 308 * MIB
    used: int = 0
    processes: list[FakeProcess] = field(default_factory=list)
    graphics: list[FakeProcess] = field(default_factory=list)
    capability: tuple[int, int] = (8, 6)
    power_mw: int = 350_000
    throttle: int = 1  # idle
    driver_model: int | None = None
    mig_mode: int | None = None
    slices: list[FakeGpu] = field(default_factory=list)
    sm_count: int = 82
    broken: set[str] = field(default_factory=set)
    """Queries this card refuses."""


class FakeNvml(types.ModuleType):
    NVMLError = NVMLError

    def __init__(
        self,
        cards: list[FakeGpu] | None = None,
        init_error: Exception | None = None,
        missing: set[str] | None = None,
        names: dict[int, str] | None = None,
        memory_v2: bool = True,
    ) -> None:
        super().__init__("pynvml")
        self.cards = [FakeGpu()] if cards is None else cards
        self.init_error = init_error
        self.names = names or {}
        self.open = 0
        if memory_v2:
            self.nvmlMemory_v2 = 0x02000028
        for name in missing or ():
            setattr(self, name, None)  # calling it fails as an unknown function does

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.init_error
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        if pid not in self.names:
            raise NVMLError(NO_PERMISSION)
        return self.names[pid]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        card = self.cards[index]
        if "handle" in card.broken:
            raise NVMLError(NO_PERMISSION)
        return card

    def _of(self, card: FakeGpu, query: str, value: Any) -> Any:
        if query in card.broken or value is None:
            raise NVMLError(NOT_SUPPORTED)
        return value

    def nvmlDeviceGetName(self, card: FakeGpu) -> Any:
        return self._of(card, "name", card.name)

    def nvmlDeviceGetUUID(self, card: FakeGpu) -> Any:
        return self._of(card, "uuid", card.uuid)

    def nvmlDeviceGetMemoryInfo(self, card: FakeGpu, version: int | None = None) -> Any:
        total = self._of(card, "memory", card.total)
        if version:
            reserved = self._of(card, "memory_v2", card.reserved)
            return types.SimpleNamespace(
                total=total, reserved=reserved, used=card.used, free=total - reserved - card.used
            )
        return types.SimpleNamespace(total=total, used=card.used, free=total - card.used)

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeGpu) -> Any:
        return self._of(card, "processes", card.processes)

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: FakeGpu) -> Any:
        return self._of(card, "processes", card.graphics)

    def nvmlDeviceGetCudaComputeCapability(self, card: FakeGpu) -> Any:
        return self._of(card, "capability", card.capability)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: FakeGpu) -> Any:
        return self._of(card, "power", card.power_mw)

    def nvmlDeviceGetTemperature(self, card: FakeGpu, sensor: int) -> Any:
        return self._of(card, "temperature", 35)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: FakeGpu) -> Any:
        return self._of(card, "throttle", card.throttle)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card: FakeGpu) -> Any:
        return self._of(card, "pcie", 1)

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: FakeGpu) -> Any:
        return self._of(card, "pcie", 8)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card: FakeGpu) -> Any:
        return self._of(card, "pcie", 4)

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: FakeGpu) -> Any:
        return self._of(card, "pcie", 16)

    def nvmlDeviceGetCurrentDriverModel(self, card: FakeGpu) -> Any:
        return self._of(card, "driver_model", card.driver_model)

    def nvmlDeviceGetMigMode(self, card: FakeGpu) -> Any:
        mode = self._of(card, "mig", card.mig_mode)
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeGpu, index: int) -> FakeGpu:
        if index >= len(card.slices):
            raise NVMLError(6)  # not found
        return card.slices[index]

    def nvmlDeviceGetAttributes(self, card: FakeGpu) -> Any:
        total = self._of(card, "attributes", card.total)
        return types.SimpleNamespace(multiprocessorCount=card.sm_count, memorySizeMB=total // MIB)


def mig_a100() -> FakeGpu:
    """An A100 40GB that is cut in two."""
    name = "NVIDIA A100-SXM4-40GB"
    return FakeGpu(
        name=name,
        uuid="GPU-a1000000-0000-0000-0000-000000000000",
        total=40960 * MIB,
        capability=(8, 0),
        mig_mode=1,
        slices=[
            FakeGpu(
                name=f"{name} MIG 3g.20gb",
                uuid=f"MIG-{letter}0000000-0000-0000-0000-000000000000",
                total=19968 * MIB,
                reserved=0,
                sm_count=42,
            )
            for letter in "cd"
        ],
    )
