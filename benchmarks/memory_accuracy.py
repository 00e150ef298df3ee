"""Predicted memory against measured rows: writes a part of docs/accuracy.md.

Run (no GPU needed): python benchmarks/memory_accuracy.py [--held-out] [--rows FILE] [--dry-run]

Traces are kept in the cache folder: the first run takes as long as tracing every workload, later
ones about a minute. `--held-out` scores the held-out rows beside the others; they are not looked
at while the rules are made. `--rows` writes every row with its errors; `--dry-run` prints the
text instead of writing it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from document import table, write_part
from plan_memory import Traces
from step_time_rows import ANOTHER_STEP

from segplan import __version__
from segplan.api.predicting import Predictor, target_for
from segplan.errors import SegplanError
from segplan.gpus import find_card
from segplan.memory.prediction import Target, predict_trace, predict_validation, program_of
from segplan.memory.program import block_size, compile_program, then_validate
from segplan.memory.replay import replay
from segplan.networks import resolve
from segplan.networks.registry import BY_NAME
from segplan.search import Verdict, largest_batch
from segplan.step.validate import Validation
from segplan.trace.tape import Trace
from segplan.units import MIB, parse_patch
from segplan.workload import Workload

DATA = Path(__file__).parent / "data"
PROBES = DATA / "h200_memory"
RECORDED = Path(__file__).parents[1] / "tests" / "memory" / "recorded"
CARD = find_card("h200")

SMALL_BATCH = 8
"""Up to here a largest batch counts only if it is exact."""


@dataclass(frozen=True)
class Row:
    """Peaks of a step, measured without a limit that matters (MiB)."""

    source: str
    workload: Workload
    allocated: float
    reserved: float | None
    held_out: bool = False


@dataclass
class Least:
    """What was tried to find the least memory of a workload (MiB).

    Attributes:
        trained, failed: limits.
    """

    workload: Workload
    held_out: bool = False
    trained: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    @property
    def bracket(self) -> tuple[float, float]:
        """(the highest limit that failed, the lowest above it that trained), as far as tried."""
        failed = max(self.failed, default=0.0)
        trained = min((t for t in self.trained if t > failed), default=max(self.trained))
        return failed or trained, trained

    @property
    def measured(self) -> float:
        """The middle of the bracket."""
        return sum(self.bracket) / 2

    @property
    def spread(self) -> tuple[float, float]:
        """The bracket, and below it limits that trained although a higher one failed."""
        return min(*self.bracket, *self.trained), self.bracket[1]


@dataclass
class CellRow:
    """What was tried to find a largest batch; the workload's batch is 1.

    Attributes:
        limit: MiB.
        fits, fails: batches.
        also_seen: largest batches that other attempts ended with.
    """

    workload: Workload
    limit: int
    held_out: bool = False
    fits: set[int] = field(default_factory=set)
    fails: set[int] = field(default_factory=set)
    also_seen: set[int] = field(default_factory=set)

    @property
    def largest(self) -> int | None:
        """The largest that fits; None where its neighbour above was not seen to fail."""
        largest = max(self.fits, default=0)
        return largest if largest + 1 in self.fails else None


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def probes(part: str, held_out: bool) -> Iterable[tuple[dict[str, str], bool]]:
    """(row, whether it is held out) of the probes of a part."""
    yield from ((row, False) for row in read(PROBES / f"{part}_seen.csv"))
    if held_out:
        yield from ((row, True) for row in read(PROBES / f"{part}_heldout.csv"))


def step_rows(held_out: bool) -> list[Row]:
    """Every measured step, each workload once in each source."""
    rows = []
    for row in read(DATA / "h200_steps.csv"):
        if row["outcome"] == "fits":
            workload = Workload(
                model=row["model"], in_channels=int(row["cin"]), out_channels=int(row["cout"]),
                patch=parse_patch(row["patch"]), batch=int(row["batch"]),
                precision=row["precision"], optimizer=row["optim"],
                memory_format="channels_last_3d" if row["chlast"] == "True" else "contiguous",
                cudnn_benchmark=row["bench"] == "True", zero_grad="before_backward",
            )  # fmt: skip
            rows.append(Row("h200_steps.csv", workload, float(row["peak_alloc_mib"]),
                            float(row["peak_reserved_mib"])))  # fmt: skip
    for name, held in (("seen", False), ("heldout", True)):
        if held and not held_out:
            continue
        for row in read(DATA / f"h200_memory_{name}.csv"):
            if row["outcome"] == "fits" and ANOTHER_STEP not in row["workload"]:
                rows.append(_peaks("h200_memory", row, held))
    rows += [
        _peaks("h200_memory/steps", row, held)
        for row, held in probes("steps", held_out)
        if row["outcome"] == "fits"
    ]
    return rows


def _peaks(source: str, row: dict[str, str], held_out: bool) -> Row:
    """A row; a step that had to give memory back tells nothing of what it would reserve."""
    workload = Workload.from_dict(json.loads(row["workload"]))
    free = not float(row["retries"] or 0)
    reserved = float(row["peak_reserved_mib"]) if free else None
    return Row(source, workload, float(row["peak_allocated_mib"]), reserved, held_out)


def least_rows(held_out: bool) -> list[Least]:
    found: dict[str, Least] = {}
    for row in read(DATA / "h200_least_memory.csv"):
        workload = resolve(Workload(
            model=row["model"], patch=parse_patch(row["patch"]), batch=int(row["batch"]),
            precision=row["precision"], zero_grad="before_backward",
        ))  # fmt: skip
        found[workload.key()] = Least(workload, trained=[float(row["least_allocator_mib"])])
    for row, held in probes("least", held_out):
        workload = Workload.from_dict(json.loads(row["workload"]))
        least = found.setdefault(workload.key(), Least(workload, held))
        if row["outcome"] in ("fits", "out_of_memory"):
            to = least.trained if row["outcome"] == "fits" else least.failed
            to.append(float(row["limit_mib"]))
    return [least for least in found.values() if least.trained]


def recorded_runs() -> Iterable[dict[str, Any]]:
    """Runs whose allocations were recorded, some of them at a cell's largest batch."""
    for path in sorted(RECORDED.glob("*.json.gz")):
        with gzip.open(path, "rt") as file:
            yield json.load(file)


