from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from segplan.baseline.networks import build
from segplan.baseline.results import NETWORKS


@pytest.mark.parametrize(
    ("name", "parameters", "giga_multiply_adds"),
    [
        # torchvision's documentation of ResNet50_Weights and ViT_B_16_Weights: parameters, and
        # "GFLOPS", which are multiply-adds there; timm's tables say 25.56 M and 86.57 M.
        ("resnet50", 25_557_032, 4.09),
        ("vit_b_16", 86_567_656, 17.56),
    ],
)
def test_parameters_and_multiply_adds_are_those_of_torchvision(
    name, parameters, giga_multiply_adds
):
    with torch.device("meta"):
        network, images = build(name), torch.empty(2, 3, 224, 224)
    assert sum(p.numel() for p in network.parameters()) == parameters
    with FlopCounterMode(display=False) as counter:
        logits = network(images)
    assert logits.shape == (2, 1000)
    counted = counter.get_total_flops() / 2 / 2 / 1e9  # two images, two FLOPs a multiply-add
    assert counted == pytest.approx(giga_multiply_adds, abs=0.005)


def test_attention_is_counted():
    with torch.device("meta"):
        network, images = build("vit_b_16"), torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        network(images)
    counts = counter.get_flop_counts()["Global"]
    attention = sum(n for op, n in counts.items() if "attention" in str(op) or "bmm" in str(op))
    # 12 blocks, 12 heads, two products of 197 x 197 x 64, two FLOPs a multiply-add.
    assert attention == 12 * 12 * 2 * 2 * 197 * 197 * 64


def test_strides_sit_in_the_3x3_convolutions():
    network = build("resnet50")
    assert [m.kernel_size for m in network.stages.modules() if getattr(m, "stride", 1) == (2, 2)
            and "downsample" not in str(m)] .count((3, 3)) == 3  # fmt: skip


def test_every_network_that_can_be_asked_for_is_built():
    with torch.device("meta"):
        for name in NETWORKS:
            assert build(name)
