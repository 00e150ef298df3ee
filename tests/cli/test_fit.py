from __future__ import annotations

import json

import pytest

from segplan.units import GIB, MIB


def test_the_main_job(run, api):
    ran = run("fit", "--model", "swinunetr", "--gpu", "rtx-3090")
    assert ran.status == 0
    assert "96³" in ran.out
    assert "★" in ran.out
    assert "[1/4] 64³: batch 16" in ran.err
    call = api.calls[0]
    assert call["name"] == "fit"
    assert call["gpu"] == "rtx-3090"
    assert call["patches"] is None
    assert call["batch"] is None
    assert call["emulate"] is None
    assert call["allocator_limit"] is None
    assert call["reserve"] == 512 * MIB
    assert call["max_batch"] == 64
    assert call["store"] is None
    assert call["share"] is False
    assert call["soak"] == 0
    assert call["workload"].model == "swinunetr"


def test_without_a_card_the_first_one_here_is_meant(run, api):
    run("fit")
    assert api.calls[0]["gpu"] == "0"


def test_every_option_reaches_the_call(run, api):
    line = (
        "fit --model segresnet --model-arg init_filters=16 --model-arg blocks_down=[1,2,2,4] "
        "--model-arg upsample_mode=deconv --in-channels 4 --out-channels 3 --patch 96 "
        "--patch 128x128x64 --patch 96 --precision bf16 --optimizer sgd --loss dice "
        "--checkpointing --memory-format channels_last_3d --cudnn-benchmark "
        "--zero-grad before_backward --grad-accumulation 2 --grad-clip 12 --gpu 0 --as rtx-3090 "
        "--allocator-limit 23000 --reserve 1GiB --max-batch 8 --store s.db --share --soak 100"
    )
    assert run(*line.split()).status == 0
    call = api.calls[0]
    w = call["workload"]
    assert w.model_args == {
        "init_filters": 16, "blocks_down": (1, 2, 2, 4), "upsample_mode": "deconv",
    }  # fmt: skip
    assert (w.in_channels, w.out_channels, w.precision, w.optimizer) == (4, 3, "bf16", "sgd")
    assert (w.loss, w.checkpointing, w.memory_format) == ("dice", True, "channels_last_3d")
    assert (w.cudnn_benchmark, w.zero_grad) == (True, "before_backward")
    assert (w.grad_accumulation, w.grad_clip) == (2, 12.0)
    assert call["patches"] == [(96, 96, 96), (128, 128, 64)]
    assert (call["gpu"], call["emulate"]) == ("0", "rtx-3090")
    assert call["allocator_limit"] == 23_000 * MIB
    assert call["reserve"] == GIB
    assert (call["max_batch"], call["store"], call["share"], call["soak"]) == (8, "s.db", True, 100)


def test_a_batch_asks_the_other_way_round(run, api):
    run("fit", "--gpu", "rtx-3090", "--batch", "2")
    assert api.calls[0]["batch"] == 2
    assert api.calls[0]["workload"].batch == 2


def test_several_cards(run, api):
    ran = run("fit", "--gpus", "rtx-3090, rtx-4090")
    assert api.calls[0]["name"] == "fit_many"
    assert api.calls[0]["gpus"] == ["rtx-3090", "rtx-4090"]
    assert "rtx-4090" in ran.out


def test_all_cards_here(run, api):
    run("fit", "--gpu", "all")
    assert api.calls[0]["gpus"] == ["all"]
    assert api.calls[0]["side_by_side"] is False
    run("fit", "--gpu", "all", "--side-by-side")
    assert api.calls[1]["side_by_side"] is True
    ran = run("fit", "--gpu", "0", "--side-by-side")
    assert ran.status == 2
    assert "--gpu all" in ran.err


def test_a_preset_and_the_command_line_above_it(run, api):
    run("fit", "--config", "btcv-swinunetr", "--gpu", "rtx-3090", "--out-channels", "3")
    call = api.calls[0]
    assert call["workload"].out_channels == 3
    assert call["workload"].model_args == {"feature_size": 48}
    assert call["workload"].batch == 4
    assert call["patches"] == [(96, 96, 96)]
    assert call["batch"] is None  # a file's batch describes the step; it asks nothing


def test_another_model_drops_the_arguments_of_the_preset(run, api):
    run("fit", "--config", "btcv-swinunetr", "--model", "vnet", "--model-arg", "dropout_dim=3")
    assert api.calls[0]["workload"].model_args == {"dropout_dim": 3}


def test_patches_and_cards_of_the_command_line_replace_those_of_the_file(run, api, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("gpus: [rtx-3090, rtx-4090]\npatches: [64, 96]\nas: rtx-3060\n")
    run("fit", "--config", str(file), "--gpu", "0", "--patch", "128")
    call = api.calls[0]
    assert (call["name"], call["gpu"], call["emulate"]) == ("fit", "0", "rtx-3060")
    assert call["patches"] == [(128, 128, 128)]


def test_json_is_alone_on_standard_output(run, api):
    ran = run("fit", "--gpu", "rtx-3090", "--json")
    document = json.loads(ran.out)
    assert document["schema_version"] == 1
    assert document["cells"][1]["max_batch"] == 4
    assert "[1/4]" in ran.err


def test_json_of_several_cards(run, api):
    document = json.loads(run("fit", "--gpus", "rtx-3090,rtx-4090", "--json").out)
    assert [f["card"] for f in document["fits"]] == ["rtx-3090", "rtx-4090"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["fit", "--help"], ["--version"]])
def test_help_and_version_are_answers(run, words):
    ran = run(*words)
    assert ran.status == 0
    assert ran.out
    assert ran.err == ""


def test_no_arguments_print_the_help(run):
    ran = run()
    assert ran.status == 2
    assert "Usage" in ran.out + ran.err
