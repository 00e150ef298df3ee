"""segplan: what 3D medical segmentation training fits a GPU, and how fast it runs.

The public names are loaded when first used, so that importing segplan loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from segplan.api.buying import buy
    from segplan.api.comparing import compare
    from segplan.api.estimating import estimate
    from segplan.api.experiments import Experiment, load_experiment
    from segplan.api.fitting import fit
    from segplan.api.loading import measure_loader
    from segplan.api.planning import plan_days
    from segplan.api.report_nouns import CapacityReport
    from segplan.api.report_reading import read_report
    from segplan.api.reporting import make_report
    from segplan.api.scanning import scan
    from segplan.api.timing import step_time
    from segplan.results import Cell, Fit, MemoryEstimate, Plan, StepTime
    from segplan.workload import Workload

_WHERE = {
    "Workload": "segplan.workload",
    "buy": "segplan.api.buying",
    "compare": "segplan.api.comparing",
    "estimate": "segplan.api.estimating",
    "fit": "segplan.api.fitting",
    "step_time": "segplan.api.timing",
    "measure_loader": "segplan.api.loading",
    "make_report": "segplan.api.reporting",
    "read_report": "segplan.api.report_reading",
    "CapacityReport": "segplan.api.report_nouns",
    "scan": "segplan.api.scanning",
    "plan_days": "segplan.api.planning",
    "load_experiment": "segplan.api.experiments",
    "Experiment": "segplan.api.experiments",
    "Plan": "segplan.results",
    "Fit": "segplan.results",
    "Cell": "segplan.results",
    "MemoryEstimate": "segplan.results",
    "StepTime": "segplan.results",
}

__all__ = [
    "CapacityReport",
    "Cell",
    "Experiment",
    "Fit",
    "MemoryEstimate",
    "Plan",
    "StepTime",
    "Workload",
    "__version__",
    "buy",
    "compare",
    "estimate",
    "fit",
    "load_experiment",
    "make_report",
    "measure_loader",
    "plan_days",
    "read_report",
    "scan",
    "step_time",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'segplan' has no attribute '{name}'")
