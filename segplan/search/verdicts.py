"""What an oracle says of one batch (or one patch)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from segplan.results import LimitedBy


class Kind(StrEnum):
    """The four answers an oracle has."""

    FITS = "fits"
    TOO_BIG = "too_big"
    KERNEL = "kernel"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """One answer; `Verdict.FITS` and its siblings are those without a message.

    Attributes:
        kind: fits, too big (for the memory), refused by a kernel (2^31 elements), or unknown
            (timed out, crashed, failed).
        message: why, where there is something to say.
        final: whether it needs no verification (it came from a fresh process).
    """

    kind: Kind
    message: str | None = None
    final: bool = False

    FITS: ClassVar[Verdict]
    TOO_BIG: ClassVar[Verdict]
    KERNEL: ClassVar[Verdict]
    UNKNOWN: ClassVar[Verdict]

    @property
    def fits(self) -> bool:
        """Whether it trains."""
        return self.kind is Kind.FITS

    @property
    def known(self) -> bool:
        """Whether there is an answer at all."""
        return self.kind is not Kind.UNKNOWN

    @property
    def limited_by(self) -> LimitedBy | None:
        """What stops it; None where it fits or is not known."""
        return _LIMITS.get(self.kind)

    def because(self, message: str | None) -> Self:
        """The same with a message."""
        return dataclasses.replace(self, message=message)

    def as_final(self) -> Self:
        """The same, needing no verification."""
        return dataclasses.replace(self, final=True)


Verdict.FITS = Verdict(Kind.FITS)
Verdict.TOO_BIG = Verdict(Kind.TOO_BIG)
Verdict.KERNEL = Verdict(Kind.KERNEL)
Verdict.UNKNOWN = Verdict(Kind.UNKNOWN)

_LIMITS = {Kind.TOO_BIG: LimitedBy.MEMORY, Kind.KERNEL: LimitedBy.KERNEL}
