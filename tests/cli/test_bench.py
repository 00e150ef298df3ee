from __future__ import annotations

import json
import sqlite3
import sys

import pytest
import typer

from segplan.api import benching
from segplan.cli import main as command_line
from segplan.cli.bench import bench as bench_command
from segplan.errors import StoreError
from segplan.store import Store
from tests.baseline.fakes import H200, RTX_3090, BusyNvml, FakeBenchWorker
from tests.gpus.fake_pynvml import LIBRARY_NOT_FOUND, FakeGpu, FakeProcess, NVMLError, mig_a100
from tests.report.test_json import validator

GIB = 2**30


@pytest.fixture
def bench(run, monkeypatch, tmp_path):
    """Runs `segplan bench` on a fake card; its `worker`, `nvml` and `store` are the test's."""
    names = {command.name for command in command_line.app.registered_commands}
    names |= {getattr(c.callback, "__name__", "") for c in command_line.app.registered_commands}
    if "bench" not in names:
        app = typer.Typer()
        app.command()(bench_command)
        app.callback()(lambda: None)
        monkeypatch.setattr(command_line, "app", app)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(benching, "SAMPLE_S", 0.01)

    class Bench:
        store = tmp_path / "store.sqlite"
        worker = FakeBenchWorker(RTX_3090)

        def __init__(self):
            self.use(FakeGpu())

        def use(self, *gpus, **options):
            self.nvml = BusyNvml(list(gpus), **options)
            monkeypatch.setitem(sys.modules, "pynvml", self.nvml)

        def __call__(self, *words):
            monkeypatch.setattr(benching, "_real_worker", self.worker.factory)
            return run("bench", "--store", str(self.store), *words)

    return Bench()


def test_a_healthy_card(bench):
    ran = bench()
    assert ran.status == 0
    assert "The NVIDIA GeForce RTX 3090 performs as it should: 0.81 to 1.03" in ran.out
    assert "Noticed" not in ran.out
    # The 2022 table's "fp32" had TF32 on: both are measured, and the report says which is which.
    asked = [(r["network"], r["precision"]) for r in bench.worker.requests]
    assert asked == list(RTX_3090)
    assert "the tables of" in ran.out
    assert "2450" in ran.out
    assert bench.worker.env == {"CUDA_VISIBLE_DEVICES": FakeGpu().uuid}
    assert bench.worker.closed


def test_every_iteration_is_told_as_it_ends(bench):
    ran = bench("--network", "resnet50", "--precision", "fp16")
    lines = ran.err.splitlines()
    assert lines == [
        "ResNet50 fp16: warming up",
        *(f"ResNet50 fp16 {n}: 2450 images/s, 0.784 s" for n in range(1, 6)),
    ]


@pytest.mark.parametrize("words", [[], ["--train"], ["--precision", "fp16"]])
@pytest.mark.parametrize("gpu", [FakeGpu(), H200])
def test_eighty_columns_are_enough(bench, words, gpu):
    bench.use(gpu)
    ran = bench(*words)
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "…" not in ran.out


def test_another_software_generation_is_never_silent(bench):
    ran = bench("--network", "resnet50", "--precision", "tf32")
    text = " ".join(ran.out.split())
    assert "other software generation: PyTorch 1.9.0" in text


def test_a_slow_card_and_why(bench):
    bench.worker = FakeBenchWorker({key: 0.6 * rate for key, rate in RTX_3090.items()})
    bench.use(FakeGpu(power_mw=220_000, throttle=0x4))
    ran = bench()
    text = " ".join(ran.out.split())
    assert ran.status == 0
    assert "is slower than it should be" in text
    assert "Noticed: Its power limit is 220 W, below its default of 350 W" in text


def test_a_card_without_figures_is_judged_by_its_neighbours(bench):
    bench.use(H200)
    bench.worker = FakeBenchWorker({key: 3.6 * rate for key, rate in RTX_3090.items()})
    text = " ".join(bench().out.split())
    assert "performs as it should by its neighbours (H800)" in text
    assert "software not stated" in text


def test_the_options_reach_the_card(bench):
    bench("--train", "--precision", "bf16", "--batch", "64", "--channels-last", "--zeros")
    request = bench.worker.requests[0]
    assert request["mode"] == "training"
    assert request["precision"] == "bf16"
    assert (request["batch"], request["channels_last"], request["zeros"]) == (64, True, True)
    assert (request["images"], request["iterations"]) == (1920, 5)


