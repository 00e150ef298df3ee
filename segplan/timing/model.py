"""A step's work and a card's rates become seconds.

Each kernel waits for the slowest of three things: its arithmetic (a matrix product at a share of
the card's rate, less where it has few tiles or short sums), its bytes (a share of the
bandwidth), or, in normalisation layers, the blocks of threads that reduce a channel or group each.
Kernels run one after the other while Python and the dispatcher queue the next ones; a step
takes as long as the slower of both, up to the gradient scaler's read-back, where they meet.
The shares are measured (`Calibration`); rates, bandwidth, clock and multiprocessors are the
card's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from segplan.gpus.card import Card
from segplan.timing.work import DTYPES, ENTRIES, INDEX, KINDS, PHASES, WorkTable

CONVOLUTIONS = ("conv_forward", "conv_input_gradient", "conv_weight_gradient")
PRODUCTS = (*CONVOLUTIONS, "pointwise_conv", "matmul", "attention")
BLOCKED = (
    "moments", "channel_norm_backward", "group_norm_backward", "cudnn_norm", "cudnn_norm_backward",
)  # fmt: skip
ROWED = ("layer_norm", "layer_norm_backward")
STREAMS = tuple(k for k in KINDS if k not in PRODUCTS and k != "grouped_conv")

BOUNDS = ("arithmetic", "bandwidth", "blocks", "launches")
"""What a kernel waits for: the rate of matrix products, the memory's bandwidth, the few blocks
of threads of a norm layer, or its own start."""

GENERATIONS = {
    (6, 0): "pascal", (6, 1): "pascal", (7, 0): "volta", (7, 5): "turing", (8, 0): "ampere",
    (8, 6): "ampere-ga10x", (8, 7): "ampere-ga10x", (8, 9): "ada", (9, 0): "hopper",
    (10, 0): "blackwell", (10, 3): "blackwell", (12, 0): "blackwell-gb20x",
    (12, 1): "blackwell-gb20x",
}  # fmt: skip

_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (6, 0): 64}
"""fp32 units of a multiprocessor (CUDA programming guide, arithmetic throughput); 128 else."""

MEETING = 6.0
"""How sharply the slower of GPU and host decides: (gpu^p + host^p)^(1/p)."""


class NotTimeable(ValueError):
    """The card's figures do not allow a prediction; the text says which is missing."""


@dataclass(frozen=True)
class Rates:
    """What of a card the model uses.

    Attributes:
        products: FLOP per second of matrix products by "half" and "single".
        tensor: whether those run on tensor cores, likewise.
        fp32: FLOP per second outside of tensor cores.
        bandwidth: bytes per second.
        sm_count: multiprocessors.
        clock: cycles per second, from the fp32 rate.
        generation: of the architecture.
        spare: whether a multiprocessor can issue more than its fp32 units take: those with 64
            of them have integer units beside (CUDA programming guide, arithmetic throughput).
    """

    products: Mapping[str, float]
    tensor: Mapping[str, bool]
    fp32: float
    bandwidth: float
    sm_count: int
    clock: float
    generation: str
    spare: bool

    def on_tensor_cores(self, precision: str) -> bool:
        """Whether the products of a workload of this precision run on tensor cores."""
        return self.tensor["half" if precision in ("fp16", "bf16") else "single"]


def rates_of(card: Card, precision: str) -> Rates:
    """The rates at which a card computes a workload of this precision.

    Raises:
        NotTimeable: bandwidth, fp32 rate, multiprocessors or compute capability are not known.
    """
    fp32 = card.rates["fp32"]
    missing = [
        name
        for name, value in (
            ("memory bandwidth", card.memory_bandwidth),
            ("fp32 rate", fp32),
            ("number of multiprocessors", card.sm_count),
            ("compute capability", card.compute_capability),
        )
        if value is None
    ]
    if missing or fp32 is None or card.memory_bandwidth is None or card.sm_count is None:
        raise NotTimeable(f"the {' and '.join(missing)} of {card.name} is not known")
    capability = card.compute_capability or (0, 0)
    half = card.rates["bf16" if precision == "bf16" else "fp16"]
    single = card.rates["tf32"] if precision != "fp32" else None
    return Rates(
        products={"half": half or fp32, "single": single or fp32},
        tensor={"half": half is not None and half > fp32, "single": single is not None},
        fp32=fp32,
        bandwidth=card.memory_bandwidth,
        sm_count=card.sm_count,
        clock=fp32 / (2 * card.sm_count * _LANES.get(capability, 128)),
        generation=GENERATIONS.get(capability, "unknown"),
        spare=_LANES.get(capability, 128) < 128,
    )


