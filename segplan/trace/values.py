"""Weights without values: a trace asks only for their sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_RANDOM = frozenset(
    getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "erfinv_", "bernoulli_")
)
"""What initialisation spends its time on (half a second for the 62 million weights of
SwinUNETR), and nothing that a network's sizes depend on."""


class without_random_values(TorchFunctionMode):
    """While inside, initialisation leaves tensors as they are."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _RANDOM or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
