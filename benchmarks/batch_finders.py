"""Finders of the largest batch, side by side on one GPU: right answers, probes and seconds.

Every (finder, cell) is a whole process, its start counted, run one at a time under the same
allocator limit. The networks, the loss and the optimizer are segplan's in all of them, so only
the finder differs. Needs a GPU; Lightning's finders need `lightning` (or `pytorch-lightning`),
accelerate's needs `accelerate`.

Run: python benchmarks/batch_finders.py --out finders.json
     python benchmarks/batch_finders.py --out finders.json --finders segplan,lightning-power
     python benchmarks/batch_finders.py --out finders.json --missing --budget 200
     python benchmarks/batch_finders.py --out finders.json --render --markdown

The file is written after every process, and a later run adds to it: a run that was interrupted
loses at most the process it was in.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from segplan.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 23_000
PRECISION = "fp16"
MAX_BATCH = 64
"""Where segplan's search ends, and where accelerate's begins."""
STEPS = 3
"""Full training steps of an attempt: Lightning's default, and what the truth was made with."""
LIGHTNING = {"steps_per_trial": STEPS, "init_val": 1, "max_trials": 25}
"""The rest is Lightning's default: `margin=0.05` takes 5 % off what binsearch found."""
SAMPLES = 8192
"""Length of Lightning's data set: it tries no batch above that."""


@dataclass(frozen=True)
class CellAsked:
    """A network and patch, and the largest batch that trains on an H200 under the limit.

    `also_seen` holds what other attempts at the truth ended with: the boundary is soft.
    """

    model: str
    side: int
    truth: int
    also_seen: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model}-{self.side}"


CELLS = {
    cell.name: cell
    for cell in (
        CellAsked("swinunetr", 96, 4, also_seen=(3,)),
        CellAsked("swinunetr", 128, 1),
        CellAsked("segresnet", 160, 2),
        CellAsked("segresnet", 96, 10),
        CellAsked("dynunet", 128, 9),
        CellAsked("unetr", 160, 4),
    )
}
FINDERS = {
    "segplan": "segplan",
    "lightning-power": "Lightning power",
    "lightning-binsearch": "Lightning binsearch",
    "accelerate": "accelerate",
}


# One finder in its own process.


@dataclass
class Found:
    """What a finder came to.

    Attributes:
        answer: its largest batch, or None.
        attempts: the batches it tried, in order.
        passed: largest batch that ran all its steps on the way.
        extra: versions and settings.
    """

    answer: int | None = None
    attempts: list[int] = field(default_factory=list)
    passed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


def workload_of(cell: CellAsked, batch: int = 1) -> Workload:
    """The cell as segplan's CLI is asked for it."""
    from segplan.networks import resolve
    from segplan.workload import Workload

    return resolve(
        Workload(
            model=cell.model,
            patch=(cell.side,) * 3,
            batch=batch,
            precision=PRECISION,
            zero_grad="before_backward",
        )
    )


def run_child(finder: str, cell: CellAsked) -> dict[str, Any]:
    """Run a finder here, on card 0 under the limit; the line to print."""
    import torch

    from segplan.networks import build
    from segplan.probe.device import fraction_for
    from segplan.step.train import backend_flags
    from segplan.units import MIB

    search = load_finder(finder)
    total = torch.cuda.mem_get_info(0)[1]
    torch.cuda.set_per_process_memory_fraction(fraction_for(LIMIT_MIB * MIB, total), 0)
    workload = workload_of(cell)
    network = build(workload)
    found, message = Found(), None
    with backend_flags(workload):
        began = time.perf_counter()
        try:
            search(workload, network, found)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            message = f"{type(error).__name__}: {first[:300]}"
        seconds = time.perf_counter() - began
    return {
        "answer": found.answer,
        "probes": len(found.attempts),
        "seconds_inside": round(seconds, 3),
        "attempts": found.attempts,
        "largest_passed": found.passed,
        "message": message,
        "about": {"torch": torch.__version__, **found.extra},
    }


