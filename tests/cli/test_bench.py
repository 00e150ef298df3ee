from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import typer

from segplan.api import bench_series, benching
from segplan.cli import main as command_line
from segplan.cli.bench import bench as bench_command
from segplan.errors import StoreError
from segplan.store import Store
from segplan.worker import WorkerCrashed
from tests.baseline.fakes import H200, RTX_3090, BusyNvml, FakeBenchWorker
from tests.gpus.fake_pynvml import LIBRARY_NOT_FOUND, FakeGpu, FakeProcess, NVMLError, mig_a100
from tests.report.test_json import validator

GIB = 2**30
ROOT = Path(__file__).parents[2]


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
    monkeypatch.setattr(bench_series, "SAMPLE_S", 0.01)
    versions = {"torch": "2.11.0", "cuda": "13.0", "cudnn": "9.19.0", "monai": "1.6.1"}
    monkeypatch.setattr("segplan.api.recording.software", lambda: versions)

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
        patch.setattr(bench_series, "SAMPLE_S", 1000.0)  # only the marks look
        words = ["--json", "--network", "resnet50", "--precision", "fp16"]
        series = json.loads(bench(*words).out)["series"][0]
    # 50 J between two looks, one at the beginning and one after each of five iterations.
    assert series["energy_j_per_image"] == pytest.approx(5 * 50 / (5 * 1920))
    assert series["power_w"] == 320.0
    assert series["throttled"] == []
    assert series["sm_mhz"] == 1695


def asked(worker):
    return [(r["network"], r["precision"]) for r in worker.requests]


def test_an_interrupted_check_shows_what_it_has_and_goes_on(bench):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=3)
    ran = bench()
    text = " ".join(ran.out.split())
    assert ran.status == 130
    assert "performs as it should" in text
    assert "Interrupted after 2 of 6 series: the same command goes on from there" in text
    assert bench.worker.closed
    with Store.open(bench.store) as store:
        (kept,) = store.benches()
    assert [s["precision"] for s in kept["series"]] == ["fp16", "tf32"]
    assert kept["interrupted"]

    bench.worker = FakeBenchWorker(RTX_3090)
    ran = bench("--json")
    document = json.loads(ran.out)
    assert ran.status == 0
    assert asked(bench.worker) == list(RTX_3090)[2:]
    assert document["series"][:2] == kept["series"]
    assert not document["interrupted"]
    assert "2 of 6 series were measured before an interruption" in document["warnings"][0]
    assert "ResNet50 fp16: 2450 images/s, measured 20" in ran.err
    with Store.open(bench.store) as store:
        assert [len(check["series"]) for check in store.benches()] == [6]


def test_the_json_of_an_interrupted_check_is_marked(bench):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=2)
    ran = bench("--json", "--train")
    document = json.loads(ran.out)
    validator("bench.schema.json").validate(document)
    assert ran.status == 130
    assert document["interrupted"]
    assert len(document["series"]) == 1
    assert "Interrupted after 1 of 6 series" in ran.err


def test_a_check_that_ended_is_measured_anew(bench):
    bench("--precision", "fp16")
    bench.worker = FakeBenchWorker(RTX_3090)
    bench("--precision", "fp16")
    assert len(bench.worker.requests) == 2
    with Store.open(bench.store) as store:
        assert len(store.benches()) == 2


def test_an_interruption_before_the_first_series_ended_keeps_nothing(bench):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=1)
    ran = bench("--json")
    assert (ran.status, ran.out) == (130, "")
    assert not bench.store.exists() or not Store.open(bench.store).benches()


def other_driver(bench, monkeypatch):
    bench.nvml.nvmlSystemGetDriverVersion = lambda: "999.99"


def other_card(bench, monkeypatch):
    bench.use(FakeGpu(uuid="GPU-99999999-aaaa-bbbb-cccc-000000000000"))


def other_torch(bench, monkeypatch):
    known = {"torch": "9.9", "cuda": "13.0", "cudnn": "9", "monai": "1.6"}
    monkeypatch.setattr("segplan.api.recording.software", lambda: known)


