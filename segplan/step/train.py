"""The training step, written once: the trace and the probe run this very code.

Zero gradients (set to None) → autocast forward → loss inside autocast → backward through a
gradient scaler for fp16 → clip → optimizer step. MONAI and nnU-Net zero before the forward
pass, Lightning before the backward; `Workload.zero_grad` says which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segplan.workload import Workload

AMP_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
MEMORY_FORMAT = {
    "contiguous": torch.contiguous_format,
    "channels_last_3d": torch.channels_last_3d,
}


@dataclass
class TrainingStep:
    """Everything one step needs; call `run` once for each step.

    Attributes:
        workload: what is trained.
        network: in train mode, on its device.
        loss: `loss(output, label)`.
        optimizer: over the network's parameters.
        scaler: enabled for fp16 only.
        device_type: "cuda", or "cpu" in a trace.
        on_phase: called with "forward", "backward" or "optimizer" as each begins.
    """

    workload: Workload
    network: nn.Module
    loss: Callable[[Any, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device_type: str = "cuda"
    on_phase: Callable[[str], None] = lambda _phase: None

    def run(self, images: Tensor, labels: Tensor) -> None:
        """Run one optimizer step over `grad_accumulation` passes.

        Args:
            images: float32 (B, C, H, W, D), on the device.
            labels: uint8 (B, 1, H, W, D), on the device.
        """
        w = self.workload
        passes = w.grad_accumulation
        if w.zero_grad == "before_forward":
            self.optimizer.zero_grad(set_to_none=True)
        for i in range(passes):
            self.on_phase("forward")
            with autocast(w, self.device_type):
                output = self.network(images)
                loss = self.loss(output, labels)
            if passes > 1:
                loss = loss / passes
            if w.zero_grad == "before_backward" and i == 0:
                self.optimizer.zero_grad(set_to_none=True)
            self.on_phase("backward")
            self.scaler.scale(loss).backward()
            del output, loss
        self.on_phase("optimizer")
        if w.grad_clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), w.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def autocast(w: Workload, device_type: str) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of the workload's precision (a null context without AMP)."""
    if not w.amp:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=AMP_DTYPES[w.precision])


@contextlib.contextmanager
def backend_flags(w: Workload) -> Iterator[None]:
    """Set TF32 and cuDNN benchmark as the workload asks, and put them back afterwards."""
    tf32 = w.precision != "fp32"
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = w.cudnn_benchmark
    try:
        yield
    finally:
        (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
        ) = before


def make_optimizer(
    w: Workload, network: nn.Module, *, foreach: bool | None = None
) -> torch.optim.Optimizer:
    """AdamW or Adam at 1e-4, or SGD with momentum 0.99 and Nesterov as nnU-Net trains.

    `foreach=None` is torch's default: the multi-tensor code on CUDA. A trace on the CPU
    passes True to take the same path.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    if w.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=foreach)
    if w.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, foreach=foreach)
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.99, nesterov=True, foreach=foreach)


def make_loss(w: Workload) -> Callable[[Any, Tensor], Tensor]:
    """MONAI's loss of that name for integer labels (B, 1, H, W, D).

    A network that returns several outputs (deep supervision, as a list or stacked on axis 1)
    is trained on all of them, each head's weight half of the one before, as nnU-Net does.
    """
    from monai.losses.dice import DiceCELoss, DiceFocalLoss, DiceLoss

    one_class = w.out_channels == 1
    shared: dict[str, Any] = {"to_onehot_y": not one_class}
    shared |= {"sigmoid": True} if one_class else {"softmax": True}
    base: Callable[[Tensor, Tensor], Tensor]
    if w.loss == "dicece":
        base = DiceCELoss(**shared)
    elif w.loss == "dicefocal":
        base = DiceFocalLoss(**shared)
    elif w.loss == "dice":
        base = DiceLoss(**shared)
    elif one_class:
        bce = nn.BCEWithLogitsLoss()
        base = lambda output, label: bce(output, label.float())  # noqa: E731
    else:
        ce = nn.CrossEntropyLoss()
        base = lambda output, label: ce(output, label.squeeze(1).long())  # noqa: E731

    def loss(output: Any, label: Tensor) -> Tensor:
        total = None
        for weight, head in _heads(output):
            if head.dim() == 0:
                term = head
            elif head.shape[2:] == label.shape[2:]:
                term = base(head, label)
            else:
                smaller = nn.functional.interpolate(
                    label.float(), size=head.shape[2:], mode="nearest"
                )
                term = base(head, smaller.to(label.dtype))
            if weight != 1:
                term = term * weight
            total = term if total is None else total + term
        if total is None:
            raise TypeError("the network returned no tensor (B, C, H, W, D) to train on")
        return total

    return loss


OWN_LOSS_WEIGHT = 0.1
"""Weight of a loss that the network itself returns (SegResNetVAE's, as in its paper)."""


def _heads(output: Any) -> list[tuple[float, Tensor]]:
    """The tensors to train on and their weights: heads (B, C, H, W, D), or a network's own loss.

    Lists within a list are decoders of their own (SegResNetDS2): each starts again at 1.
    """
    if isinstance(output, Tensor):
        if output.dim() == 6:  # DynUNet stacks its heads: (B, heads, C, H, W, D)
            output = list(torch.unbind(output, dim=1))
        else:
            return [(1.0, output)]
    if isinstance(output, dict):
        output = list(output.values())
    if not isinstance(output, (list, tuple)):
        raise TypeError(f"the network returned a {type(output).__name__}, not a tensor or list")
    heads: list[tuple[float, Tensor]] = []
    weight = 1.0
    for value in output:
        if isinstance(value, (list, tuple)):
            heads += _heads(value)
        elif isinstance(value, Tensor) and value.dim() == 0:
            heads.append((OWN_LOSS_WEIGHT, value))
        elif isinstance(value, Tensor) and value.dim() == 5:
            heads.append((weight, value))
            weight /= 2
    return heads


def make_step(
    w: Workload,
    network: nn.Module,
    *,
    device_type: str = "cuda",
    foreach: bool | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> TrainingStep:
    """Put the loss, optimizer and scaler of a workload around a network already on its device."""
    network.train()
    return TrainingStep(
        workload=w,
        network=network,
        loss=make_loss(w),
        optimizer=make_optimizer(w, network, foreach=foreach),
        scaler=torch.amp.GradScaler(device_type, enabled=w.precision == "fp16"),
        device_type=device_type,
        on_phase=on_phase or (lambda _phase: None),
    )


def make_batch(w: Workload, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Random images float32 (B, C, H, W, D) and labels uint8 (B, 1, H, W, D) on the device."""
    images = torch.randn((w.batch, w.in_channels, *w.patch), device=device, dtype=torch.float32).to(
        memory_format=MEMORY_FORMAT[w.memory_format]
    )
    high = max(w.out_channels, 2)
    labels = torch.randint(0, high, (w.batch, 1, *w.patch), device=device, dtype=torch.uint8)
    return images, labels
