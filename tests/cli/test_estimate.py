from __future__ import annotations

import builtins
import dataclasses
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from segplan.api.estimating import CpuStitching, Study, ValidationStudy
from segplan.api.ladder import Ladder, Rung
from segplan.api.timeline import Phase, Timeline
from segplan.errors import CardError, RequestError
from segplan.memory.distributed import DataParallel
from segplan.report import estimate as report
from segplan.report.plot import write_plot
from segplan.step.validate import Validation
from segplan.units import GIB, MIB
from segplan.workload import Workload
from tests.cli.fakes import estimate_of
from tests.report.test_json import validator


def rung(gib: float, fits: bool | None, *names: str, expandable: bool = False, **changes) -> Rung:
    least = int(gib * GIB)
    saved = int(10.5 * GIB) - least
    return Rung(
        names,
        changes,
        expandable,
        least,
        least,
        least,
        least + MIB,
        saved,
        saved / 10.5 / GIB,
        fits,
    )


LADDER = Ladder(
    least_memory=int(10.5 * GIB),
    fits=False,
    rungs=(
        rung(9.8, False, "expandable_segments", expandable=True),
        rung(11.0, False, "amp", precision="fp16"),
        rung(8.0, False, "checkpointing", checkpointing=True),
        rung(7.0, False, "patch", patch=(64, 64, 64)),
        rung(7.5, False, "width", model_args={"channels": (8, 16), "bias": True}),
    ),
    together=rung(
        5.0, True, "expandable_segments", "checkpointing", expandable=True, checkpointing=True
    ),
    left_out={"batch": "there is none."},
)

LINE = Timeline(
    operators=("convolution.default", "relu.default", "convolution_backward.default", "add"),
    phases=(Phase("forward", 0, 2), Phase("backward", 2, 3), Phase("optimizer", 3, 4)),
    layers={
        "parameters": (GIB,) * 4,
        "gradients": (0, 0, GIB, GIB),
        "activations": (2 * GIB, 6 * GIB, 7 * GIB, 0),
        "workspaces": (0, 0, GIB, 0),
    },
    peak=10 * GIB,
    peak_at=2,
)


def validation_of(v: Validation, card: str | None) -> ValidationStudy:
    """10.5 GiB of training, 14 of validation, 15 of both in one process."""
    fits = None if card is None else card == "rtx-3090"
    stitching = CpuStitching(
        least_memory=8 * GIB,
        saved=6 * GIB,
        together=11 * GIB,
        fits=fits,
        needed=None if fits is None else False,
    )
    if card == "rtx-4080":  # 16 GB: only with stitching on the CPU
        fits, stitching = False, dataclasses.replace(stitching, fits=True, needed=True)
    return ValidationStudy(
        validation=dataclasses.replace(v, roi_size=v.window((96, 96, 96))),
        windows=216,
        memory=estimate_of(14.0),
        modules={"(stitching)": 9 * GIB, "(scoring)": 4 * GIB},
        together=estimate_of(15.0),
        decides="validation",
        fits=fits,
        cpu_stitching=None if v.stitch == "cpu" else stitching,
        warnings=("The output is large.",),
    )


class FakeStudy:
    def __init__(self) -> None:
        self.calls = []
        self.error = None

    def __call__(
        self, workload, gpu=None, *, ladder=None, progress=None, validation=None,
        gpus_per_job=1, **more,
    ):  # fmt: skip
        self.calls.append(
            {
                "workload": workload,
                "gpu": gpu,
                "ladder": ladder,
                "validation": validation,
                "gpus_per_job": gpus_per_job,
                **more,
            }
        )
        if self.error is not None:
            raise self.error
        progress(1, 2, "traced")
        found = Study(
            workload=workload,
            memory=dataclasses.replace(estimate_of(10.5), context=720 * MIB if gpu else None),
            modules={"encoder": 6 * GIB, "decoder": int(3.45 * GIB), "(input)": 51 * MIB},
            timeline=LINE,
            ladder=LADDER if ladder else None,
            validation=validation_of(validation, gpu) if validation is not None else None,
            data_parallel=DataParallel(gpus_per_job, (MIB, 200 * MIB), 544 * MIB)
            if gpus_per_job > 1
            else None,
        )
        if gpu is None:
            return found
        budget = {"rtx-3090": 22 * GIB, "rtx-2070": 6 * GIB, "rtx-4080": 14 * GIB}[gpu]
        fits = budget > 11 * GIB
        return dataclasses.replace(
            found, card=gpu, visible=budget + (720 + 512) * MIB, budget=budget, fits=fits,
            ladder=LADDER if ladder or (ladder is None and not fits) else None,
            warnings=("The CUDA context was not measured.",),
        )  # fmt: skip


