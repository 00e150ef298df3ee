"""What a baseline check found: series of iterations, comparisons, and a verdict. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum

from segplan.baseline.health import Health
from segplan.results import Environment

NETWORKS = ("resnet50", "vit_b_16")
LABELS = {"resnet50": "ResNet50", "vit_b_16": "ViT-B/16"}
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")
DEFAULT_PRECISIONS = ("fp16", "tf32", "fp32")
"""The 2022 tables' fp16 and fp32; their "fp32" had TF32 on, so both are measured."""

IMAGES = 1920
"""Images of an iteration, as in AutoDL's table (https://www.autodl.com/docs/gpu_perf/)."""

ITERATIONS = 5

ABOVE = 0.10
"""Share by which a figure may exceed what a neighbour's promises: within it lie 88 % of the
published ones (`segplan.baseline.comparing`)."""


class Mode(StrEnum):
    """What an iteration does with its images."""

    INFERENCE = "inference"
    TRAINING = "training"


class Method(StrEnum):
    """How a precision is reached."""

    CAST = "cast"
    """Weights and images are converted to the 16-bit type: `.half()`."""
    AUTOCAST = "autocast"
    """Weights stay fp32, operators run in the 16-bit type where that is safe."""
    PLAIN = "plain"
    """fp32 tensors; "tf32" lets tensor cores round their inputs to TF32."""


def method_of(precision: str, mode: Mode) -> Method:
    """16-bit inference converts the network as the tables do; 16-bit training uses autocast."""
    if precision in ("tf32", "fp32"):
        return Method.PLAIN
    return Method.CAST if mode is Mode.INFERENCE else Method.AUTOCAST


@dataclass(frozen=True)
class Series:
    """The iterations of one network in one precision.

    Attributes:
        network: "resnet50" or "vit_b_16".
        precision: "fp16", "bf16", "tf32" (fp32 tensors, TF32 on) or "fp32" (TF32 off).
        mode: inference or training.
        method: how the precision is reached.
        batch: images in one forward pass.
        images: images of one iteration.
        seconds: raw samples, one for each iteration, warm-up left out.
        channels_last: whether tensors were in channels_last format.
        zeros: whether the images were zeros (they draw less power than random ones).
        energy_j_per_image: joules of the card, from its own counter; None where not known.
        throttled: why the clocks were held back meanwhile; () for no reason, None not known.
        power_w: mean draw meanwhile; None where not known.
        temperature_c: highest meanwhile; None where not known.
        sm_mhz: median clock of the multiprocessors meanwhile; None where not known.
        asked_batch: images in one pass as asked for: more than `batch` where that did not fit;
            None where not known.
        made_at: when it ended, UTC, ISO 8601; None where not known.
    """

    network: str
    precision: str
    mode: Mode
    method: Method
    batch: int
    images: int
    seconds: tuple[float, ...]
    channels_last: bool = False
    zeros: bool = False
    energy_j_per_image: float | None = None
    throttled: tuple[str, ...] | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    sm_mhz: int | None = None
    asked_batch: int | None = None
    made_at: str | None = None

    @property
    def name(self) -> str:
        """Such as "ResNet50 fp16"."""
        return f"{LABELS.get(self.network, self.network)} {self.precision}"

    @property
    def rates(self) -> tuple[float, ...]:
        """Images per second of each iteration."""
        return tuple(self.images / s for s in self.seconds)

    @property
    def images_per_s(self) -> float:
        """Median over the iterations."""
        return statistics.median(self.rates)


class Standing(StrEnum):
    """How a measured figure stands to what it is compared with."""

    AS_EXPECTED = "as_expected"
    SLOW = "slow"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Comparison:
    """One measured figure beside one published one.

    Attributes:
        network: "resnet50" or "vit_b_16".
        precision: of both.
        measured: images per second.
        card_name: the published card, as its source names it.
        same_card: whether it is this model of card; otherwise a neighbour.
        published: images per second.
        low: least that this card should reach by it (images per second).
        high: most that a neighbour's figure promises; None for the same card, as newer software
            may be faster by any factor.
        differences: in what the two differ, in a few words each; () where they can be compared
            as they are.
        software: the published figure's.
        source: its address.
        note: what else its table says, or None.
    """

    network: str
    precision: str
    measured: float
    card_name: str
    same_card: bool
    published: float
    low: float
    high: float | None
    differences: tuple[str, ...]
    software: str
    source: str
    note: str | None = None

    @property
    def ratio(self) -> float:
        """Measured by published."""
        return self.measured / self.published

    @property
    def slow(self) -> bool:
        """Whether the measured figure is below what this comparison allows."""
        return self.measured < self.low

    @property
    def above(self) -> bool:
        """Whether it is above all that a neighbour's figure promises.

        Then the neighbour ran slower software, and a card that is somewhat slow would not show.
        """
        return self.high is not None and self.measured > self.high * (1 + ABOVE)

    @property
    def name(self) -> str:
        """Such as "ResNet50 fp16"."""
        return f"{LABELS.get(self.network, self.network)} {self.precision}"


@dataclass(frozen=True)
class Verdict:
    """Whether the card performs as it should.

    Attributes:
        standing: as expected, slow, or unknown where nothing published can be compared.
        sentence: the verdict with its reason, for a reader.
        findings: what was noticed about the card that may slow it down, a sentence each.
        notes: what is normal but worth knowing, and how far the verdict carries.
    """

    standing: Standing
    sentence: str
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
        interrupted: whether it ended before its last series.
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
    interrupted: bool = False
