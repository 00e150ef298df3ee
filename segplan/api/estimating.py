"""`estimate`: the memory one step needs, on a card or as tensors alone; and its validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from segplan.api.budgets import left_for_allocator
from segplan.api.ladder import DEFAULT_RESERVE, Ladder, Question, Tracer, climb
from segplan.api.predicting import Predictor, Progress, silent
from segplan.api.timeline import Timeline, timeline
from segplan.errors import CardError, RequestError
from segplan.gpus import as_card, find_card, parse_gpus, select
from segplan.gpus.card import Card
from segplan.gpus.catalog import GpuKind
from segplan.memory.context import context_bytes
from segplan.memory.distributed import DataParallel, communicator_bytes, data_parallel
from segplan.memory.limits import INT_MAX, kernel_limit, most_elements
from segplan.memory.prediction import modules_at_peak, predict_validation, program_of
from segplan.networks import check_window, resolve
from segplan.results import MemoryEstimate
from segplan.step.validate import Validation, window_count
from segplan.trace.tape import Trace
from segplan.units import MIB, Patch
from segplan.workload import Workload


@dataclass(frozen=True)
class CpuStitching:
    """The same validation with whole volumes on the CPU and only windows on the GPU.

    Attributes:
        least_memory: bytes that validation needs so (training's state included).
        saved: bytes less than with the output stitched on the GPU.
        together: least memory of a process that trains and validates so.
        fits: whether that is within the budget; None without a card.
        needed: whether the process fits so, and does not without; None without a card.
    """

    least_memory: int
    saved: int
    together: int
    fits: bool | None
    needed: bool | None


@dataclass(frozen=True)
class ValidationStudy:
    """What validating whole volumes during training needs.

    Attributes:
        validation: as asked, the window filled in.
        windows: in one volume.
        memory: bytes of the validation; parameters, gradients and the optimizer's state of the
            training are counted, because they stay where they are.
        modules: what the breakdown's activations are of, largest first; they add up.
        together: bytes of one process that trains and then validates.
        decides: "training" or "validation": which of the two needs more.
        fits: whether the process fits the budget; None without a card.
        cpu_stitching: what stitching on the CPU would change; None where that was asked for.
        warnings: sentences a reader should know.
    """

    validation: Validation
    windows: int
    memory: MemoryEstimate
    modules: Mapping[str, int]
    together: MemoryEstimate
    decides: str
    fits: bool | None = None
    cpu_stitching: CpuStitching | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """One workload, one card: what the step needs, of what, and what would save.

    Attributes:
        workload: as asked.
        memory: bytes of the step.
        modules: the breakdown's activations by top-level module, largest first; they add up.
        card: slug, or None: tensors and allocator only.
        visible: bytes of the card that torch sees.
        reserve: bytes of it left free on purpose.
        budget: bytes left for the allocator: visible less context less reserve (and less NCCL's
            buffers, where several GPUs train together).
        fits: whether the step trains in the budget; None without a card.
        timeline: memory over the step.
        ladder: what would save how much; None where it was not asked for.
        validation: what validating whole volumes needs; None where it was not asked for.
        data_parallel: what a job over several GPUs adds on each; None for one GPU. Its buckets
            are part of `memory`, as gradients.
        warnings: sentences a reader should know.
    """

    workload: Workload
    memory: MemoryEstimate
    modules: Mapping[str, int] = field(default_factory=dict)
    card: str | None = None
    visible: int | None = None
    reserve: int = DEFAULT_RESERVE
    budget: int | None = None
    fits: bool | None = None
    timeline: Timeline | None = None
    ladder: Ladder | None = None
    validation: ValidationStudy | None = None
    data_parallel: DataParallel | None = None
    warnings: tuple[str, ...] = ()


def named_card(text: str) -> Card:
    """The card of a name, an index, a UUID or a YAML file.

    Raises:
        CardError: there is no such card.
    """
    requests = parse_gpus(text)
    if len(requests) == 1 and requests[0].kind is GpuKind.LOCAL:
        return as_card(select(requests[0].text))
    return find_card(text)


def budget_of(card: Card | None, reserve: int, gpus: int = 1) -> int | None:
    """Bytes of a card that the allocator may use; None without a card.

    Args:
        card: or None.
        reserve: bytes left free on purpose.
        gpus: that train together: NCCL's buffers are set aside for more than one.

    Raises:
        CardError: nothing is left after the context and the reserve.
        RequestError: the reserve is negative, or there are no GPUs.
    """
    if gpus < 1:
        raise RequestError(f"gpus_per_job must be at least 1, not {gpus}.")
    if reserve < 0:
        raise RequestError(f"reserve must be at least 0, not {reserve}.")
    if card is None:
        return None
    budget = left_for_allocator(card, reserve, gpus)
    if budget <= 0:
        context, _measured = context_bytes(card.compute_capability)
        communicator = communicator_bytes(gpus)
        nccl = f", {communicator // MIB} MiB for NCCL" if communicator else ""
        raise CardError(
            f"nothing is left of {card.memory_visible // MIB} MiB after {context // MIB} MiB for "
            f"the CUDA context{nccl} and {reserve // MIB} MiB kept free: lower --reserve."
        )
    return budget


def estimate(
    workload: Workload, gpu: str | None = None, *, progress: Progress = silent
) -> MemoryEstimate:
    """Predict what one training step needs.

    Args:
        workload: its patch and batch are those of the step.
        gpu: a card's name, index, UUID or YAML file: its kernels' workspaces and its context
            are counted in. None: tensors and allocator only.
        progress: called as traces finish.

    Returns:
        Bytes, with an 80 % interval for the least memory.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch.
        CardError: there is no such card.
        WorkerError: the trace died.
    """
    card = named_card(gpu) if gpu is not None else None
    resolved = resolve(workload)
    with Predictor(resolved, card, progress) as predictor:
        return predictor.estimate(resolved.patch, resolved.batch)


def study(
    workload: Workload,
    gpu: str | None = None,
    *,
    reserve: int = DEFAULT_RESERVE,
    ladder: bool | None = None,
    validation: Validation | None = None,
    gpus_per_job: int = 1,
    progress: Progress = silent,
) -> Study:
    """Everything about the memory of one training step, and of its validation.

    Args:
        workload: as for `estimate`.
        gpu: as for `estimate`.
        reserve: bytes of the card left free on purpose.
        ladder: compute what would save how much; None: only where the step does not fit.
        validation: whole volumes to validate between the steps.
        gpus_per_job: GPUs of one host that train together with DistributedDataParallel; the
            workload's batch is that of each.
        progress: called as traces finish.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch or window.
        CardError: there is no such card, or nothing of it is left for the allocator.
        RequestError: there are no GPUs, or the reserve is negative.
        WorkerError: a trace died.
    """
    card = named_card(gpu) if gpu is not None else None
    budget = budget_of(card, reserve, gpus_per_job)
    question = Question(resolve(workload), card, budget, gpus=gpus_per_job)
    resolved = question.workload
    ways = _ways(validation, resolved)
    with Tracer(progress) as tracer:
        tracer.trace([resolved], [(resolved, way) for way in ways])
        memory, within = question.answer(tracer)
        trace = tracer.tape(resolved).at(resolved.batch)
        limit = kernel_limit(trace)
        traces = [tracer.validation(resolved, way) for way in ways]
        wanted = within is False if ladder is None else ladder
        found = climb(question, tracer, (memory, within)) if wanted else None
    validated = None
    if ways:
        validated = _validated(question, (memory, limit), trace, ways, traces)
    program = program_of(trace, question.target)
    return Study(
        workload=workload,
        memory=memory,
        modules=modules_at_peak(program, memory.least_memory),
        card=card.slug if card is not None else None,
        visible=card.memory_visible if card is not None else None,
        reserve=reserve,
        budget=question.budget,
        fits=within,
        timeline=timeline(program),
        ladder=found,
        validation=validated,
        data_parallel=data_parallel(trace, gpus_per_job),
        warnings=_warnings(question, memory, within, limit),
    )


def _ways(validation: Validation | None, workload: Workload) -> list[Validation]:
    """The validation asked for, and where it is stitched on the GPU the same on the CPU."""
    if validation is None:
        return []
    asked = dataclasses.replace(validation, roi_size=validation.window(workload.patch))
    check_window(workload, asked.window(workload.patch))
    if asked.stitch == "cpu":
        return [asked]
    return [asked, dataclasses.replace(asked, stitch="cpu")]


def _validated(
    question: Question,
    training: tuple[MemoryEstimate, str | None],
    trace: Trace,
    ways: Sequence[Validation],
    traces: Sequence[Trace],
) -> ValidationStudy:
    """What a validation needs next to a training (its memory, its kernels' limit, its trace)."""
    target, budget = question.target, question.budget
    memory, training_limit = training
    limits = [training_limit or kernel_limit(validating) for validating in traces]
    answers = [predict_validation(trace, validating, target) for validating in traces]
    fit = [
        None if budget is None else limit is None and together.least_memory <= budget
        for (_, together), limit in zip(answers, limits, strict=True)
    ]
    alone, together = answers[0]
    stitching = None
    if len(ways) > 1:
        other, other_together = answers[1]
        stitching = CpuStitching(
            least_memory=other.least_memory,
            saved=alone.least_memory - other.least_memory,
            together=other_together.least_memory,
            fits=fit[1],
            needed=None if budget is None else fit[0] is False and fit[1] is True,
        )
    asked = ways[0]
    window = asked.window(question.workload.patch)
    program = program_of(traces[0], target)
    return ValidationStudy(
        validation=asked,
        windows=window_count(asked.volume, window, asked.overlap),
        memory=alone,
        modules=modules_at_peak(program, alone.least_memory),
        together=together,
        decides="validation" if alone.least_memory > memory.least_memory else "training",
        fits=fit[0],
        cpu_stitching=stitching,
        warnings=(
            *_padded(asked.volume, window),
            *_validation_warnings(traces[0], together, budget, fit[0]),
        ),
    )


def _padded(volume: Patch, window: Patch) -> tuple[str, ...]:
    """That a volume is smaller than a window, where it is."""
    if all(size >= side for size, side in zip(volume, window, strict=True)):
        return ()
    padded = "x".join(str(max(pair)) for pair in zip(volume, window, strict=True))
    return (f"The volume is smaller than a window: it is padded to {padded}.",)


def _validation_warnings(
    trace: Trace, together: MemoryEstimate, budget: int | None, within: bool | None
) -> tuple[str, ...]:
    found = []
    limit = kernel_limit(trace)
    elements = most_elements(trace)
    if limit is not None:
        found.append(
            f"It cannot validate so at any memory: {limit} refuses tensors of 2^31 elements; use "
            "smaller windows, or fewer at a time."
        )
    elif elements > INT_MAX:
        found.append(
            f"The stitched output holds {elements / 1e9:.1f} billion elements, 2^31 or more: "
            "older releases of torch refuse some operators on it; stitch on the CPU there."
        )
    if budget is not None and together.least_memory_low <= budget < together.least_memory_high:
        what = "fit" if within else "do not fit"
        found.append(f"Both {what} by less than the uncertainty: measure it.")
    return tuple(found)


def _warnings(
    question: Question, memory: MemoryEstimate, within: bool | None, limit: str | None
) -> tuple[str, ...]:
    found = []
    if limit is not None:
        found.append(
            f"It cannot train at any memory: {limit} refuses tensors of 2^31 elements; use a "
            "smaller patch, or fewer patches in a step."
        )
    if question.card is not None:
        context, measured = context_bytes(question.card.compute_capability)
        if not measured:
            found.append(
                f"The CUDA context of the {question.card.name} was not measured: "
                f"{context // MIB} MiB assumed."
            )
    if question.gpus > 1:
        found.append(
            f"NCCL's buffers were not measured: {communicator_bytes(question.gpus) // MIB} MiB "
            "assumed on each GPU, outside the allocator."
        )
    budget = question.budget
    if budget is not None and memory.least_memory_low <= budget < memory.least_memory_high:
        what = "It fits" if within else "It does not fit"
        found.append(f"{what} by less than the uncertainty of the least memory: measure it.")
    return tuple(found)