def frontier_rows(held_out: bool) -> list[CellRow]:
    found: dict[tuple[str, int], CellRow] = {}
    for row in read(DATA / "h200_frontier.csv"):
        workload = resolve(Workload(
            model=row["model"], patch=parse_patch(row["patch"]), precision=row["precision"],
            zero_grad="before_backward",
        ), check_patch=False)  # fmt: skip
        largest = int(row["max_batch"])
        cell = CellRow(workload, int(row["cap_mib"]), fits={largest}, fails={largest + 1})
        cell.also_seen = {int(row["also_seen"])} if row["also_seen"] else set()
        found[workload.key(), cell.limit] = cell
    for run in recorded_runs():
        workload = Workload.from_dict(run["workload"])
        cell = found.get((workload.replace(batch=1).key(), run["limit_mib"] or 0))
        if cell is not None:
            cell.also_seen.add(workload.batch - (run["outcome"] != "fits"))
    for (model, side), batch in tried_again().items():
        for cell in found.values():
            if cell.workload.model == model and cell.workload.patch == (side,) * 3:
                cell.also_seen.add(batch)
    for row, held in probes("frontier", held_out):
        asked = Workload.from_dict(json.loads(row["workload"]))
        workload, limit = asked.replace(batch=1), int(float(row["limit_mib"]))
        cell = found.setdefault((workload.key(), limit), CellRow(workload, limit, held))
        if row["outcome"] in ("fits", "out_of_memory"):
            (cell.fits if row["outcome"] == "fits" else cell.fails).add(asked.batch)
    return [cell for cell in found.values() if cell.largest is not None]


def tried_again() -> dict[tuple[str, int], int]:
    """Largest batch of the cells that `measured_fits.py --attempts` asked about, by (network,
    side): one below the first that failed in a fresh process."""
    found: dict[tuple[str, int], int] = {}
    for attempt in json.loads((DATA / "h200_attempts.json").read_text(encoding="utf-8")):
        if attempt["outcome"] != "fits":
            cell = attempt["model"], int(attempt["patch"])
            found[cell] = min(found.get(cell, attempt["batch"]), attempt["batch"] - 1)
    return found


@dataclass(frozen=True)
class Error:
    """One number of one row, predicted and measured."""

    groups: tuple[str, ...]
    percent: float
    what: str


