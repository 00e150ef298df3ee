"""What resolving fills in, what it refuses, and in which words."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from segplan.errors import NetworkError
from segplan.networks import NETWORKS, arguments_of, build, check, resolve, smallest_valid
from segplan.networks.registry import ALIASES, BY_NAME, NOT_SUPPORTED
from segplan.networks.resolving import _all_arguments
from segplan.workload import FrozenArgs, Workload

from .small import NAMES


def resolved(model: str, **arguments: object) -> Workload:
    return resolve(Workload(model=model, model_args=arguments), check_patch=False)


@pytest.mark.parametrize("network", NETWORKS, ids=NAMES)
def test_the_arguments_are_those_of_monai(network):
    from monai.networks import nets

    parameters = dict(inspect.signature(getattr(nets, network.class_name)).parameters)
    known = dict(arguments_of(network))
    spelled = {
        name: "required" if p.default is p.empty else _plain(p.default)
        for name, p in parameters.items()
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    for name in set(spelled) & set(known):
        assert FrozenArgs({name: spelled[name]}) == FrozenArgs({name: known[name]}), name
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        assert set(known) == set(spelled)
    assert set(network.defaults) <= set(known)
    for argument in (network.width_argument, network.patch_argument, network.checkpoint_argument):
        assert argument is None or argument in known


def _plain(value: object) -> object:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        if isinstance(value, type):
            return value.__name__
        return str(getattr(value, "value", value))


def test_every_name_leads_somewhere():
    assert set(_all_arguments()) == set(BY_NAME)
    assert set(ALIASES.values()) <= set(BY_NAME)
    assert not set(NOT_SUPPORTED) & (set(BY_NAME) | set(ALIASES))


@pytest.mark.parametrize("name", NAMES)
def test_resolving_twice_changes_nothing(name):
    once = resolved(name)
    assert resolve(once, check_patch=False) == once
    assert resolve(Workload.from_dict(once.to_dict()), check_patch=False).key() == once.key()
    fitting = once.replace(patch=smallest_valid(once))
    assert resolve(fitting) == fitting


def test_equal_workloads_are_equal():
    def same(a: Workload, b: Workload) -> bool:
        return a == b and hash(a) == hash(b) and a.key() == b.key()

    for alias, name in ALIASES.items():
        assert same(resolved(alias.upper()), resolved(name))
    own = resolved("swinunetr", use_checkpoint=True)
    option = resolve(Workload(checkpointing=True))
    assert own.checkpointing
    assert same(own, option)
    assert same(resolved("swinunetr", use_checkpoint=False), resolve(Workload()))
    assert same(resolved("swinunetr", feature_size=48, window_size=7), resolve(Workload()))
    assert same(resolved("unet", channels=[32, 64, 128, 256, 512]), resolved("unet"))
    assert not same(resolved("swinunetr", feature_size=24), resolve(Workload()))
    # MONAI's default is kept where segplan's is another.
    assert resolved("swinunetr", feature_size=24).model_args["feature_size"] == 24


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("swinunter", {}, "no network is called 'swinunter': did you mean swinunetr?"),
        ("nnunett", {}, "did you mean dynunet?"),
        ("resnet9000", {}, "`segplan models` lists them"),
        ("dints", {}, "dints cannot be planned by name"),
        ("hyenandunetr", {}, "needs the nvsubquadratic package"),
        ("swinunetr", {"featur_size": 24}, "has no argument 'featur_size': did you mean feature_s"),
        ("mednexts", {"zzz": 1}, "it takes deep_supervision, kernel_size."),
        ("swinunetr", {"in_channels": 2}, "it comes from --in-channels."),
        ("unetr", {"img_size": 96}, "it comes from --patch."),
        ("unet", {"spatial_dims": 2}, "segplan plans 3D networks."),
        ("swinunetr", {"use_checkpoint": 1}, "use_checkpoint must be true or false, not 1."),
    ],
)
def test_what_is_refused_and_what_is_said(model, arguments, said):
    with pytest.raises(NetworkError) as caught:
        resolved(model, **arguments)
    assert said in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("unet", {"strides": 2}),
        ("unet", {"strides": "abcd"}),
        ("unet", {"strides": [2, 2, 2, 0]}),
        ("unet", {"strides": [2, [2, 2], 2, 2]}),
        ("unet", {"strides": [2, 2]}),
        ("unet", {"channels": 7}),
        ("segresnet", {"blocks_down": 3}),
        ("segresnet", {"blocks_down": []}),
        ("segresnetds", {"resolution": [1, 0, 1]}),
        ("segresnetds", {"resolution": [1, 1]}),
        ("segresnetds", {"resolution": -1}),
        ("ahnet", {"psp_block_num": "many"}),
        ("ahnet", {"psp_block_num": None}),
        ("swinunetr", {"patch_size": 4}),
        ("swinunetr", {"patch_size": "two"}),
        ("mednext", {"norm_type": "layer"}),
    ],
)
def test_malformed_arguments_of_a_rule_are_one_sentence(model, arguments):
    with pytest.raises(NetworkError, match="do not make sense together"):
        check(resolved(model, **arguments))


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (Workload(model_args={"feature_size": 13}), "feature_size=13"),
        (Workload(model_args={"feature_size": "wide"}), "feature_size=wide"),
        (Workload(model="vnet", in_channels=3), "in_channels=3"),
        (Workload(model="unetr", model_args={"num_heads": 7}), "num_heads=7"),
        (Workload(model="dynunet", model_args={"strides": [1, 2, 2]}), "strides=(1, 2, 2)"),
        (Workload(model="flexibleunet", model_args={"backbone": "vgg"}), "backbone=vgg"),
    ],
)
def test_what_monai_refuses_is_one_sentence(workload, said):
    with pytest.raises(NetworkError, match="cannot be built with") as caught:
        build(resolve(workload, check_patch=False))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_a_bad_patch_names_its_neighbours():
    with pytest.raises(NetworkError) as caught:
        resolve(Workload(patch=(100, 96, 96)))
    assert str(caught.value) == (
        "swinunetr does not train on 100x96x96: every side must be a multiple of 32: 100 is not "
        "a multiple of 32. Nearest valid: 96 and 128x96x96."
    )


def test_the_neighbours_train_at_the_batch_asked_for():
    alone = Workload(model="vnet", patch=(17, 17, 17), batch=1)
    with pytest.raises(NetworkError, match=r"Nearest valid: 32\.$"):
        resolve(alone)
    with pytest.raises(NetworkError, match=r"Nearest valid: 16 and 32\.$"):
        resolve(alone.replace(batch=2))
    with pytest.raises(NetworkError, match="one voxel for 16x16x16 at batch 1"):
        resolve(alone.replace(patch=(16, 16, 16)))
    assert resolve(alone.replace(patch=(16, 16, 16), batch=2)).batch == 2


def test_resolving_loads_no_torch():
    code = (
        "import sys\nfrom segplan.networks import *\nfrom segplan.workload import Workload\n"
        "for n in NETWORKS: smallest_valid(resolve(Workload(model=n.name), check_patch=False))\n"
        "print('torch' in sys.modules or 'monai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
