"""Record a training step on fake CPU tensors that are given CUDA's behaviour."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from segplan.step.train import MEMORY_FORMAT, backend_flags, make_step
from segplan.trace import autocast, cuda
from segplan.trace.tape import (
    ACTIVATION,
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    PARAMETER,
    TEMPORARY,
    Op,
    TensorMeta,
    Trace,
)
from segplan.workload import Workload

STEPS = 3
"""Steps in a trace: the first creates the optimizer's state, and the pool of a fresh process
still fragments in the second and third (what "fits" means is defined by three)."""

_SMALL_INDEX = 64
"""Index tensors up to this many elements stay real (losses call `torch.arange(...).tolist()`)."""

_DTYPE_NAMES = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_SCALAR_READS = ("_local_scalar_dense.default",)


class Recorder(TorchDispatchMode):
    """Writes a `Trace`: storages are followed by weak references, so frees fall where they do.

    Limitations: temporaries inside kernels and workspaces are not seen here (`memory/` adds
    them from the operators); small index tensors and constants (`arange`, `torch.tensor`, an
    optimizer's step counters) stay real and count as host memory.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace(batch)
        self.phase = "setup"
        self.module = ""
        self._ids: dict[int, int] = {}
        self._finalizers: dict[int, weakref.finalize[Any, Any]] = {}

    def track(self, tensor: Tensor, kind: int) -> None:
        """Record the tensor's storage as allocated, if it is new."""
        if not isinstance(tensor, FakeTensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._ids:
            return
        trace = self.trace
        ident = len(trace.sizes)
        trace.sizes.append(storage.nbytes())
        trace.kinds.append(kind)
        trace.modules.append(self.module)
        trace.events.append(ident)
        self._ids[key] = ident
        self._finalizers[key] = weakref.finalize(storage, self._freed, key, ident)

    def mark(self, tensor: Tensor, kind: int) -> None:
        """Say what a tensor already recorded holds."""
        ident = self._ids.get(tensor.untyped_storage()._cdata)
        if ident is not None:
            self.trace.kinds[ident] = kind

    def _freed(self, key: int, ident: int) -> None:
        self._ids.pop(key, None)
        self._finalizers.pop(key, None)
        self.trace.events.append(-ident)

    def close(self) -> None:
        """Stop following storages: what is freed later is not part of the step."""
        for finalizer in list(self._finalizers.values()):
            finalizer.detach()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        name = str(func).removeprefix("aten.")
        if name.startswith("arange") and _count(args) <= _SMALL_INDEX:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
            with unset_fake_temporarily():  # constants and step counters: host memory
                return func(*args, **kwargs)
        if name in _SCALAR_READS:
            return 0.0 if args[0].is_floating_point() else 0
        out = cuda.with_cudnn_layout(name, args, func(*args, **kwargs))
        trace = self.trace
        at = len(trace.events)
        kind = ACTIVATION if self.phase == "forward" else TEMPORARY
        empty = cuda.EMPTY_ON_CUDA.get(name, ())
        made = list(_tensors((out,)))
        for i, tensor in enumerate(made):
            if i not in empty:
                self.track(tensor, kind)
        if name in cuda.FREE_OF_COST:
            return out
        trace.ops.append(
            Op(
                name,
                self.phase,
                len(trace.step_starts) - 1,
                at,
                len(trace.events),
                _describe(tensors),
                _describe(made),
                tuple(_plain(a) for a in args),
            )
        )
        return out


def trace_step(workload: Workload, network: nn.Module) -> Trace:
    """Trace three training steps of a resolved workload.

    Args:
        workload: resolved; its batch is the trace's.
        network: built on the CPU with real parameters. They are replaced by fake ones: the
            network cannot be used for anything but tracing afterwards.

    Raises:
        Exception: whatever the network raises on this input (the caller turns it into words).
    """
    autocast.install()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _to_fake(network, fake, workload)
    recorder = Recorder(workload.batch)

    def phase(name: str) -> None:
        recorder.phase = name

    with fake, recorder, backend_flags(workload), cuda.behaviour():
        for parameter in network.parameters():
            recorder.track(parameter, PARAMETER)
        for buffer in network.buffers():
            recorder.track(buffer, BUFFER)
        recorder.phase = "input"
        images = torch.empty((workload.batch, workload.in_channels, *workload.patch)).to(
            memory_format=MEMORY_FORMAT[workload.memory_format]
        )
        labels = torch.empty((workload.batch, 1, *workload.patch), dtype=torch.uint8)
        for tensor in (images, labels):
            recorder.mark(tensor, INPUT)
        step = make_step(workload, network, device_type="cpu", foreach=True, on_phase=phase)
        with _module_names(network, recorder):
            for _ in range(STEPS):
                recorder.trace.step_starts.append(len(recorder.trace.events))
                step.run(images, labels)
                for parameter in network.parameters():
                    if parameter.grad is not None:
                        recorder.mark(parameter.grad, GRADIENT)
                for state in step.optimizer.state.values():
                    for value in state.values():
                        if isinstance(value, FakeTensor):
                            recorder.mark(value, OPTIMIZER)
        recorder.close()
    return recorder.trace


def _to_fake(network: nn.Module, fake: FakeTensorMode, workload: Workload) -> None:
    """Swap parameters and buffers (and plain tensor attributes) for fake ones, in place."""
    channels_last = workload.memory_format == "channels_last_3d"
    swapped: dict[int, Tensor] = {}

    def swap(tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in swapped:
            real = tensor.detach()
            if channels_last and real.dim() == 5:
                real = real.to(memory_format=torch.channels_last_3d)
            made: Tensor = fake.from_tensor(real)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            swapped[id(tensor)] = made
        return swapped[id(tensor)]

    for module in network.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = swap(tensor)  # type: ignore[assignment]


@contextmanager
def _module_names(network: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Attribute what is allocated in the forward pass to the network's top-level modules."""
    handles = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_args: setattr(recorder, "module", name)

    for name, child in network.named_children():
        handles.append(child.register_forward_pre_hook(enter(name)))
        handles.append(child.register_forward_hook(enter("")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _count(args: tuple[Any, ...]) -> int:
    numbers = [a for a in args if isinstance(a, (int, float))]
    return int(max(numbers, default=0))


def _tensors(values: tuple[Any, ...] | list[Any]) -> Iterator[Tensor]:
    """The tensors among an operator's values, lists of tensors flattened, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _describe(tensors: list[Tensor]) -> tuple[TensorMeta, ...]:
    return tuple(
        TensorMeta(tuple(t.shape), _DTYPE_NAMES[t.dtype], tuple(t.stride())) for t in tensors
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return None
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, Tensor) for v in value):
            return len(value)
        return tuple(_plain(v) for v in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
