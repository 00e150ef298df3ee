"""`segplan days`: what reaches the API, and what a person or a program reads."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json

import pytest
import typer

from segplan.api import planning
from segplan.api.experiments import load_experiment
from segplan.cli import main as cli_main
from segplan.cli.days import days
from segplan.dataset.nouns import Sampled
from segplan.errors import CardError
from segplan.report import days as report
from segplan.report import loader as loader_report
from segplan.report.console import make_console
from segplan.results import Basis
from segplan.schedule import CasesPerEpoch, FixedIterations
from tests.api.test_planning import MONAI, Maker, one
from tests.cli.test_loader import RATE
from tests.report.test_json import validator


@pytest.fixture
def asked(monkeypatch):
    """Plans come from a fake predictor; returns how `plan_days` was called."""
    calls = []
    real = planning.plan_days

    def plan_days(experiments, gpus, **options):
        calls.append({"experiments": experiments, "gpus": gpus, **options})
        options["progress"](1, 2, "tracing")
        return real(experiments, gpus, make_predictor=Maker(), **options)

    monkeypatch.setattr(planning, "plan_days", plan_days)
    if not any(c.callback is days for c in cli_main.app.registered_commands):
        app = typer.Typer()
        app.command("days")(days)
        app.command("other")(lambda: None)
        monkeypatch.setattr(cli_main, "app", app)
    return calls


BTCV = ("days", "--config", "btcv-swinunetr")


def test_a_preset_on_cards(run, asked):
    ran = run(*BTCV, "--gpus", "rtx-3090,h100,rtx-2080-ti")
    assert ran.status == 0
    assert asked[0]["gpus"] == ["rtx-3090", "h100", "rtx-2080-ti"]
    assert asked[0]["experiments"][0].schedule.epoch == CasesPerEpoch(24, 4)
    for text in (
        "btcv-swinunetr: swinunetr", "5,000 epochs of 24 cases × 4 patches",
        "validation of 6 volumes every 100 epochs, 75 windows each",
        "patches per GPU per step: 4", "★", "finishes first", "no: needs 17.0 GiB",
        "the data loader must deliver", "Batch 16 finishes sooner on h100-sxm5-80gb",
        "6 steps an epoch instead of 24", "4 times less often",
        "--batch 2 --grad-accumulation 2", "80 % interval",
    ):  # fmt: skip
        assert text in " ".join(ran.out.split()), text
    lines = ran.out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "…" not in ran.out
    assert "tracing" in ran.err
    assert "tracing" not in ran.out


def test_the_soonest_card_comes_first_and_what_does_not_fit_last(run, asked):
    out = run(*BTCV, "--gpus", "rtx-2080-ti,rtx-3090,h100", "--loader-patches-per-s", "100").out
    where = [next(i for i, line in enumerate(out.splitlines()) if f" {card}" in line)
             for card in ("h100-sxm5-80gb", "rtx-2080-ti")]  # fmt: skip
    assert where[0] < where[1]


def test_fixed_iterations_say_that_a_larger_batch_is_longer(run, asked):
    out = " ".join(
        run("days", "--config", "msd-dynunet-liver", "--gpus", "rtx-3090,a40").out.split()
    )
    assert "A larger batch makes an epoch longer, not shorter: its iterations stay 250." in out
    assert "Batch 4 trains on 2 of these cards too and would see 2 times the patches" in out
    assert "250 iterations + 50 to validate · 5 folds · validation of 26 volumes at the end" in out
    assert "msd-dynunet-liver: dynunet · 1→3 channels" in out  # its arguments would fill the screen


def test_several_gpus(run, asked):
    ran = run("days", "--config", "msd-dynunet-heart", "--gpu", "a40", "--gpus-per-job", "4")
    assert asked[0]["gpus_per_job"] == 4
    out = " ".join(ran.out.split())
    assert "patches per GPU per step: 2 · 4 GPUs each" in out
    assert "gradients travel over PCIe 4 x16; the scaling is predicted" in out
    assert "sees 4 times the patches" in out
    assert "scaling" in out


def test_a_slow_loader(run, asked):
    ran = run(*BTCV, "--gpu", "rtx-3090", "--loader-patches-per-s", "2.5")
    assert asked[0]["loader"] == 2.5
    assert "loader" in ran.out
    assert "a faster card would not help" in " ".join(ran.out.split())


def test_a_measured_loader_and_a_store(run, asked, tmp_path):
    (tmp_path / "loader.json").write_text(json.dumps(loader_report.document(RATE)))
    words = ("--loader", str(tmp_path / "loader.json"), "--store", str(tmp_path / "s.sqlite"))
    ran = run(*BTCV, "--gpu", "rtx-3090", *words)
    assert ran.status == 0
    assert asked[0]["loader"] == RATE
    assert asked[0]["store"] == str(tmp_path / "s.sqlite")
    assert "a faster card would not help" not in ran.out
    slow = dataclasses.replace(RATE, patches_per_s=Sampled(2.0, 1.0, 3.0))
    (tmp_path / "loader.json").write_text(json.dumps(loader_report.document(slow)))
    ran = run(*BTCV, "--gpu", "rtx-3090", *words)
    assert "a faster card would not help" in " ".join(ran.out.split())


def test_a_measured_step_is_told(asked):
    plan = one(MONAI)
    measured = dataclasses.replace(plan.step, basis=Basis.MEASURED)
    out = io.StringIO()
    console = make_console(out)
    report.render([MONAI], [dataclasses.replace(plan, step=measured)], console)
    assert "rtx-3090: the step was measured there" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--config", "brats-segresnet", "--gpu", "rtx-2080-ti", "--batch", "3"],
         "Batch 1 in 3 accumulated passes trains on rtx-2080-ti"),
        (["--config", "brats-segresnet", "--gpu", "rtx-2080-ti", "--reserve", "9GiB"],
         "Nothing fits: a step at batch 1 needs 5.0 GiB. The smallest card that holds it:"),
        (["--config", "brats-segresnet", "--gpus", "titan-xp,t4", "--reserve", "8GiB",
          "--batch", "61"], "Batch 1 in 61 accumulated passes trains on t4"),
    ],
)  # fmt: skip
def test_when_nothing_fits_it_says_what_would(run, asked, words, text):
    ran = run("days", *words)
    assert ran.status == 0
    assert text in " ".join(ran.out.split())


def test_the_command_line_wins(run, asked):
    run(*BTCV, "--gpu", "rtx-3090", "--batch", "2", "--epochs", "50", "--folds", "3",
        "--num-samples", "2", "--model-arg", "feature_size=24", "--precision", "bf16",
        "--patch", "64", "--reserve", "1GiB")  # fmt: skip
    (found,) = asked[0]["experiments"]
    assert (found.workload.batch, found.workload.patch) == (2, (64, 64, 64))
    assert found.workload.model_args == {"feature_size": 24}
    assert found.workload.precision == "bf16"
    assert (found.schedule.epochs, found.schedule.folds) == (50, 3)
    assert found.schedule.epoch == CasesPerEpoch(24, 2)
    assert asked[0]["reserve"] == 2**30


def test_without_a_file(run, asked):
    ran = run("days", "--model", "unet", "--epochs", "10", "--iterations", "250", "--gpu", "a40",
              "--model-arg", "channels=[16,32,64]", "--model-arg", "strides=[2,2]")  # fmt: skip
    assert ran.status == 0
    (found,) = asked[0]["experiments"]
    assert (found.name, found.schedule.epoch) == ("unet", FixedIterations(250))


def test_several_configurations_share_the_cards(run, asked, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("gpus: [a40]\nbatch: 2\nschedule: {epochs: 3, cases: 5}\n")
    ran = run(*BTCV, "--config", str(file), "--gpus", "rtx-3090")
    assert asked[0]["gpus"] == ["rtx-3090"]
    assert [e.name for e in asked[0]["experiments"]] == ["btcv-swinunetr", "mine"]
    assert "mine: swinunetr" in ran.out
    run("days", "--config", str(file))
    assert asked[1]["gpus"] == ["a40"]


BAD = {
    "no cards": ([*BTCV[1:]], "name the cards"),
    "gpu and gpus": ([*BTCV[1:], "--gpu", "a40", "--gpus", "a,b"], "not both"),
    "no schedule": (["--gpu", "a40"], "there is no schedule"),
    "half a schedule": (["--gpu", "a40", "--epochs", "3"], "what an epoch is"),
    "both kinds": (["--gpu", "a40", "--iterations", "3", "--cases", "4"], "epoch is one of them"),
    "epochs": ([*BTCV[1:], "--gpu", "a40", "--epochs", "0"], "--epochs must be at least 1"),
    "gpus per job": ([*BTCV[1:], "--gpu", "a40", "--gpus-per-job", "0"], "--gpus-per-job must be"),
    "loader": ([*BTCV[1:], "--gpu", "a40", "--loader-patches-per-s", "0"], "at least 1e-06"),
    "two loaders": ([*BTCV[1:], "--gpu", "a40", "--loader-patches-per-s", "1", "--loader", "x"],
                    "not both"),
    "no loader": ([*BTCV[1:], "--gpu", "a40", "--loader", "nowhere.json"], "cannot be read"),
    "two patches": ([*BTCV[1:], "--patch", "64", "--patch", "96"], "takes one --patch"),
    "patch": ([*BTCV[1:], "--gpu", "a40", "--patch", "97"], "32"),
    "card": ([*BTCV[1:], "--gpu", "rtx-309"], "did you mean"),
    "all": ([*BTCV[1:], "--gpu", "all"], "days are predicted"),
    "preset": (["--config", "btcv-swinuntr", "--gpu", "a40"], "did you mean btcv-swinunetr?"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_status_2_and_one_sentence(run, asked, case):
    words, message = BAD[case]
    ran = run("days", *words)
    assert ran.status == 2
    assert message in ran.err
    assert [line for line in ran.err.splitlines() if line.startswith("segplan: ")]
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_errors_on_the_way_keep_their_sentence(run, asked, monkeypatch):
    def broken(*_, **__):
        raise CardError("the card is busy.")

    monkeypatch.setattr(planning, "plan_days", broken)
    ran = run(*BTCV, "--gpu", "a40")
    assert (ran.status, ran.out, ran.err) == (2, "", "segplan: the card is busy.\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "btcv-swinunetr", "--config", "msd-dynunet-prostate", "--gpus", "catalog"],
        ["--config", "brats-swinunetr", "--gpu", "a100-sxm4-40gb", "--gpus-per-job", "8"],
        ["--config", "spleen-unet", "--gpu", "a40", "--loader-patches-per-s", "1"],
        ["--model", "unet", "--model-arg", "channels=[16,32,64]", "--model-arg", "strides=[2,2]",
         "--epochs", "3", "--cases", "7", "--gpu", "titan-xp", "--batch", "13"],
    ],
)  # fmt: skip
def test_json(run, asked, words):
    ran = run("days", *words, "--json")
    assert ran.status == 0
    document = json.loads(ran.out)
    validator("days.schema.json").validate(document)
    assert len(document["plans"]) % len(document["experiments"]) == 0
    for plan in document["plans"]:
        assert plan["fits"] == (plan["total"] is not None)


def test_the_schema_is_strict(run, asked):
    document = json.loads(run(*BTCV, "--gpu", "rtx-3090", "--json").out)
    check = validator("days.schema.json")
    assert check.is_valid(document)
    for where, key in (
        (document, "x"),
        (document["plans"][0], "x"),
        (document["experiments"][0], "x"),
    ):
        where[key] = 1
        assert not check.is_valid(document)
        del where[key]
    document["plans"][0]["bound_by"] = "weather"
    assert not check.is_valid(document)


def test_a_terminal_that_shows_only_ascii(asked):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    experiments = [load_experiment("btcv-swinunetr")]
    plans = planning.plan_days(experiments, ["rtx-3090", "h100"], progress=lambda *_: None)
    report.render(experiments, plans, make_console(stream, width=80))
    stream.flush()
    assert b"patches per GPU per step: 4" in stream.buffer.getvalue()


def test_a_wide_terminal_shows_all_columns(run, asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    out = run(*BTCV, "--gpus", "rtx-3090,rtx-pro-6000").out
    header = next(line for line in out.splitlines() if "total" in line and "step" in line)
    for column in ("epoch", "kWh", "bound by", "patches/s", "MB/s", "best batch"):
        assert column in header
    assert "rtx-pro-6000-blackwell-workstation" in out


def test_the_help_has_the_options():
    out = io.StringIO()
    app = typer.Typer()
    app.command()(days)
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app(["--help"])
    for word in ("--gpus-per-job", "--loader-patches", "--num-samples"):
        assert word in out.getvalue()