@pytest.mark.parametrize("words", [[], ["--train", "--precision", "fp16"]])
def test_json_and_store(bench, words):
    ran = bench("--json", *words)
    document = json.loads(ran.out)
    validator("bench.schema.json").validate(document)
    assert document["series"][0]["rates"] == pytest.approx([2450.0] * 5)
    assert document["environment"]["card_name"] == "NVIDIA GeForce RTX 3090"
    assert document["health"]["power_default_w"] == 350.0
    with Store.open(bench.store) as store:
        kept = store.benches()
        assert store.benches("GPU-another") == []
        assert store.benches(FakeGpu().uuid) == kept
    assert {"schema_version": 1, **kept[0]} == document


def test_energy_is_counted_over_the_iterations(bench):
    times = iter(range(10**6))

    class Watch(benching.CardWatch):
        def __init__(self, card):
            super().__init__(card, clock=lambda: float(next(times)))

    bench.worker = FakeBenchWorker(RTX_3090)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benching, "CardWatch", Watch)
        patch.setattr(benching, "SAMPLE_S", 1000.0)  # only the marks look
        words = ["--json", "--network", "resnet50", "--precision", "fp16"]
        series = json.loads(bench(*words).out)["series"][0]
    # 50 J between two looks, one at the beginning and one after each of five iterations.
    assert series["energy_j_per_image"] == pytest.approx(5 * 50 / (5 * 1920))
    assert series["power_w"] == 320.0
    assert series["throttled"] == []
    assert series["sm_mhz"] == 1695


def test_an_interrupted_check_keeps_what_it_has(bench):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=3)
    ran = bench()
    assert ran.status == 130
    with Store.open(bench.store) as store:
        (kept,) = store.benches()
    assert [s["precision"] for s in kept["series"]] == ["fp16", "tf32"]
    assert bench.worker.closed


def test_a_store_that_cannot_be_written_costs_no_answer(bench, tmp_path):
    bench.store = tmp_path
    ran = bench()
    assert ran.status == 0
    assert "performs as it should" in ran.out
    assert "was not stored" in ran.out


def test_a_store_of_the_version_before_gets_the_table(bench):
    with Store.open(bench.store):
        pass
    connection = sqlite3.connect(bench.store)
    connection.execute("DROP TABLE benches")
    connection.execute("UPDATE schema_version SET version = 1")
    connection.commit()
    connection.close()
    bench("--precision", "fp16")
    with Store.open(bench.store) as store:
        assert len(store.benches()) == 1
        with pytest.raises(StoreError, match="made_at"):
            store.add_bench({"environment": {}})


def test_an_old_card_has_no_tf32(bench):
    bench.use(FakeGpu(name="NVIDIA GeForce RTX 2080 Ti", total=11 * GIB, capability=(7, 5)))
    ran = bench()
    assert {r["precision"] for r in bench.worker.requests} == {"fp16", "fp32"}
    assert "has no TF32" in ran.out
    refused = bench("--precision", "bf16")
    assert refused.status == 2
    assert "leave --precision bf16 out" in refused.err


def test_what_is_noticed_on_a_card_in_a_narrow_slot(bench):
    bench.nvml.nvmlDeviceGetCurrPcieLinkWidth = lambda card: 4
    assert "It has 4 PCIe lanes of 16" in " ".join(bench().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "rtx-3090"], "write --gpu 0"),
        (["--gpu", "all"], "write --gpu 0"),
        (["--gpu", "3"], "there is no GPU 3"),
        (["--precision", "fp8"], "use fp16, bf16, tf32, fp32"),
        (["--network", "resnet18"], "use resnet50, vit_b_16"),
        (["--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_requests_that_make_no_sense(bench, words, message):
    ran = bench(*words)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
    assert bench.worker.requests == []


def test_a_machine_without_a_card(bench):
    bench.use(init_error=NVMLError(LIBRARY_NOT_FOUND))
    ran = bench()
    assert (ran.status, ran.out) == (2, "")
    assert "no NVIDIA driver is installed" in ran.err
    assert "run it on the machine with the card" in ran.err
    bench.use()
    assert "run it on the machine with the card" in bench().err


def test_a_busy_card(bench):
    process = FakeProcess(4711, 2 * GIB)
    bench.use(FakeGpu(used=2 * GIB, processes=[process]))
    ran = bench()
    assert ran.status == 2
    assert "4711" in ran.err
    shared = bench("--share")
    assert shared.status == 0
    assert "1 other process held memory" in " ".join(shared.out.split())


def test_a_card_in_slices(bench):
    bench.use(mig_a100())
    assert "cut into MIG slices" in bench().err
    part = bench("--gpu", "MIG-c0000000")
    assert part.status == 0
    assert "It is a MIG slice" in " ".join(part.out.split())
