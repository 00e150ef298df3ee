"""Record a training or validation step on fake CPU tensors that are given CUDA's behaviour.

What is on the CPU here stands for the GPU. Where a validation is stitched on the CPU, tensors
on the "meta" device stand for the host's memory, and are left off the tape.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from segplan.step.train import MEMORY_FORMAT, TrainingStep, backend_flags, make_step
from segplan.step.validate import Validation, ValidationStep, predictor, window_count
from segplan.trace import autocast, cuda
from segplan.trace.accumulation import SUM, sum_in_place
from segplan.trace.outcomes import Outcomes, fake_like
from segplan.trace.repeating import repeat_step, settled
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

VOLUMES = 2
"""Volumes in a validation's trace: from the second on, what is left of the one before is there."""

REAL_PASSES = 2
"""Forward passes of a validation that run the network; see `_FewPasses`."""

HOST = torch.device("meta")
"""Stands for the host's memory in a trace."""

STITCHING, SCORING = "(stitching)", "(scoring)"
"""What a validation allocates outside the network: windows, the whole output and its count map;
one-hot prediction and label, and the metric."""

_SMALL_INDEX = 64
"""Index tensors up to this many elements stay real (losses call `torch.arange(...).tolist()`)."""

_DTYPE_NAMES = {
    value: str(value).removeprefix("torch.")
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_SCALAR_READS = ("_local_scalar_dense.default",)
_ACTIVATION_PHASES = ("forward", "inference", "metric")


class Recorder(TorchDispatchMode):
    """Writes a `Trace`: storages are followed by weak references, so frees fall where they do.

    Limitations: temporaries inside kernels and workspaces are not seen here (`memory/` adds
    them from the operators); small index tensors and constants (`arange`, `torch.tensor`, an
    optimizer's step counters) stay real and count as host memory.
    """

    def __init__(self, batch: int, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace(batch)
        self.outcomes = Outcomes(fake)
        self.phase = "setup"
        self.outside = ""
        self.entered: list[str] = []
        self.sums: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._finalizers: dict[int, weakref.finalize[Any, Any]] = {}

    @property
    def module(self) -> str:
        """The top-level module at work; `outside` ("" in a training step) where none is."""
        return self.entered[-1] if self.entered else self.outside

    def track(self, tensor: Tensor, kind: int) -> None:
        """Record the tensor's storage as allocated, if it is new and not the host's."""
        if not isinstance(tensor, FakeTensor) or tensor.fake_device == HOST:
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
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        key = self.outcomes.key(func, args, kwargs)
        if key is not None:
            known = self.outcomes.find(key)
            if known is not None:
                out = self.outcomes.again(known, tensors)
                self._write(known.note, out, tensors)
                return out
        name = str(func).removeprefix("aten.")
        if name.startswith("arange") and _count(args) <= _SMALL_INDEX:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
            with unset_fake_temporarily():  # constants and step counters: host memory
                return func(*args, **kwargs)
        if name in _SCALAR_READS:
            # A comparison is only read in a metric: "does the label hold this class?" It does.
            if args[0].dtype == torch.bool:
                return self.phase == "metric"
            return 0.0 if args[0].is_floating_point() else 0
        if name == "masked_select.default":
            with self:  # what it is made of on CUDA is recorded
                return cuda.masked_select(*args)
        out = self.outcomes.run(func, name, args, kwargs, tensors)
        out = cuda.with_cudnn_layout(name, args, out)
        made = list(_tensors((out,)))
        involved = (*tensors, *made)
        call = _Call(
            name,
            _describe(tensors),
            _describe(made),
            tuple(_plain(a) for a in args),
            bool(involved) and all(_device(t) == HOST for t in involved),
        )
        self._write(call, out, tensors)
        if key is not None:
            self.outcomes.remember(key, tensors, out, call)
        return out

    def _write(self, call: _Call, out: Any, tensors: list[Tensor]) -> None:
        """Record a call with these tensors that returned `out`."""
        if call.on_host:
            return
        trace = self.trace
        if call.name == SUM and self.phase == "backward" and not torch.is_grad_enabled():
            first = self._ids.get(tensors[0].untyped_storage()._cdata)
            if first is not None:
                self.sums[len(trace.ops)] = first
        at = len(trace.events)
        # Inside a module in the backward pass activations are recomputed (checkpointing).
        forward = self.phase in _ACTIVATION_PHASES or bool(self.entered)
        kind = ACTIVATION if forward else TEMPORARY
        empty = cuda.EMPTY_ON_CUDA.get(call.name, ())
        for i, tensor in enumerate(_tensors((out,))):
            if i not in empty:
                self.track(tensor, kind)
        if call.name in cuda.FREE_OF_COST:
            return
        trace.ops.append(
            Op(
                call.name,
                self.phase,
                len(trace.step_starts) - 1,
                at,
                len(trace.events),
                call.inputs,
                call.outputs,
                call.args,
            )
        )


class _Call(NamedTuple):
    """What the tape says of a call, wherever in the step it is made."""

    name: str
    inputs: tuple[TensorMeta, ...]
    outputs: tuple[TensorMeta, ...]
    args: tuple[Any, ...]
    on_host: bool


def trace_step(workload: Workload, network: nn.Module, *, repeats: bool = False) -> Trace:
    """Trace three training steps of a resolved workload.

    Args:
        workload: resolved; its batch is the trace's.
        network: built on the CPU with real parameters. They are replaced by fake ones: the
            network cannot be used for anything but tracing afterwards.
        repeats: the network is known to do the same in every step: the third need not be run
            where the second left behind what it found.

    Raises:
        Exception: whatever the network raises on this input (the caller turns it into words).
    """
    autocast.install()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _to_fake(network, fake, workload)
    recorder = Recorder(workload.batch, fake)

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
        with module_names(network, recorder.entered):
            for done in range(STEPS):
                if done > 1 and repeats and settled(recorder.trace):
                    break
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
    while len(recorder.trace.step_starts) < STEPS:
        repeat_step(recorder.trace, recorder.sums)
    sum_in_place(recorder.trace, recorder.sums)
    return recorder.trace


def trace_validation(workload: Workload, network: nn.Module, validation: Validation) -> Trace:
    """Trace the validation of two volumes, after a training whose state stays where it is.

    Parameters, their gradients (the last step's, which are freed when the next one begins) and
    the optimizer's state come first; `step_starts` holds where the validation begins.

    Args:
        workload: resolved; its batch does not matter.
        network: as for `trace_step`.
        validation: which volumes, and how.

    Raises:
        Exception: whatever the network raises on a window (the caller turns it into words).
    """
    autocast.install()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _to_fake(network, fake, workload)
    recorder = Recorder(1, fake)

    def phase(name: str) -> None:
        recorder.phase = name
        recorder.outside = STITCHING if name == "inference" else SCORING

    def volumes() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(VOLUMES):
            recorder.phase = "input"
            predict.left = REAL_PASSES  # what the volume before left is there only now
            yield (
                torch.empty((1, workload.in_channels, *validation.volume), device=HOST),
                torch.empty((1, 1, *validation.volume), device=HOST),
            )

    with fake, recorder, backend_flags(workload), cuda.behaviour():
        for parameter in network.parameters():
            recorder.track(parameter, PARAMETER)
        for buffer in network.buffers():
            recorder.track(buffer, BUFFER)
        training = _trained_once(workload, network, recorder)
        recorder.trace.step_starts.append(len(recorder.trace.events))
        predict = _FewPasses(predictor(network))
        step = ValidationStep(
            workload=workload,
            validation=_with_few_windows(workload, validation),
            predict=predict,
            device=torch.device("cpu"),
            host=HOST,
            device_type="cpu",
            on_phase=phase,
        )
        with module_names(network, recorder.entered):
            step.run(volumes())
        recorder.close()
        del training  # its optimizer's state was there all the while
    return recorder.trace


def _trained_once(workload: Workload, network: nn.Module, recorder: Recorder) -> TrainingStep:
    """Allocate what a training keeps between its steps: gradients and optimizer state."""
    recorder.phase = "optimizer"
    step = make_step(workload, network, device_type="cpu", foreach=True)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
            recorder.mark(parameter.grad, GRADIENT)
    step.optimizer.step()
    for state in step.optimizer.state.values():
        for value in state.values():
            if isinstance(value, FakeTensor):
                recorder.mark(value, OPTIMIZER)
    return step


def _with_few_windows(workload: Workload, validation: Validation) -> Validation:
    """The same with windows side by side, where those still make enough passes.

    Overlap decides how often windows are added to the whole output, not what is allocated.
    """
    count = window_count(validation.volume, validation.window(workload.patch), 0.0)
    if count <= REAL_PASSES * validation.sw_batch_size:
        return validation
    return dataclasses.replace(validation, overlap=0.0)


class _FewPasses:
    """Runs the network on the first windows, and then only makes outputs like theirs.

    A volume has hundreds of windows, and each pass through the network allocates and frees the
    same. The second pass differs from the first (autocast keeps the weights it has cast, and
    the output before is still held while the next one is computed), the third no more; so two
    tell the peak. The last pass may hold fewer windows and needs no more than the others.
    """

    def __init__(self, predict: Callable[[Tensor], Tensor], passes: int | None = None) -> None:
        self.predict = predict
        self.left = REAL_PASSES if passes is None else passes
        self.like: Tensor | None = None

    def __call__(self, windows: Tensor) -> Tensor:
        if self.left or self.like is None:
            self.left -= 1
            output = self.predict(windows)
            with unset_fake_temporarily():
                self.like = torch.empty(output.shape, dtype=output.dtype, device="meta")
            return output
        return torch.empty((windows.shape[0], *self.like.shape[1:]), dtype=self.like.dtype)


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
            trained = tensor.requires_grad if isinstance(tensor, nn.Parameter) else None
            swapped[id(tensor)] = fake_like(real, fake, trained)
        return swapped[id(tensor)]

    for module in network.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = swap(tensor)  # type: ignore[assignment]


@contextmanager
def module_names(network: nn.Module, entered: list[str]) -> Iterator[None]:
    """Keep `entered` at the top-level modules being run, innermost last.

    Every module inside counts as the top-level module that holds it (the one nearest to it,
    where several do), so that what a list or dict of modules holds is named like the list.
    Functions that are checkpointed run again in the backward pass under the name they first ran
    under, although the module that called them is not called again.
    """
    names = _top_level(network)
    handles = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_arguments: Any) -> None:
            entered.append(name)

        return hook

    def leave(*_arguments: Any) -> None:
        entered.pop()

    for module, name in names.items():
        handles.append(module.register_forward_pre_hook(enter(name)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    checkpoint = torch.utils.checkpoint.checkpoint

    @wraps(checkpoint)
    def named(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = entered[-1] if entered else None

        def under_its_name(*inputs: Any, **options: Any) -> Any:
            if name is None:
                return function(*inputs, **options)
            entered.append(name)
            try:
                return function(*inputs, **options)
            finally:
                entered.pop()

        return checkpoint(under_its_name, *args, **kwargs)

    torch.utils.checkpoint.checkpoint = named
    try:
        yield
    finally:
        torch.utils.checkpoint.checkpoint = checkpoint
        for handle in handles:
            handle.remove()


def _top_level(network: nn.Module) -> dict[nn.Module, str]:
    """The name of the top-level module that each module inside the network belongs to."""
    names: dict[nn.Module, str] = {}
    level = [(child, name) for name, child in network.named_children()]
    while level:  # by depth: a module that several hold belongs to the nearest
        below = []
        for module, name in level:
            if module not in names and module is not network:
                names[module] = name
                below += [(child, name) for child in module.children()]
        level = below
    return names


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


def _device(tensor: Tensor) -> torch.device:
    """Where a tensor is; asking a fake one for its `device` would be dispatched."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


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
