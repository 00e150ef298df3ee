"""What has been measured: listed, exported, and imported from other machines."""

from __future__ import annotations

import difflib
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segplan.baseline.documents import bench_from_dict
from segplan.baseline.results import Bench
from segplan.errors import RequestError, StoreError
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
        total_benches: baseline checks in it.
        benches: those that match the request, within the limit, newest first; a request for a
            model, a patch or an outcome is none for them.
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
    total_benches: int = 0
    benches: tuple[Bench, ...] = ()


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
    """List what was measured, newest first; first import a file, last export what matches.

    Args:
        store: the file; None: $SEGPLAN_STORE, else the user's data directory.
        model: only this network.
        card: only cards with this in their name, like rtx-3090, or this UUID.
        patch: only this patch.
        outcome: only measurements that ended so, like out_of_memory.
        limit: no more measurements than this, nor baseline checks, in the answer and in the export.
        export_to: a file that ends in .json, or in .csv (without baseline checks).
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
        imported = None
        if import_from is not None:
            imported = opened.import_file(import_from, bench_from_dict)
        found = opened.find(model=model, card=card, patch=patch, outcome=wanted)
        shown = found if limit is None else found[:limit]
        checks, unread = _read(opened.benches())
        matching: list[tuple[Bench, dict[str, Any]]] = []
        if model is None and patch is None and wanted is None:
            matching = [row for row in checks if _is_on(row[0], card)][:limit]
        warnings = [*opened.warnings, *(f"{text} ({opened.path})." for text in unread)]
        if export_to is not None:
            as_written = [document for _, document in matching]
            opened.export(export_to, measurements=shown, benches=as_written)
            if matching and Path(export_to).suffix.lower() == ".csv":
                warnings.append(
                    "A .csv file holds no baseline checks: export to a .json file to keep them."
                )
        return StoredResults(
            store=opened.path,
            total=len(opened),
            matching=len(found),
            measurements=tuple(StoredMeasurement(m, _median(m)) for m in shown),
            exported=os.fspath(export_to) if export_to is not None else None,
            imported=imported,
            warnings=tuple(warnings),
            total_benches=len(checks),
            benches=tuple(check for check, _ in matching),
        )


def _read(
    documents: Sequence[dict[str, Any]],
) -> tuple[list[tuple[Bench, dict[str, Any]]], list[str]]:
    """(checks and what was written of each, sentences on those that cannot be read)."""
    found, unread = [], []
    for document in documents:
        try:
            found.append((bench_from_dict(document), document))
        except StoreError as error:
            unread.append(f"A baseline check cannot be read: {str(error).rstrip('.')}")
    return found, unread


def _is_on(check: Bench, card: str | None) -> bool:
    """As `Store.find` takes a card: part of its name, hyphens for blanks, or its UUID."""
    if card is None:
        return True
    name = (check.environment.card_name or "").lower().replace(" ", "-")
    text = card.strip()
    return text.lower().replace(" ", "-") in name or text == check.environment.card_uuid


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
