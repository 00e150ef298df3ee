"""What has been measured: listed, exported, and imported from other machines."""

from __future__ import annotations

import difflib
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from segplan.errors import RequestError
from segplan.results import Measurement, Outcome
from segplan.store import ImportReport, Store, store_path
from segplan.units import Patch

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class StoredMeasurement:
    """A measurement, and what a table shows of its samples.

    Attributes:
        measurement: as it was made.
        median_step_s: median of its step times; None where none was taken.
    """

    measurement: Measurement
    median_step_s: float | None


@dataclass(frozen=True)
class StoredResults:
    """What the store answered.

    Attributes:
        store: the file.
        total: measurements in it.
        matching: measurements that match the request.
        measurements: those of them within the limit, newest first.
        exported: the file written, or None.
        imported: what came of an imported file, or None.
        warnings: sentences a reader should know.
    """

    store: str
    total: int
    matching: int
    measurements: tuple[StoredMeasurement, ...]
    exported: str | None = None
    imported: ImportReport | None = None
    warnings: tuple[str, ...] = ()


def stored_results(
    store: FilePath | None = None,
    *,
    model: str | None = None,
    card: str | None = None,
    patch: Patch | None = None,
    outcome: str | None = None,
    limit: int | None = None,
    export_to: FilePath | None = None,
    import_from: FilePath | None = None,
) -> StoredResults:
    """List measurements, newest first; before that import a file, after it export what matches.

    Args:
        store: the file; None: $SEGPLAN_STORE, else the user's data directory.
        model: only this network.
        card: only cards with this in their name, like rtx-3090, or this UUID.
        patch: only this patch.
        outcome: only measurements that ended so, like out_of_memory.
        limit: no more than this, in the answer and in the export.
        export_to: a file that ends in .json or .csv.
        import_from: a file that `export_to` wrote as .json, or a fallback log.

    Raises:
        RequestError: an outcome or a file's name that is none, or a store named that is not
            there.
        StoreError: the store or a file cannot be read or written.
    """
    wanted = _outcome(outcome)
    if limit is not None and limit < 1:
        raise RequestError(f"limit must be at least 1, not {limit}.")
    if export_to is not None and Path(export_to).suffix.lower() not in (".json", ".csv"):
        raise RequestError(f"'{export_to}' is no file to export to: end its name in .json or .csv.")
    where = store_path(store)
    if import_from is None and where != ":memory:" and not Path(where).exists():
        if store is not None:
            raise RequestError(f"there is no store {where}: `segplan fit --gpu 0` makes one.")
        if export_to is None:  # asking makes no file
            return StoredResults(where, 0, 0, ())
    with Store.open(store) as opened:
        imported = opened.import_file(import_from) if import_from is not None else None
        found = opened.find(model=model, card=card, patch=patch, outcome=wanted)
        shown = found if limit is None else found[:limit]
        if export_to is not None:
            opened.export(export_to, measurements=shown)
        return StoredResults(
            store=opened.path,
            total=len(opened),
            matching=len(found),
            measurements=tuple(StoredMeasurement(m, _median(m)) for m in shown),
            exported=os.fspath(export_to) if export_to is not None else None,
            imported=imported,
            warnings=tuple(opened.warnings),
        )


def _outcome(name: str | None) -> Outcome | None:
    if name is None:
        return None
    text = name.strip().lower().replace("-", "_").replace(" ", "_")
    if text in tuple(Outcome):
        return Outcome(text)
    close = difflib.get_close_matches(text, tuple(Outcome), 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise RequestError(f"outcome must be one of {', '.join(Outcome)}, not '{name}'{hint}.")


def _median(measurement: Measurement) -> float | None:
    samples = measurement.step_seconds
    return statistics.median(samples) if samples else None
