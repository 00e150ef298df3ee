"""The child's side on the CPU: the steps are real, the card's clock and memory are scripted."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import segplan.networks
from segplan.errors import CardError, NetworkError
from segplan.gpus.local import LocalCard
from segplan.probe import Prober, job
from segplan.probe.device import cudnn_text, fraction_for, versions
from segplan.step.train import TrainingStep
from segplan.workload import Workload

W = Workload(model="unet", patch=(8, 8, 8), out_channels=2, precision="fp32", optimizer="sgd")


class ScriptedDevice:
    """A CPU that claims its steps took the given seconds."""

    name = "cpu"

    def __init__(self, seconds=(1.0,) * 99):
        self._seconds = iter(seconds)
        self.marks = self.cleaned = 0
        self.limit = "not opened"
        self.left_over = False

    def open(self, allocator_limit):
        self.limit = allocator_limit

    def mark(self):
        self.marks += 1
        return self.marks

    def seconds(self, start, end):
        assert end == start + 1
        return next(self._seconds)

    def synchronize(self):
        pass

    def peaks(self):
        return {"peak_allocated": 5, "peak_reserved": 7, "process_bytes": None,
                "context_bytes": 3, "allocator_retries": 1}  # fmt: skip

    def free_bytes(self):
        return 10**9

    def clean_up(self):
        self.cleaned += 1
        return not self.left_over

    def held_bytes(self):
        return 3


@pytest.fixture
def build(monkeypatch):
    """Lets a test say what `build` gives, and counts the steps that ran."""
    state = {"steps": 0, "make": lambda: nn.Conv3d(1, 2, 3, padding=1)}
    real = TrainingStep.run

    def run(self, images, labels):
        real(self, images, labels)
        state["steps"] += 1

    monkeypatch.setattr(TrainingStep, "run", run)
    monkeypatch.setattr(segplan.networks, "build", lambda w: state["make"](), raising=False)
    return state


def ask(device, workload=W, **changes):
    request = {"workload": workload.to_dict(), "allocator_limit": None, "warmup": 3, "steps": 5,
               "budget_s": 1e6, "free_before": None}  # fmt: skip
    return job.run({**request, **changes}, device, lambda news: None)


def test_warm_up_ends_when_two_steps_agree(build):
    device = ScriptedDevice([0.45, 0.3, 0.15, 0.102, 0.1, *(0.1, 0.2, 0.3, 0.4, 0.5)])
    reply = ask(device, allocator_limit=123)
    assert reply["outcome"] == "fits"
    assert reply["warmup_seconds"] == [0.45, 0.3, 0.15, 0.102, 0.1]
    assert reply["step_seconds"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert build["steps"] == 10
    assert device.limit == 123
    assert (reply["peak_allocated"], reply["peak_reserved"]) == (5, 7)
    assert (reply["allocator_retries"], reply["held_bytes"]) == (1, 3)
    assert reply["clean"]
    assert device.cleaned == 1


@pytest.mark.parametrize(
    ("seconds", "asked", "warmup", "timed"),
    [
        ([0.4**i for i in range(1, 30)], {}, 10, 5),  # never settles
        ([0.1] * 30, {}, 3, 5),
        ([0.1] * 30, {"steps": 0}, 3, 0),  # only: does it train
        ([0.1] * 30, {"steps": 2, "warmup": 1}, 2, 2),  # two that agree
        ([0.4**i for i in range(1, 30)], {"steps": 5, "warmup": 1, "budget_s": 0}, 1, 2),
        ([0.4**i for i in range(1, 30)], {"steps": 5, "warmup": 3, "budget_s": 0}, 3, 1),
        ([3.0] + [1.0] * 30, {}, 2, 5),  # lengthy: steady after the first
        ([3.0] + [1.0] * 30, {"budget_s": 0}, 2, 2),
        ([3.0] + [1.0] * 30, {"steps": 0}, 3, 0),
    ],
)
def test_numbers_of_steps(build, seconds, asked, warmup, timed):
    reply = ask(ScriptedDevice(seconds), **asked)
    assert len(reply["warmup_seconds"]) == warmup
    assert len(reply["step_seconds"]) == timed
    assert build["steps"] == warmup + timed >= job.FULL_STEPS


class Fails(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.conv = nn.Conv3d(1, 2, 3, padding=1)
        self.error, self.calls = error, 0

    def forward(self, x):
        self.calls += 1
        kept = self.conv(x)
        if self.calls == 3:
            raise self.error
        return kept


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB."), "out_of_memory"),
        (RuntimeError("GET was unable to find an engine to execute this"), "out_of_memory"),
        (RuntimeError("input tensor must fit into 32-bit index math"), "kernel_limit"),
        (ValueError("Expected more than 1 spatial element when training"), "failed"),
    ],
)
def test_an_error_in_the_third_step_is_an_outcome(build, error, outcome):
    networks = []

    def make():
        network = Fails(error)
        networks.append(weakref.ref(network))
        return network

    build["make"] = make
    device = ScriptedDevice()
    reply = ask(device)
    assert reply["outcome"] == outcome
    assert reply["message"].startswith(f"{type(error).__name__}: ")
    assert reply["peak_reserved"] == 7
    assert reply["step_seconds"] == []
    assert not reply["clean"]
    assert device.cleaned == 1
    gc.collect()
    assert networks[0]() is None, "the traceback keeps the network, and its memory, alive"


def test_what_is_left_over_is_not_clean(build):
    device = ScriptedDevice()
    device.left_over = True
    reply = ask(device)
    assert reply["outcome"] == "fits"
    assert not reply["clean"]


def test_a_network_that_cannot_be_built_is_the_requests_fault(build):
    def make():
        raise NetworkError("no such argument")

    build["make"] = make
    with pytest.raises(NetworkError, match="no such argument"):
        ask(ScriptedDevice())


def test_no_hook_is_left_in_the_timed_steps(build):
    network = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU())
    build["make"] = lambda: network
    ask(ScriptedDevice())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


@pytest.mark.parametrize(
    ("module", "channels", "elements"),
    [
        (nn.Conv3d(4, 6, 3, padding=1), 4, 2 * 6 * 8**3),
        (nn.Conv3d(4, 6, 3, padding=1, stride=2), 4, 2 * 6 * 4**3),
        (nn.ConvTranspose3d(4, 6, 2, stride=2), 4, 2 * 6 * 16**3),
    ],
)
def test_the_tensor_a_convolution_is_about_to_make_counts(module, channels, elements):
    largest = job._Largest(W)
    largest.elements, largest.in_reach = 0, True
    with largest.watching(module):
        module.register_forward_pre_hook(lambda *_: 1 / 0)  # fails before it has made it
        with pytest.raises(ZeroDivisionError):
            module(torch.zeros(2, channels, 8, 8, 8))
    assert largest.elements == max(elements, 2 * channels * 8**3)


def test_a_step_far_from_the_limit_runs_without_hooks():
    module = nn.Conv3d(4, 6, 3)
    with job._Largest(W).watching(module):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    large = job._Largest(W.replace(patch=(256, 256, 256), batch=1))
    with large.watching(module):
        assert module._forward_hooks
    assert not module._forward_hooks


def test_the_largest_known_before_anything_ran():
    one_hot = W.replace(out_channels=14, batch=3)
    assert job._Largest(one_hot).elements == 3 * 14 * 8**3


def test_channels_last_reaches_the_weights_that_can_have_it():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(2, 3, 3)
            self.position = nn.Parameter(torch.zeros(1, 2, 3, 4))

    network = job.placed(Mixed(), W.replace(memory_format="channels_last_3d"), "cpu")
    assert network.conv.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert network.position.is_contiguous()


@given(st.integers(1, 2**38), st.integers(2**30, 2**38))
def test_the_fraction_gives_exactly_the_limit(limit, total):
    fraction = fraction_for(limit, total)
    assert 0 < fraction <= 1
    assert int(fraction * total) == min(limit, total)


@pytest.mark.parametrize(
    ("number", "text"), [(91501, "9.15.1"), (91002, "9.10.2"), (8902, "8.9.2"), (None, None)]
)
def test_cudnn_versions(number, text):
    assert cudnn_text(number) == text


def test_versions_are_known():
    known = versions()
    assert all(known[key] for key in ("torch", "monai", "segplan", "python", "host_cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_no_card_for_torch_is_the_requests_fault():
    request = {"workload": W.to_dict(), "free_before": None}
    with pytest.raises(CardError, match="PyTorch cannot use the card"):
        job.handle(request, lambda news: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_the_real_child_says_so_too():
    card = LocalCard(index=0, nvml_index=0, name="none", uuid="GPU-none")
    with Prober(card) as prober, pytest.raises(CardError, match="PyTorch cannot use the card"):
        prober.probe(W)


def test_what_the_parent_imports_is_light():
    code = "import sys, segplan.probe; sys.exit(bool({'torch', 'monai'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_preloading_touches_no_card():
    code = (
        "import torch; from segplan.probe.job import preload; preload(); "
        "import sys; sys.exit(torch.cuda.is_initialized() or 'monai' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
