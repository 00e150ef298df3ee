"""`estimate`: the memory one step needs, on a card or as tensors alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from segplan.api.ladder import DEFAULT_RESERVE, Ladder, Question, Tracer, climb
from segplan.api.predicting import Predictor, Progress, silent, target_for
from segplan.api.timeline import Timeline, timeline
from segplan.errors import CardError, RequestError
from segplan.gpus import as_card, find_card, parse_gpus, select
from segplan.gpus.card import Card
from segplan.gpus.catalog import GpuKind
from segplan.memory.context import context_bytes
from segplan.memory.limits import kernel_limit
from segplan.memory.prediction import modules_at_peak
from segplan.memory.program import compile_program
from segplan.networks import resolve
from segplan.results import MemoryEstimate
from segplan.units import MIB
from segplan.workload import Workload


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
        budget: bytes left for the allocator: visible less context less reserve.
        fits: whether the step trains in the budget; None without a card.
        timeline: memory over the step.
        ladder: what would save how much; None where it was not asked for.
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


def budget_of(card: Card | None, reserve: int) -> int | None:
    """Bytes of a card that the allocator may use; None without a card.

    Raises:
        CardError: nothing is left after the context and the reserve.
        RequestError: the reserve is negative.
    """
    if reserve < 0:
        raise RequestError(f"reserve must be at least 0, not {reserve}.")
    if card is None:
        return None
    context, _measured = context_bytes(card.compute_capability)
    budget = card.memory_visible - context - reserve
    if budget <= 0:
        raise CardError(
            f"nothing is left of {card.memory_visible // MIB} MiB after {context // MIB} MiB for "
            f"the CUDA context and {reserve // MIB} MiB kept free: lower --reserve."
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
    progress: Progress = silent,
) -> Study:
    """Everything about the memory of one training step.

    Args:
        workload: as for `estimate`.
        gpu: as for `estimate`.
        reserve: bytes of the card left free on purpose.
        ladder: compute what would save how much; None: only where the step does not fit.
        progress: called as traces finish.

    Raises:
        NetworkError: the network is unknown, cannot be built, or refuses the patch.
        CardError: there is no such card, or nothing of it is left for the allocator.
        WorkerError: a trace died.
    """
    card = named_card(gpu) if gpu is not None else None
    question = Question(resolve(workload), card, budget_of(card, reserve))
    resolved = question.workload
    with Tracer(progress) as tracer:
        memory, within = question.answer(tracer)
        wanted = within is False if ladder is None else ladder
        found = climb(question, tracer, (memory, within)) if wanted else None
        trace = tracer.tape(resolved).at(resolved.batch)
    target = target_for(resolved, card, question.settings)
    program = compile_program(trace, target.architecture)
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
        warnings=_warnings(question, memory, within, kernel_limit(trace)),
    )


def _warnings(
    question: Question, memory: MemoryEstimate, within: bool | None, limit: str | None
) -> tuple[str, ...]:
    found = []
    if limit is not None:
        found.append(f"It cannot train at any memory: {limit} refuses tensors of 2^31 elements.")
    if question.card is not None:
        context, measured = context_bytes(question.card.compute_capability)
        if not measured:
            found.append(
                f"The CUDA context of the {question.card.name} was not measured: "
                f"{context // MIB} MiB assumed."
            )
    budget = question.budget
    if budget is not None and memory.least_memory_low <= budget < memory.least_memory_high:
        what = "It fits" if within else "It does not fit"
        found.append(f"{what} by less than the uncertainty of the least memory: measure it.")
    return tuple(found)