@pytest.fixture
def study(api, monkeypatch):
    fake = FakeStudy()
    monkeypatch.setattr(sys.modules["segplan.api.estimating"], "study", fake, raising=False)
    return fake


def test_the_numbers_people_confuse_side_by_side(run, study):
    ran = run("estimate", "--patch", "96", "--batch", "2", "--gpu", "rtx-3090")
    assert ran.status == 0
    assert study.calls[0]["workload"].batch == 2
    assert study.calls[0]["gpu"] == "rtx-3090"
    for text in (
        "peak allocated  9.8 GiB", "10.5 GiB (10.2–10.8)", "11.2 GiB", "process total",
        "in nvidia-smi   11.9 GiB", "Fits: 10.5 GiB needed, rtx-3090 leaves 22.0 GiB",
        "Note: The CUDA context was not measured.",
    ):  # fmt: skip
        assert text in ran.out
    for part in ("activations", "  encoder", "  1 smaller", "optimizer state"):
        assert part in ran.out
    assert "What would save" not in ran.out


@pytest.mark.parametrize("card", ["rtx-3090", "rtx-2070", "rtx-4080", None])
def test_eighty_columns_are_enough(run, study, card):
    words = ["--gpu", card] if card else []
    words += ["--validate", "512x512x300", "--gpus-per-job", "2"]
    ran = run("estimate", "--ladder", *words)
    assert ran.status == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "…" not in ran.out


def test_without_a_card(run, study):
    ran = run("estimate")
    assert "no card named: tensors and allocator only" in ran.out
    for text in ("process total", "Fits", "fit:"):
        assert text not in ran.out
    assert study.calls[0]["gpu"] is None


def test_the_ladder_comes_where_it_does_not_fit(run, study):
    ran = run("estimate", "--gpu", "rtx-2070")
    assert "Does not fit: 10.5 GiB needed, rtx-2070 leaves 6.0 GiB" in ran.out
    assert "What would save how much" in ran.out
    lines = {line.split("  ")[0].strip(): line for line in ran.out.splitlines()}
    assert "8.0 GiB" in lines["checkpointing"]
    assert "2.5 GiB" in lines["checkpointing"]
    assert lines["checkpointing"].rstrip().endswith("no")
    assert "nothing" in lines["AMP (fp16)"]
    assert lines["the first together"].rstrip().endswith("yes")
    assert "First that fits: expandable segments + checkpointing" in ran.out
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True --checkpointing" in ran.out
    assert "Left out: batch: there is none." in ran.out


@pytest.mark.parametrize(("word", "wanted"), [("--ladder", True), ("--no-ladder", False)])
def test_the_ladder_on_request(run, study, word, wanted):
    ran = run("estimate", "--gpu", "rtx-2070", word)
    assert study.calls[0]["ladder"] is wanted
    assert ("What would save" in ran.out) is wanted


def flat(text):
    return " ".join(text.split())


def test_validation_is_asked_for(run, study):
    run(
        "estimate", "--validate", "512x512x300", "--roi-size", "128x128x64", "--sw-batch-size",
        "2", "--overlap", "0.5", "--stitch", "cpu",
    )  # fmt: skip
    assert study.calls[0]["validation"] == Validation(
        (512, 512, 300), (128, 128, 64), 2, 0.5, stitch="cpu"
    )
    run("estimate", "--validate", "300")
    assert study.calls[1]["validation"] == Validation((300, 300, 300))
    run("estimate")
    assert study.calls[2]["validation"] is None