def other_limit(bench, monkeypatch):
    bench.use(FakeGpu(power_mw=220_000))


def other_day(bench, monkeypatch):
    monkeypatch.setattr("segplan.api.bench_keeping.GOES_ON_FOR", timedelta(0))


def others_on_the_card(bench, monkeypatch):
    bench.use(FakeGpu(used=2 * GIB, processes=[FakeProcess(4711, 2 * GIB)]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ["--fresh"]),
        (None, ["--train"]),
        (None, ["--zeros"]),
        (None, ["--channels-last"]),
        (None, ["--batch", "64"]),
        (other_driver, []),
        (other_card, []),
        (other_torch, []),
        (other_limit, []),
        (other_day, []),
        (others_on_the_card, ["--share"]),
    ],
)
def test_where_something_that_matters_differs_all_is_measured(bench, monkeypatch, change, words):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=3)
    assert bench().status == 130
    if change is not None:
        change(bench, monkeypatch)
    bench.worker = FakeBenchWorker(RTX_3090)
    assert bench(*words).status == 0
    assert asked(bench.worker) == list(RTX_3090)
    with Store.open(bench.store) as store:
        assert [c["interrupted"] for c in store.benches()] == [False, True]


def test_a_part_of_an_interrupted_check_leaves_the_rest_of_it(bench):
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=4)
    bench()
    bench.worker = FakeBenchWorker(RTX_3090)
    bench("--precision", "fp16")
    assert asked(bench.worker) == [("vit_b_16", "fp16")]
    with Store.open(bench.store) as store:
        assert [len(check["series"]) for check in store.benches()] == [2, 3]


def test_a_process_that_dies_costs_no_finished_series(bench):
    class Dying(FakeBenchWorker):
        def call(self, request, timeout_s, on_progress=None):
            if len(self.requests) == 2:
                raise WorkerCrashed("The child process was ended by signal 9.")
            return super().call(request, timeout_s, on_progress)

    bench.worker = Dying(RTX_3090)
    assert bench().status == 1
    bench.worker = FakeBenchWorker(RTX_3090)
    assert bench().status == 0
    assert asked(bench.worker) == list(RTX_3090)[2:]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_and_started_again(tmp_path, how):
    """A process of its own whose third series hangs."""
    words = ["--json", "--store", str(tmp_path / "s.db")]

    def start(hangs_at):
        return subprocess.Popen(
            [sys.executable, "-m", "tests.baseline.hanging", str(tmp_path), str(hangs_at), *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    child = start(3)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "hangs").exists() and time.monotonic() < end:
            time.sleep(0.02)
        child.send_signal(how)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
    if how == signal.SIGKILL:
        assert child.returncode == -signal.SIGKILL
    else:
        assert child.returncode == 130, err
        assert json.loads(out)["interrupted"]
        assert len(json.loads(out)["series"]) == 2
        assert "Interrupted after 2 of 6 series" in err
        assert "Traceback" not in err
    out, err = start(0).communicate(timeout=30)
    document = json.loads(out)
    assert len(document["series"]) == 6, err
    measured = (tmp_path / "asked").read_text().split()
    assert measured == [f"{n}-{p}" for n, p in [*list(RTX_3090)[:3], *list(RTX_3090)[2:]]]


def test_a_store_that_cannot_be_written_costs_no_answer(bench, tmp_path):
    bench.store = tmp_path / "s.db"
    bench.store.write_text("no database at all")
    bench.worker = FakeBenchWorker(RTX_3090, fails_at=4)
    ran = bench()
    assert ran.status == 130
    text = "".join(ran.out.split())
    assert "performsasitshould" in text
    assert "wasnotstored" in text
    log = tmp_path / "s.db.unsaved.jsonl"
    assert f"segplanresults--import{log}" in text
    bench.store = tmp_path / "new.db"
    with Store.open(bench.store) as store:
        assert store.import_file(log).benches_added == 1
    bench.worker = FakeBenchWorker(RTX_3090)
    assert bench().status == 0
    assert asked(bench.worker) == list(RTX_3090)[3:]


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
