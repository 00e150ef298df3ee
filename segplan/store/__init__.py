"""SQLite: every measurement, written as it is made."""

from segplan.store.database import Store
from segplan.store.fallback import FallbackLog
from segplan.store.files import ImportReport, SkippedRow
from segplan.store.paths import store_path
from segplan.store.serial import content_id, measurement_from_dict, measurement_to_dict

__all__ = [
    "FallbackLog",
    "ImportReport",
    "SkippedRow",
    "Store",
    "content_id",
    "measurement_from_dict",
    "measurement_to_dict",
    "store_path",
]