def groups_of(workload: Workload) -> tuple[str, ...]:
    """The lines of a table that a workload counts in."""
    network = BY_NAME.get(workload.model)
    family = network.family if network is not None else "own"
    names = [f"{family}, {workload.precision}", workload.model]
    names += ["checkpointing"] if workload.checkpointing else []
    names += ["cudnn_benchmark"] if workload.cudnn_benchmark else []
    names += ["channels_last_3d"] if workload.memory_format != "contiguous" else []
    names += ["dropout"] if "drop" in workload.key() else []
    return tuple(names)


def errors_table(errors: Sequence[Error], *, only_all: bool = False) -> str:
    by_group: dict[str, list[float]] = defaultdict(list)
    for error in errors:
        by_group["all"].append(error.percent)
        for group in () if only_all else error.groups:
            by_group[group].append(error.percent)
    order = sorted(by_group, key=lambda name: (name != "all", "," not in name, name))
    lines = []
    for name in order:
        size = sorted(abs(e) for e in by_group[name])
        lines.append((
            name, len(size), f"{statistics.median(size):.2f} %",
            f"{size[min(len(size) - 1, int(0.9 * len(size)))]:.2f} %", f"{size[-1]:.2f} %",
            f"{100 * sum(e < 0 for e in by_group[name]) / len(size):.0f} %",
        ))  # fmt: skip
    return table(("group", "rows", "median", "p90", "worst", "under"), lines)


