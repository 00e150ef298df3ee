"""The loop on the CPU: a tiny network, a scripted clock."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from segplan.baseline.job import build_support, handle, no_kernels
from segplan.baseline.measuring import Request, measure
from segplan.baseline.results import Method, Mode
from segplan.errors import CardError

OOM = "CUDA out of memory. Tried to allocate 2 MiB."


class Tiny(nn.Module):
    """Notes the batches it sees; refuses those that are too large."""

    def __init__(self, seen, most=10**9, error=None):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 32, stride=32)
        self.fc = nn.Linear(4 * 49, 1000)
        self.seen, self.most = seen, most
        self.error = error or torch.OutOfMemoryError(OOM)

    def forward(self, x):
        self.seen.append((x.shape[0], x.dtype, self.training, torch.is_grad_enabled()))
        self.strided = x.stride()
        if x.shape[0] > self.most:
            raise self.error
        return self.fc(self.conv(x).flatten(1))


def request(**changes):
    values = {"network": "resnet50", "precision": "fp32", "mode": Mode.INFERENCE, "batch": None,
              "images": 24, "iterations": 5}  # fmt: skip
    return Request(**{**values, **changes})


def clock():
    ticks = itertools.count(0.0, 1.0)
    return lambda: next(ticks)


def run(asked, **tiny):
    seen, told = [], []
    networks = []

    def make():
        networks.append(Tiny(seen, **tiny))
        return networks[-1]

    series = measure(asked, make, lambda *t: told.append(t), device="cpu", clock=clock())
    return series, seen, told, networks


def test_every_image_counts_once_and_the_warm_up_not():
    series, seen, told, _ = run(request())
    assert series.batch == 8  # the largest power of two that divides 24
    assert [number for number, _ in told] == [0, 1, 2, 3, 4, 5]
    assert series.seconds == (1.0,) * 5
    assert series.images_per_s == 24
    counted = seen[-15:]
    assert sum(batch for batch, *_ in counted) == 5 * 24
    assert len(seen) >= 15 + 3
    assert {entry[2:] for entry in seen} == {(False, False)}


def test_a_batch_that_does_not_divide():
    series, seen, _, _ = run(request(batch=10))
    assert series.batch == 10
    assert [batch for batch, *_ in seen[-3:]] == [10, 10, 4]


@pytest.mark.parametrize("message", [OOM, "GET was unable to find an engine to execute this"])
def test_the_batch_is_halved_until_it_fits(message):
    series, _, told, networks = run(request(), most=2, error=RuntimeError(message))
    assert (series.batch, series.asked_batch) == (2, 8)
    assert len(networks) == 3
    assert [number for number, _ in told] == [0, 1, 2, 3, 4, 5]


def test_not_even_one_image():
    with pytest.raises(CardError, match="not even one image of resnet50"):
        run(request(), most=0)


def test_other_errors_are_errors():
    with pytest.raises(RuntimeError, match="sizes differ"):
        run(request(), most=0, error=RuntimeError("sizes differ"))


def test_training_trains():
    series, seen, _, networks = run(request(mode=Mode.TRAINING, images=4))
    assert series.method is Method.PLAIN
    assert {entry[2:] for entry in seen} == {(True, True)}
    assert all(p.grad is not None for p in networks[0].parameters())


@pytest.mark.parametrize(
    ("precision", "mode", "dtype", "method"),
    [
        ("bf16", Mode.INFERENCE, torch.bfloat16, Method.CAST),
        ("bf16", Mode.TRAINING, torch.float32, Method.AUTOCAST),
        ("tf32", Mode.INFERENCE, torch.float32, Method.PLAIN),
    ],
)
def test_precisions(precision, mode, dtype, method):
    before = torch.backends.cuda.matmul.allow_tf32
    series, seen, _, networks = run(request(precision=precision, mode=mode, images=4))
    assert series.method is method
    assert {entry[1] for entry in seen} == {dtype}
    weights = {p.dtype for p in networks[0].parameters()}
    assert weights == {torch.bfloat16 if method is Method.CAST else torch.float32}
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_channels_last():
    _, _, _, networks = run(request(channels_last=True))
    assert networks[0].strided[1] == 1
    weight = networks[0].conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("capability", "architectures", "support"),
    [
        ((9, 0), ["sm_80", "sm_90"], "native"),
        ((8, 6), ["sm_80"], "native"),  # a cubin runs on later minor versions
        ((8, 0), ["sm_86"], "none"),
        ((9, 0), ["sm_80", "compute_80"], "ptx"),
        ((12, 0), ["sm_90", "sm_100"], "none"),
        ((12, 0), ["sm_120"], "native"),
        ((9, 0), ["sm_90a"], "native"),
        ((6, 1), ["sm_75", "sm_80", "compute_120"], "none"),
        ((9, 0), [], "none"),
    ],
)
def test_kernels_of_a_build(capability, architectures, support):
    assert build_support(capability, architectures) == support


def test_a_build_without_kernels_says_what_to_install():
    text = no_kernels((6, 1), "2.13.0", ["sm_75"])
    assert "6.1" in text
    assert "sm_75" in text
    assert "install" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_on_a_machine_without_a_card_it_is_the_requests_fault():
    asked = {**vars(request()), "mode": "inference"}
    with pytest.raises(CardError, match="Install a CUDA build"):
        handle(asked, lambda news: None)