@dataclass(frozen=True)
class Calibration:
    """What a real card reached of its rates, by kind of work.

    Attributes:
        card: slug of the card it was measured on.
        factors: dimensionless shares, seconds and counts by dotted name (see `docs/method.md`).
        spread: standard deviation of the logarithm of predicted over measured time, by case.
        clock: cycles per second of that card: rates of blocks of threads scale with it.
        about: versions, rows and how it was made.
    """

    card: str
    factors: Mapping[str, float]
    spread: Mapping[str, float]
    clock: float
    about: Mapping[str, str]


@lru_cache
def shipped_calibration() -> Calibration:
    """The calibration that comes with segplan: an H200's."""
    text = resources.files("segplan.timing").joinpath("h200.json").read_text(encoding="utf-8")
    return calibration_from_json(text)


def calibration_from_json(text: str) -> Calibration:
    """A calibration from its file's text."""
    data = json.loads(text)
    return Calibration(data["card"], data["factors"], data["spread"], data["clock"], data["about"])


@dataclass(frozen=True)
class Seconds:
    """A step's time in parts.

    Attributes:
        gpu: seconds in kernels, by phase (forward, backward, optimizer).
        host: seconds of queueing them, likewise.
        by_kind: seconds in kernels by kind of work.
        by_bound: seconds in kernels by what they wait for (`BOUNDS`).
        total: of the step.
    """

    gpu: tuple[float, float, float]
    host: tuple[float, float, float]
    by_kind: Mapping[str, float]
    by_bound: Mapping[str, float]
    total: float

    @property
    def host_bound(self) -> bool:
        """Whether the card waits for Python more than the other way round."""
        return sum(self.host) > sum(self.gpu)