class Accuracy:
    """Everything that is predicted, once."""

    def __init__(self, held_out: bool) -> None:
        self.held_out = held_out
        self.traces = Traces()
        self.allocated: dict[bool, list[Error]] = defaultdict(list)
        self.reserved: dict[bool, list[Error]] = defaultdict(list)

    def steps(self) -> None:
        """Peaks of every step: one replay each."""
        rows = step_rows(self.held_out)
        found = self._traced([row.workload for row in rows])
        for row, (workload, trace) in zip(rows, found, strict=True):
            if trace is None:
                continue
            program = program_of(trace, target_for(workload, CARD))
            free = replay(program.ops, program.sizes)
            groups = (row.source, *groups_of(workload))
            what = f"{row.source} {workload.key()}"
            self.allocated[row.held_out].append(
                Error(groups, _percent(free.peak_allocated, row.allocated), what)
            )
            if row.reserved is not None:
                self.reserved[row.held_out].append(
                    Error(groups, _percent(free.peak_reserved, row.reserved), what)
                )

    def least(self, held_out: bool) -> str:
        """Predicted and measured least memory of each workload."""
        rows = [row for row in least_rows(self.held_out) if row.held_out is held_out]
        lines, errors, outside, covered = [], [], [], 0
        for row, (workload, trace) in zip(
            rows, self._traced([row.workload for row in rows]), strict=True
        ):
            if trace is None:
                continue
            estimate = predict_trace(trace, target_for(workload, CARD))
            low, high = estimate.least_memory_low / MIB, estimate.least_memory_high / MIB
            percent = _percent(estimate.least_memory, row.measured)
            nearest = min(max(estimate.least_memory / MIB, row.spread[0]), row.spread[1])
            errors.append(percent)
            outside.append(_percent(estimate.least_memory, nearest))
            covered += low <= row.measured <= high
            lines.append((
                _name(workload), "–".join(f"{mib:.0f}" for mib in sorted(set(row.spread))),
                f"{estimate.least_memory / MIB:.0f} ({low:.0f}–{high:.0f})", f"{percent:+.1f} %",
            ))  # fmt: skip
        if not lines:
            return "No rows yet.\n"
        size = [abs(e) for e in errors]
        under = sum(e < -2 for e in errors)
        return (
            table(("workload", "measured MiB", "predicted (80 %)", "error"), lines)
            + f"\nMedian {statistics.median(size):.1f} %, worst {max(size):.1f} % "
            f"({max(abs(e) for e in outside):.1f} % outside what the measurements leave open); "
            f"{under} of {len(lines)} more than 2 % too low; "
            f"{covered} of {len(lines)} in the 80 % interval.\n"
        )

    def frontier(self, held_out: bool) -> str:
        """Largest batches, predicted and measured."""
        rows = [row for row in frontier_rows(self.held_out) if row.held_out is held_out]
        lines: list[tuple[object, ...]] = []
        small = exact = large = near = above = 0
        by_workload: dict[str, list[CellRow]] = defaultdict(list)
        for row in rows:
            by_workload[row.workload.replace(patch=(64, 64, 64)).key()].append(row)
        for count, cells in enumerate(by_workload.values()):
            print(f"frontier {count + 1}/{len(by_workload)}", end="\r", file=sys.stderr)
            with Predictor(cells[0].workload, CARD) as predictor:
                for cell in cells:
                    largest = cell.largest
                    assert largest is not None
                    predicted = _largest(predictor, cell)
                    hit = predicted == largest or predicted in cell.also_seen
                    if largest <= SMALL_BATCH:
                        small, exact = small + 1, exact + hit
                    else:
                        close = abs(predicted - largest) <= max(1, 0.03 * largest)
                        large, near = large + 1, near + close
                    above += predicted > max(largest, *cell.also_seen, 0)
                    if not hit:
                        lines.append((_name(cell.workload), cell.limit, largest, predicted))
        if not rows:
            return "No rows yet.\n"
        total = small + large
        text = (
            f"{total} cells. Up to batch {SMALL_BATCH}: {exact} of {small} exact"
            f"{_share(exact, small)}; above: {near} of {large} within max(1, 3 %)"
            f"{_share(near, large)}; too large: {above} of {total}{_share(above, total)}.\n"
        )
        if lines:
            text += "\nThose that differ:\n\n" + table(
                ("cell", "limit MiB", "measured", "predicted"), lines
            )
        return text

    def validations(self, held_out: bool) -> str:
        """Peaks of validations after a training."""
        rows = [
            row for row, held in probes("validation", self.held_out)
            if held is held_out and row["outcome"] == "fits"
        ]  # fmt: skip
        lines = []
        wanted: list[tuple[Workload, Validation | None]] = []
        for row in rows:
            workload = Workload.from_dict(json.loads(row["workload"]))
            wanted += [(workload, None), (workload, Validation.from_dict(json.loads(row["extra"])))]
        found = dict(self.traces.each(wanted))
        for index, row in enumerate(rows):
            training, validating = found[2 * index], found[2 * index + 1]
            if isinstance(training, SegplanError) or isinstance(validating, SegplanError):
                continue
            workload, validation = wanted[2 * index + 1]
            assert validation is not None
            target = target_for(workload, CARD)
            peak = validation_peak(training, validating, target)
            _, together = predict_validation(training, validating, target)
            measured = float(row["peak_allocated_mib"])
            reserved = max(float(row["peak_reserved_mib"]), float(row["training_reserved_mib"]))
            lines.append((
                _name(workload), "x".join(map(str, validation.volume)),
                f"{validation.sw_batch_size}, {validation.stitch}", f"{measured:.0f}",
                f"{peak / MIB:.0f}", f"{_percent(peak, measured):+.1f} %",
                f"{_percent(together.peak_reserved, reserved):+.1f} %",
            ))  # fmt: skip
        if not lines:
            return "No rows yet.\n"
        return table(
            ("workload", "volume", "windows, stitched on", "measured MiB", "predicted", "error",
             "of reserved"), lines,
        )  # fmt: skip

    def _traced(self, asked: list[Workload]) -> list[tuple[Workload, Trace | None]]:
        """Resolved workloads with their traces; None where there is none."""
        resolved = [resolve(workload) for workload in asked]
        found: dict[int, Trace | SegplanError] = dict(
            self.traces.each([(workload, None) for workload in resolved])
        )
        traces = [found[i] for i in range(len(resolved))]
        return [
            (workload, trace if isinstance(trace, Trace) else None)
            for workload, trace in zip(resolved, traces, strict=True)
        ]


def validation_peak(training: Trace, validating: Trace, target: Target) -> int:
    """Most bytes allocated while the second of two, run one after the other, runs."""
    program = compile_program(then_validate(training, validating), target.architecture)
    begin = program.step_starts[len(training.step_starts)]
    live = most = 0
    seen: set[int] = set()
    for index, ident in enumerate(program.ops):
        size = block_size(program.sizes[ident])
        live += -size if ident in seen else size
        seen.symmetric_difference_update((ident,))
        if index >= begin:
            most = max(most, live)
    return most


def _largest(predictor: Predictor, cell: CellRow) -> int:
    patch, limit = cell.workload.patch, cell.limit * MIB

    def fits(batch: int) -> Verdict:
        return Verdict.FITS if predictor.fits(patch, batch, limit) else Verdict.TOO_BIG

    return largest_batch(fits, guess=cell.largest).max_batch


