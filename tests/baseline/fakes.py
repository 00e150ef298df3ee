"""A card for `segplan bench` without a GPU: NVML with an energy counter, and a child's answers."""

from __future__ import annotations

from segplan.units import MIB
from tests.gpus.fake_pynvml import FakeGpu, FakeNvml

H200 = FakeGpu(
    name="NVIDIA H200",
    uuid="GPU-22222222-aaaa-bbbb-cccc-000000000000",
    total=143771 * MIB,
    reserved=600 * MIB,
    capability=(9, 0),
    power_mw=700_000,
)


class BusyNvml(FakeNvml):
    """As `FakeNvml`, with a card that works: what only a busy card tells."""

    energy_mj = 1_000_000
    power_draw_mw = 320_000
    default_mw = 350_000
    mj_per_look = 50_000

    def nvmlDeviceGetTotalEnergyConsumption(self, card):
        self.energy_mj += self.mj_per_look
        return self._of(card, "energy", self.energy_mj)

    def nvmlDeviceGetPowerUsage(self, card):
        return self._of(card, "draw", self.power_draw_mw)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, card):
        return self._of(card, "default", self.default_mw)

    def nvmlDeviceGetClockInfo(self, card, kind):
        assert kind == 1
        return self._of(card, "clock", 1695)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card):
        return self._of(card, "pcie", 4)

    def nvmlDeviceGetCurrPcieLinkWidth(self, card):
        return self._of(card, "pcie", 16)


class FakeBenchWorker:
    """Answers with the images per second it is given for a network and precision."""

    def __init__(self, rates, build="native", fails_at=None, before=lambda: None):
        self.rates, self.build, self.fails_at, self.before = rates, build, fails_at, before
        self.requests = []
        self.env = None
        self.closed = False
        self.alive, self.pid = True, None

    def factory(self, env):
        self.env = env
        return self

    def start(self):
        return self

    def close(self):
        self.closed = True

    def call(self, request, timeout_s, on_progress=None):
        self.requests.append(request)
        if self.fails_at == len(self.requests):
            raise KeyboardInterrupt
        self.before()
        seconds = request["images"] / self.rates[request["network"], request["precision"]]
        on_progress({"build": self.build})
        on_progress({"iteration": 0, "seconds": 0.0})
        for number in range(1, request["iterations"] + 1):
            on_progress({"iteration": number, "seconds": seconds})
        training = request["mode"] == "training"
        wide = request["precision"] in ("tf32", "fp32")
        method = "plain" if wide else ("autocast" if training else "cast")
        kept = ("network", "precision", "mode", "images", "channels_last", "zeros")
        return {key: request[key] for key in kept} | {
            "method": method,
            "batch": request["batch"] or 128,
            "asked_batch": request["batch"] or 128,
            "seconds": [seconds] * request["iterations"],
        }


RTX_3090 = {
    ("resnet50", "fp16"): 2450.0, ("resnet50", "tf32"): 1540.0, ("resnet50", "fp32"): 1000.0,
    ("vit_b_16", "fp16"): 1500.0, ("vit_b_16", "tf32"): 610.0, ("vit_b_16", "fp32"): 420.0,
}  # fmt: skip
"""A healthy card's images per second; the published ones of 2022 are 2403, 1495, 1044 and 597."""
