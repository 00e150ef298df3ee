"""Windows of validation that a network takes or refuses."""

from __future__ import annotations

import pytest

from segplan.errors import NetworkError
from segplan.networks import check_window, resolve
from segplan.workload import Workload


@pytest.mark.parametrize(
    ("model", "window", "near"),
    [
        ("swinunetr", 90, "64 and 96"),
        ("swinunetr", 10, "64"),
        ("unet", 90, "80 and 96"),
        ("segresnet", 90, "88 and 96"),
        ("basicunet", 1, "32"),
    ],
)
def test_windows_that_the_network_cannot_take(model, window, near):
    workload = resolve(Workload(model=model, patch=(96, 96, 96)))
    with pytest.raises(NetworkError, match=rf"windows of {window}: .*Nearest valid: {near}\.$"):
        check_window(workload, (window,) * 3)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("swinunetr", (128, 128, 64)),
        ("basicunet", (97, 97, 97)),
        ("unetr", (96, 96, 96)),
        ("unetr", (90, 90, 90)),  # built for its patch: the trace refuses it
        ("flexibleunet", (32, 32, 32)),  # its batch normalisation needs more in training only
        ("my_package:make_net", (7, 7, 7)),
    ],
)
def test_windows_that_it_takes_or_that_the_trace_knows_about(model, window):
    check_window(resolve(Workload(model=model, patch=(96, 96, 96))), window)