def _percent(predicted_bytes: float, measured_mib: float) -> float:
    return 100 * (predicted_bytes / MIB / measured_mib - 1)


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def _name(workload: Workload) -> str:
    """A workload in few words: what differs from the default is named."""
    sides = workload.patch
    cube = f"{sides[0]}³" if len(set(sides)) == 1 else "x".join(map(str, sides))
    words = [workload.model, cube, f"batch {workload.batch}", workload.precision]
    words += ["checkpointing"] if workload.checkpointing else []
    words += ["channels_last_3d"] if workload.memory_format != "contiguous" else []
    words += [f"{workload.out_channels} classes"] if workload.out_channels != 14 else []
    return " ".join(words)


def section(accuracy: Accuracy, title: str, part: Callable[[bool], str]) -> str:
    text = f"### {title}\n\n{part(False)}"
    if accuracy.held_out:
        text += f"\n#### {title}: held-out rows\n\n{part(True)}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--rows", type=Path, help="also write every row here")
    parser.add_argument("--dry-run", action="store_true", help="print instead of writing")
    options = parser.parse_args()
    accuracy = Accuracy(options.held_out)
    accuracy.steps()
    if options.rows:
        lines = [f"{e.percent:+.2f} {what} {e.what}"
                 for what, found in (("allocated", accuracy.allocated[False]),
                                     ("reserved", accuracy.reserved[False]))
                 for e in found]  # fmt: skip
        options.rows.write_text("\n".join(lines) + "\n")
    sections = [
        section(accuracy, "Peak allocated", lambda held: errors_table(accuracy.allocated[held])),
        section(accuracy, "Peak reserved, with no limit",
                lambda held: errors_table(accuracy.reserved[held])),
        section(accuracy, "Least memory that trains", accuracy.least),
        section(accuracy, "Largest batch", accuracy.frontier),
        section(accuracy, "Sliding-window validation, peak allocated", accuracy.validations),
    ]  # fmt: skip
    text = HEADER.format(
        flag=" --held-out" if options.held_out else "", version=__version__,
        torch=torch.__version__,
        held="" if options.held_out else " and not scored here",
    ) + "\n".join(sections) + NOT_MODELLED  # fmt: skip
    if options.dry_run:
        print(text)
    else:
        write_part("memory", text)


HEADER = """
## Memory

Made by `python benchmarks/memory_accuracy.py{flag}`: segplan {version} predicting on a CPU (torch
{torch}) what was measured on one NVIDIA H200 (torch 2.11.0+cu130, cuDNN 9.19, MONAI 1.6.1). The
measured rows and how they were made are in `benchmarks/data/`. Errors are relative; "under" is the
share of rows predicted too small.

The rules were made from recorded allocations of the seven networks of `h200_steps.csv` and a few
more (`benchmarks/record_allocations.py`), some of them of workloads that these tables hold; the
sizes of cuDNN's workspaces are a table of recorded convolutions, met at other sizes by the nearest
one (`benchmarks/fit_workspaces.py`). No measured peak or limit was fitted. A third of the other
rows, drawn by a fixed seed before they were measured, is held out{held}.

"""

NOT_MODELLED = """
The boundary of the least memory is soft: under some limits below the highest one that fails, the
step still trains, and where the driver puts segments, which differs from process to process,
decides which of two equal free blocks is taken. The requests of recorded runs near their limit are
predicted one by one, and with the recorded addresses the replay ends in the same failure. The
prediction is the middle between the lowest limit that trains in the replay and the highest that
fails.

### What is not modelled

- cuDNN's benchmark mode: its first step tries plans with much larger workspaces, and the peak is
  that of the trial (seen: up to 37 % more).
- Workspaces of convolutions unlike any recorded one: they follow a rule of layout
  (`segplan/memory/convolution.py`), and peak reserved is off by their difference; grouped
  convolutions in channels_last_3d have none (MedNeXt: 1 to 4 % low).
- Cards other than compute capability 9.0: the same rule is assumed, and no such card was measured.
- The CUDA context of other cards (assumed, and every answer says so).
- Attention kernels of `scaled_dot_product_attention`: recorded as flash attention.
- Leaks, and data on the GPU beside the batch.
"""


if __name__ == "__main__":
    main()
