"""`fit`: the largest batch of each patch that a card trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from segplan.api.predicting import Predictor, Progress, one_at_a_time, silent
from segplan.errors import CardError, NetworkError, RequestError, SegplanError, WorkerError
from segplan.gpus import (
    Card,
    GpuKind,
    GpuRequest,
    LocalCard,
    catalogue,
    find_card,
    local_cards,
    parse_gpus,
    select,
)
from segplan.memory.context import context_bytes
from segplan.networks import check, next_valid, resolve, smallest_valid
from segplan.results import Cell, Fit, LimitedBy, MemoryEstimate
from segplan.search import (
    BatchAnswer,
    Verdict,
    candidate_patches,
    default_patches,
    largest_batch,
    largest_patch,
    recommend,
)
from segplan.trace.tape import AFFINE_BATCHES
from segplan.units import MIB, Patch
from segplan.worker import WorkerTimedOut
from segplan.workload import Workload

DEFAULT_RESERVE = 512 * MIB
DEFAULT_MAX_BATCH = 64
LARGEST_SIDE = 512
"""Cubes above this side are not tried when the largest patch is sought."""

CANDIDATE_STEP = 32
TYPICAL_VOXELS = 64**3
"""From here on the memory of a step is nearly a line in the voxels."""

FEW_PATCHES = 4
"""With fewer the largest is found by trying; a guess costs two traces."""


@dataclass(frozen=True)
class Question:
    """What is asked, checked and with defaults filled.

    Attributes:
        workload: resolved; its patch and batch are placeholders.
        patches: patches to answer for; empty when `batch` is given without patches.
        batch: the wanted batch when the largest patch is sought, else None.
        allocator_limit: bytes, instead of what the card offers; None: what it offers.
        reserve: bytes left free.
        max_batch: where the search ends.
    """

    workload: Workload
    patches: tuple[Patch, ...]
    batch: int | None
    allocator_limit: int | None
    reserve: int
    max_batch: int


def fit(
    workload: Workload,
    gpu: str = "0",
    patches: Sequence[Patch] | None = None,
    *,
    batch: int | None = None,
    emulate: str | None = None,
    allocator_limit: int | None = None,
    reserve: int = DEFAULT_RESERVE,
    max_batch: int = DEFAULT_MAX_BATCH,
    store: str | None = None,
    share: bool = False,
    soak: int = 0,
    progress: Progress = silent,
) -> Fit:
    """Find the largest batch of each patch that a card trains.

    A card that is here (an index or a UUID) is measured; a named one is predicted.

    Args:
        workload: what is trained; its patch and batch are ignored.
        gpu: "0", a UUID, a card's name, or a YAML file.
        patches: (H, W, D) each; None: cubes of 64, 96, 128, 160, 192 and 224, rounded up to
            what the network takes.
        batch: ask the other way round: the largest patch at this batch.
        emulate: with a card that is here: cap its memory to what this card would offer.
        allocator_limit: bytes the allocator may use, whatever the card.
        reserve: bytes left free on purpose.
        max_batch: look no further.
        store: file measurements are kept in; None: the user's data directory.
        share: measure although other processes use the card.
        soak: repeat the recommended cell for this many steps and report drift (measured only).
        progress: called with (done, total, what).

    Returns:
        A cell for each patch, with its basis and intervals.

    Raises:
        RequestError: the network, a patch, the card or an option cannot be used as asked.
        WorkerError: a child process died on the way.
    """
    question = ask(workload, patches, batch, allocator_limit, reserve, max_batch)
    requests = parse_gpus(gpu)
    if len(requests) != 1 or requests[0].kind in (GpuKind.ALL, GpuKind.CATALOG):
        raise RequestError(f"fit answers for one card, not '{gpu}': use fit_many for several.")
    if requests[0].kind is GpuKind.LOCAL:
        from segplan.api.measuring import fit_measured

        return fit_measured(
            question,
            select(requests[0].text),
            emulate=find_card(emulate) if emulate is not None else None,
            store=store,
            share=share,
            soak=soak,
            progress=progress,
        )
    card = find_card(requests[0].text)
    if emulate is not None:
        raise CardError(
            f"--as {emulate} needs a card that is here, like --gpu 0: to predict {emulate}, "
            f"say --gpu {emulate} alone."
        )
    if soak:
        raise CardError(f"--soak measures, and {card.slug} is not here: use --gpu 0.")
    with Predictor(question.workload, card, progress) as predictor:
        return fit_predicted(question, card, predictor)


def fit_many(
    workload: Workload,
    gpus: Sequence[str],
    patches: Sequence[Patch] | None = None,
    *,
    batch: int | None = None,
    allocator_limit: int | None = None,
    reserve: int = DEFAULT_RESERVE,
    max_batch: int = DEFAULT_MAX_BATCH,
    store: str | None = None,
    share: bool = False,
    side_by_side: bool = False,
    progress: Progress = silent,
) -> tuple[Fit, ...]:
    """`fit` for several cards; "all" is every card here, "catalog" every card known.

    Named cards share their traces. Cards that are here are measured one after the other, or at
    the same time with `side_by_side`. Other arguments and errors as for `fit`.
    """
    question = ask(workload, patches, batch, allocator_limit, reserve, max_batch)
    progress = one_at_a_time(progress)
    cards = [card for request in parse_gpus(",".join(gpus)) for card in _cards_of(request)]
    here = [card for card in cards if isinstance(card, LocalCard)]
    measured: dict[str, Fit] = {}
    if here:
        from segplan.api.measuring import fit_measured, refuse_busy
        from segplan.api.side_by_side import fit_side_by_side

        for local in here:  # before hours are spent on the first
            refuse_busy(local, share)
        if side_by_side and len(here) > 1:
            found = fit_side_by_side(question, here, store=store, share=share, progress=progress)
            measured = {local.uuid: fit for local, fit in zip(here, found, strict=True)}
    elif side_by_side:
        raise RequestError(
            "only cards of this machine are measured side by side: --gpu all, or --gpus 0,1."
        )
    fits: list[Fit] = []
    with Predictor(question.workload, None, progress) as predictor:
        for card in cards:
            if isinstance(card, Card):
                predictor.aim(card)
                fits.append(fit_predicted(question, card, predictor))
            elif card.uuid in measured:
                fits.append(measured[card.uuid])
            else:
                fits.append(
                    fit_measured(
                        question, card, emulate=None, store=store, share=share, soak=0,
                        progress=progress, predictor=predictor,
                    )
                )  # fmt: skip
    return tuple(fits)


def _cards_of(request: GpuRequest) -> Sequence[LocalCard | Card]:
    """What a request names.

    Raises:
        CardError: nothing.
    """
    if request.kind is GpuKind.ALL:
        return usable_cards()
    if request.kind is GpuKind.CATALOG:
        return catalogue()
    return (select(request.text) if request.kind is GpuKind.LOCAL else find_card(request.text),)


def usable_cards() -> tuple[LocalCard, ...]:
    """The cards here that run something: the slices of a card that is cut, not the card.

    Raises:
        CardError: there is none.
    """
    cards = tuple(card for card in local_cards() if card.mig != "parent")
    return cards or (select("0"),)  # which says why there is none


def ask(
    workload: Workload,
    patches: Sequence[Patch] | None,
    batch: int | None,
    allocator_limit: int | None,
    reserve: int,
    max_batch: int,
) -> Question:
    """Check what is asked and fill defaults (errors as for `fit`)."""
    base = resolve(workload, check_patch=False)
    for name, value, least in (
        ("batch", batch, 1),
        ("allocator_limit", allocator_limit, 1),
        ("reserve", reserve, 0),
        ("max_batch", max_batch, 1),
    ):
        if value is not None and (not isinstance(value, int) or value < least):
            raise RequestError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    if patches is not None:
        chosen = tuple(dict.fromkeys(base.replace(patch=patch).patch for patch in patches))
        if not chosen:
            raise RequestError("no patch is named: leave patches out for the default sizes.")
        for patch in chosen:
            check(base.replace(patch=patch, batch=batch or 2))
    elif batch is None:
        chosen = default_patches(lambda patch: next_valid(base, patch))
    else:
        chosen = tuple(
            candidate_patches(
                lambda patch: next_valid(base, patch),
                smallest_valid(base),
                CANDIDATE_STEP,
                LARGEST_SIDE,
            )
        )
    return Question(base, chosen, batch, allocator_limit, reserve, max_batch)


def budget_of(question: Question, visible: int, context: int) -> int:
    """Bytes the allocator may use.

    Raises:
        CardError: nothing is left after the context and the reserve.
    """
    if question.allocator_limit is not None:
        return question.allocator_limit
    budget = visible - context - question.reserve
    if budget <= 0:
        raise CardError(
            f"nothing is left of {visible // MIB} MiB after {context // MIB} MiB for the CUDA "
            f"context and {question.reserve // MIB} MiB kept free: lower --reserve."
        )
    return budget


def fit_predicted(question: Question, card: Card, predictor: Predictor) -> Fit:
    """The frontier of a card that is not here (errors as for `fit`)."""
    context, measured = context_bytes(card.compute_capability)
    budget = budget_of(question, card.memory_visible, context)
    warnings = []
    if not measured:
        warnings.append(
            f"The CUDA context of the {card.name} was not measured: {context // MIB} MiB assumed."
        )
    if question.batch is not None:
        cells = [_largest_patch(question, predictor, budget)]
    else:
        trace_ahead(question, predictor, budget)
        cells = _cells(question, predictor, budget)
    return conclude(question, card.slug, budget, context, cells, predictor, warnings)


def conclude(
    question: Question,
    slug: str,
    budget: int,
    context: int,
    cells: Sequence[Cell],
    predictor: Predictor,
    warnings: Sequence[str],
    measured_on: str | None = None,
) -> Fit:
    """Recommend a cell, or name the card that would do when nothing fits."""
    index, reason = recommend(cells)
    smallest = None
    answered = [c for c in cells if c.status == "ok" and c.limited_by is LimitedBy.MEMORY]
    if answered and index is None:
        easiest = min(
            (c for c in answered if c.memory is not None),
            key=lambda c: c.memory.least_memory if c.memory else 0,
            default=None,
        )
        if easiest is not None and easiest.memory is not None:
            smallest = smallest_card(question, predictor, easiest, budget)
    return Fit(
        workload=question.workload,
        card=slug,
        budget=budget,
        context=context,
        reserve=question.reserve,
        cells=tuple(cells),
        recommended=index,
        reason=reason,
        measured_on=measured_on,
        smallest_card=smallest,
        warnings=tuple(warnings),
    )


class CardFitter(Protocol):
    """What `smallest_card` asks (`segplan.api.predicting.Predictor`)."""

    card: Card | None

    def aim(self, card: Card | None) -> None:
        """Answer for this card from now on."""

    def fits(self, patch: Patch, batch: int, limit: int) -> bool:
        """Whether a step's least memory is within that many bytes."""


