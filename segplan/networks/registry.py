"""The networks segplan knows: MONAI's for 3D segmentation, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from segplan.networks.rules import (
    PatchRule,
    anisotropic_factor,
    by_levels,
    by_strides,
    cube,
    norm_kind,
)
from segplan.workload import FrozenArgs

Rule = Callable[[Mapping[str, Any]], PatchRule]


@dataclass(frozen=True)
class Network:
    """One registered network.

    Attributes:
        name: MONAI's class name in lower case.
        class_name: where it is found in `monai.networks.nets`.
        family: "convolutional", "transformer" or "hybrid".
        rule: the patch rule for resolved arguments.
        defaults: arguments segplan sets unless asked otherwise.
        checkpoint_argument: the constructor's own argument for activation checkpointing.
        checkpoint_class: a class that checkpoints, in `monai.networks.nets.unet`.
        checkpoint_blocks: classes of modules whose forward pass is checkpointed.
        patch_argument: the constructor's argument that takes the patch, or None.
        width_argument: the argument that scales the width.
        parameters_m: millions of parameters with the defaults, 1 channel in, 14 classes,
            96 x 96 x 96.
        note: what a user should know, or "".
    """

    name: str
    class_name: str
    family: str
    rule: Rule
    defaults: Mapping[str, Any] = field(default_factory=FrozenArgs)
    checkpoint_argument: str | None = None
    checkpoint_class: str | None = None
    checkpoint_blocks: tuple[str, ...] = ()
    patch_argument: str | None = None
    width_argument: str | None = None
    parameters_m: float = 0.0
    note: str = ""

    @property
    def checkpointing(self) -> str:
        """How activations are recomputed, in words."""
        own = self.checkpoint_argument or self.checkpoint_class
        return f"MONAI's own ({own})" if own else "block by block"


_FIVE = {"channels": (32, 64, 128, 256, 512), "strides": (2, 2, 2, 2)}


def _swin(arguments: Mapping[str, Any]) -> PatchRule:
    if arguments.get("patch_size", 2) != 2:
        raise ValueError("with any patch_size but 2 MONAI's own decoder fails")
    side = cube(32)
    norm = norm_kind(arguments.get("norm_name", "instance"))
    return PatchRule(divisor=side, least=side, bottleneck=side, norm=norm)


def _segresnetds(arguments: Mapping[str, Any]) -> PatchRule:
    stages = len(arguments.get("blocks_down", (1, 2, 2, 4)))
    if stages < 1:
        raise ValueError("there must be at least one level")
    resolution = arguments.get("resolution")
    side = cube(2 ** (stages - 1))
    if resolution is not None:
        side = anisotropic_factor(resolution, stages)
    norm = norm_kind(arguments.get("norm", "batch"))
    return PatchRule(divisor=side, least=side, bottleneck=side, norm=norm)


def _any_size(arguments: Mapping[str, Any]) -> PatchRule:
    norm = norm_kind(arguments.get("norm", "instance"))
    return PatchRule(least=cube(16), bottleneck=cube(16), norm=norm)


def _levels(key: str, default: int, less: int, norm_key: str, norm: str, fixed: bool) -> Rule:
    def rule(arguments: Mapping[str, Any]) -> PatchRule:
        levels = len(arguments[key]) if key in arguments else default
        return by_levels(levels - less, norm_kind(arguments.get(norm_key, norm)), fixed=fixed)

    return rule


def _ahnet(arguments: Mapping[str, Any]) -> PatchRule:
    side = max(2 ** (int(arguments.get("psp_block_num", 4)) + 3), 32)
    return PatchRule(
        divisor=(side, side, 32), least=(side, side, 32), bottleneck=cube(32), norm="batch"
    )


def _mednext_rule(arguments: Mapping[str, Any]) -> PatchRule:
    if arguments.get("norm_type", "group") != "group":
        raise ValueError("with any norm_type but group MONAI's own forward pass fails")
    # A group a channel: a lone voxel at batch 1 is refused as by batch norm.
    return by_levels(len(arguments.get("blocks_down", (2, 2, 2, 2))), "batch")


def _highresnet(arguments: Mapping[str, Any]) -> PatchRule:
    return PatchRule(norm=norm_kind(arguments.get("norm_type", "batch")))


_MEDNEXT_BLOCKS = ("MedNeXtBlock", "MedNeXtDownBlock", "MedNeXtUpBlock")


def _mednext(variant: str, parameters_m: float) -> Network:
    return Network(
        name=f"mednext{variant.lower()}", class_name=f"MedNeXt{variant}", family="convolutional",
        rule=lambda _arguments: by_levels(4, "batch"),
        checkpoint_blocks=_MEDNEXT_BLOCKS, parameters_m=parameters_m,
    )  # fmt: skip


NETWORKS: tuple[Network, ...] = (
    Network(
        name="swinunetr", class_name="SwinUNETR", family="transformer", rule=_swin,
        defaults={"feature_size": 48}, checkpoint_argument="use_checkpoint",
        width_argument="feature_size", parameters_m=62.187,
    ),
    Network(
        name="unetr", class_name="UNETR", family="transformer",
        rule=lambda _arguments: PatchRule(divisor=cube(16), least=cube(16), fixed=True),
        checkpoint_blocks=(
            "TransformerBlock", "UnetrBasicBlock", "UnetrPrUpBlock", "UnetrUpBlock",
        ),
        patch_argument="img_size", width_argument="feature_size", parameters_m=92.802,
    ),
    Network(
        name="segresnet", class_name="SegResNet", family="convolutional",
        rule=_levels("blocks_down", 4, 1, "norm", "group", False),
        defaults={"init_filters": 32, "blocks_down": (1, 2, 2, 4), "blocks_up": (1, 1, 1)},
        checkpoint_blocks=("ResBlock",), width_argument="init_filters", parameters_m=18.796,
    ),
    Network(
        name="segresnetds", class_name="SegResNetDS", family="convolutional", rule=_segresnetds,
        defaults={"init_filters": 32, "blocks_down": (1, 2, 2, 4, 4)},
        checkpoint_blocks=("SegResBlock",), width_argument="init_filters", parameters_m=87.164,
    ),
    Network(
        name="segresnetds2", class_name="SegResNetDS2", family="convolutional",
        rule=_segresnetds,
        defaults={"init_filters": 32, "blocks_down": (1, 2, 2, 4, 4)},
        checkpoint_blocks=("SegResBlock",), width_argument="init_filters",
        note="Returns two decoders' outputs; both are trained.", parameters_m=96.566,
    ),
    Network(
        name="segresnetvae", class_name="SegResNetVAE", family="convolutional",
        rule=_levels("blocks_down", 4, 0, "norm", "group", True),
        defaults={"init_filters": 32},
        checkpoint_blocks=("ResBlock",), patch_argument="input_image_size",
        width_argument="init_filters",
        note="The auto-encoder's loss is added with weight 0.1.", parameters_m=21.57,
    ),
    Network(
        name="dynunet", class_name="DynUNet", family="convolutional",
        rule=lambda a: by_strides(a, norm_kind(a.get("norm_name", "instance"))),
        defaults={
            "kernel_size": ((3, 3, 3),) * 6, "strides": (1, 2, 2, 2, 2, 2),
            "upsample_kernel_size": (2, 2, 2, 2, 2), "filters": (32, 64, 128, 256, 320, 320),
            "norm_name": "instance",
        },
        checkpoint_blocks=("UnetBasicBlock", "UnetResBlock", "UnetUpBlock"),
        width_argument="filters",
        note="deep_supervision=true stacks every head at full size.", parameters_m=31.182,
    ),
    Network(
        name="unet", class_name="UNet", family="convolutional",
        rule=lambda a: by_strides(a, norm_kind(a.get("norm", "instance"))),
        defaults={**_FIVE, "num_res_units": 2}, checkpoint_class="CheckpointUNet",
        width_argument="channels", parameters_m=19.243,
    ),
    Network(
        name="attentionunet", class_name="AttentionUnet", family="convolutional",
        rule=lambda a: by_strides(a, "batch"), defaults=_FIVE,
        checkpoint_blocks=("ConvBlock", "AttentionBlock", "UpConv"), width_argument="channels",
        parameters_m=23.626,
    ),
    Network(
        name="basicunet", class_name="BasicUNet", family="convolutional", rule=_any_size,
        checkpoint_blocks=("TwoConv", "Down", "UpCat"), width_argument="features",
        parameters_m=5.75,
    ),
    Network(
        name="basicunetplusplus", class_name="BasicUNetPlusPlus", family="convolutional",
        rule=_any_size, checkpoint_blocks=("TwoConv", "Down", "UpCat"),
        width_argument="features", parameters_m=6.982,
    ),
    Network(
        name="vnet", class_name="VNet", family="convolutional",
        rule=lambda _arguments: by_levels(4, "batch"),
        checkpoint_blocks=("InputTransition", "DownTransition", "UpTransition"),
        note="in_channels must divide 16.", parameters_m=45.646,
    ),
    Network(
        name="mednext", class_name="MedNeXt", family="convolutional",
        rule=_mednext_rule, defaults={"kernel_size": 3}, checkpoint_blocks=_MEDNEXT_BLOCKS,
        width_argument="init_filters", parameters_m=5.202,
    ),
    _mednext("S", 5.551),
    _mednext("B", 10.511),
    _mednext("M", 17.534),
    _mednext("L", 61.727),
    Network(
        name="highresnet", class_name="HighResNet", family="convolutional",
        rule=_highresnet, checkpoint_blocks=("HighResBlock",),
        note="Never downsamples: activations dominate.", parameters_m=0.81,
    ),
    Network(
        name="flexibleunet", class_name="FlexibleUNet", family="convolutional",
        rule=lambda _arguments: by_levels(5, "batch"), defaults={"backbone": "resnet34"},
        checkpoint_blocks=("ResNetBlock", "ResNetBottleneck", "MBConvBlock", "UpCat"),
        width_argument="decoder_channels", parameters_m=70.577,
    ),
    Network(
        name="ahnet", class_name="AHNet", family="convolutional", rule=_ahnet,
        checkpoint_blocks=("Bottleneck3x3x1", "DenseBlock"), parameters_m=38.15,
    ),
)  # fmt: skip

BY_NAME = {network.name: network for network in NETWORKS}

ALIASES = {
    "swin-unetr": "swinunetr", "swin_unetr": "swinunetr", "nnunet": "dynunet",
    "nnu-net": "dynunet", "mednextsmall": "mednexts", "mednextbase": "mednextb",
    "mednextmedium": "mednextm", "mednextlarge": "mednextl", "unet++": "basicunetplusplus",
    "attention-unet": "attentionunet",
}  # fmt: skip

NOT_SUPPORTED = {
    "hyenandunetr": "it needs the nvsubquadratic package, whose kernels cannot be traced without a "
    "GPU: plan swinunetr, which has the same shape, or wrap it in a factory",
    "dints": "its architecture is an input of the constructor (a TopologyInstance): wrap it in "
    "a factory and give that, like --model my_package.nets:make_dints",
    "vista3d": "its forward pass needs prompts: wrap it in a factory, like "
    "--model my_package.nets:make_vista",
    "daf3d": "it needs torchvision: wrap it in a factory, like --model my_package.nets:make_daf",
}
"""Networks of MONAI that are known and cannot be trained by name, with what to do."""

FROM_WORKLOAD = {
    "in_channels": "--in-channels",
    "out_channels": "--out-channels",
    "img_size": "--patch",
    "input_image_size": "--patch",
    "spatial_dims": "always 3",
}
"""Constructor arguments that the workload sets, and the option that does."""
