from __future__ import annotations

import json
import sys

import pytest
import typer

from segplan.api import calibrating
from segplan.api.calibrations import read_calibration
from segplan.baseline.operator_job import handle
from segplan.cli import main as command_line
from segplan.cli.calibrate import calibrate as calibrate_command
from segplan.errors import RequestError
from segplan.timing.operators import Operator
from segplan.worker import WorkerCrashed
from tests.baseline.fakes import H200, BusyNvml
from tests.gpus.fake_pynvml import LIBRARY_NOT_FOUND, FakeGpu, FakeProcess, NVMLError
from tests.report.test_json import validator
from tests.timing.timed import convolution, stream

OPERATORS = [Operator(stream(2, side, 8, dtype="float32"), "tf32") for side in (4, 8, 16, 32)] + [
    Operator(convolution(2, 4, 8, dtype="float32"), "fp32")
]


class CpuWorker:
    """Times on the processor; `dies_at` and `stops_at` are operators it does not come back from."""

    def __init__(self, dies_at=None, stops_at=None):
        self.dies_at, self.stops_at = dies_at, stops_at
        self.env, self.closed, self.made = None, 0, 0
        self.alive, self.pid = True, None

    def factory(self, env):
        self.env = env
        self.made += 1
        return self

    def start(self):
        return self

    def close(self):
        self.closed += 1

    def call(self, request, timeout_s, on_progress=None):
        def tell(news):
            on_progress(news)
            if "seconds" not in news and news["at"] == self.dies_at:
                self.dies_at = None
                raise WorkerCrashed("The child process was ended by signal 11 (SIGSEGV)")
            if news["at"] == self.stops_at:
                raise KeyboardInterrupt

        on_progress({"build": "native"})
        return handle({**request, "device": "cpu"}, tell)


@pytest.fixture
def calibrate(run, monkeypatch, tmp_path):
    """Runs `segplan calibrate` on a fake card; its `worker`, `nvml` and `store` are the test's."""
    names = {command.name for command in command_line.app.registered_commands}
    names |= {getattr(c.callback, "__name__", "") for c in command_line.app.registered_commands}
    if "calibrate" not in names:
        app = typer.Typer()
        app.command()(calibrate_command)
        app.callback()(lambda: None)
        monkeypatch.setattr(command_line, "app", app)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(calibrating, "shipped_operators", lambda: tuple(OPERATORS))

    class Calibrate:
        store = tmp_path / "store.sqlite"
        worker = CpuWorker()

        def __init__(self):
            self.use(H200)

        def use(self, *gpus, **options):
            monkeypatch.setitem(sys.modules, "pynvml", BusyNvml(list(gpus), **options))

        @property
        def kept(self):
            return tmp_path / "calibrations" / f"{H200.uuid}.json"

        def __call__(self, *words):
            monkeypatch.setattr(calibrating, "_real_worker", self.worker.factory)
            return run("calibrate", "--store", str(self.store), *words)

    return Calibrate()


def test_what_is_timed_is_told_and_kept(calibrate):
    ran = calibrate()
    assert ran.status == 0
    assert "NVIDIA H200: operators timed one by one" in ran.out
    assert "5 of 5 operators" in ran.out
    assert "elementwise" in ran.out
    assert "conv forward" in ran.out
    assert calibrate.worker.env == {"CUDA_VISIBLE_DEVICES": H200.uuid}
    assert calibrate.worker.closed == 1
    found = read_calibration(calibrate.kept)
    assert (found.card, found.card_uuid) == ("h200-sxm-141gb", H200.uuid)
    assert [t.operator for t in found.times] == OPERATORS
    assert "throttled" not in ran.out.lower()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_is_cut(calibrate, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = calibrate()
    assert max(len(line) for line in ran.out.splitlines()) <= width
    assert "…" not in ran.out


def test_json_and_a_file_of_ones_own(calibrate, tmp_path):
    ran = calibrate("--json", "--out", str(tmp_path / "mine.json"))
    document = json.loads(ran.out)
    validator("calibrate.schema.json").validate(document)
    assert document["operators"] == document["wanted"] == 5
    assert {k["kind"]: k["operators"] for k in document["by_kind"]} == {
        "conv_forward": 1, "elementwise": 4
    }  # fmt: skip
    assert read_calibration(tmp_path / "mine.json") == read_calibration(calibrate.kept)
    assert document["kept_at"] == str(calibrate.kept)


def test_ctrl_c_keeps_what_was_timed(calibrate):
    calibrate.worker = CpuWorker(stops_at=2)
    ran = calibrate()
    assert ran.status == 130
    assert "2 of 5 operators" in ran.out
    assert "Interrupted" in ran.out
    assert len(read_calibration(calibrate.kept).times) == 2
    assert calibrate.worker.closed == 1


def test_ctrl_c_before_anything_was_timed(calibrate):
    calibrate.worker = CpuWorker(stops_at=0)
    ran = calibrate()
    assert ran.status == 130
    assert not calibrate.kept.exists()


def test_an_operator_that_kills_the_process_is_left_out(calibrate):
    calibrate.worker = CpuWorker(dies_at=1)
    ran = calibrate()
    assert ran.status == 0
    assert "1 operators could not be timed" in " ".join(ran.out.split())
    assert "SIGSEGV" in ran.out
    assert calibrate.worker.made == 2
    assert len(read_calibration(calibrate.kept).times) == 4


def test_a_card_that_kills_every_process_ends_it(calibrate):
    class Dead(CpuWorker):
        def call(self, request, timeout_s, on_progress=None):
            raise WorkerCrashed("The child process was ended by signal 9 (SIGKILL)")

    calibrate.worker = Dead()
    ran = calibrate()
    assert ran.status == 1
    assert ran.err.startswith("segplan: The child process was ended")


def test_a_throttled_card_and_a_newcomer_are_told(calibrate, monkeypatch):
    monkeypatch.setattr(calibrating, "LOOK_EVERY", 1)
    calibrate.use(FakeGpu(throttle=0x40, name=H200.name, uuid=H200.uuid))
    text = " ".join(calibrate().out.split())
    assert "it is too hot" in text.lower()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--gpu", "rtx-3090"), "write --gpu 0"),
        (("--seconds", "0"), "between 1 and 3600"),
        (("--out", "/no/such/folder/file.json"), "folder does not exist"),
    ],
)
def test_a_wrong_request(calibrate, words, part):
    ran = calibrate(*words)
    assert ran.status == 2
    assert part in ran.err
    assert ran.err.count("\n") == 1


def test_a_busy_card_is_refused_unless_shared(calibrate):
    calibrate.use(FakeGpu(used=2 * 2**30, processes=[FakeProcess(7, 2 * 2**30)]))
    ran = calibrate()
    assert ran.status == 2
    assert "busy" in ran.err
    assert calibrate("--share").status == 0


def test_no_card_here(calibrate, monkeypatch):
    calibrate.use(init_error=NVMLError(LIBRARY_NOT_FOUND))
    ran = calibrate()
    assert ran.status == 2
    assert "calibrate measures a card of this machine" in ran.err


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "x.json"
    for text in ("", "[]", "{}", '{"schema_version": 1}', "NaN"):
        path.write_text(text)
        with pytest.raises(RequestError):
            read_calibration(path)


def test_a_disk_that_cannot_be_written_costs_only_the_keeping(calibrate, tmp_path):
    (tmp_path / "calibrations").write_text("in the way")
    ran = calibrate()
    assert ran.status == 0
    assert "was not kept" in " ".join(ran.out.split())
