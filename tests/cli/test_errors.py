"""What errors turn into: an exit status and one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segplan.errors import CardError, NetworkError, StoreError, WorkerError

BAD = {
    "patch": (["--patch", "12y"], "'12y' is no patch size: write it like 96"),
    "patch of two": (["--patch", "96x96"], "write it like 96 or 128x128x64"),
    "patch 0": (["--patch", "0"], "no patch size"),
    "batch 0": (["--batch", "0"], "--batch must be at least 1"),
    "batch below": (["--batch", "-3"], "--batch must be at least 1"),
    "batch text": (["--batch", "two"], "--batch"),
    "in channels": (["--in-channels", "0"], "in_channels must be a whole number of at least 1"),
    "out channels": (["--out-channels", "-1"], "out_channels must be"),
    "accumulation": (["--grad-accumulation", "0"], "grad_accumulation must be"),
    "clip": (["--grad-clip", "0"], "grad_clip must be a number above 0"),
    "precision": (["--precision", "fp61"], "did you mean fp16?"),
    "optimizer": (["--optimizer", "adamv"], "adamw, adam, sgd"),
    "loss": (["--loss", "dicecee"], "did you mean dicece?"),
    "memory format": (["--memory-format", "channels_last"], "channels_last_3d"),
    "zero grad": (["--zero-grad", "never"], "before_forward"),
    "model argument form": (["--model-arg", "feature_size"], "--model-arg name=value"),
    "model argument name": (["--model-arg", "=3"], "--model-arg name=value"),
    "model argument value": (["--model-arg", "depths=[2,2"], "--model-arg depths"),
    "limit": (["--allocator-limit", "lots"], "--allocator-limit: 'lots' is no memory size"),
    "reserve": (["--reserve", "-1"], "--reserve"),
    "max batch": (["--max-batch", "0"], "--max-batch must be at least 1"),
    "soak": (["--soak", "-1"], "--soak must be at least 0"),
    "gpu and gpus": (["--gpu", "0", "--gpus", "a,b"], "not both"),
    "no gpus": (["--gpus", ","], "--gpus needs names"),
    "as for several": (["--gpus", "a,b", "--as", "c"], "--as works with one card"),
    "option": (["--pach", "96"], "--patch"),
    "argument": (["swinunetr"], "swinunetr"),
    "preset": (["--config", "btcv-swinuntr"], "did you mean btcv-swinunetr?"),
    "file": (["--config", "nowhere.yaml"], "no file or preset 'nowhere.yaml'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_status_2_and_one_sentence(run, api, case):
    words, message = BAD[case]
    ran = run("fit", *words)
    assert ran.status == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("segplan: ")
    assert ran.out == ""
    assert api.calls == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NetworkError("there is no network 'swinunet': did you mean swinunetr?"), 2),
        (CardError("there is no card 'rtx-309': did you mean rtx-3090?"), 2),
        (StoreError("the store s.db is locked."), 1),
        (WorkerError("the worker was killed."), 1),
    ],
)
def test_errors_of_the_api_keep_their_sentence_and_status(run, api, error, status):
    api.error = error
    ran = run("fit")
    assert ran.status == status
    assert ran.err == f"segplan: {error}\n"


def test_an_interrupt_says_what_is_kept(run, api):
    api.error = KeyboardInterrupt()
    ran = run("fit")
    assert ran.status == 130
    assert "what was measured is kept" in ran.err


def test_an_unexpected_error_is_one_line(run, api):
    api.error = ZeroDivisionError("by zero\nand more")
    ran = run("fit")
    assert ran.status == 1
    assert ran.err == (
        "segplan: unexpected ZeroDivisionError: by zero (run with --debug for the traceback)\n"
    )


@pytest.mark.parametrize("words", [["--debug", "fit"], ["fit", "--debug"]])
def test_debug_shows_the_traceback(run, api, words):
    api.error = ZeroDivisionError("by zero")
    with pytest.raises(ZeroDivisionError):
        run(*words)


def test_an_unknown_command_is_suggested(run):
    ran = run("fitt")
    assert ran.status == 2
    assert "fit" in ran.err


def test_a_reader_that_leaves_is_no_error():
    program = (
        "import sys\n"
        "from segplan.cli import main as m\n"
        "def gone(words):\n"
        "    sys.stdout.write('x' * 1000000)\n"
        "    return 0\n"
        "m._run = gone\n"
        "sys.exit(m.main(['fit']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == ""
    child.wait(timeout=60)
