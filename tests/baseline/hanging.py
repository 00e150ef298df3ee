"""`segplan bench` on a fake card whose N-th series never ends, in a process of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from segplan.api import benching
from segplan.cli.main import main
from tests.baseline.fakes import RTX_3090, BusyNvml, FakeBenchWorker
from tests.gpus.fake_pynvml import FakeGpu


class Hanging(FakeBenchWorker):
    """Notes what it is asked; hangs where told to."""

    def __init__(self, folder, hangs_at):
        super().__init__(RTX_3090)
        self.folder, self.hangs_at = folder, hangs_at

    def call(self, request, timeout_s, on_progress=None):
        with (self.folder / "asked").open("a") as log:
            log.write(f"{request['network']}-{request['precision']}\n")
        if len(self.requests) + 1 == self.hangs_at:
            (self.folder / "hangs").touch()
            time.sleep(60)
        return super().call(request, timeout_s, on_progress)


if __name__ == "__main__":
    folder, hangs_at, *words = sys.argv[1:]
    sys.modules["pynvml"] = BusyNvml([FakeGpu()])
    versions = {"torch": "2.11.0", "cuda": "13.0", "cudnn": "9.19.0", "monai": "1.6.1"}
    benching.EnvironmentAhead.__init__.__globals__["software"] = lambda: versions
    benching._real_worker = Hanging(Path(folder), int(hangs_at)).factory
    sys.exit(main(["bench", *words]))
