"""Which CUDA kernels refuse tensors of 2³¹ elements or more; prints a table.

Run on a card with at least 60 GB free: python benchmarks/kernel_limits.py
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.nn import functional as F

HALF = torch.float16


def cases() -> dict[str, Callable[[], object]]:
    # 2 samples x 40 channels x 304³ = 2.25e9 elements; one sample 1.12e9
    def big(batch: int = 2, channels: int = 40, side: int = 304) -> torch.Tensor:
        return torch.zeros((batch, channels, side, side, side), device="cuda", dtype=HALF)

    def weight(out: int, kernel: int, channels: int = 40) -> torch.Tensor:
        return torch.zeros((out, channels, *(kernel,) * 3), device="cuda", dtype=HALF)

    return {
        "conv3d, two samples, 3³": lambda: F.conv3d(big(), weight(1, 3), padding=1),
        "conv3d, one sample, 3³": lambda: F.conv3d(big(1, 80), weight(1, 3, 80), padding=1),
        "conv3d, two samples, 1³": lambda: F.conv3d(big(), weight(1, 1)),
        "conv3d, one sample, 1³": lambda: F.conv3d(big(1, 80), weight(1, 1, 80)),
        "conv_transpose3d to a large output": lambda: F.conv_transpose3d(
            big(2, 8, 152), torch.zeros((8, 40, 2, 2, 2), device="cuda", dtype=HALF), stride=2
        ),
        "batch norm": lambda: F.batch_norm(big(), None, None, training=True),
        "instance norm": lambda: F.instance_norm(big()),
        "instance norm, affine": lambda: F.instance_norm(
            big(), weight=torch.ones(40, device="cuda"), bias=torch.zeros(40, device="cuda")
        ),
        "group norm": lambda: F.group_norm(big(), 8),
        "layer norm": lambda: F.layer_norm(big().view(2, -1, 40), (40,)),
        "softmax over channels": lambda: torch.softmax(big(), 1),
        "log softmax over channels": lambda: torch.log_softmax(big(), 1),
        "relu": lambda: F.relu_(big()),
        "trilinear upsampling": lambda: F.interpolate(
            big(2, 40, 152), scale_factor=2, mode="trilinear"
        ),
        "nearest upsampling": lambda: F.interpolate(
            big(2, 40, 152), scale_factor=2, mode="nearest"
        ),
        "max pooling": lambda: F.max_pool3d(big(), 2),
        "replication padding": lambda: F.pad(big(2, 40, 302), (1,) * 6, mode="replicate"),
        "sum over space": lambda: big().sum((2, 3, 4)),
        "cat": lambda: torch.cat([big(2, 20), big(2, 20)], 1),
        "scatter (one-hot)": lambda: torch.zeros(
            (2, 40, 304, 304, 304), device="cuda", dtype=HALF
        ).scatter_(
            1,
            torch.zeros((2, 1, 304, 304, 304), device="cuda", dtype=torch.long),
            torch.ones((2, 1, 304, 304, 304), device="cuda", dtype=HALF),
        ),
        "roll": lambda: torch.roll(big(), (1, 1, 1), (2, 3, 4)),
        "cross entropy": lambda: F.cross_entropy(
            big(), torch.zeros((2, 304, 304, 304), device="cuda", dtype=torch.long)
        ),
    }


def backward_cases() -> dict[str, Callable[[], object]]:
    def leaf(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device="cuda", dtype=HALF, requires_grad=True)

    side = 304
    return {
        "conv3d backward, two samples, 3³": lambda: F.conv3d(
            leaf(2, 40, side, side, side), leaf(1, 40, 3, 3, 3), padding=1
        ).sum().backward(),
        "conv3d backward, one sample, 3³": lambda: F.conv3d(
            leaf(1, 80, side, side, side), leaf(1, 80, 3, 3, 3), padding=1
        ).sum().backward(),
        "instance norm backward": lambda: F.instance_norm(
            leaf(2, 40, side, side, side)
        ).sum().backward(),
        "group norm backward": lambda: F.group_norm(
            leaf(2, 40, side, side, side), 8
        ).sum().backward(),
        "softmax backward": lambda: torch.softmax(
            leaf(2, 40, side, side, side), 1
        ).sum().backward(),
    }  # fmt: skip


def main() -> None:
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}"
    )
    print("| operator | tensors of 2³¹ elements or more |\n|---|---|")
    for name, run in {**cases(), **backward_cases()}.items():
        try:
            run()
            torch.cuda.synchronize()
            result = "works"
        except Exception as error:
            result = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        print(f"| {name} | {result} |", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