def smallest_card(
    question: Question, predictor: CardFitter, cell: Cell, too_small: int
) -> str | None:
    """Slug of the catalogue card with the least memory that trains the cell's patch.

    Args:
        question: what is asked.
        predictor: of its workload.
        cell: in which nothing fits.
        too_small: bytes under which it did not fit: no card with less comes into question.
    """
    aimed = predictor.card
    least = max(too_small + 1, cell.memory.peak_allocated if cell.memory else 0)
    try:
        for card in sorted(catalogue(), key=lambda c: c.memory_visible):
            context, _ = context_bytes(card.compute_capability)
            budget = card.memory_visible - context - question.reserve
            if budget < least:
                continue
            predictor.aim(card)
            if predictor.fits(cell.patch, question.batch or 1, budget):
                return card.slug
    except SegplanError:
        return None
    finally:
        predictor.aim(aimed)
    return None


def trace_ahead(question: Question, predictor: Predictor, budget: int) -> None:
    """Trace side by side what the cells are about to ask for, and no more."""
    trace_known(question, predictor)
    trace_others(question, predictor, budget)


def trace_known(question: Question, predictor: Predictor) -> tuple[Patch, ...]:
    """Trace the patches that tell about how many the others hold; returns them."""
    known = _typical(question.patches)[:KNOWN_PATCHES]
    predictor.trace((patch, batch) for patch in known for batch in AFFINE_BATCHES)
    return tuple(known)