def test_validation_comes_from_the_files_schedule(run, study, tmp_path):
    preset = ("estimate", "--config", "btcv-swinunetr")
    run(*preset, "--validate", "schedule")
    assert study.calls[0]["validation"] == Validation((259, 259, 190), None, 4, 0.5)
    run(*preset, "--validate", "512x512x300", "--overlap", "0.25", "--roi-size", "128")
    assert study.calls[1]["validation"] == Validation((512, 512, 300), (128, 128, 128), 4, 0.25)
    run(*preset)
    assert study.calls[2]["validation"] is None
    run("estimate", "--config", "brats-segresnet", "--validate", "schedule")
    assert study.calls[3]["validation"] == Validation((240, 240, 155), (240, 240, 160), 1, 0.5)
    for words in ((), ("--config", str(tmp_path / "own.yaml"))):
        (tmp_path / "own.yaml").write_text("model: swinunetr\n")
        ran = run("estimate", "--validate", "schedule", *words)
        assert ran.status == 2
        assert "give a size, or a shape under dataset" in flat(ran.err)


def test_validation_says_who_decides_and_what_stitching_saves(run, study):
    ran = run("estimate", "--gpu", "rtx-3090", "--validate", "512x512x300")
    text = flat(ran.out)
    for wanted in (
        "Validation of 512×512×300",
        "216 windows of 96³, 4 at a time, overlap 0.25, stitched on the GPU",
        "with training 15.0 GiB",
        "Validation decides: 14.0 GiB, training 10.5 GiB. Both fit in one process: 15.0 GiB "
        "needed, rtx-3090 leaves 22.0 GiB.",
        "Stitching on the CPU (--stitch cpu) saves 6.0 GiB: validation then needs 8.0 GiB, the "
        "process 11.0 GiB. It is not needed on rtx-3090.",
        "Note: The output is large.",
        "(stitching) 9.0 GiB",
    ):
        assert wanted in text
    text = flat(run("estimate", "--gpu", "rtx-4080", "--validate", "512x512x300").out)
    assert "They do not fit in one process: 15.0 GiB needed, rtx-4080 leaves 14.0 GiB" in text
    assert "It is needed on rtx-4080." in text
    text = flat(run("estimate", "--gpu", "rtx-2070", "--validate", "512x512x300").out)
    assert "the process 11.0 GiB, which does not fit rtx-2070 either." in text
    text = flat(run("estimate", "--validate", "512x512x300").out)
    assert "the process 11.0 GiB." in text
    assert "fit" not in text.partition("Validation decides")[2]
    text = flat(run("estimate", "--validate", "512x512x300", "--stitch", "cpu").out)
    assert "Stitching on the CPU" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stitch", "cpu"), "--stitch needs --validate"),
        (("--roi-size", "96"), "--roi-size needs --validate"),
        (("--sw-batch-size", "2"), "--sw-batch-size needs --validate"),
        (("--validate", "big"), "--validate: 'big' is no size"),
        (("--validate", "512", "--roi-size", "0"), "--roi-size: '0' is no size"),
        (("--validate", "512", "--overlap", "1"), "overlap must be from 0 to below 1"),
        (("--validate", "512", "--stitch", "gpus"), "did you mean gpu"),
        (("--validate", "512", "--sw-batch-size", "0"), "sw_batch_size must be"),
    ],
)
def test_a_validation_that_makes_no_sense_is_refused(run, study, words, message):
    ran = run("estimate", *words)
    assert (ran.status, ran.out) == (2, "")
    assert message in flat(ran.err)
    assert study.calls == []


def test_several_gpus_say_where_their_buckets_are_counted(run, study):
    ran = run("estimate", "--gpu", "rtx-3090", "--gpus-per-job", "2")
    assert study.calls[0]["gpus_per_job"] == 2
    text = flat(ran.out)
    assert "Gradients include 201 MiB in 2 buckets of DistributedDataParallel over 2 GPUs" in text
    assert "least + 720 MiB context + 544 MiB NCCL" in text
    assert "less 720 MiB context, 544 MiB NCCL and 512 MiB reserve" in text


def test_options_of_a_change():
    width = LADDER.rungs[-1]
    assert report.change_text(width) == "half the channels + bias True"
    assert report.change_options(width) == "--model-arg channels=[8,16] --model-arg bias=true"
    assert report.change_options(LADDER.rungs[3]) == "--patch 64"
    assert report.change_options(LADDER.rungs[1]) == "--precision fp16"


