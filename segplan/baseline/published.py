"""Published throughput of ResNet50 and ViT-B/16: a row per figure, with source and software.

`published.csv` holds figures that a PyTorch user on one card can hope to repeat: no
`torch.compile`, no MXNet, no batch of a dozen images. `precision` says what the arithmetic was,
whatever the source calls it: a "fp32" of PyTorch 1.7 to 1.11 on an Ampere card is "tf32" here, and
so is ResNet50's of any later one (convolutions keep TF32). Figures whose arithmetic depends on a
version that the source does not state are left out. The sets of one source (Lambda's v0, v1, v2;
AutoDL's PyTorch 1.9 and 2.x) keep their own `software` and are never averaged.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from segplan.baseline.results import Method, Mode


@dataclass(frozen=True)
class Published:
    """One published figure.

    Attributes:
        network: "resnet50" or "vit_b_16".
        cards: slugs it may stand for: several where the source leaves the form factor open.
        card_name: as the source names it.
        mode: inference or training.
        precision: what the arithmetic was.
        method: how that was reached.
        channels_last: None where the source does not say.
        zeros: whether the images were zeros.
        batch: images in one pass; None where not stated.
        images_per_s: images per second on one card.
        software: as stated.
        torch_major: PyTorch's major version; None where not known.
        source: its address.
        date: when it was published, revised or read.
        note: what a reader should know, or None.
    """

    network: str
    cards: tuple[str, ...]
    card_name: str
    mode: Mode
    precision: str
    method: Method
    channels_last: bool | None
    zeros: bool
    batch: int | None
    images_per_s: float
    software: str
    torch_major: int | None
    source: str
    date: str
    note: str | None


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """Every figure segplan ships."""
    text = resources.files("segplan.baseline").joinpath("published.csv").read_text("utf-8")
    return tuple(_row(row) for row in csv.DictReader(text.splitlines()))


def _row(row: dict[str, str]) -> Published:
    return Published(
        network=row["network"],
        cards=tuple(row["cards"].split("|")),
        card_name=row["card_name"],
        mode=Mode(row["mode"]),
        precision=row["precision"],
        method=Method(row["method"]),
        channels_last=None if not row["layout"] else row["layout"] == "channels_last",
        zeros=row["input"] == "zeros",
        batch=int(row["batch"]) if row["batch"] else None,
        images_per_s=float(row["images_per_s"]),
        software=row["software"],
        torch_major=int(row["torch_major"]) if row["torch_major"] else None,
        source=row["source"],
        date=row["date"],
        note=row["note"] or None,
    )