def trace_others(question: Question, predictor: Predictor, budget: int) -> None:
    """Trace what the cells need beyond `trace_known`.

    Batches 2 and 3 give all larger ones; batch 1 has a trace of its own, needed where the answer
    is small. Patches that hold none or one need not be traced at 2 and 3.
    """
    wanted: list[tuple[Patch, int]] = []
    for patch in question.patches:
        with contextlib.suppress(NetworkError, WorkerError):
            guess = _line(predictor, patch, int(budget / TYPICAL_RATIO), predictor.peak_allocated)
            if guess < AFFINE_BATCHES[0]:
                wanted.append((patch, 1))
            if guess == 1:
                wanted.append((patch, 2))
            if guess > 1:
                wanted += [(patch, batch) for batch in AFFINE_BATCHES]
    predictor.trace(wanted)


KNOWN_PATCHES = 2
TYPICAL_RATIO = 1.15
"""Least memory over peak allocated, between 1.05 and 1.27 on measured rows: good enough to choose
what to trace, and needs no replay."""


def _typical(patches: Sequence[Patch]) -> list[Patch]:
    """Patches by size, those first of which memory is nearly a line in the voxels."""
    by_size = sorted(patches, key=voxels)
    typical = [p for p in by_size if voxels(p) >= TYPICAL_VOXELS]
    return [*typical, *(p for p in by_size if p not in typical)]


