"""The cards of this machine and the catalogue, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from segplan.api.cards import CardListing
from segplan.gpus import Card, GpuProcess, LocalCard, MigSlice
from segplan.results import SCHEMA_VERSION, to_plain
from segplan.units import GIB, MIB

UNKNOWN = "-"


def to_json(listing: CardListing) -> str:
    """The listing as one JSON document; the keys are the Python attributes."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **to_plain(listing)}, indent=2)


def render(listing: CardListing, console: Console) -> None:
    """Writes the listing, or the one card that was asked for, to a terminal or a text stream."""
    if listing.card is not None:
        _card(listing.card, listing.local, console)
        return
    _here(listing, console)
    console.print()
    _catalogue(listing.catalogue, console)


def _here(listing: CardListing, console: Console) -> None:
    if listing.unavailable is not None:
        console.print(_plain("Here: no NVIDIA GPU can be used."))
        console.print(_plain(f"  Why: {listing.unavailable}."))
        return
    if not listing.here:
        console.print(_plain("Here: the driver works but shows no card."))
        return
    first = listing.here[0]
    versions = f"driver {first.driver or UNKNOWN}, CUDA {first.cuda_driver_version or UNKNOWN}"
    console.print(_plain(f"Here ({versions}):"))
    for card, slug in zip(listing.here, listing.here_slugs, strict=True):
        number = UNKNOWN if card.index is None else str(card.index)
        known = "" if isinstance(card.mig, MigSlice) else f", {slug or 'not in the catalogue'}"
        console.print(_plain(f"  {number:>2}  {card.name}{known}"))
        for line in _local_lines(card):
            console.print(_plain(f"      {line}"))


def _local_lines(card: LocalCard) -> list[str]:
    lines = [f"{_gib(card.free_bytes)} free of {_gib(card.visible_bytes)} GiB that torch can see"]
    if card.mig == "parent":
        lines = ["cut into MIG slices: name one of them"]
    elif isinstance(card.mig, MigSlice):
        lines.append(f"MIG slice, --gpu {card.uuid}")
    if card.processes:
        lines.append("in use by " + ", ".join(_process(process) for process in card.processes))
    if card.throttle_reasons:
        lines.append("clocks held down by: " + ", ".join(card.throttle_reasons))
    if card.spills:
        system = "WSL2" if card.wsl2 else "the Windows display driver"
        lines.append(f"{system}: too much memory spills to the host, slowly and without an error")
    if not card.order_certain:
        lines.append("CUDA may number these cards otherwise: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return lines


def _process(process: GpuProcess) -> str:
    name = (process.name or "a program").replace("\\", "/").rpartition("/")[2]
    memory = "" if process.used_bytes is None else f", {_gib(process.used_bytes)} GiB"
    return f"{name} (pid {process.pid}{memory})"


def _catalogue(cards: Iterable[Card], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("card", no_wrap=True)
    for heading in ("GiB", "usable", "GB/s", "fp32", "fp16", "W", "slots"):
        table.add_column(heading, justify="right", no_wrap=True)
    derived = False
    for card in cards:
        mark = "~" if card.visible_basis == "derived" else ""
        derived = derived or bool(mark)
        table.add_row(
            _plain(card.slug),
            _number(card.memory_nominal / GIB),
            mark + f"{card.memory_visible / GIB:.2f}",
            UNKNOWN if card.memory_bandwidth is None else f"{card.memory_bandwidth / 1e9:.0f}",
            _tflops(card.rates["fp32"]),
            _tflops(card.rates["fp16"]),
            _number(card.power_w),
            _number(card.slot_width),
        )
    console.print(table)
    console.print(
        _plain(
            "usable: GiB torch can see"
            + (" (~ derived from cards of the same size)" if derived else "")
            + "; fp32, fp16: peak dense TFLOPS, fp16 with fp32 accumulation. Sources: "
            "`segplan gpus CARD`."
        )
    )


def _card(card: Card, local: LocalCard | None, console: Console) -> None:
    capability = card.compute_capability
    rows = [
        ("slug", card.slug),
        ("also called", ", ".join(card.aliases)),
        ("memory", f"{_number(card.memory_nominal / GIB)} GiB {card.memory_type or ''}".strip()),
        ("usable by torch", f"{card.memory_visible / GIB:.2f} GiB ({card.visible_basis})"),
        ("", card.visible_source),
        ("bandwidth", _with_unit(_number(card.memory_bandwidth, 1e9), "GB/s")),
        *(
            (dtype, _with_unit(_tflops(card.rates[dtype]), "TFLOPS"))
            for dtype in ("fp32", "tf32", "fp16", "bf16")
        ),
        ("fp16, fp16 sums", _with_unit(_tflops(card.fp16_acc16), "TFLOPS")),
        ("capability", f"{capability[0]}.{capability[1]}" if capability else UNKNOWN),
        ("multiprocessors", _number(card.sm_count)),
        ("L2 cache", _with_unit(_number(card.l2_bytes, MIB), "MiB")),
        ("power", _with_unit(_number(card.power_w), "W")),
        ("slots", _number(card.slot_width)),
        ("form", card.form_factor or UNKNOWN),
        ("launch", card.launch or UNKNOWN),
        ("source", card.source or UNKNOWN),
        ("verification", card.verification or UNKNOWN),
    ]
    if local is not None:
        rows += [
            ("here", f"--gpu {UNKNOWN if local.index is None else local.index}, {local.uuid}"),
            ("driver", f"{local.driver or UNKNOWN}, CUDA {local.cuda_driver_version or UNKNOWN}"),
            ("PCI Express", _pcie(local)),
            ("temperature", _with_unit(_number(local.temperature_c), "°C")),
            *(("", line) for line in _local_lines(local)),
        ]
    console.print(Text(card.name, style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        if value:
            table.add_row(f"  {label}", _plain(value))
    console.print(table)


def _pcie(local: LocalCard) -> str:
    def link(generation: int | None, width: int | None) -> str:
        return f"gen {_number(generation)} x{_number(width)}"

    now = link(local.pcie_gen, local.pcie_width)
    return f"{now} now, {link(local.pcie_gen_max, local.pcie_width_max)} at most"


def _plain(text: str) -> Text:
    """Text that is shown as it is: a name from a file or a driver is no markup."""
    return Text("".join(c if c.isprintable() else "?" for c in text))


def _gib(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / GIB:.1f}"


def _number(value: float | None, unit: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{value / unit:,.1f}".removesuffix(".0").replace(",", "")


def _tflops(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / 1e12:.1f}" if value < 1e15 else f"{value / 1e12:.0f}"


def _with_unit(text: str, unit: str) -> str:
    return text if text == UNKNOWN else f"{text} {unit}"
