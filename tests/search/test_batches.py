"""The largest batch: exact, in few calls, and honest where the oracle is not monotone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segplan.results import LimitedBy
from segplan.search import Verdict, largest_batch


class Oracle:
    """Counts; fits up to `largest`, with some answers flipped and others unknown."""

    def __init__(self, largest, *, flips=(), unknown=(), beyond=Verdict.TOO_BIG):
        self.largest, self.flips, self.unknown, self.beyond = largest, flips, unknown, beyond
        self.calls = []

    def says(self, batch):
        if batch in self.unknown:
            return Verdict.UNKNOWN.because(f"batch {batch} timed out")
        return Verdict.FITS if (batch <= self.largest) ^ (batch in self.flips) else self.beyond

    def __call__(self, batch):
        self.calls.append(batch)
        return self.says(batch)


caps = st.integers(1, 300)
truths = st.integers(0, 320)


def cold_bound(cap):
    return math.ceil(math.log2(cap)) + 2


@given(cap=caps, truth=truths)
def test_cold_start(cap, truth):
    oracle = Oracle(truth)
    answer = largest_batch(oracle, cap=cap)
    check_exact(answer, oracle, cap, truth)
    assert len(oracle.calls) <= cold_bound(cap)


@given(cap=caps, truth=truths, guess=st.integers(-3, 5000))
def test_any_guess(cap, truth, guess):
    oracle = Oracle(truth)
    answer = largest_batch(oracle, cap=cap, guess=guess)
    check_exact(answer, oracle, cap, truth)
    assert len(oracle.calls) <= cold_bound(cap) + 3


@given(cap=caps, truth=truths, off=st.integers(-1, 1))
def test_a_guess_right_within_one(cap, truth, off):
    oracle = Oracle(truth)
    answer = largest_batch(oracle, cap=cap, guess=min(truth, cap) + off)
    check_exact(answer, oracle, cap, truth)
    assert len(oracle.calls) <= (2 if off == 0 else 3)


def check_exact(answer, oracle, cap, truth):
    assert answer.max_batch == min(truth, cap)
    assert answer.limited_by is (LimitedBy.CAP if truth >= cap else LimitedBy.MEMORY)
    assert answer.complete
    assert answer.violations == ()
    assert [b for b, _ in answer.calls] == oracle.calls
    assert len(set(oracle.calls)) == len(oracle.calls)
    assert all(1 <= b <= cap for b in oracle.calls)


def test_the_calls_of_the_usual_cases():
    def calls(truth, guess, cap=64):
        oracle = Oracle(truth)
        largest_batch(oracle, cap=cap, guess=guess)
        return oracle.calls

    assert calls(4, 4) == [4, 5]
    assert calls(3, 4) == [4, 3]
    assert calls(5, 4) == [4, 5, 6]
    assert calls(0, 0) == [1]
    assert calls(1, 0) == [1, 2]
    assert calls(90, 70) == [64]
    assert calls(1, 1, cap=1) == [1]


def test_a_guess_a_little_off_is_cheaper_than_none():
    # 19, 20, 21, 23, then 27 fails, 25, 24
    oracle = Oracle(23)
    assert largest_batch(oracle, guess=19).max_batch == 23
    assert len(oracle.calls) == 7


def test_the_kernel_limit_is_told_from_memory():
    answer = largest_batch(Oracle(6, beyond=Verdict.KERNEL), guess=3)
    assert (answer.max_batch, answer.limited_by) == (6, LimitedBy.KERNEL)
    nothing = largest_batch(Oracle(0, beyond=Verdict.KERNEL))
    assert (nothing.max_batch, nothing.limited_by) == (0, LimitedBy.KERNEL)


@given(
    cap=st.integers(1, 80),
    truth=st.integers(0, 80),
    flips=st.sets(st.integers(1, 80), max_size=4),
    guess=st.none() | st.integers(0, 90),
    look_above=st.integers(0, 4),
)
def test_an_oracle_that_is_not_monotone(cap, truth, flips, guess, look_above):
    oracle = Oracle(truth, flips=flips)
    answer = largest_batch(oracle, cap=cap, guess=guess, look_above=look_above)
    best = answer.max_batch
    assert best == 0 or (best, Verdict.FITS) in answer.calls
    assert best == cap or (best + 1, Verdict.TOO_BIG) in answer.calls
    assert len(set(oracle.calls)) == len(oracle.calls) <= cold_bound(cap) + 3 + look_above
    contradicts = any(
        less < more and not small.fits and large.fits
        for less, small in answer.calls
        for more, large in answer.calls
    )
    assert bool(answer.violations) == contradicts


def test_a_fit_above_a_failure_is_noticed_by_looking_above():
    oracle = Oracle(3, flips={5})
    assert largest_batch(oracle, guess=3).violations == ()
    answer = largest_batch(oracle, guess=3, look_above=1)
    assert answer.max_batch == 3
    assert answer.violations == ("not monotone: batch 5 fits although batch 4 does not",)
    assert answer.complete


@given(
    cap=st.integers(1, 40),
    fast=st.integers(0, 40),
    sure=st.integers(0, 40),
    guess=st.none() | st.integers(0, 40),
    flips=st.sets(st.integers(1, 40), max_size=3),
)
def test_the_verified_pair_has_the_word_of_the_verifier(cap, fast, sure, guess, flips):
    verifier = Oracle(sure, flips=flips)
    answer = largest_batch(Oracle(fast), cap=cap, guess=guess, verify=verifier)
    best = answer.max_batch
    assert best == 0 or verifier.says(best).fits
    assert best == cap or not verifier.says(best + 1).fits
    assert {b for b in (best, best + 1) if 1 <= b <= cap} <= set(verifier.calls)
    assert len(set(verifier.calls)) == len(verifier.calls)
    assert [b for b, _ in answer.verifications] == verifier.calls
    assert answer.complete
    if not flips:
        assert best == min(sure, cap)
        off = abs(best - min(fast, cap))
        assert len(verifier.calls) <= off + 2
        asked_twice = {b for b, _ in answer.calls} & set(verifier.calls)
        differs = any((b <= fast) != (b <= sure) for b in asked_twice)
        assert bool([v for v in answer.violations if "not repeatable" in v]) == differs


def test_a_verification_that_contradicts_is_a_violation():
    answer = largest_batch(Oracle(4), guess=4, verify=Oracle(3))
    assert answer.max_batch == 3
    assert answer.violations == ("not repeatable: batch 4 fitted at first but not when verified",)
    up = largest_batch(Oracle(4), guess=4, verify=Oracle(5))
    assert up.max_batch == 5
    assert up.violations == ("not repeatable: batch 5 did not fit at first but did when verified",)


def test_final_answers_are_not_verified_again():
    def oracle(batch):
        verdict = Verdict.FITS if batch <= 4 else Verdict.TOO_BIG
        return verdict.as_final() if batch in (4, 5) else verdict

    verifier = Oracle(4)
    answer = largest_batch(oracle, guess=7, verify=verifier)
    assert answer.max_batch == 4
    assert answer.complete
    assert verifier.calls == []
    assert answer.verifications == ()


def test_an_unknown_neighbour_leaves_the_answer_incomplete():
    answer = largest_batch(Oracle(9, unknown={5}), guess=4)
    assert (answer.max_batch, answer.limited_by, answer.complete) == (4, None, False)
    assert answer.message == "batch 5 timed out"
    assert answer.violations == ()


def test_an_unknown_answer_further_up_does_not_spoil_a_verified_pair():
    answer = largest_batch(Oracle(4, unknown={8}), guess=8)
    assert (answer.max_batch, answer.limited_by) == (4, LimitedBy.MEMORY)
    assert answer.message is None


def test_an_oracle_that_never_answers_is_left_alone():
    oracle = Oracle(9, unknown=range(1, 65))
    answer = largest_batch(oracle, guess=40)
    assert len(oracle.calls) == 3
    assert (answer.max_batch, answer.limited_by, answer.complete) == (0, None, False)
    assert answer.message == f"batch {oracle.calls[-1]} timed out"


@given(
    cap=st.integers(1, 64),
    truth=st.integers(0, 64),
    unknown=st.sets(st.integers(1, 64)),
    guess=st.none() | st.integers(0, 64),
)
def test_an_unknown_answer_is_never_called_a_limit(cap, truth, unknown, guess):
    oracle = Oracle(truth, unknown=unknown)
    answer = largest_batch(oracle, cap=cap, guess=guess)
    best = answer.max_batch
    assert sum(b in unknown for b in oracle.calls) <= 3
    assert best == 0 or (best, Verdict.FITS) in answer.calls
    above = dict(answer.calls).get(best + 1)
    assert answer.complete == (best == cap or above == Verdict.TOO_BIG)


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="cap must be at least 1"):
        largest_batch(Oracle(1), cap=0)


def test_an_error_of_the_oracle_passes():
    def oracle(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        largest_batch(oracle)