def _oracle(
    predictor: Predictor, patch: Patch, batch: int, fits: Callable[[Patch, int], bool]
) -> Verdict:
    if predictor.kernel_limit(patch, batch) is not None:
        return Verdict.KERNEL
    return Verdict.FITS if fits(patch, batch) else Verdict.TOO_BIG


def guess_batch(predictor: Predictor, patch: Patch, budget: int) -> int:
    """The batch at which the least memory, a line through two batches, meets the budget.

    Of a patch without such a line another patch's is taken, its slope in proportion to the voxels
    (errors as for `Predictor.estimate`).
    """
    return _line(predictor, patch, budget, lambda p, b: predictor.estimate(p, b).least_memory)


def _line(
    predictor: Predictor, patch: Patch, budget: int, memory: Callable[[Patch, int], int]
) -> int:
    line = patch
    if not predictor.has_line(patch) and predictor.lines():
        line = max(predictor.lines(), key=voxels)
    low, high = (memory(line, batch) for batch in AFFINE_BATCHES)
    slope = max((high - low) / (AFFINE_BATCHES[1] - AFFINE_BATCHES[0]), 1.0)
    base = low - AFFINE_BATCHES[0] * slope
    return max(0, int((budget - base) / (slope * voxels(patch) / voxels(line))))


def predicted_batch(
    question: Question, predictor: Predictor, patch: Patch, budget: int, *, look_above: int = 0
) -> BatchAnswer:
    """The largest batch of a patch by replay (errors as for `Predictor.estimate`)."""
    return largest_batch(
        lambda batch: _oracle(predictor, patch, batch, lambda p, b: predictor.fits(p, b, budget)),
        cap=question.max_batch,
        guess=min(guess_batch(predictor, patch, budget), question.max_batch),
        look_above=look_above,
    )


def quickly_predicted_batch(
    question: Question, predictor: Predictor, patch: Patch, budget: int
) -> int:
    """Nearly always what `predicted_batch` says, in a tenth of the time: good enough to measure
    next (errors as for `Predictor.estimate`)."""
    line = _line(predictor, patch, int(budget / TYPICAL_RATIO), predictor.peak_allocated)
    return largest_batch(
        lambda batch: _oracle(predictor, patch, batch, lambda p, b: predictor.trains(p, b, budget)),
        cap=question.max_batch,
        guess=min(line, question.max_batch),
    ).max_batch


def _cells(question: Question, predictor: Predictor, budget: int) -> list[Cell]:
    """A cell for each patch; one whose child process died costs no other.

    Raises:
        WorkerError: all of them died.
    """
    cells: list[Cell] = []
    errors: list[WorkerError] = []
    for patch in question.patches:
        try:
            cells.append(_cell(question, predictor, patch, budget))
        except WorkerError as error:
            errors.append(error)
            cells.append(unanswered(patch, error))
    if len(errors) == len(cells):
        raise errors[0]
    return cells


