"""A card that is not there, for tests of everything that probes."""

import json
from pathlib import Path

from segplan.gpus.local import LocalCard
from segplan.probe import Prober
from segplan.units import GIB, MIB


class FakeCard:
    """Settings of `fake_job`, its log, and a prober over it.

    `free` is what `free_bytes` answers, and may be changed; `behaviours` maps a batch ("3") or a
    cell ("96x96x96b3") to hang, abort, kill, exit, print, garbage, nonsense, key_error,
    network_error, no_engine, shape, slow or dirty; `environment` adds to what a probe reports.
    """

    def __init__(self, folder: Path, *, behaviours=None, spills=False, **settings):
        self._file = Path(folder) / "fake_card.json"
        self._log = Path(folder) / "fake_card.log"
        self.settings = {
            "fixed": 400 * MIB,
            "per_voxel": 1024,
            "total": 24 * GIB,
            "context": 500 * MIB,
            "channels": 32,
            "seconds_per_voxel": 1e-7,
            "import_s": 0.0,
            "behaviours": behaviours or {},
            "environment": {},
            "log": str(self._log),
        } | settings
        self._file.write_text(json.dumps(self.settings))
        self.free = self.settings["total"]
        self.processes = ()
        self.local = LocalCard(
            index=0, nvml_index=0, name="Fake Card", uuid="GPU-fake", driver="999.1",
            total_bytes=self.settings["total"], free_bytes=self.settings["total"], wsl2=spills,
        )  # fmt: skip

    def prober(self, **options):
        options = {
            "target": "tests.probe.fake_job:handle",
            "startup": "tests.probe.fake_job:startup",
            "environment": {"FAKE_CARD": str(self._file)},
            "free_bytes": lambda: self.free,
            "processes": lambda: self.processes,
            "timeout_s": 30.0,
        } | options
        return Prober(self.local, **options)

    def log(self):
        """One entry for each probe that began."""
        return [entry for entry in self._entries() if "batch" in entry]

    def imported(self):
        """Processes that have imported."""
        return [entry["imported"] for entry in self._entries() if "imported" in entry]

    def _entries(self):
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]
