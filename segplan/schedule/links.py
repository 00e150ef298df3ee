"""Several GPUs on one experiment: what exchanging gradients costs.

Data parallel training, as `torch.nn.parallel.DistributedDataParallel` does it: every GPU computes
the gradients of its own patches, and a ring all-reduce averages them.
"""

from __future__ import annotations

from dataclasses import dataclass

from segplan.errors import RequestError
from segplan.gpus.card import Card
from segplan.results import Basis, StepTime

NVLINK_BYTES_PER_S = {"SXM2": 150e9, "SXM4": 300e9, "SXM5": 450e9, "HGX": 900e9}
"""Bytes per second one way of a module's NVLink, half of what datasheets call its bandwidth.

V100, A100, H100/H200 and HGX B200 datasheets: 300, 600, 900 and 1,800 GB/s both ways.
"""

PCIE_BYTES_PER_S = {3: 15.75e9, 4: 31.5e9, 5: 63e9}
"""Bytes per second one way of 16 lanes, by generation (PCI-SIG: 8, 16, 32 GT/s, 128b/130b)."""

NVLINK_SHARE = 0.75
"""Share of a link that an all-reduce reaches, an assumption: about 230 of 300 GB/s on A100 boards
with NVSwitch."""

PCIE_SHARE = 0.5
"""The same over PCIe: github.com/NVIDIA/nccl/issues/1639 shows 35 and 28 of 63 GB/s with 4 and 8
RTX 5090. NVLink bridges between PCIe cards are not counted on."""

BUCKET_BYTES = 25 * 2**20
"""Gradients are sent in buckets of this size (`DistributedDataParallel(bucket_cap_mb=25)`); the
last one is ready only when the backward pass is over, so nothing hides it."""

BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in a step; see `durations.FORWARD_SHARE`."""

HIDDEN_SHARE = 0.5
"""Share of the backward pass behind which gradients travel unseen, an assumption.

Li et al. 2020 (PyTorch Distributed, VLDB 13(12), arXiv:2006.15704) show overlap gaining a quarter
to a third on ResNet50 and BERT; a network with most parameters in its first layers hides less.
"""


@dataclass(frozen=True)
class Link:
    """What joins the GPUs of one server.

    Attributes:
        name: for people.
        bytes_per_s: one way, as an all-reduce reaches it.
    """

    name: str
    bytes_per_s: float


def link_of(card: Card) -> Link:
    """The link between cards of this model in one server: NVLink for modules, else PCIe x16.

    The generation of PCIe follows from the architecture: 3 up to Turing, 4 for Ampere and Ada, 5
    for Hopper and Blackwell. A card of which that is not known counts as PCIe 3.
    """
    form = card.form_factor or ""
    for name, rate in NVLINK_BYTES_PER_S.items():
        if name in form:
            return Link(f"NVLink ({name})", rate * NVLINK_SHARE)
    capability = card.compute_capability or (0, 0)
    generation = 5 if capability >= (9, 0) else 4 if capability >= (8, 0) else 3
    return Link(f"PCIe {generation} x16", PCIE_BYTES_PER_S[generation] * PCIE_SHARE)


def ring_seconds(gradient_bytes: float, gpus: int, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce: 2 (n - 1) / n of the bytes cross every link.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
    (J. Parallel Distrib. Comput. 69). Latency is left out: gradients are tens of megabytes.
    """
    return 2 * (gpus - 1) / gpus * gradient_bytes / bytes_per_s


def data_parallel(
    step: StepTime, gradient_bytes: int, gpus: int, link: Link, *, accumulation: int = 1
) -> StepTime:
    """A step of several GPUs, each on a batch of its own as large as the one `step` is for.

    Of the exchange, what `HIDDEN_SHARE` of the last backward pass does not hide comes on top, at
    least the last bucket. The interval goes from "all but the last bucket is hidden" to "nothing
    is". Waiting for the slowest GPU is left out. With one GPU the step is returned as it is.

    Args:
        step: of one GPU alone.
        gradient_bytes: of all parameters.
        gpus: at least 1.
        link: between them.
        accumulation: passes of a step: gradients are exchanged once, after the last (`no_sync`).

    Raises:
        RequestError: fewer than one GPU.
    """
    if gpus < 1:
        raise RequestError(f"an experiment takes at least one GPU, not {gpus}.")
    if gpus == 1:
        return step
    exchange = ring_seconds(gradient_bytes, gpus, link.bytes_per_s)
    last = min(exchange, ring_seconds(BUCKET_BYTES, gpus, link.bytes_per_s))
    hidden = HIDDEN_SHARE * BACKWARD_SHARE * step.seconds / accumulation
    return StepTime(
        step.seconds + max(last, exchange - hidden),
        step.low + last,
        step.high + exchange,
        Basis.PREDICTED,
        step.host_bound,
    )