class Steps:
    """Steps on cards, joined so that their times are computed all at once.

    Args:
        steps: the work of each.
        rates: of the card of each.
        channels_last: memory format of the network of each.
    """

    def __init__(
        self, steps: Sequence[WorkTable], rates: Sequence[Rates], channels_last: Sequence[bool]
    ) -> None:
        self.rates = tuple(rates)
        self.launches = np.array([step.launches for step in steps], dtype=np.float64)
        self.work = WorkTable(
            **{name: np.concatenate([getattr(step, name) for step in steps]) for name in ENTRIES},
            launches=(0, 0, 0),
        )
        sizes = [len(step.kind) for step in steps]
        self.step: NDArray[np.int64] = np.repeat(np.arange(len(steps)), sizes)
        """Which step each entry of `work` belongs to."""
        self.half = self.work.dtype < DTYPES.index("float32")
        self.channels_last = np.array(channels_last, dtype=bool)

    def of(self, name: str) -> NDArray[np.float64]:
        """A number of `Rates`, for each entry."""
        return np.array([getattr(r, name) for r in self.rates], dtype=np.float64)[self.step]

    def waits(self, calibration: Calibration) -> NDArray[np.float64]:
        """Seconds of each entry by what it waits for: (bounds, entries)."""
        return _waits(self, calibration) * self.work.count

    def gpu(
        self, calibration: Calibration, factors: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Seconds in kernels by step and phase: (steps, phases)."""
        waits = self.waits(calibration)
        return self._by_phase(waits.sum(axis=0) * (1.0 if factors is None else factors))

    def host(self, calibration: Calibration) -> NDArray[np.float64]:
        """Seconds of queueing kernels by step and phase: (steps, phases)."""
        f = calibration.factors
        found = self.launches * np.array([f[f"host.{name}"] for name in PHASES])
        found[:, 0] += f["host.step"]
        return np.asarray(found)

    def _by_phase(self, kernels: NDArray[np.float64]) -> NDArray[np.float64]:
        count = len(self.rates) * len(PHASES)
        places = self.step * len(PHASES) + self.work.phase
        found = np.bincount(places, weights=kernels, minlength=count)
        return np.asarray(found.reshape(len(self.rates), len(PHASES)))


def step_total(gpu: NDArray[np.float64], host: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of a step from those of its phases on the card and on the host: (..., phases).

    Both meet at the gradient scaler's read-back, before the optimizer.
    """
    passes = _slower(gpu[..., 0] + gpu[..., 1], host[..., 0] + host[..., 1])
    return np.asarray(passes + _slower(gpu[..., 2], host[..., 2]))


def seconds(
    table: WorkTable,
    rates: Rates,
    calibration: Calibration,
    *,
    channels_last: bool = False,
    factors: NDArray[np.float64] | None = None,
) -> Seconds:
    """The time of a step with this work on a card with these rates.

    Args:
        table: the work.
        rates: of the card.
        calibration: shares of the rates that are reached.
        channels_last: memory format of the network.
        factors: on the time of each entry of the table (`segplan.timing.correction`).
    """
    steps = Steps([table], [rates], [channels_last])
    waits = steps.waits(calibration)
    if factors is not None:
        waits = waits * factors
    kernels = waits.sum(axis=0)
    gpu, host = steps._by_phase(kernels)[0], steps.host(calibration)[0]
    by_kind = np.bincount(table.kind, weights=kernels, minlength=len(KINDS))
    return Seconds(
        gpu=(float(gpu[0]), float(gpu[1]), float(gpu[2])),
        host=(float(host[0]), float(host[1]), float(host[2])),
        by_kind=dict(zip(KINDS, map(float, by_kind), strict=True)),
        by_bound=dict(zip(BOUNDS, map(float, waits.sum(axis=1)), strict=True)),
        total=float(step_total(gpu, host)),
    )


def kernel_seconds(
    table: WorkTable, rates: Rates, calibration: Calibration, *, channels_last: bool = False
) -> NDArray[np.float64]:
    """Seconds on the card of each entry of the table."""
    waits = Steps([table], [rates], [channels_last]).waits(calibration)
    return np.asarray(waits.sum(axis=0))


def forward_seconds(parts: Seconds) -> float:
    """The forward pass alone, as in validation."""
    return float(_slower(np.array(parts.gpu[0]), np.array(parts.host[0])))


def forward_total(gpu: NDArray[np.float64], host: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of the forward pass alone, from those of the phases: (..., phases)."""
    return _slower(gpu[..., 0], host[..., 0])


def _slower(gpu: NDArray[np.float64], host: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((gpu**MEETING + host**MEETING) ** (1 / MEETING))


def _waits(steps: Steps, calibration: Calibration) -> NDArray[np.float64]:
    f = calibration.factors
    table, half = steps.work, steps.half
    count = len(KINDS)
    rate = _reached(steps.rates, calibration)[steps.step, np.where(half, 0, 1), table.kind]
    among = np.isin(table.kind, [INDEX[kind] for kind in CONVOLUTIONS])
    last = among & steps.channels_last[steps.step]
    rate = np.where(last, rate * f["channels_last"], rate)

    filled, inner = np.zeros(count), np.zeros(count)
    for kind in PRODUCTS:
        convolution = kind in CONVOLUTIONS
        filled[INDEX[kind]] = f["fill.convolution" if convolution else "fill.matmul"]
        inner[INDEX[kind]] = f[
            "inner.matmul" if kind in ("matmul", "attention") else "inner.convolution"
        ]
    tiles = np.where(table.tiles > 0, table.tiles, np.inf)
    split = np.where(
        table.kind == INDEX["conv_weight_gradient"], np.maximum(1.0, table.inner / _SPLIT), 1.0
    )
    sums = np.where(table.inner > 0, table.inner, np.inf)
    arithmetic = (
        table.flops
        / rate
        * (1 + filled[table.kind] * steps.of("sm_count") / (tiles * split))
        * (1 + inner[table.kind] / sums)
    )
    on_tensor_cores = _on_tensor_cores(steps)
    slow = (table.unaligned > 0) & on_tensor_cores
    arithmetic = np.where(slow, arithmetic / f["unaligned"], arithmetic)
    grouped = table.kind == INDEX["grouped_conv"]
    if grouped.any():
        reached = np.where(table.phase == 0, f["grouped.forward"], f["grouped.backward"])
        reached = reached * np.where(half, 1.0, f["grouped.single"])
        reached = reached * np.where(table.dtype == 1, f["grouped.bfloat16"], 1.0)
        arithmetic = np.where(grouped, table.flops / (steps.of("fp32") * reached), arithmetic)

    streamed = np.full(count, f["bandwidth.product"])
    for kind in STREAMS:
        streamed[INDEX[kind]] = f[f"bandwidth.{kind}"]
    older = np.array([r.generation != "hopper" for r in steps.rates])[steps.step]
    bandwidth = steps.of("bandwidth") * np.where(older, f["older.bandwidth"], 1.0)
    bytes_s = table.moved / (bandwidth * streamed[table.kind])
    turned = 2 * table.turned / (bandwidth * f["bandwidth.turned"])
    turned = np.where(on_tensor_cores, turned, 0.0)  # others compute in the layout they find

    pace, cycles = np.full(count, np.inf), np.zeros(count)
    for kind in BLOCKED:
        pace[INDEX[kind]] = f[f"block.{kind}"] / calibration.clock
    for kind in ROWED:
        cycles[INDEX[kind]] = f[f"row.{kind}"]
    elements = table.moved / np.where(half, 2.0, 4.0)
    blocks = np.where(table.tiles > 0, table.tiles, np.inf)
    blocked = elements / (blocks * pace[table.kind] * steps.of("clock"))
    blocked += table.tiles * cycles[table.kind] / (steps.of("sm_count") * steps.of("clock"))

    product = np.isin(table.kind, [INDEX[k] for k in (*PRODUCTS, "grouped_conv")])
    other = np.where(product, arithmetic, blocked)  # what competes with the bytes
    loses = bytes_s < other
    return np.stack(
        [
            np.where(product & loses, arithmetic, 0.0),
            np.where(loses, 0.0, bytes_s) + np.where(product, turned, 0.0),
            np.where(~product & loses, blocked, 0.0),
            np.full(len(table.kind), f["kernel"]),
        ]
    )


def _on_tensor_cores(steps: Steps) -> NDArray[np.bool_]:
    """Whether the products of each entry's data type run on tensor cores."""
    tensor = np.array([[r.tensor["half"], r.tensor["single"]] for r in steps.rates])
    return np.asarray(tensor[steps.step, np.where(steps.half, 0, 1)])


_SPLIT = 8192
"""Voxels after which a weight gradient's sum is split over more blocks (as cuDNN does)."""


def _reached(rates: Sequence[Rates], calibration: Calibration) -> NDArray[np.float64]:
    """FLOP per second of matrix products: (steps, half or single precision, kinds).

    Two limits in a row: a share of the peak, and what a multiprocessor's memory feeds its units
    with in a cycle (which is why a card with twice the tensor rate does not convolve twice as
    fast). Products without tensor cores run on the fp32 units, fewer per multiprocessor on some
    generations.
    """
    places: dict[int, int] = {}
    found: list[NDArray[np.float64]] = []
    rows = []
    for one in rates:
        if id(one) not in places:
            places[id(one)] = len(found)
            found.append(np.stack([_reached_on(one, width, calibration) for width in WIDTHS]))
        rows.append(places[id(one)])
    return np.stack(found)[rows]


WIDTHS = ("half", "single")


def _reached_on(rates: Rates, width: str, calibration: Calibration) -> NDArray[np.float64]:
    f = calibration.factors
    tensor = rates.tensor[width]
    precision = "fp32" if not tensor else "half" if width == "half" else "tf32"
    cycles = rates.sm_count * rates.clock
    fed = 1.0
    if tensor:
        fed = f.get(f"generation.{rates.generation}", 1.0)
    else:
        fed = rates.fp32 / (cycles * _FP32_PER_CYCLE)
        if rates.generation != "hopper":
            fed *= f["older.fp32"] * (f["older.fp32.spare"] if rates.spare else 1.0)
    peak = rates.products[width] if tensor else rates.fp32
    reached = np.full(len(KINDS), peak)
    for kind in PRODUCTS:
        limit = f[f"{precision}.{kind}"] * cycles * fed
        reached[INDEX[kind]] = 1 / (1 / (peak * f["peak"]) + 1 / limit)
    if width == "half" and not tensor:  # computed in fp32, with conversions
        reached *= f["emulated_half"]
    return reached


_FP32_PER_CYCLE = 256
"""FLOP per cycle of a multiprocessor's fp32 units on the calibrated card: 128 units."""
