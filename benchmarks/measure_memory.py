"""Measure memory on a card: steps, frontiers, least memory and validations, as planned.

Run on a GPU: python benchmarks/measure_memory.py OUT [--seconds 300] [--processes 8]
    [--parts steps,frontier,least,validation,record,workspaces,trials,channels_last] [--dry-run]

What is measured, in which order and which third is held out was fixed beforehand by
`benchmarks/plan_memory.py` (`benchmarks/data/memory_plan.json`). Every probe is a row of
OUT/PART_seen.csv or OUT/PART_heldout.csv, written as it is made; a second run goes on where the
first ended. Nothing of a held-out row is printed.

Several processes share the card. Peaks of one process do not depend on the others as long as
physical memory suffices: each has an allocator limit, and where the answer depends on it a probe
waits until its limit and all others' together are free on the card. Times of steps side by side
would mean nothing and are not kept. "Fits" and "least memory" are asked of fresh processes;
`steps` uses a process as long as it is clean.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segplan.errors import SegplanError
from segplan.gpus import select
from segplan.gpus.local import LocalCard
from segplan.probe import Prober
from segplan.probe.job import STARTUP
from segplan.results import Outcome
from segplan.search import Verdict, largest_batch
from segplan.units import MIB
from segplan.worker import Nursery, Worker
from segplan.workload import Workload

CONVOLUTIONS = ("workspaces", "trials", "channels_last")
PARTS = ("steps", "frontier", "least", "validation", "record", *CONVOLUTIONS)
UNLISTED = ("record", *CONVOLUTIONS)
"""Parts whose answers are files of their own."""

PLAN = Path(__file__).parent / "data" / "memory_plan.json"
RECORDED = Path(__file__).parents[1] / "tests" / "memory" / "recorded"
FIELDS = (
    "workload", "limit_mib", "outcome", "peak_allocated_mib", "peak_reserved_mib", "retries",
    "fresh", "extra", "training_allocated_mib", "training_reserved_mib",
    "card", "torch", "cuda", "cudnn", "driver", "monai", "message",
)  # fmt: skip
STEPS_LIMIT_MIB = 23_000
"""Of processes that measure peaks."""

STEPS_BOOKED_MIB = 15_000
"""Held for each of them: most need far less. A step that fails for want of memory is no peak, so
that nothing is lost if the card were full."""

CONTEXT_MIB = 1_100
"""Set aside for each process beside its limit: the CUDA context and loaded kernels."""

SPARE_MIB = 4_000
PROBE_TIMEOUT_S = 60.0
MOST_PROBES = 6
"""Of a frontier's cell."""

TRIED = 20
"""Convolutions of a process whose plans are tried: a trial takes up to a second."""

REPEATS = 2
"""Further probes of each side of the boundary of the least memory."""


class OutOfTime(Exception):
    """The seconds are over."""


class Room:
    """Memory of the card that several threads share."""

    def __init__(self, total_mib: float) -> None:
        self.total, self.left = total_mib, total_mib
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, mib: float, until: float) -> Iterator[None]:
        """Hold so many MiB, waiting for them; `OutOfTime` where they never come."""
        mib = min(mib, self.total)
        with self._changed:
            while self.left < mib:
                if time.monotonic() > until:
                    raise OutOfTime
                self._changed.wait(0.2)
            self.left -= mib
        try:
            yield
        finally:
            with self._changed:
                self.left += mib
                self._changed.notify_all()


class Rows:
    """The files of one part; rows of earlier runs are read and kept."""

    def __init__(self, folder: Path, part: str) -> None:
        self._lock = threading.Lock()
        self.known: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._files = {}
        for held, name in ((False, "seen"), (True, "heldout")):
            path = folder / f"{part}_{name}.csv"
            if path.exists():
                with path.open() as file:
                    for row in csv.DictReader(file):
                        self.known[_key(json.loads(row["workload"]), row["extra"])].append(
                            (int(float(row["limit_mib"])), row["outcome"])
                        )
            new = not path.exists() or path.stat().st_size == 0
            self._files[held] = path.open("a", newline="")
            if new:
                csv.DictWriter(self._files[held], FIELDS).writeheader()

    def write(self, held: bool, row: dict[str, Any]) -> None:
        with self._lock:
            csv.DictWriter(self._files[held], FIELDS, restval="").writerow(row)
            self._files[held].flush()


def _key(workload: dict[str, Any], extra: str = "") -> str:
    return Workload.from_dict(workload).key() + extra


