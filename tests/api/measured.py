"""`segplan fit --gpu 0` where there is no GPU: a fake card and prediction, all else real.

As a program it runs the command line: `python -m tests.api.measured FOLDER fit --gpu 0 ...`; the
folder holds the fake card's settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from segplan.api import side_by_side
from segplan.cli.main import main
from segplan.memory.prediction import Target
from segplan.results import MemoryEstimate
from segplan.workload import Workload
from tests.probe.fakes import FakeCard

W = Workload(model="unet")
SMALL = (32, 32, 32)
"""A patch that takes 32 MiB a sample on the fake card, on top of 400 MiB."""

SOFTWARE = {"torch": "9.9.9", "cuda": "99.0", "cudnn": "9.1.0", "monai": "1.6.1"}


def make_card(folder: Path, **settings) -> FakeCard:
    """A fake card that reports all versions, as a real one does."""
    return FakeCard(folder, environment=SOFTWARE, **settings)


class FakePredictor:
    """Predicts the fake card's memory, off by a factor; `fails`: what it raises."""

    def __init__(self, card: FakeCard, factor: float = 1.0, fails: Exception | None = None) -> None:
        self.card, self.factor, self.fails = card, factor, fails
        self.target = Target()

    def __call__(self, workload, card, progress):
        return self

    def peak_allocated(self, patch, batch):
        return self.estimate(patch, batch).peak_allocated

    def trains(self, patch, batch, limit):
        return self.estimate(patch, batch).least_memory <= limit

    def has_line(self, patch):
        return True

    def step_time(self, patch, batch):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def aim(self, card):
        pass

    def trace(self, wanted):
        list(wanted)

    def stop(self):
        pass

    def estimate(self, patch, batch):
        if self.fails is not None:
            raise self.fails
        voxels = batch * patch[0] * patch[1] * patch[2]
        least = int((self.card.settings["fixed"] + 1024 * voxels) * self.factor)
        return MemoryEstimate(least, least, least, least, least)

    def fits(self, patch, batch, limit):
        return self.estimate(patch, batch).least_memory <= limit

    def kernel_limit(self, patch, batch):
        return None


def install(patch: pytest.MonkeyPatch, card: FakeCard, predictor: FakePredictor, **prober) -> None:
    """Make this process's only card a fake one."""
    patch.setattr("segplan.gpus.choose.local_cards", lambda: (card.local,))
    patch.setattr("segplan.api.fitting.local_cards", lambda: (card.local,))
    patch.setattr("segplan.api.measuring.Predictor", predictor)
    patch.setattr("segplan.api.recording.software", lambda: SOFTWARE)
    patch.setattr(
        "segplan.api.measuring.Prober",
        lambda local, **options: card.prober(**{**options, **prober}),
    )


def handle_one(request, progress):
    """`side_by_side.handle` with the fake card of the folder that FAKE_CARDS and a UUID name."""
    folder = Path(os.environ["FAKE_CARDS"]) / request["gpu"]
    card = make_card(folder, **json.loads((folder / "settings.json").read_text()))
    card.local = dataclasses.replace(card.local, uuid=request["gpu"])
    with pytest.MonkeyPatch.context() as patch:
        install(patch, card, FakePredictor(card))
        return side_by_side.handle(request, progress)


def cells_of(fit):
    """What must not depend on where the measurements came from."""
    return [(c.patch, c.max_batch, c.limited_by, c.memory, c.step, c.status) for c in fit.cells]


def asked(card):
    """(patch, batch) of every probe that began."""
    return [(tuple(entry["patch"]), entry["batch"]) for entry in card.log()]


def _program(folder: str, words: list[str]) -> int:
    card = make_card(Path(folder), **json.loads((Path(folder) / "settings.json").read_text()))
    with pytest.MonkeyPatch.context() as patch:
        install(patch, card, FakePredictor(card))
        return main(words)


if __name__ == "__main__":
    sys.exit(_program(sys.argv[1], sys.argv[2:]))
