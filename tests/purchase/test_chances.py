"""Probabilities from 80 % intervals."""

from __future__ import annotations

import math
import random

import pytest

from segplan.purchase import Hours
from segplan.purchase.chances import chance_of_capacity, chance_within, quantile, spread

HOURS = Hours(80, 100, 125)  # symmetric on a logarithmic scale


def test_the_interval_holds_four_fifths():
    assert chance_within(HOURS, 100) == pytest.approx(0.5)
    assert chance_within(HOURS, 125) == pytest.approx(0.9)
    assert chance_within(HOURS, 80) == pytest.approx(0.1)
    assert quantile(HOURS, 0.9) == pytest.approx(125)
    assert quantile(HOURS, 0.5) == pytest.approx(100)


def test_a_number_without_interval_is_certain():
    certain = Hours(100, 100, 100)
    assert (chance_within(certain, 100), chance_within(certain, 99.9)) == (1, 0)
    assert quantile(certain, 0.99) == 100
    assert chance_of_capacity([(300, certain)], 300) == 1
    assert chance_of_capacity([(301, certain)], 300) == 0


def test_capacity_against_drawing_lots():
    wide = Hours(50, 100, 200)
    loads = [(200.0, HOURS), (150.0, wide)]
    draw = random.Random(0)
    hits = 0
    for _ in range(20_000):
        z = draw.gauss(0, 1)
        hits += sum(load * math.exp(z * spread(h)) for load, h in loads) <= 420
    assert chance_of_capacity(loads, 420) == pytest.approx(hits / 20_000, abs=0.01)


def test_capacity_that_is_just_enough_is_an_even_chance():
    assert chance_of_capacity([(584, HOURS)], 584) == pytest.approx(0.5, abs=1e-6)
    assert chance_of_capacity([(1, HOURS)], 584) == 1
    assert chance_of_capacity([], 584) == 1
