from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.results import LimitedBy
from segplan.search import Verdict, candidate_patches, default_patches, largest_patch


def multiple_of(n):
    return lambda patch: tuple(-(-side // n) * n for side in patch)


def cubes(*sides):
    return tuple((s, s, s) for s in sides)


def test_default_patches_are_rounded_up_and_not_repeated():
    assert default_patches(multiple_of(32)) == cubes(64, 96, 128, 160, 192, 224)
    assert default_patches(multiple_of(64)) == cubes(64, 128, 192, 256)
    assert default_patches(lambda p: (p[0], p[1], 32))[0] == (64, 64, 32)


def test_candidates_start_at_the_smallest_and_stop_at_the_largest():
    assert candidate_patches(multiple_of(32), (32, 32, 32), 32, 128) == cubes(32, 64, 96, 128)
    assert candidate_patches(multiple_of(16), (16, 16, 16), 32, 100) == cubes(16, 32, 64, 96)
    assert candidate_patches(multiple_of(1), (2, 2, 2), 32, 70) == cubes(2, 3, 32, 64)
    assert candidate_patches(multiple_of(96), (96, 96, 96), 32, 64) == cubes(96)


@given(n=st.integers(1, 70), step=st.integers(1, 64), up_to=st.integers(1, 300))
def test_candidates_are_valid_and_ascend(n, step, up_to):
    found = candidate_patches(multiple_of(n), (n, n, n), step, up_to)
    sides = [p[0] for p in found]
    assert sides == sorted(set(sides))
    assert all(side % n == 0 for side in sides)
    assert max(sides) <= max(n, up_to)
    # No gap is wider than a step and one rounding, and the end is reached.
    assert all(b - a <= step + n for a, b in itertools.pairwise(sides))
    assert max(sides) > up_to - step - n


PATCHES = cubes(*range(32, 545, 32))


@given(truth=st.integers(0, len(PATCHES)), guess=st.none() | st.integers(0, 20))
def test_the_largest_patch(truth, guess):
    asked = []

    def oracle(patch):
        asked.append(patch)
        return Verdict.FITS if PATCHES.index(patch) < truth else Verdict.TOO_BIG

    answer = largest_patch(oracle, PATCHES, guess=guess)
    assert answer.patch == (PATCHES[truth - 1] if truth else None)
    assert answer.limited_by is (LimitedBy.CAP if truth == len(PATCHES) else LimitedBy.MEMORY)
    assert answer.complete
    assert [p for p, _ in answer.calls] == asked
    assert len(set(asked)) == len(asked) <= math.ceil(math.log2(len(PATCHES))) + 5


def test_it_starts_with_the_smallest():
    asked = []

    def oracle(patch):
        asked.append(patch[0])
        return Verdict.FITS if patch[0] <= 96 else Verdict.KERNEL

    answer = largest_patch(oracle, PATCHES)
    assert asked == [32, 64, 96, 160, 128]
    assert (answer.patch, answer.limited_by) == ((96, 96, 96), LimitedBy.KERNEL)


def test_violations_and_verification_name_patches():
    def fast(patch):
        return Verdict.FITS if patch[0] in (32, 64, 128) else Verdict.TOO_BIG

    answer = largest_patch(fast, PATCHES, look_above=1)
    assert answer.patch == (64, 64, 64)
    assert answer.violations == ("not monotone: 128x128x128 fits although 96x96x96 does not",)
    checked = largest_patch(fast, PATCHES, verify=lambda p: Verdict.TOO_BIG)
    assert checked.patch is None
    assert checked.limited_by is LimitedBy.MEMORY
    assert [p for p, _ in checked.verifications] == [(64, 64, 64), (32, 32, 32)]


@pytest.mark.parametrize("patches", [(), []])
def test_no_candidates_is_no_answer(patches):
    answer = largest_patch(lambda p: Verdict.FITS, patches)
    assert (answer.patch, answer.limited_by, answer.complete) == (None, None, False)
