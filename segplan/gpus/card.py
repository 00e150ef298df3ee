"""Card: what is known about one model of graphics card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from segplan.workload import FrozenArgs

DTYPES = ("fp32", "tf32", "fp16", "bf16")
"""Keys of `Card.rates`."""

CONSERVATIVE_VISIBLE = 0.975
"""Share of the nominal memory that torch sees, where nobody printed or measured it.

The smallest share among the printed ones without ECC on GDDR6 memory: 10.73 of 11 GiB
(RTX 2080 Ti) is 0.9755. ECC on GDDR6 takes another sixteenth.
"""


@dataclass(frozen=True)
class Card:
    """A model of graphics card: bytes, bytes per second and FLOP per second.

    None means "not known", or for a rate "the card has no such unit"; never zero.

    Attributes:
        slug: the name in lower case with hyphens, as given to `--gpu`.
        name: as the vendor's documents write it.
        memory_nominal: bytes; the size in the name, counted in GiB as vendors do.
        memory_visible: bytes torch can see (`torch.cuda.mem_get_info()[1]`) on a default set-up.
        aliases: other spellings, the driver's product name included.
        memory_bandwidth: bytes per second, or None.
        rates: peak dense FLOP per second by "fp32", "tf32", "fp16" and "bf16". The 16-bit rates
            are those with fp32 accumulation, which is what PyTorch asks for (GeForce cards halve
            it). Cards without tensor cores compute fp16 on their fp32 units: its rate is theirs.
        fp16_acc16: peak dense fp16 FLOP per second with fp16 accumulation (for reference).
        compute_capability: (major, minor), or None.
        sm_count: streaming multiprocessors.
        l2_bytes: second-level cache.
        power_w: the board's power limit, watts.
        slot_width: PCIe slots it takes; None for a module (SXM) or where unknown.
        form_factor: such as "PCIe passive FHFL" or "SXM4 module".
        memory_type: such as "GDDR6".
        launch: year, or year and month.
        visible_basis: what `memory_visible` rests on: "measured", "printed" (in public messages
            of torch), "derived" (from cards of the same size), "given" (by the user), "driver".
        visible_source: where that comes from.
        source: where the other numbers come from.
        verification: how they were checked, and what is doubtful.
    """

    slug: str
    name: str
    memory_nominal: int
    memory_visible: int
    aliases: tuple[str, ...] = ()
    memory_bandwidth: float | None = None
    rates: Mapping[str, float | None] = field(default_factory=FrozenArgs)
    fp16_acc16: float | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    power_w: float | None = None
    slot_width: float | None = None
    form_factor: str | None = None
    memory_type: str | None = None
    launch: str | None = None
    visible_basis: str = "derived"
    visible_source: str = ""
    source: str = ""
    verification: str = ""

    def __post_init__(self) -> None:
        rates = {dtype: self.rates.get(dtype) for dtype in DTYPES}
        object.__setattr__(self, "rates", FrozenArgs(rates))

    def rate(self, precision: str) -> float | None:
        """Peak FLOP per second at which the card computes a workload of this precision.

        A card without TF32 computes "tf32" at its fp32 rate, as PyTorch does there.

        Args:
            precision: "fp32", "tf32", "fp16" or "bf16".

        Returns:
            FLOP per second, or None where the card lacks the type or the rate is not known.
        """
        rate: float | None = self.rates[precision]
        lacks_tf32 = self.compute_capability is not None and self.compute_capability < (8, 0)
        if rate is None and precision == "tf32" and lacks_tf32:
            return self.rates["fp32"]
        return rate


_VENDOR_WORDS = re.compile(r"^(nvidia|geforce|tesla)+")


def card_key(text: str) -> str:
    """The part of a name that counts: lower case, no punctuation, no "NVIDIA", "GeForce", "Tesla".

    "NVIDIA GeForce RTX 3090", "rtx-3090" and "RTX3090" have the same key.
    """
    return _VENDOR_WORDS.sub("", re.sub(r"[^a-z0-9]+", "", text.lower()))


def slugify(name: str) -> str:
    """A name in lower case with hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
