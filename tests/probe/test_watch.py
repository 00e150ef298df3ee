"""What else a timed step tells: decisions on samples as they are recorded, and a scripted card."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import segplan.networks
from segplan.gpus.local import LocalCard, MigSlice
from segplan.probe import job
from segplan.probe.watch import (
    CardState,
    CardWatch,
    StepWatch,
    energy_per_step,
    facts_of,
    held_back,
    hold_for,
    host_bound,
    median_interval,
    noisy,
    stable,
)
from tests.baseline.fakes import BusyNvml
from tests.gpus.fake_pynvml import FakeGpu, FakeProcess
from tests.probe.test_job import ScriptedDevice, W

WARMING = [2.10, 0.61, 0.52, 0.46, 0.43, 0.418, 0.413, 0.411, 0.410, 0.411]
"""A first step that loads kernels and chooses algorithms, then clocks that settle."""


def test_a_warm_up_ends_when_two_medians_agree():
    ends = [n for n in range(len(WARMING) + 1) if stable(WARMING[:n])]
    # 0.413 against 0.46 after eight steps, 0.411 against 0.43 after nine, 0.411 against 0.418.
    assert ends == [10]
    assert not stable([1.0] * 5)
    assert stable([1.0] * 6)


def test_one_hiccup_does_not_prolong_a_warm_up():
    assert stable([0.40, 0.40, 0.40, 0.40, 0.90, 0.40])
    assert not stable([0.40, 0.40, 0.40, 0.45, 0.45, 0.45])


@pytest.mark.parametrize(
    ("n", "rank"),
    [
        # P(x_(r) < median < x_(n+1-r)) = 1 - 2 sum_{i<r} C(n,i) / 2^n
        (1, 1), (2, 1), (3, 1), (4, 1),
        (5, 1),  # r = 2: 1 - 2 (1 + 5) / 32 = 0.625
        (7, 2),  # r = 2: 1 - 2 (1 + 7) / 128 = 0.875; r = 3: 0.547
        (10, 3),  # r = 3: 1 - 2 (1 + 10 + 45) / 1024 = 0.891; r = 4: 0.656
        (20, 7),  # r = 7: 0.885; r = 8: 0.737
    ],
)  # fmt: skip
def test_the_interval_of_the_median(n, rank):
    middle, low, high = median_interval([float(i) for i in range(1, n + 1)])
    assert (low, high) == (rank, n + 1 - rank)
    assert middle == (n + 1) / 2


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples):
    middle, low, high = median_interval(samples)
    assert min(samples) <= low <= middle <= high <= max(samples)


def test_noise():
    assert not noisy([0.410, 0.411, 0.409, 0.412, 0.410, 0.52])  # one outlier is no noise
    assert noisy([0.41, 0.47, 0.55, 0.40, 0.52, 0.44])
    assert not noisy([0.1, 0.9])


@pytest.mark.parametrize(
    ("step_s", "busy_s", "answer"),
    [
        (0.0310, 0.0120, True),  # a small network: the card idles most of the step
        (0.4120, 0.4105, False),
        (0.0310, 0.0300, False),
        (0.4120, 0.4200, False),  # a slower moment
        (None, 0.1, None),
        (0.1, None, None),
    ],
)
def test_a_step_that_waits_for_the_host(step_s, busy_s, answer):
    assert host_bound(step_s, busy_s) is answer


def test_energy_of_a_step():
    assert energy_per_step(1000.0, 1650.0, 5, 2.0) == 130.0
    assert energy_per_step(1000.0, 1650.0, 5, 0.4) is None  # the counter is too coarse
    assert energy_per_step(1000.0, 1000.0, 5, 2.0) is None
    assert energy_per_step(1000.0, 3.0, 5, 2.0) is None  # the driver was loaded anew
    assert energy_per_step(None, 1650.0, 5, 2.0) is None


def test_reasons_under_load():
    idle = CardState(0.0, reasons=(), processes=(7,))
    hot = CardState(1.0, reasons=("power limit", "temperature (software)"), processes=(7,))
    limited = CardState(2.0, reasons=("power limit",), processes=(7, 8))
    assert held_back([idle]) == ()
    assert held_back([limited, hot]) == ("power limit", "temperature (software)")
    assert held_back([limited], idle) == ("power limit", "another process")
    assert held_back([hot], idle) == ("power limit", "temperature (software)")
    assert held_back([CardState(0.0)]) is None
    assert held_back([]) is None


@pytest.fixture
def card(monkeypatch):
    """A card behind a fake NVML, and a watch on it."""

    def make(gpu=None, mig=None, **options):
        gpu = gpu or FakeGpu()
        fake = BusyNvml([gpu], **options)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        local = LocalCard(index=0, nvml_index=0, name="card", uuid=gpu.uuid, mig=mig)
        return fake, CardWatch(local)

    return make


def test_what_nvml_tells(card):
    gpu = FakeGpu(throttle=0x4 | 0x20, processes=[FakeProcess(7, 2**30)])
    fake, watch = card(gpu)
    with watch:
        first, second = watch.read(), watch.read()
    assert first.reasons == ("power limit", "temperature (software)")
    assert second.energy_j - first.energy_j == 50.0  # the fake draws 50,000 mJ between two looks
    assert (first.power_w, first.power_limit_w, first.power_default_w) == (320.0, 350.0, 350.0)
    assert (first.temperature_c, first.sm_mhz) == (35, 1695)
    assert (first.pcie_gen, first.pcie_width, first.processes) == (4, 16, (7,))
    assert second.at_s >= first.at_s
    assert fake.open == 0  # closed
    assert watch.read().energy_j is None


def test_what_a_card_refuses_is_not_told(card):
    broken = {"energy", "draw", "default", "clock", "throttle", "processes", "pcie", "temperature"}
    _, watch = card(FakeGpu(broken=broken))
    state = watch.read()
    assert state == CardState(state.at_s, power_limit_w=350.0)


def test_a_slice_has_no_energy_of_its_own(card):
    part = MigSlice("3g.20gb", 2**34, 42, "GPU-x", "card")
    _, watch = card(mig=part)
    assert watch.read().energy_j is None
    assert watch.read().power_w is None


def test_without_a_driver_nothing_is_told(card):
    _, watch = card(init_error=RuntimeError("no driver"))
    assert watch.read().reasons is None
    watch.close()


class HeldDevice(ScriptedDevice):
    """Notes when it is held; its work goes on until it is waited for."""

    def __init__(self, *seconds):
        super().__init__(*seconds)
        self.log = []

    def mark(self):
        self.log.append("mark")
        return super().mark()

    def synchronize(self):
        self.log.append("wait")

    def hold(self, seconds):
        self.log.append(f"hold {seconds:.4f}")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(segplan.networks, "build", lambda w: nn.Conv3d(1, 2, 3, padding=1))


def ask(device, watch, **changes):
    request = {"workload": W.to_dict(), "allocator_limit": None, "warmup": 3, "steps": 4,
               "budget_s": 1e6, "free_before": None}  # fmt: skip
    return job.run({**request, **changes}, device, lambda news: None, watch)


def states(*reasons, joules=100.0, apart_s=2.0):
    for number in itertools.count():
        yield CardState(number * apart_s, reasons=reasons, energy_j=1000 + number * joules)


def test_a_probe_tells_all_of_it(tiny):
    looks = states("power limit")
    device = HeldDevice([0.03] * 7 + [0.012])
    watch = StepWatch(lambda: (device.log.append("look"), next(looks))[1], device.hold)
    reply = ask(device, watch)
    assert reply["step_seconds"] == [0.03] * 4
    assert reply["busy_seconds"] == 0.012
    assert reply["host_bound"] is True
    assert reply["throttled"] == ["power limit"]
    assert reply["energy_j_per_step"] == 200 / 4  # from the first look to the third
    tail = device.log[device.log.index("look") :]
    # No look and no wait between timed steps; the second look while the card still works.
    assert tail[:9] == ["look", *["mark"] * 5, "look", "wait", "look"]
    assert tail[9:13] == [f"hold {hold_for(0.03):.4f}", "mark", "mark", "wait"]


def test_a_long_step_is_not_asked_whether_it_waits_for_the_host(tiny):
    device = HeldDevice([2.0] * 8)
    reply = ask(device, StepWatch(lambda: next(states()), device.hold))
    assert reply["host_bound"] is None
    assert not any(entry.startswith("hold") for entry in device.log)


def test_no_time_is_spent_on_it_when_none_is_left(tiny):
    device = HeldDevice([0.03] * 8)
    reply = ask(device, StepWatch(lambda: next(states()), device.hold), budget_s=0)
    assert reply["host_bound"] is None
    assert len(reply["step_seconds"]) == 1


def test_a_probe_without_a_watch_is_as_before(tiny):
    reply = ask(ScriptedDevice(), None)
    assert not {"energy_j_per_step", "host_bound", "throttled"} & set(reply)
    assert facts_of(reply) == dict.fromkeys(("energy_j_per_step", "host_bound", "throttled"))


def test_a_warm_up_until_stable_goes_on_longer(tiny):
    reply = ask(ScriptedDevice(WARMING + [0.41] * 10), None, stable_of=3)
    assert reply["warmup_seconds"] == WARMING
    usual = ask(ScriptedDevice(WARMING + [0.41] * 10), None)
    assert len(usual["warmup_seconds"]) < len(WARMING)
    never = ask(ScriptedDevice([1.5**-i for i in range(300)]), None, stable_of=3)
    assert len(never["warmup_seconds"]) == job.MOST_STABLE_WARMUP


def test_facts_of_a_reply():
    reply = {"energy_j_per_step": 12, "host_bound": False, "throttled": ["power limit"]}
    assert facts_of(reply) == {
        "energy_j_per_step": 12.0,
        "host_bound": False,
        "throttled": ("power limit",),
    }
    with pytest.raises((TypeError, ValueError)):
        facts_of({"energy_j_per_step": "much"})