class Lane:
    """One process at a time on the card, and what it is asked."""

    def __init__(
        self,
        prober: Prober,
        nursery: Nursery,
        rows: dict[str, Rows],
        room: Room,
        deadline: float,
        folder: Path,
    ) -> None:
        self.prober, self.nursery, self.rows, self.room = prober, nursery, rows, room
        self.deadline, self.folder = deadline, folder

    def run(self, part: str, item: dict[str, Any]) -> str:
        """Measure an item; a few words about it."""
        if part in CONVOLUTIONS:
            return self._convolutions(part, item)
        return str(getattr(self, f"_{part}")(item))

    def _outcome(
        self, part: str, item: dict[str, Any], workload: Workload, limit_mib: int, fresh: bool
    ) -> str:
        """An earlier run's answer, each taken once, or a probe's."""
        known = self.rows[part].known[workload.key()]
        for at, (limit, outcome) in enumerate(known):
            if limit == limit_mib:
                del known[at]
                return outcome
        return self._probe(part, item, workload, limit_mib, fresh)

    def _probe(
        self, part: str, item: dict[str, Any], workload: Workload, limit_mib: int, fresh: bool
    ) -> str:
        left = self.deadline - time.monotonic()
        if left < 2:
            raise OutOfTime
        booked = STEPS_BOOKED_MIB if part == "steps" else limit_mib
        with self.room.taken(booked, self.deadline):
            self.prober.allocator_limit = limit_mib * MIB
            found = self.prober.probe(
                workload, fresh=fresh, timeout_s=min(PROBE_TIMEOUT_S, left),
                timed_steps=0, warmup=3, budget_s=0.0,
            )  # fmt: skip
        if found.outcome is Outcome.TIMED_OUT and time.monotonic() > self.deadline - 1:
            raise OutOfTime
        where = found.environment
        self.rows[part].write(item["held_out"], {
            "workload": json.dumps(workload.to_dict()), "limit_mib": limit_mib,
            "outcome": found.outcome.value,
            "peak_allocated_mib": (found.peak_allocated or 0) / MIB,
            "peak_reserved_mib": (found.peak_reserved or 0) / MIB,
            "retries": found.allocator_retries, "fresh": found.fresh, "card": where.card_name,
            "torch": where.torch, "cuda": where.cuda, "cudnn": where.cudnn,
            "driver": where.driver, "monai": where.monai, "message": found.message,
        })  # fmt: skip
        return found.outcome.value

    def _steps(self, item: dict[str, Any]) -> str:
        workload = Workload.from_dict(item["workload"])
        return self._outcome("steps", item, workload, STEPS_LIMIT_MIB, False)

    def _frontier(self, item: dict[str, Any]) -> str:
        base = Workload.from_dict(item["workload"])
        limit = int(item["limit_mib"])
        left = MOST_PROBES

        def asks(batch: int) -> Verdict:
            nonlocal left
            if not left:
                return Verdict.UNKNOWN
            left -= 1
            workload = base.replace(batch=batch)
            return _verdict(self._outcome("frontier", item, workload, limit, True))

        answer = largest_batch(asks, guess=int(item["predicted_batch"]), give_up=1)
        return "complete" if answer.complete else "given up"

    def _least(self, item: dict[str, Any]) -> str:
        workload = Workload.from_dict(item["workload"])
        predicted = int(item["predicted_least_mib"])

        def trains(limit: int) -> bool:
            return self._outcome("least", item, workload, limit, True) == Outcome.FITS.value

        low, high = least_memory(trains, predicted)
        for _ in range(REPEATS):
            trains(high)
            trains(low)
        trains(_even(high * 1.01))
        return "complete"

    def _validation(self, item: dict[str, Any]) -> str:
        extra = json.dumps(item["validation"])
        if self.rows["validation"].known.get(_key(item["workload"], extra)):
            return "known"
        request = {"workload": item["workload"], "validation": item["validation"]}
        found = self._ask("validation_job:handle", request, float(item["needs_mib"]))
        self.rows["validation"].write(item["held_out"], {
            "workload": json.dumps(item["workload"]), "limit_mib": 0, "extra": extra,
            "outcome": found["outcome"], "message": found["message"], "fresh": True,
            "peak_allocated_mib": found["validating"][0] / MIB,
            "peak_reserved_mib": found["validating"][1] / MIB, "retries": 0,
            "training_allocated_mib": found["training"][0] / MIB,
            "training_reserved_mib": found["training"][1] / MIB,
            **found["environment"],
        })  # fmt: skip
        return str(found["outcome"])

    def _record(self, item: dict[str, Any]) -> str:
        path = self.folder / f"{item['name']}.json.gz"
        if path.exists() or (RECORDED / path.name).exists():
            return "known"
        found = self._ask(
            "record_allocations:handle", item, float(item["needs_mib"]), item["alloc_conf"]
        )
        with gzip.open(path, "wt") as file:
            json.dump({"name": item["name"], **found}, file)
        return f"{found['outcome']}, {len(found['events'])} events"

    def _convolutions(self, part: str, item: dict[str, Any]) -> str:
        path = self.folder / part / f"{item['name']}.json"
        if path.exists():
            return "known"
        found = self._ask("workspace_job:handle", item, float(item["needs_mib"]))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found["rows"]))
        return f"{len(found['rows'])} of {len(item['cases'])}"

    def _ask(
        self, target: str, request: dict[str, Any], mib: float, alloc_conf: str | None = None
    ) -> dict[str, Any]:
        """The answer of a process of its own, which sees the card of the lane."""
        left = self.deadline - time.monotonic()
        if left < 10:
            raise OutOfTime
        card = self.prober.card
        env = {"CUDA_VISIBLE_DEVICES": card.uuid or str(card.index or 0)}
        if alloc_conf:
            env |= {"PYTORCH_ALLOC_CONF": alloc_conf, "PYTORCH_CUDA_ALLOC_CONF": alloc_conf}
        nursery = self.nursery if alloc_conf is None else None  # torch may read it as it loads
        with (
            self.room.taken(mib + CONTEXT_MIB, self.deadline),
            Worker(target, env=env, startup=STARTUP, nursery=nursery) as worker,
        ):
            return worker.call(request, min(2 * PROBE_TIMEOUT_S, left))


