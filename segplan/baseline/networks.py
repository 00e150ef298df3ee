"""ResNet50 and ViT-B/16 in plain torch: what published tables of image throughput measure.

They have the parameters, the operators and the multiply-adds of torchvision's `resnet50` (v1.5:
the stride sits in the 3×3 convolution) and `vit_b_16`, which are also timm's `resnet50` and
`vit_base_patch16_224`; weights are random, as speed does not depend on them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

IMAGE = 224
"""Pixels along each side of an image; tensors are (B, 3, 224, 224)."""

CLASSES = 1000


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolution around a shortcut (He et al. 2016, arXiv:1512.03385).

    The stride is in the 3×3 convolution: "v1.5", as torchvision and NVIDIA's scripts have it.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, 4 · width, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + shortcut)  # type: ignore[no-any-return]


class ResNet50(nn.Module):
    """Images (B, 3, 224, 224) to logits (B, 1000): 25,557,032 parameters, 4.09 G multiply-adds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        inputs = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(blocks):
                stages.append(Bottleneck(inputs, width, stride if number == 0 else 1))
                inputs = width * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = self.stages(self.stem(images))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head self-attention through `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, width) to the same."""
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, tokens, width) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class ViTB16(nn.Module):
    """Images (B, 3, 224, 224) to logits (B, 1000): 86,567,656 parameters, 17.58 G multiply-adds.

    12 blocks of width 768 on 196 patches and a class token (Dosovitskiy et al. 2021,
    arXiv:2010.11929).
    """

    def __init__(self) -> None:
        super().__init__()
        width, patch = 768, 16
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (IMAGE // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 12, 4 * width) for _ in range(12)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.position)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


def build(name: str) -> nn.Module:
    """A network of `segplan.baseline.results.NETWORKS` by name, on the current default device."""
    return {"resnet50": ResNet50, "vit_b_16": ViTB16}[name]()
