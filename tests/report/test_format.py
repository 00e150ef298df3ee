from __future__ import annotations

import pytest

from segplan.report import format as fmt
from segplan.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (None, "–"),
        (0, "0.0 GiB"),
        (10 * KIB, "10 KiB"),
        (512 * MIB, "512 MiB"),
        (1024 * MIB - 1, "1.0 GiB"),
        (int(9.14 * GIB), "9.1 GiB"),
        (int(99.96 * GIB), "100 GiB"),
        (141 * GIB, "141 GiB"),
    ],
)
def test_memory(n, text):
    assert fmt.memory(n) == text


def test_memory_interval_shares_the_unit():
    assert fmt.memory_interval(int(10.5 * GIB), int(10.2 * GIB), int(11.1 * GIB)) == (
        "10.5 GiB (10.2–11.1)"
    )
    assert fmt.memory_interval(int(1.1 * GIB), 900 * MIB, int(1.3 * GIB)) == "1.1 GiB (0.9–1.3)"


def test_an_interval_narrower_than_the_rounding_is_left_out():
    assert fmt.memory_interval(GIB, GIB, GIB) == "1.0 GiB"
    assert fmt.seconds_interval(0.5, 0.5, 0.5) == "500 ms"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.3127, 0.29, 0.33, "310 ms (290–330)"),  # ±20 ms: the units of ms mean nothing
        (0.3127, 0.3122, 0.3131, "313 ms (312–313)"),  # at most three digits
        (1.4217, 1.30, 1.56, "1.4 s (1.3–1.6)"),
        (0.0123, 0.008, 0.02, "12 ms (8–20)"),
        (95.0, 80.0, 110.0, "95 s (80–110)"),
    ],
)
def test_seconds_show_only_significant_digits(value, low, high, text):
    shown = fmt.seconds_interval(value, low, high)
    assert shown == text


@pytest.mark.parametrize(
    ("s", "text"),
    [(None, "–"), (0.0042, "4.2 ms"), (0.31, "310 ms"), (75, "75 s"), (7300, "2.0 h"),
     (300, "5.0 min"), (3.4127 * 86400, "3.4 days")],
)  # fmt: skip
def test_seconds(s, text):
    assert fmt.seconds(s) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0, 2, "0"), (9.96, 2, "10"), (0.0316, 1, "0.03"), (312.7, 2, "310"), (1234, 3, "1230")],
)
def test_significant(value, digits, text):
    assert fmt.significant(value, digits) == text


def test_patches():
    assert fmt.patch((96, 96, 96)) == "96³"
    assert fmt.patch((224, 224, 144)) == "224×224×144"
    assert fmt.patch_option((96, 96, 96)) == "96"
    assert fmt.patch_option((224, 224, 144)) == "224x224x144"


def test_the_rest():
    assert fmt.percent(0.1234) == "12 %"
    assert fmt.percent(None) == "–"
    assert fmt.rate(11.92) == "12"
    assert fmt.rate(None) == "–"
    assert fmt.count(62_187_000) == "62.2 M"
    assert fmt.count(812) == "812"
