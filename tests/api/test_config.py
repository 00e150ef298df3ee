"""Configuration files: presets, and one sentence with the line for everything that is wrong."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from segplan.api.config import Config, load_config, parse_config, preset_names
from segplan.errors import ConfigError
from segplan.workload import Workload

PRESETS = [
    "brats-segresnet",
    "brats-swinunetr",
    "btcv-swinunetr",
    "btcv-unetr",
    "msd-dynunet-heart",
    "msd-dynunet-liver",
    "msd-dynunet-prostate",
    "spleen-unet",
    "totalsegmentator-segresnet",
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


def test_sections_are_no_options():
    text = (
        "name: mine\nsource: here\nbatch: 2\n"
        "schedule: {epochs: 5, cases: 3, validation: {every: 5, cases: 1, shape: 100x90x80}}\n"
        "dataset: {cases: 4, spacing: [1, 1, 2.5], bytes_per_case: 50MB, foreground: 0.1}\n"
    )
    config = parse_config(text, "c")
    assert config.values() == {"batch": 2}
    assert config.schedule.validation.shape == (100, 90, 80)
    assert config.dataset.spacing == (1.0, 1.0, 2.5)
    assert config.dataset.bytes_per_case == 50_000_000


def test_a_dataset_stands_in_for_channels_that_are_not_given():
    text = "dataset: {channels: 4, classes: 3}\n"
    assert parse_config(text, "c").values() == {"in_channels": 4, "out_channels": 3}
    assert parse_config("in_channels: 2\n" + text, "c").values()["in_channels"] == 2


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
    "nested key": (
        "batch: 1\nschedule:\n  epochs: 3\n  epoch: 3\n",
        "c.yaml line 4: unknown key 'schedule.epoch': did you mean epochs?",
    ),
    "deeper key": (
        "schedule:\n  validation:\n    overlapp: 0.5\n",
        "c.yaml line 3: unknown key 'schedule.validation.overlapp': did you mean overlap?",
    ),
    "far nested key": ("dataset: {zzz: 1}\n", "'dataset.zzz'; keys are cases, channels, classes,"),
    "key one level too high": ("epochs: 5\n", "'epochs': did you mean schedule.epochs?"),
    "key one level too low": ("dataset: {batch: 5}\n", "'dataset.batch': did you mean batch?"),
    "validation as dataset": ("dataset: {every: 5}\n", "did you mean schedule.validation.every?"),
    "nested value": (
        "schedule:\n  epochs: 0\n",
        "c.yaml line 2: schedule.epochs must be greater than or equal to 1, not 0.",
    ),
    "nested twice": (
        "schedule:\n  epochs: 1\n  epochs: 2\n",
        "c.yaml line 3: 'schedule.epochs' was given in line 2 already.",
    ),
    "argument twice": ("model_args: {a: 1, a: 2}\n", "'model_args.a' was given in line 1 already."),
    "section as value": ("schedule: 3\n", "schedule must be keys below it, one 'key"),
    "section as list": ("dataset: [1]\n", "dataset must be keys below it"),
    "number as nested key": ("dataset: {1: 2}\n", "c.yaml line 1: a key must be text"),
    "overlap": ("schedule: {validation: {overlap: 1.0}}\n", "overlap must be less than 1, not 1.0"),
    "seconds": ("schedule: {validation: {seconds_per_volume: .inf}}\n", "must be"),
    "shape": ("dataset:\n  shape: [10, 20]\n", "line 2: dataset.shape: [10, 20] is no shape"),
    "huge shape": ("dataset: {shape: [1, 1, 1000000]}\n", "[1, 1, 1000000] is no shape"),
    "huge count": ("schedule: {epochs: 99999999999999}\n", "schedule.epochs must be less than"),
    "spacing": ("dataset: {spacing: [.nan, 1, 2]}\n", "dataset.spacing: [nan, 1, 2] is no spacing"),
    "negative spacing": ("dataset: {spacing: [-1, 1, 2]}\n", "is no spacing"),
    "disk bytes": ("dataset: {bytes_per_case: much}\n", "'much' is no size: write it in bytes"),
    "foreground": ("dataset: {foreground: 1.5}\n", "foreground must be less than or equal to 1"),
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


KEYS = st.sampled_from(
    [*Config.model_fields, "epochs", "cases", "validation", "every", "shape", "spacing", "x", "<<"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["96", "128x128x64", "512MiB", "!!python/name:os.system", "&a [*a]"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_a_file_holds_is_read_or_refused_in_one_sentence(values):
    try:
        parse_config(yaml.safe_dump(values), "c.yaml")
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text("[]{}:,-&*!|>'\"#\n a1", max_size=60))
def test_whatever_text_a_file_holds(text):
    try:
        parse_config(text, "c.yaml")
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