Finder = Callable[["Workload", "torch.nn.Module", Found], None]


def load_finder(name: str) -> Finder:
    """The function of a finder, its library imported."""
    if name == "accelerate":
        return accelerate_finder()
    return lightning_finder(name.removeprefix("lightning-"))


def lightning_finder(mode: str, *, accelerator: str = "gpu", precision: str = "16-mixed") -> Finder:
    """Lightning's BatchSizeFinder, by way of its Tuner, which stops once the batch is found."""
    from torch.utils.data import DataLoader, Dataset

    if importlib.util.find_spec("lightning") is not None:
        import lightning.pytorch as pl
        from lightning.pytorch.tuner import Tuner
    else:
        import pytorch_lightning as pl
        from pytorch_lightning.tuner import Tuner

    from segplan.step.train import make_batch, make_loss, make_optimizer

    class Samples(Dataset[Any]):
        """One random sample again and again: making new ones would cost the finder time."""

        def __init__(self, workload: Workload) -> None:
            images, labels = make_batch(workload.replace(batch=1), "cpu")
            self.sample = images[0], labels[0]

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.sample

    class Module(pl.LightningModule):
        """The step of segplan, written as Lightning wants it."""

        def __init__(self, workload: Workload, network: torch.nn.Module, found: Found) -> None:
            super().__init__()
            self.batch_size = 1
            self.network = network.train()
            self.workload, self.found = workload, found
            self.loss = make_loss(workload)
            self.samples = Samples(workload)

        def train_dataloader(self) -> Any:
            return DataLoader(self.samples, batch_size=self.batch_size, drop_last=True)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            images, labels = batch
            if batch_idx == 0:
                self.found.attempts.append(len(images))
            return self.loss(self.network(images), labels)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx + 1 == STEPS:
                self.found.passed = max(self.found.passed, len(batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.workload, self.network)

    def search(workload: Workload, network: torch.nn.Module, found: Found) -> None:
        found.extra["lightning"] = pl.__version__
        module = Module(workload, network, found)
        # It keeps a checkpoint of the untrained network to come back to.
        with tempfile.TemporaryDirectory(prefix="batch-finders-") as folder:
            trainer = pl.Trainer(
                accelerator=accelerator,
                devices=1,
                precision=precision,
                max_epochs=1,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
            )
            tuner = Tuner(trainer)
            known = inspect.signature(tuner.scale_batch_size).parameters
            options = {name: value for name, value in LIGHTNING.items() if name in known}
            if mode == "binsearch" and "margin" in known:
                found.extra["margin"] = known["margin"].default
            answer = tuner.scale_batch_size(
                module, mode=mode, batch_arg_name="batch_size", **options
            )
        # Older ones return nothing and leave the answer in the module.
        found.answer = int(module.batch_size if answer is None else answer)

    return search


def accelerate_finder(*, device: str = "cuda", start: int = MAX_BATCH) -> Finder:
    """accelerate's find_executable_batch_size around a few steps of one network on the card.

    Its guide builds the network anew in every attempt; its docstring hands one in, as here,
    which is quicker. The optimizer and the batch are made inside.
    """
    import accelerate
    from accelerate.utils import find_executable_batch_size

    from segplan.step.train import make_batch, make_step

    def search(workload: Workload, network: torch.nn.Module, found: Found) -> None:
        found.extra["accelerate"] = accelerate.__version__
        network.to(device)

        @find_executable_batch_size(starting_batch_size=start)
        def train(batch_size: int) -> int:
            found.attempts.append(batch_size)
            network.zero_grad(set_to_none=True)  # of an attempt that failed half-way
            step = make_step(workload, network, device_type=device)
            images, labels = make_batch(workload.replace(batch=batch_size), device)
            for _ in range(STEPS):
                step.run(images, labels)
            wait_for(device)
            found.passed = max(found.passed, batch_size)
            return batch_size

        found.answer = train()

    return search


def wait_for(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


# The driver.


def command_of(finder: str, cell: CellAsked, folder: str) -> list[str]:
    """The process of a finder."""
    if finder == "segplan":
        return [
            sys.executable, "-m", "segplan.cli.main", "fit",
            "--model", cell.model, "--patch", str(cell.side), "--gpu", "0",
            "--allocator-limit", f"{LIMIT_MIB}MiB", "--zero-grad", "before_backward",
            "--precision", PRECISION, "--max-batch", str(MAX_BATCH),
            "--store", str(Path(folder) / "store.sqlite"), "--json",
        ]  # fmt: skip
    return [sys.executable, str(Path(__file__).resolve()), "--child", finder, "--cell", cell.name]


def measure(finder: str, cell: CellAsked, timeout: float) -> dict[str, Any]:
    """Run a finder on a cell and time its process; the record of it."""
    record: dict[str, Any] = {
        "finder": finder,
        "cell": cell.name,
        "truth": cell.truth,
        "also_seen": list(cell.also_seen),
        "answer": None,
        "probes": None,
        "seconds_inside": None,
        "wall_seconds": None,
        "status": "failed",
        "message": None,
        "limit_mib": LIMIT_MIB,
    }
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    with tempfile.TemporaryDirectory(prefix="batch-finders-") as folder:
        env["TMPDIR"] = folder  # what a process that is ended leaves behind goes with it
        env["SEGPLAN_CACHE"] = folder  # no traces from before
        began = time.perf_counter()
        process = subprocess.Popen(
            command_of(finder, cell, folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            end(process)
            seconds = time.perf_counter() - began
            return {
                **record,
                "wall_seconds": round(seconds, 3),
                "status": "timed_out",
                "message": f"ended after {timeout:g} s",
            }
        except BaseException:
            end(process)
            raise
        record["wall_seconds"] = round(time.perf_counter() - began, 3)
    try:
        record |= from_segplan(out) if finder == "segplan" else from_child(out)
    except (ValueError, KeyError, IndexError, TypeError):
        record["message"] = last_line(err) or f"exit status {process.returncode}, no answer"
    return record


def end(process: subprocess.Popen[str]) -> None:
    """End a finder with the processes it started: they share its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def from_segplan(out: str) -> dict[str, Any]:
    """The answer in the document of `segplan fit --json`."""
    document = json.loads(out)
    cell = document["cells"][0]
    notes = [cell.get("note"), *document.get("warnings", [])]
    return {
        "answer": int(cell["max_batch"]) if cell["status"] == "ok" else None,
        "probes": int(cell["probes"]),
        "status": "ok" if cell["status"] == "ok" else "failed",
        "message": " ".join(note for note in notes if note) or None,
    }


def from_child(out: str) -> dict[str, Any]:
    """The answer in the last line that a finder's process printed."""
    reply = json.loads(out.strip().splitlines()[-1])
    return {**reply, "status": "failed" if reply["answer"] is None else "ok"}


def last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else None


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    records: list[dict[str, Any]] = json.loads(path.read_text())["records"]
    return records


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Replace the file in one go, so that it is whole at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps({"limit_mib": LIMIT_MIB, "records": list(records)}, indent=1) + "\n")
    new.replace(path)


# The table.


def table(records: Sequence[dict[str, Any]], *, markdown: bool) -> str:
    """A row a cell, a column a finder, and totals below."""
    by_key = {(r["finder"], r["cell"]): r for r in records}
    finders = [f for f in FINDERS if any(r["finder"] == f for r in records)]
    cells = [c for c in CELLS.values() if any(r["cell"] == c.name for r in records)]
    rows = [["cell", "truth", *(FINDERS[f] for f in finders)]]
    for cell in cells:
        truth = str(cell.truth)
        if cell.also_seen:
            truth += f" (also {', '.join(map(str, cell.also_seen))})"
        texts = [entry(by_key.get((f, cell.name))) for f in finders]
        rows.append([f"{cell.model} {cell.side}³", truth, *texts])
    totals = [[r for r in records if r["finder"] == f] for f in finders]
    rows.append(["exact", "", *(exact(t) for t in totals)])
    rows.append(["probes", "", *(str(sum(r["probes"] or 0 for r in t)) for t in totals)])
    rows.append(["seconds", "", *(f"{sum(r['wall_seconds'] for r in t):.1f}" for t in totals)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for i, row in enumerate(rows):
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append(f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip())
        if i == 0 and markdown:
            lines.append("|" + "|".join("-" * (width + 2) for width in widths) + "|")
        elif i == 0 or (i == len(cells) and not markdown):
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def entry(record: dict[str, Any] | None) -> str:
    """ "4, 5 probes, 12.3 s", with what is wrong about a wrong answer."""
    if record is None:
        return "not run"
    seconds = f"{record['wall_seconds']:.1f} s"
    probes = "" if record["probes"] is None else f", {record['probes']} probes"
    if record["answer"] is None:
        return f"{record['status'].replace('_', ' ')}{probes}, {seconds}"
    answer, truth = record["answer"], record["truth"]
    mark = ""
    if answer in record["also_seen"]:
        mark = " (also seen)"
    elif answer != truth:
        mark = " (too many)" if answer > truth else " (too few)"
    return f"{answer}{mark}{probes}, {seconds}"


def exact(records: Sequence[dict[str, Any]]) -> str:
    right = sum(r["answer"] == r["truth"] for r in records)
    soft = sum(r["answer"] in r["also_seen"] for r in records)
    return f"{right} of {len(records)}" + (f" (+{soft} also seen)" if soft else "")


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Names with commas between, each of them known."""

    def parse(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        if not wanted:
            raise argparse.ArgumentTypeError(f"name some of {', '.join(known)}")
        return list(dict.fromkeys(wanted))

    return parse


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--finders", type=names(list(FINDERS)), default=list(FINDERS), metavar="A,B",
        help=f"some of {', '.join(FINDERS)}; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--cells", type=names(list(CELLS)), default=list(CELLS), metavar="A,B",
        help=f"some of {', '.join(CELLS)}; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="of one process (default 120)"
    )
    parser.add_argument(
        "--budget", type=float, metavar="S", help="start no process after so many seconds"
    )
    parser.add_argument(
        "--missing", action="store_true", help="leave out what --out has an answer for"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="records; added to")
    parser.add_argument("--render", action="store_true", help="only print the table of --out")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--child", choices=[f for f in FINDERS if f != "segplan"],
                        help=argparse.SUPPRESS)  # fmt: skip
    parser.add_argument("--cell", choices=list(CELLS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is None and options.out is None:
        parser.error("--out FILE.json is needed")
    if options.child is not None and options.cell is None:
        parser.error("--child needs --cell")
    return options


def drive(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is asked for, one process at a time; all records of the file."""
    records = read(options.out)
    answered = {(r["finder"], r["cell"]) for r in records if r["status"] == "ok"}
    wanted = [(f, c) for f in options.finders for c in options.cells]
    if options.missing:
        wanted = [key for key in wanted if key not in answered]
    began = time.perf_counter()
    for i, (finder, cell) in enumerate(wanted):
        spent = time.perf_counter() - began
        if options.budget is not None and spent >= options.budget:
            left = len(wanted) - i
            print(f"{spent:.0f} s are spent, {left} left: go on with --missing", file=sys.stderr)
            break
        record = measure(finder, CELLS[cell], options.timeout)
        records = [r for r in records if (r["finder"], r["cell"]) != (finder, cell)] + [record]
        write(options.out, records)
        message = "" if record["status"] == "ok" else f" ({record['message']})"
        print(f"{finder} {cell}: {entry(record)}{message}", file=sys.stderr, flush=True)
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.child is not None:
        with contextlib.redirect_stdout(sys.stderr):
            reply = run_child(options.child, CELLS[options.cell])
        print(json.dumps(reply), flush=True)
        return 0
    records = read(options.out) if options.render else drive(options)
    if not records:
        print(f"{options.out} holds no records", file=sys.stderr)
        return 1
    print(table(records, markdown=options.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
