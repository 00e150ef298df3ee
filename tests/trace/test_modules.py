"""Which top-level module a trace says that memory was made in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpointing

from segplan.trace.tape import ACTIVATION, TEMPORARY
from segplan.trace.tracer import module_names, trace_step
from segplan.workload import Workload


def conv(channels_in: int, channels_out: int, size: int = 3) -> nn.Conv3d:
    return nn.Conv3d(channels_in, channels_out, size, padding=size // 2)


class Block(nn.Module):
    """A convolution with arithmetic around it, which may be checkpointed."""

    def __init__(self, channels: int, recompute: bool) -> None:
        super().__init__()
        self.inner = conv(channels, channels)
        self.recompute = recompute

    def part(self, x):
        return torch.relu(self.inner(torch.roll(x, 1, 2))) * 2.0

    def forward(self, x):
        if self.recompute:
            return checkpointing.checkpoint(self.part, x, use_reentrant=False) + 1.0
        return self.part(x) + 1.0


class Net(nn.Module):
    """Containers that are never called, one module held twice, arithmetic of its own."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.stem = conv(1, 4)
        self.down_layers = nn.ModuleList([Block(4, recompute), Block(4, recompute)])
        self.by_name = nn.ModuleDict({"a": conv(4, 4, 1)})
        self.chain = nn.Sequential(conv(4, 4), nn.ReLU())
        self.wrapper = nn.ModuleList([nn.ModuleList([self.stem])])
        self.head = conv(4, 2, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.down_layers:
            x = layer(x)
        x = self.by_name["a"](x)
        for layer in self.chain:
            x = layer(x)
        return self.head(x * 3.0)


WORKLOAD = Workload(
    model="anywhere:net", out_channels=2, patch=(16, 16, 16), precision="fp32", loss="ce"
)


def by_operator(trace, phase):
    """(operator, module it allocated in, kind) in the order in which they ran in the first step."""
    found = []
    for op in trace.ops:
        if op.step == 0 and op.phase == phase:
            made = [e for e in trace.events[op.at : op.end] if e > 0]
            if made:
                kind = trace.kinds[made[0]]
                found.append((op.name.partition(".")[0], trace.modules[made[0]], kind))
    return found


@pytest.mark.parametrize("recompute", [False, True])
def test_containers_name_what_they_hold_and_the_outer_name_comes_back(recompute):
    trace = trace_step(WORKLOAD, Net(recompute))
    made = [(op, module) for op, module, _ in by_operator(trace, "forward")]
    block = [
        ("roll", "down_layers"),
        ("convolution", "down_layers"),
        ("relu", "down_layers"),
        ("mul", "down_layers"),  # after the inner convolution has ended
        ("add", "down_layers"),
    ]
    assert made[:15] == [
        ("convolution", "stem"),
        *block,
        *block,
        ("convolution", "by_name"),
        ("convolution", "chain"),
        ("relu", "chain"),
        ("mul", ""),
    ]
    assert made[15] == ("convolution", "head")
    assert {module for _, module in made[16:]} == {""}  # the loss


def test_what_is_recomputed_in_the_backward_pass_keeps_its_name():
    trace = trace_step(WORKLOAD, Net(recompute=True))
    backward = by_operator(trace, "backward")
    again = [(op, module) for op, module, kind in backward if kind == ACTIVATION]
    assert ("roll", "down_layers") in again
    assert ("convolution", "down_layers") in again
    assert again.count(("relu", "down_layers")) == 2
    assert {module for _, module in again} == {"down_layers"}
    gradients = [op for op, module, kind in backward if kind == TEMPORARY]
    assert gradients.count("convolution_backward") > 0
    assert not [x for x in by_operator(trace_step(WORKLOAD, Net()), "backward") if x[1]]


def test_names_are_put_back_when_a_module_raises():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    network = nn.Sequential(nn.Identity(), Fails())
    entered: list[str] = []
    before = checkpointing.checkpoint
    with module_names(network, entered), pytest.raises(ValueError, match="no"):
        network(torch.zeros(1))
    assert entered == []
    assert checkpointing.checkpoint is before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
