"""What all tests share: predictions are made anew, not taken from earlier runs."""

from __future__ import annotations

import os

os.environ["SEGPLAN_CACHE"] = "off"