def _cell(question: Question, predictor: Predictor, patch: Patch, budget: int) -> Cell:
    above = 1 if predictor.has_line(patch) else 0  # without one it costs traces
    answer = predicted_batch(question, predictor, patch, budget, look_above=above)
    memory = predictor.estimate(patch, max(answer.max_batch, 1))
    return Cell(
        patch=patch,
        max_batch=answer.max_batch,
        limited_by=answer.limited_by,
        memory=memory,
        step=predictor.step_time(patch, answer.max_batch) if answer.max_batch else None,
        note=cell_note(answer.max_batch, answer.violations, memory, budget)
        or _kernel_note(predictor, patch, answer.max_batch, answer.limited_by),
    )


def unanswered(patch: Patch, error: WorkerError) -> Cell:
    """The cell of a patch whose child process gave no answer."""
    status = "timed_out" if isinstance(error, WorkerTimedOut) else "failed"
    return Cell(patch, 0, None, None, status=status, note=str(error))


def cell_note(
    max_batch: int, violations: Sequence[str], memory: MemoryEstimate, budget: int
) -> str | None:
    """What a reader should know about a cell, or None."""
    if violations:
        return violations[0]
    if max_batch and memory.least_memory_high > budget:
        return "a tight fit: within the uncertainty of the least memory"
    return None


def _kernel_note(
    predictor: Predictor, patch: Patch, max_batch: int, limited_by: LimitedBy | None
) -> str | None:
    if limited_by is not LimitedBy.KERNEL:
        return None
    what = predictor.kernel_limit(patch, max_batch + 1)
    return f"{what} refuses tensors of 2^31 elements" if what else None


def guess_patch(predictor: Predictor, patches: Sequence[Patch], batch: int, budget: int) -> int:
    """Index of the largest patch that should fit: a line in the voxels through two patches.

    Args:
        predictor: of the workload.
        patches: ascending by volume.
        batch: patches in a step.
        budget: bytes.
    """
    typical = _typical(patches)
    if len(patches) < FEW_PATCHES or len(typical) < 2:
        return 0
    near, far = typical[:2]
    predictor.trace([(near, batch), (far, batch)])
    try:
        low, high = (predictor.estimate(patch, batch).least_memory for patch in (near, far))
    except (NetworkError, WorkerError):
        return 0
    slope = (high - low) / max(voxels(far) - voxels(near), 1)
    fitting = [
        i for i, p in enumerate(patches) if low + slope * (voxels(p) - voxels(near)) <= budget
    ]
    return fitting[-1] if fitting else 0


def voxels(patch: Patch) -> int:
    """Voxels of a patch."""
    return patch[0] * patch[1] * patch[2]


def _largest_patch(question: Question, predictor: Predictor, budget: int) -> Cell:
    batch = question.batch
    assert batch is not None
    patches = sorted(question.patches, key=voxels)
    guess = guess_patch(predictor, patches, batch, budget)
    predictor.trace((patch, batch) for patch in patches[guess : guess + 2])
    told: list[WorkerError] = []

    def oracle(patch: Patch) -> Verdict:
        try:
            return _oracle(predictor, patch, batch, lambda p, b: predictor.fits(p, b, budget))
        except WorkerError as error:
            told.append(error)
            return Verdict.UNKNOWN.because(str(error))

    answer = largest_patch(oracle, patches, guess=guess)
    if told and len(told) == len(answer.calls):
        raise told[0]
    patch = answer.patch if answer.patch is not None else patches[0]
    memory: MemoryEstimate | None = None
    with contextlib.suppress(WorkerError):
        memory = predictor.estimate(patch, batch)
    note = None if answer.complete else answer.message
    if answer.patch is not None and memory is not None:
        note = note or cell_note(batch, answer.violations, memory, budget)
    status = "ok"
    if not answer.complete:
        hung = any(isinstance(error, WorkerTimedOut) for error in told)
        status = "timed_out" if hung else "failed"
    return Cell(
        patch=patch,
        max_batch=batch if answer.patch is not None else 0,
        limited_by=answer.limited_by,
        memory=memory,
        step=predictor.step_time(patch, batch) if answer.patch is not None else None,
        status=status,
        note=note,
    )
