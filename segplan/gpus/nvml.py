"""Which cards are here: the only module that talks to NVML (the driver's library).

Every query that a driver, a card or a container refuses gives None. Only NVML as a whole being
out of reach is an error, `NvmlUnavailable`, which is not the same as a machine without cards.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from segplan.errors import CardError
from segplan.gpus.local import GpuProcess, LocalCard, MigSlice
from segplan.units import MIB

_OS_RELEASE = Path("/proc/sys/kernel/osrelease")

_REASONS = {  # NVML's error codes, from nvml.h
    4: "no permission to use the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver is installed",
    18: "the NVIDIA driver and its library differ in version, as after an update: reboot",
}
_THROTTLE = {  # nvmlClocksEventReasons, from nvml.h; idle (bit 0) is no throttling
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


class NvmlUnavailable(CardError):
    """NVML cannot be used at all, so nobody knows which cards are here.

    Attributes:
        reason: why, in a few words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(no_gpu_message(reason))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.reason,))


def no_gpu_message(reason: str) -> str:
    """The sentence for a request that needs a card where none can be used."""
    return (
        f"No NVIDIA GPU is usable here ({reason}): name a card to predict instead, for example "
        "--gpu rtx-3090."
    )


def local_cards() -> tuple[LocalCard, ...]:
    """The cards of this machine that CUDA_VISIBLE_DEVICES leaves, in its order.

    The slices of a card in MIG mode follow it. `LocalCard.index` counts as torch does: the first
    visible card is 0.

    Returns:
        One entry per card or slice; empty where the driver works but shows no card.

    Raises:
        NvmlUnavailable: no driver, no library, no permission.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlUnavailable("the package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except Exception as error:
        raise NvmlUnavailable(_reason(error)) from None
    try:
        cards = _read_all(nvml)
    finally:
        _ask(nvml, "nvmlShutdown")
    return _visible(cards, os.environ)


def _read_all(nvml: Any) -> list[LocalCard]:
    driver = _text(_ask(nvml, "nvmlSystemGetDriverVersion"))
    version = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
    wsl2 = _is_wsl2()
    cards: list[LocalCard] = []
    refused: Exception | None = None
    try:
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:
        raise NvmlUnavailable(_reason(error)) from None
    for number in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle)) or ""
        except Exception as error:  # lost, or kept from this user: CUDA will not see it either
            refused = error
            continue
        card = dataclasses.replace(
            _read(nvml, handle, number, uuid), driver=driver, cuda_driver_version=cuda, wsl2=wsl2
        )
        cards.append(card)
        if card.mig == "parent":
            cards.extend(_slices(nvml, handle, card))
    if refused is not None and not cards:
        raise NvmlUnavailable(_reason(refused))
    return cards


def _read(nvml: Any, handle: Any, number: int, uuid: str) -> LocalCard:
    memory = _memory(nvml, handle)
    mig_mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    power_mw = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name before driver 535
        reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return LocalCard(
        index=None,
        nvml_index=number,
        name=_text(_ask(nvml, "nvmlDeviceGetName", handle)) or "unknown NVIDIA GPU",
        uuid=uuid,
        total_bytes=memory.total,
        reserved_bytes=memory.reserved,
        free_bytes=memory.free,
        used_bytes=memory.used,
        processes=_processes(nvml, handle),
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        mig="parent" if mig_mode and mig_mode[0] else None,
        pcie_gen=_ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=_ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_gen_max=_ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width_max=_ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        power_limit_w=power_mw / 1000 if power_mw else None,
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, 0),
        throttle_reasons=(
            None
            if reasons is None
            else tuple(text for bit, text in _THROTTLE.items() if reasons & bit)
        ),
        # 0 is WDDM; Linux refuses the question.
        wddm=_ask(nvml, "nvmlDeviceGetCurrentDriverModel", handle) == 0,
    )


class _Memory(NamedTuple):
    total: int | None = None
    reserved: int | None = None
    free: int | None = None
    used: int | None = None


def _memory(nvml: Any, handle: Any) -> _Memory:
    version_2 = getattr(nvml, "nvmlMemory_v2", None)
    info = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle, version_2) if version_2 else None
    if info is not None:
        reserved: int | None = int(info.reserved)
    else:
        info, reserved = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle), None
    if info is None or not info.total:
        return _Memory()
    total, free = int(info.total), int(info.free)
    return _Memory(total, reserved, free, total - free - (reserved or 0))


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | None:
    found: dict[int, int | None] = {}
    answered = False
    for query in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        running = _ask(nvml, query, handle)
        answered = answered or running is not None
        for process in running or ():
            used = process.usedGpuMemory
            known = found.get(int(process.pid))
            # One process can be in both lists, with the same figure or none.
            found[int(process.pid)] = known if used is None else max(int(used), known or 0)
    if not answered:
        return None
    return tuple(
        GpuProcess(pid, _text(_ask(nvml, "nvmlSystemGetProcessName", pid)), used)
        for pid, used in sorted(found.items())
    )


def _slices(nvml: Any, handle: Any, parent: LocalCard) -> list[LocalCard]:
    slices: list[LocalCard] = []
    for number in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = _text(_ask(nvml, "nvmlDeviceGetUUID", part)) if part is not None else None
        if uuid is None:  # not every place holds a slice
            continue
        memory = _memory(nvml, part)
        attributes = _ask(nvml, "nvmlDeviceGetAttributes", part)
        name = _text(_ask(nvml, "nvmlDeviceGetName", part)) or parent.name
        total = memory.total
        if total is None and attributes is not None:
            total = int(attributes.memorySizeMB) * MIB
        match = re.search(r"\bMIG\s+(\S+)", name)
        profile = match[1] if match else "slice"
        slices.append(
            dataclasses.replace(
                parent,
                name=name,
                uuid=uuid,
                total_bytes=total,
                reserved_bytes=memory.reserved,
                free_bytes=memory.free,
                used_bytes=memory.used,
                processes=_processes(nvml, part),
                mig=MigSlice(
                    profile=profile,
                    memory_bytes=total,
                    sm_count=int(attributes.multiprocessorCount) if attributes else None,
                    parent_uuid=parent.uuid,
                    parent_name=parent.name,
                ),
            )
        )
    return slices


def _visible(cards: list[LocalCard], environ: os._Environ[str]) -> tuple[LocalCard, ...]:
    """The cards CUDA_VISIBLE_DEVICES leaves, numbered from 0 in its order.

    As in CUDA: entries are numbers of whole cards, or UUIDs (or unique beginnings of them), and
    the first one that names nothing ends the list.
    """
    whole = [card for card in cards if not isinstance(card.mig, MigSlice)]
    chosen: list[LocalCard] = []
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        chosen = whole
    else:
        for entry in (part.strip() for part in wanted.split(",")):
            if re.fullmatch("[0-9]{1,6}", entry):
                found = whole[int(entry) : int(entry) + 1]
            else:
                found = [c for c in cards if entry and c.uuid.lower().startswith(entry.lower())]
            if len(found) != 1:
                break
            if found[0] not in chosen:
                chosen.append(found[0])
    by_bus = environ.get("CUDA_DEVICE_ORDER", "").upper() == "PCI_BUS_ID"
    certain = by_bus or len({card.name for card in whole}) <= 1
    result: list[LocalCard] = []
    for index, card in enumerate(chosen):
        result.append(dataclasses.replace(card, index=index, order_certain=certain))
        if card.mig == "parent":
            result += [
                part
                for part in cards
                if isinstance(part.mig, MigSlice)
                and part.mig.parent_uuid == card.uuid
                and part not in chosen
            ]
    return tuple(result)


def _ask(nvml: Any, query: str, *args: Any) -> Any:
    """The answer to one query, or None where it is refused, unknown or not supported."""
    try:
        function: Callable[..., Any] = getattr(nvml, query)
        return function(*args)
    except Exception:  # one missing fact must not hide the card
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):  # older bindings
        value = value.decode("utf-8", "replace")
    return str(value) if value else None


def _reason(error: Exception) -> str:
    known = _REASONS.get(getattr(error, "value", -1))
    return known or str(error).strip().rstrip(".") or type(error).__name__


def _is_wsl2() -> bool:
    try:
        return "microsoft" in _OS_RELEASE.read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        return False
