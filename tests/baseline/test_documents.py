"""Baseline checks that come from elsewhere."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest

from segplan.baseline.documents import bench_from_dict
from segplan.errors import StoreError

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_bench.json"
CHECK = json.loads(DATA.read_text("utf-8"))["document"]


def changed(path, value):
    plain = copy.deepcopy(CHECK)
    at = plain
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return plain


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "x",
        changed(["series"], None),
        changed(["series", 0, "seconds"], []),
        changed(["series", 0, "seconds"], [0.0]),
        changed(["series", 0, "seconds"], [-1.0]),
        changed(["series", 0, "seconds"], [math.nan]),
        changed(["series", 0, "seconds"], [10**400]),
        changed(["series", 0, "seconds"], [1.0] * 2000),
        changed(["series", 0, "images"], 0),
        changed(["series", 0, "mode"], "flying"),
        changed(["series", 0, "made_at"], "yesterday"),
        changed(["comparisons", 0, "published"], 0),
        changed(["verdict"], ["?"]),
        changed(["made_at"], "yesterday"),
        changed(["card_name"], "x" * 5000),
        changed(["card_name"], "\ud800"),
        changed(["warnings"], nested(50)),
        changed(["environment"], {"card_name": 3}),
    ],
)
def test_what_is_no_check_is_refused_in_a_sentence(value):
    with pytest.raises(StoreError) as error:
        bench_from_dict(value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_keys_of_a_newer_release_are_left_aside():
    assert bench_from_dict({**CHECK, "colour": "green"}) == bench_from_dict(CHECK)
