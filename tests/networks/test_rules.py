"""The rules against the networks themselves, in train mode on fake tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from segplan.errors import NetworkError
from segplan.networks import build, check, network_of, resolve, rule_for, smallest_valid
from segplan.networks.probing import refusal
from segplan.networks.rules import PatchRule, anisotropic_factor, cube
from segplan.trace.tracer import trace_step
from segplan.units import Patch
from segplan.workload import Workload

from .small import DISTINCT, NAMES, narrow


def refused(workload: Workload, patch: Patch) -> bool:
    """Whether the network cannot train on the patch at the workload's batch."""
    workload = workload.replace(patch=patch)
    try:
        network = build(workload)
    except NetworkError:
        return True
    return refusal(network, workload, patch, workload.batch) is not None


@pytest.mark.parametrize("name", DISTINCT)
def test_the_smallest_patch_trains_with_checkpointing(name):
    workload = narrow(name, batch=2, checkpointing=True)
    workload = workload.replace(patch=smallest_valid(workload))
    check(workload)
    trace = trace_step(workload, build(workload))
    assert {op.phase for op in trace.ops} >= {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", DISTINCT)
def test_the_rule_is_the_networks_own(name, batch):
    workload = narrow(name, batch=batch)
    rule = rule_for(workload)
    smallest = smallest_valid(workload)
    assert rule.problem(smallest, batch) is None
    assert not refused(workload, smallest)
    for axis in range(3):
        off = list(smallest)
        off[axis] += max(rule.divisor[axis] // 2, 1)
        patch = (off[0], off[1], off[2])
        assert (rule.problem(patch, batch) is None) == (rule.divisor[axis] == 1)
        assert refused(workload, patch) == (rule.divisor[axis] != 1)


@pytest.mark.parametrize("name", [n for n in DISTINCT if n not in ("ahnet", "unetr")])
def test_a_single_voxel_at_the_bottom_is_refused_where_the_rule_says(name):
    for batch in (1, 2):
        workload = narrow(name, batch=batch)
        rule = rule_for(workload)
        says = rule.problem(rule.least, batch) is not None
        assert refused(workload, rule.least) == says


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("segresnetds", {"resolution": [1, 1, 5], "init_filters": 8}),
        ("segresnetds", {"blocks_down": [1, 1, 1], "norm": "instance", "init_filters": 8}),
        ("segresnet", {"norm": "instance", "init_filters": 8}),
        ("segresnetvae", {"norm": "instance", "init_filters": 8}),
        ("unet", {"channels": [4, 8, 16]}),
        ("unet", {"channels": [4, 8, 16], "strides": [[2, 2, 1], 2]}),
        ("attentionunet", {"channels": [4, 8, 16]}),
        ("swinunetr", {"norm_name": "batch", "feature_size": 12}),
        ("swinunetr", {"use_v2": True, "feature_size": 12}),
        ("dynunet", {"deep_supervision": True, "deep_supr_num": 2}),
        ("basicunet", {"norm": "batch"}),
        ("basicunet", {"norm": ["group", {"num_groups": 4}]}),
        ("highresnet", {"norm_type": "instance"}),
        ("mednext", {"blocks_down": [1] * 3, "blocks_up": [1] * 3, "encoder_expansion_ratio": 2}),
        ("ahnet", {"psp_block_num": 0}),
        ("flexibleunet", {"backbone": "efficientnet-b0"}),
    ],
)
def test_the_rule_follows_the_arguments(name, arguments):
    if name == "mednext":
        arguments = {**arguments, "encoder_expansion_ratio": [2] * 3}
        arguments["decoder_expansion_ratio"] = [2] * 3
    for batch in (1, 2):
        workload = resolve(
            Workload(model=name, model_args=arguments, batch=batch), check_patch=False
        )
        rule = rule_for(workload)
        assert not refused(workload, smallest_valid(workload))
        if rule.problem(rule.least, batch) is not None:
            assert refused(workload, rule.least)


@pytest.mark.parametrize("resolution", [None, [1, 1, 5], [0.7, 0.7, 3.0], [1, 2, 4], [1, 1, 1]])
@pytest.mark.parametrize("stages", [3, 5])
def test_the_anisotropic_rule_is_shape_factor(resolution, stages):
    arguments: dict[str, Any] = {"blocks_down": [1] * stages, "init_filters": 8}
    arguments["resolution"] = resolution
    workload = resolve(Workload(model="segresnetds", model_args=arguments), check_patch=False)
    factor = build(workload).shape_factor()  # type: ignore[operator]
    assert rule_for(workload).divisor == tuple(int(f) for f in factor)
    if resolution is not None:
        assert anisotropic_factor(resolution, stages) == tuple(int(f) for f in factor)


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_parameters_is_right(name):
    import torch

    workload = resolve(Workload(model=name), check_patch=False)
    if rule_for(workload).problem(workload.patch, 1) is not None:
        workload = workload.replace(patch=smallest_valid(workload))
    try:
        with torch.device("meta"):  # nothing is initialised
            network = build(workload)
    except (NetworkError, RuntimeError):
        network = build(workload)
    millions = sum(p.numel() for p in network.parameters()) / 1e6
    assert network_of(name).parameters_m == pytest.approx(millions, abs=0.005)


def test_rounding_gives_patches_that_train():
    rule = PatchRule(divisor=(16, 16, 4), least=(16, 16, 4), bottleneck=(16, 16, 4), norm="batch")
    for batch in (1, 2):
        for side in (1, 15, 16, 17, 40, 96):
            up = rule.round_up(cube(side), batch)
            assert rule.problem(up, batch) is None
            assert min(u - side for u in up) >= 0
            down = rule.round_down(cube(side), batch)
            assert down is None or rule.problem(down, batch) is None
            assert rule.round_up(up, batch) == up


def test_a_larger_batch_never_trains_less():
    rules = [rule_for(narrow(name)) for name in NAMES]
    for rule in rules:
        for patch in (rule.least, rule.round_up(rule.least, 1), (96, 96, 96), (128, 128, 32)):
            answers = [rule.problem(patch, batch) is None for batch in (1, 2, 3, 8)]
            assert all(b or not a for a, b in pairwise(answers))


def test_the_words():
    assert PatchRule(divisor=cube(32)).words() == "a multiple of 32"
    assert PatchRule(divisor=(16, 16, 4)).words() == "multiples of 16 x 16 x 4"
    assert PatchRule(least=cube(16)).words() == "any size of at least 16"
    assert PatchRule().words() == "any size"
    problem = PatchRule(divisor=cube(32)).problem((96, 90, 96), 1)
    assert problem == "every side must be a multiple of 32: 90 is not a multiple of 32"
