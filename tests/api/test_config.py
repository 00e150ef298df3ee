"""Configuration files: presets, and one sentence with the line for everything that is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from segplan.api.config import Config, load_config, parse_config, preset_names
from segplan.errors import ConfigError
from segplan.workload import Workload

PRESETS = [
    "brats-segresnet",
    "brats-swinunetr",
    "btcv-swinunetr",
    "btcv-unetr",
    "msd-dynunet-liver",
    "spleen-unet",
]


def test_the_presets_are_there():
    assert preset_names() == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_a_workload(name):
    values = load_config(name).values()
    keys = {f.name for f in dataclasses.fields(Workload)}
    assert set(values) <= keys
    workload = Workload(**values)
    assert workload.batch >= 1


def test_every_option_of_a_workload_can_be_written():
    assert {f.name for f in dataclasses.fields(Workload)} <= set(Config.model_fields)


def test_values_take_the_forms_of_the_command_line():
    text = (
        "patch: 128x128x64\npatches: [64, 96x96x96, [128, 128, 64]]\nallocator_limit: 23000\n"
        "reserve: 1GiB\ngpu: 0\ngpus: a, b\nas: rtx-3090\ngrad_clip: 12\n"
    )
    assert parse_config(text, "c").values() == {
        "patch": (128, 128, 64),
        "patches": [(64, 64, 64), (96, 96, 96), (128, 128, 64)],
        "allocator_limit": 23_000 * 2**20,
        "reserve": 2**30,
        "gpu": "0",
        "gpus": ["a", "b"],
        "emulate": "rtx-3090",
        "grad_clip": 12.0,
    }


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_keeps_all_defaults(text):
    assert parse_config(text, "c").values() == {}


BAD = {
    "unknown key": ("model: vnet\nmodle: x\n", "line 2: unknown key 'modle': did you mean model?"),
    "far key": ("zzz: 1\n", "c.yaml line 1: unknown key 'zzz'; keys are model, model_args,"),
    "twice": ("batch: 1\nbatch: 2\n", "c.yaml line 2: 'batch' was given in line 1 already."),
    "broken": ("model: [vnet\nbatch: 2\n", "c.yaml line 2 is broken YAML"),
    "tab": ("model: vnet\n\tbatch: 2\n", "c.yaml line 2 is broken YAML"),
    "list": ("- model\n", "c.yaml holds no keys"),
    "text": ("swinunetr\n", "c.yaml holds no keys"),
    "tag": ("model: !!python/name:os.system\n", "c.yaml line 1 is broken YAML"),
    "alias": ("a: &a [1]\nb: *a\n", "c.yaml line 2: YAML aliases are not taken"),
    "deep": ("model_args: " + "[" * 40 + "]" * 40, "nested more than 20 deep"),
    "control": ("model: \x00\n", "c.yaml is broken YAML"),
    "two documents": ("model: vnet\n---\nmodel: unet\n", "c.yaml line 2 is broken YAML"),
    "number as key": ("1: 2\n", "c.yaml line 1: a key must be text"),
    "list as key": ("[1]: 2\n", "c.yaml line 1: a key must be text"),
    "batch 0": ("\nbatch: 0\n", "c.yaml line 2: batch must be greater than or equal to 1, not 0."),
    "batch text": ("batch: two\n", "c.yaml line 1: batch must be a valid integer, not 'two'."),
    "batch true": ("batch: true\n", "c.yaml line 1: batch must be a valid integer, not True."),
    "choice": ("loss: dicecee\n", "loss must be one of dicece, dice, ce, dicefocal, not 'dicecee'"),
    "choice hint": ("loss: dicecee\n", "did you mean dicece?"),
    "patch": ("patch: 12y\n", "c.yaml line 1: patch: '12y' is no patch size"),
    "patch pair": ("patch: [96, 96]\n", "c.yaml line 1: patch: [96, 96] is no patch size"),
    "patches": ("patches: [96, 0]\n", "patches: '0' is no patch size"),
    "limit": ("reserve: lots\n", "reserve: 'lots' is no memory size"),
    "args": ("model_args: 3\n", "c.yaml line 1: model_args must be a valid dictionary, not 3."),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_sentence_with_the_line(case):
    text, message = BAD[case]
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_named_in_the_message(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("modle: vnet\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml line 1: unknown key"):
        load_config(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_config(path)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "weights.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        load_config(path)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="is no file"):
        load_config(tmp_path)


def test_an_unknown_preset_is_suggested_and_all_are_listed():
    with pytest.raises(ConfigError) as caught:
        load_config("btcv_swinunetr.yaml")
    assert "did you mean btcv-swinunetr?" in str(caught.value)
    assert ", ".join(PRESETS) in str(caught.value)
