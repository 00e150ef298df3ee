"""segplan: what 3D medical segmentation training fits a GPU, and how fast it runs.

The public names are loaded when first used, so that importing segplan loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from segplan.api.estimating import estimate
    from segplan.api.fitting import fit
    from segplan.api.timing import step_time
    from segplan.results import Cell, Fit, MemoryEstimate, StepTime
    from segplan.workload import Workload

_WHERE = {
    "Workload": "segplan.workload",
    "estimate": "segplan.api.estimating",
    "fit": "segplan.api.fitting",
    "step_time": "segplan.api.timing",
    "Fit": "segplan.results",
    "Cell": "segplan.results",
    "MemoryEstimate": "segplan.results",
    "StepTime": "segplan.results",
}

__all__ = [
    "Cell",
    "Fit",
    "MemoryEstimate",
    "StepTime",
    "Workload",
    "__version__",
    "estimate",
    "fit",
    "step_time",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'segplan' has no attribute '{name}'")
