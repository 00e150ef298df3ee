"""The child process's side of a baseline check: one series for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segplan.baseline.results import Mode
from segplan.errors import CardError

TARGET = "segplan.baseline.job:handle"
STARTUP = "segplan.baseline.job:preload"


def preload() -> None:
    """Import what is slow to import; creates no CUDA context."""
    import segplan.baseline.measuring
    import segplan.baseline.networks  # noqa: F401


def handle(request: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Measure one series on the card that CUDA_VISIBLE_DEVICES leaves.

    Args:
        request: the attributes of a `segplan.baseline.measuring.Request`.
        progress: told {"build": ...} first ("native", "ptx" or "none": the kernels torch has for
            the card), then {"iteration": n, "seconds": s}: 0 as the count begins, then after each.

    Returns:
        The attributes of a `Series`, as far as this process knows them.

    Raises:
        CardError: torch cannot use the card, or has no kernels for it.
    """
    import torch

    from segplan.baseline.measuring import Request, measure, series_plain
    from segplan.baseline.networks import build

    check(torch, "bench")
    capability = torch.cuda.get_device_capability(0)
    support = build_support(capability, torch.cuda.get_arch_list())
    progress({"build": support})
    if support == "none":
        raise CardError(no_kernels(capability, torch.__version__, torch.cuda.get_arch_list()))
    asked = Request(**{**request, "mode": Mode(request["mode"])})
    series = measure(
        asked,
        lambda: build(asked.network),
        lambda number, seconds: progress({"iteration": number, "seconds": seconds}),
    )
    return series_plain(series)


def build_support(capability: tuple[int, int], architectures: Sequence[str]) -> str:
    """Whether a build of torch has kernels for a card.

    A cubin ("sm_80") runs on cards of its major version from its minor version on, PTX
    ("compute_90") is compiled at load for any newer card (CUDA C++ Programming Guide,
    "Application Compatibility"). Letters at the end ("sm_90a") bind a cubin to that one
    architecture.

    Args:
        capability: (major, minor) of the card.
        architectures: as `torch.cuda.get_arch_list` gives them.

    Returns:
        "native", "ptx" (slow to start, and without the newest instructions) or "none".
    """
    ptx = False
    for name in architectures:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        if not digits.isdecimal():
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            if number == digits or built == capability or number.endswith("f"):
                return "native"
        elif kind == "compute" and number == digits and built <= capability:
            ptx = True
    return "ptx" if ptx else "none"


def no_kernels(capability: tuple[int, int], version: str, architectures: Sequence[str]) -> str:
    """The sentence for a card that this build of torch has no kernels for."""
    return (
        f"torch {version} has no kernels for compute capability {capability[0]}.{capability[1]} "
        f"(it was built for {', '.join(architectures) or 'none'}): install a build of torch that "
        "has, as https://pytorch.org/get-started lists them."
    )


def check(torch: Any, command: str) -> None:
    """Make sure that torch can use the card.

    Raises:
        CardError: it cannot; the message names the command to run again.
    """
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        build = "" if torch.version.cuda else f" (torch {torch.__version__} has no CUDA)"
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CardError(
            f"PyTorch cannot use the card{build}: {line.rstrip('.')}. Install a CUDA build of "
            f"torch on the machine with the card, then run {command} again."
        ) from error