def test_a_reserve(run, study):
    run("estimate", "--gpu", "rtx-3090", "--reserve", "1GiB")
    assert study.calls[0]["reserve"] == GIB
    run("estimate")
    assert "reserve" not in study.calls[1]
    assert run("estimate", "--reserve", "lots").status == 2


def test_a_preset_gives_patch_and_batch(run, study):
    run("estimate", "--config", "brats-segresnet")
    w = study.calls[0]["workload"]
    assert (w.patch, w.batch, w.model) == ((224, 224, 144), 1, "segresnet")


def test_errors_keep_their_sentence(run, study):
    study.error = CardError("there is no card 'rtx-309': did you mean rtx-3090?")
    ran = run("estimate", "--gpu", "rtx-309")
    assert (ran.status, ran.out) == (2, "")
    assert "did you mean rtx-3090?" in ran.err


@pytest.mark.parametrize("words", [[], ["--gpu", "rtx-3090"], ["--gpu", "rtx-2070"]])
def test_json(run, study, words):
    document = json.loads(run("estimate", "--json", *words).out)
    validator("estimate.schema.json").validate(document)
    assert document["workload"]["model"] == "swinunetr"
    assert document["least_memory"] == int(10.5 * 2**30)
    assert document["card"] == (words[1] if words else None)
    assert (document["process_total"] is None) == (not words)
    if words:
        total = document["process_total"]
        assert total["least"] == document["least_memory"] + document["context"]
        assert total["unlimited"] == document["peak_reserved"] + document["context"]
    assert (document["ladder"] is not None) == ("rtx-2070" in words)
    assert document["validation"] is None
    assert document["data_parallel"] is None


@pytest.mark.parametrize("stitch", ["gpu", "cpu"])
@pytest.mark.parametrize("card", [[], ["--gpu", "rtx-3090"]])
def test_json_of_validation_and_several_gpus(run, study, stitch, card):
    words = ["--validate", "512x512x300", "--stitch", stitch, "--gpus-per-job", "4"]
    document = json.loads(run("estimate", "--json", *words, *card).out)
    validator("estimate.schema.json").validate(document)
    found = document["validation"]
    assert found["validation"]["volume"] == [512, 512, 300]
    assert found["together"]["least_memory"] == 15 * GIB
    assert (found["cpu_stitching"] is None) == (stitch == "cpu")
    assert document["data_parallel"]["buckets"] == [MIB, 200 * MIB]
    if card:
        outside = document["context"] + document["data_parallel"]["communicator"]
        assert document["process_total"]["least"] == document["least_memory"] + outside


@pytest.mark.parametrize("card", ["rtx-3090", "rtx-2070", None])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture(run, study, tmp_path, ending, card):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"step.{ending}"
    ran = run("estimate", "--plot", str(file), *(["--gpu", card] if card else []))
    assert ran.status == 0
    assert "wrote" in ran.err
    assert "wrote" not in ran.out
    data = file.read_bytes()
    if ending == "png":
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert b"IEND" in data[-12:]
    else:
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
        study_again = FakeStudy()(Workload(), card, progress=lambda *_: None)
        write_plot(study_again, str(tmp_path / "again.svg"))
        assert (tmp_path / "again.svg").read_bytes() == data


@pytest.mark.parametrize(
    ("name", "message"), [("step.pdf", ".svg or .png"), ("no/where.png", "there is no folder")]
)
def test_a_picture_that_cannot_be_written_is_refused_first(run, study, name, message):
    ran = run("estimate", "--plot", name)
    assert ran.status == 2
    assert message in ran.err
    assert study.calls == []


def test_a_picture_needs_matplotlib(run, study, monkeypatch):
    load = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    ran = run("estimate", "--plot", "step.png")
    assert ran.status == 2
    assert "pip install segplan[plot]" in ran.err
    assert study.calls == []


def test_a_picture_needs_a_timeline(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(RequestError, match="timeline"):
        write_plot(Study(Workload(), estimate_of(1.0)), str(tmp_path / "a.svg"))
