"""The registered networks, as narrow as they can be had: the rules do not depend on it."""

from __future__ import annotations

from typing import Any

from segplan.networks import NETWORKS, resolve
from segplan.workload import Workload

NARROW: dict[str, dict[str, Any]] = {
    "swinunetr": {"feature_size": 12},
    "unetr": {"hidden_size": 48, "num_heads": 4, "mlp_dim": 96, "feature_size": 4},
    "segresnet": {"init_filters": 8},
    "segresnetds": {"init_filters": 8},
    "segresnetds2": {"init_filters": 8},
    "segresnetvae": {"init_filters": 8},
    "dynunet": {"filters": [4, 8, 8, 8, 8, 8]},
    "unet": {"channels": [4, 8, 8, 8, 8]},
    "attentionunet": {"channels": [4, 8, 8, 8, 8]},
    "basicunet": {"features": [4, 4, 8, 8, 8, 4]},
    "basicunetplusplus": {"features": [4, 4, 8, 8, 8, 4]},
    "mednext": {"init_filters": 4},
}
NAMES = [network.name for network in NETWORKS]
# The four sizes of MedNeXt differ in numbers only, and the large ones are slow to trace.
DISTINCT = [name for name in NAMES if name not in ("mednextb", "mednextm", "mednextl")]


def narrow(name: str, **values: Any) -> Workload:
    """The network's workload, resolved; the patch is not checked."""
    workload = Workload(model=name, model_args=NARROW.get(name, {}), out_channels=3, **values)
    return resolve(workload, check_patch=False)