def trials(single: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The half precision convolutions of `workspaces` once more, in cuDNN's benchmark mode."""
    return [
        {**item, "name": f"{item['name']}_{at // TRIED}", "benchmark": True,
         "cases": item["cases"][at : at + TRIED], "seconds": PROBE_TIMEOUT_S}
        for item in single if item["precision"] == "fp16"
        for at in range(0, len(item["cases"]), TRIED)
    ]  # fmt: skip


def _verdict(outcome: str) -> Verdict:
    if outcome == Outcome.FITS.value:
        return Verdict.FITS
    if outcome in (Outcome.OUT_OF_MEMORY.value, Outcome.SPILLED.value):
        return Verdict.TOO_BIG
    return Verdict.KERNEL if outcome == Outcome.KERNEL_LIMIT.value else Verdict.UNKNOWN


def _short(workload: dict[str, Any]) -> str:
    plain = Workload().to_dict()
    return " ".join(
        f"{key}={value}"
        for key, value in workload.items()
        if value != plain[key] and key != "model_args"
    )


def _even(mib: float) -> int:
    return -(-int(mib) // 2) * 2


def least_memory(
    trains: Callable[[int], bool], predicted: int, tolerance: float = 0.01
) -> tuple[int, int]:
    """(MiB that fail, MiB that train), no further apart than the tolerance.

    Args:
        trains: of an allocator limit in MiB.
        predicted: where the boundary is thought to be.
        tolerance: as a share.
    """
    low, high = _even(predicted * 0.97), _even(predicted * 1.03)
    step = 0.04
    if trains(high):
        while trains(low):
            low, high, step = _even(low * (1 - step)), low, 2 * step
    else:
        low, high = high, _even(high * (1 + step))
        while not trains(high):
            step *= 2
            low, high = high, _even(high * (1 + step))
    while high - low > max(tolerance * high, 2):
        middle = _even((low + high) / 2)
        if trains(middle):
            high = middle
        else:
            low = middle
    return low, high


def measure(
    folder: Path,
    plan: dict[str, Any],
    parts: list[str],
    seconds: float,
    processes: int,
    *,
    card: LocalCard,
    prober: Callable[[LocalCard], Prober],
) -> Counter[str]:
    """Measure what the plan says until the seconds are over; items done, by part."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    rows = {part: Rows(folder, part) for part in parts if part not in UNLISTED}
    room = Room((card.free_bytes or 0) / MIB - SPARE_MIB - processes * CONTEXT_MIB)
    items = iter([(part, item) for part in parts for item in plan.get(part, [])])
    lock = threading.Lock()
    done: Counter[str] = Counter()

    def work() -> None:
        # A nursery ends with the thread that started it, and forks for one thread at a time.
        with prober(card) as lane_prober, Nursery(STARTUP) as nursery:
            lane = Lane(lane_prober, nursery, rows, room, deadline, folder)
            while time.monotonic() < deadline:
                with lock:
                    part, item = next(items, ("", {}))
                if not part:
                    return
                try:
                    said = lane.run(part, item)
                except OutOfTime:
                    return
                except SegplanError as error:
                    said = f"refused: {str(error)[:200]}"
                with lock:
                    done[part] += 1
                    name = item.get("name") or item["workload"]["model"]
                    told = "(held out)" if item.get("held_out") else said
                    print(f"{time.monotonic() - began:5.0f} s {part} {name}: {told}", flush=True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.1, deadline + 10 - time.monotonic()))
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    plan = json.loads(options.plan.read_text())
    plan["trials"] = trials(plan.get("workspaces", []))
    if options.dry_run:
        for part in parts:
            items = plan.get(part, [])
            held = sum(bool(item.get("held_out")) for item in items)
            print(f"{part}: {len(items)} items, {held} of them held out")
            for item in items:
                asked = {k: v for k, v in item.items() if k not in ("workload", "held_out")}
                what = _short(item["workload"]) if "workload" in item else ""
                print(f"  {what} {json.dumps(asked)[:200] if asked else ''}")
        return
    began = time.monotonic()
    done = measure(
        options.out, plan, parts, options.seconds, options.processes, card=select("0"),
        prober=lambda card: Prober(card, share=True, timeout_s=PROBE_TIMEOUT_S).start(),
    )  # fmt: skip
    for part in parts:
        print(f"{part}: {done[part]} of {len(plan.get(part, []))}")
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    sys.stdout.flush()
    with suppress(OSError):
        os._exit(0)  # a lane that still waits for its process must not hold the program


if __name__ == "__main__":
    main()
