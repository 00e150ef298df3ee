"""The prober over a card that is not there."""

import signal
import threading
import time

import pytest

from segplan.errors import CardError, NetworkError
from segplan.gpus.local import GpuProcess
from segplan.results import Outcome
from segplan.units import GIB, MIB
from segplan.workload import Workload
from tests.probe.fakes import FakeCard
from tests.worker.conftest import gone

W = Workload(model="unet", patch=(32, 32, 32))


def w(batch):
    return W.replace(batch=batch)


def test_a_measurement_holds_raw_numbers(tmp_path):
    card = FakeCard(tmp_path)
    with card.prober(allocator_limit=2 * GIB) as prober:
        m = prober.probe(w(2), timed_steps=4)
    assert m.outcome is Outcome.FITS
    assert m.workload == w(2)
    assert m.allocator_limit == 2 * GIB
    assert m.fresh
    assert m.step_seconds == (2 * 32**3 * 1e-7,) * 4
    assert m.peak_reserved == 464 * MIB
    assert m.peak_allocated == 464 * MIB * 9 // 10
    assert m.process_bytes == 964 * MIB
    assert m.allocator_retries == 0
    assert m.message is None
    env = m.environment
    assert (env.card_name, env.card_uuid, env.driver) == ("Fake Card", "GPU-fake", "999.1")
    assert (env.torch, env.cuda, env.cudnn) == ("9.9.9", "99.0", None)
    assert m.wall_s > 0
    assert m.made_at.endswith("+00:00")
    assert prober.context_bytes == 500 * MIB
    assert card.log()[0]["visible"] == "GPU-fake"
    assert card.log()[0]["limit"] == 2 * GIB


def test_a_clean_process_is_reused_unless_a_fresh_one_is_asked_for(tmp_path):
    card = FakeCard(tmp_path)
    with card.prober() as prober:
        fresh = [prober.probe(w(b), fresh=f).fresh for b, f in ((1, False), (2, False), (3, True))]
        fresh.append(prober.probe(w(4)).fresh)
    pids = [entry["pid"] for entry in card.log()]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert fresh == [True, False, True, False]
    assert [e["free_before"] for e in card.log()] == [24 * GIB, None, 24 * GIB, None]


def test_a_fresh_probe_takes_a_process_that_has_run_nothing(tmp_path):
    card = FakeCard(tmp_path)
    with card.prober().start() as prober:
        assert prober.probe(w(1), fresh=True).fresh
    assert card.log()[0]["pid"] != card.imported()[0]  # forked from the one that imported


@pytest.mark.parametrize(
    ("behaviour", "outcome", "message"),
    [
        ("abort", Outcome.CRASHED, "SIGABRT"),
        ("kill", Outcome.CRASHED, "SIGKILL"),
        ("exit", Outcome.CRASHED, "code 1"),
        ("garbage", Outcome.CRASHED, "no message"),
        ("hang", Outcome.TIMED_OUT, "within 1 s"),
        ("nonsense", Outcome.FAILED, "makes no sense"),
        ("key_error", Outcome.FAILED, "KeyError"),
        ("shape", Outcome.FAILED, "size of tensor a"),
        ("no_engine", Outcome.OUT_OF_MEMORY, "unable to find an engine"),
    ],
)
def test_whatever_happens_is_an_outcome_and_the_next_probe_runs(
    tmp_path, behaviour, outcome, message
):
    card = FakeCard(tmp_path, behaviours={"2": behaviour})
    with card.prober() as prober:
        assert prober.probe(w(1)).outcome is Outcome.FITS
        m = prober.probe(w(2), timeout_s=1.0)
        assert m.outcome is outcome
        assert message in m.message
        assert m.environment.torch == "9.9.9"
        assert m.step_seconds == ()
        after = prober.probe(w(3))
    assert after.outcome is Outcome.FITS
    assert after.fresh
    first, second, third = (entry["pid"] for entry in card.log())
    assert first == second != third
    assert gone(second)


def test_printing_does_no_harm(tmp_path):
    card = FakeCard(tmp_path, behaviours={"1": "print"})
    with card.prober() as prober:
        assert prober.probe(w(1)).outcome is Outcome.FITS


def test_limits(tmp_path):
    card = FakeCard(tmp_path)
    with card.prober(allocator_limit=500 * MIB) as prober:
        assert prober.probe(w(3)).outcome is Outcome.FITS
        m = prober.probe(w(4))
        assert m.outcome is Outcome.OUT_OF_MEMORY
        assert "CUDA out of memory" in m.message
        assert prober.probe(w(3)).allocator_retries == 2
        assert prober.probe(w(2048)).outcome is Outcome.KERNEL_LIMIT


def test_a_process_that_is_not_clean_is_replaced(tmp_path):
    card = FakeCard(tmp_path, behaviours={"1": "dirty"})
    with card.prober() as prober:
        assert prober.probe(w(1)).outcome is Outcome.FITS
        assert prober.probe(w(2)).fresh
    assert len({entry["pid"] for entry in card.log()}) == 2


def test_the_next_process_has_imported_when_it_is_needed(tmp_path):
    card = FakeCard(tmp_path, behaviours={"1": "abort"}, import_s=1.0)
    with card.prober() as prober:
        prober.probe(w(1))
        began = time.monotonic()
        assert prober.probe(w(2)).outcome is Outcome.FITS
        assert time.monotonic() - began < 0.8
    assert len(card.imported()) == 1
    assert len({entry["pid"] for entry in card.log()}) == 2


def test_a_request_that_is_wrong_is_raised(tmp_path):
    card = FakeCard(tmp_path, behaviours={"1": "network_error"})
    with card.prober() as prober:
        with pytest.raises(NetworkError, match="unet refuses this patch"):
            prober.probe(w(1))
        assert prober.probe(w(2)).outcome is Outcome.FITS


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_card_taken_in_between(tmp_path):
    card = FakeCard(tmp_path)
    card.processes = (GpuProcess(7, "Xorg", 10 * MIB),)
    clock = Clock()
    with card.prober(clock=clock, sleep=clock.sleep) as prober:
        assert prober.probe(w(1)).outcome is Outcome.FITS
        card.free -= 500 * MIB + 480 * MIB  # our own context, and what is tolerated
        assert prober.probe(w(2)).outcome is Outcome.FITS
        card.free -= 3 * GIB
        card.processes += (GpuProcess(4242, "/usr/bin/python3", 3 * GIB),)
        with pytest.raises(
            CardError, match=r"Card 0 is now used by PID 4242 \(python3\): 3\.5 GiB"
        ):
            prober.probe(w(3))
        assert len(card.log()) == 2
        card.free += 3 * GIB
        assert prober.probe(w(3)).outcome is Outcome.FITS


def test_a_failure_that_somebody_else_caused_is_no_answer(tmp_path):
    card = FakeCard(tmp_path)
    clock = Clock()
    levels = iter([24 * GIB] * 3)  # at the start, before the probe, for the request; then taken
    free = lambda: next(levels, 10 * GIB)  # noqa: E731
    with (
        card.prober(free_bytes=free, allocator_limit=MIB, clock=clock, sleep=clock.sleep) as prober,
        pytest.raises(CardError, match=r"used by another process: 14\.0 GiB less"),
    ):
        prober.probe(w(1))


def test_memory_that_comes_back_late_is_no_intruder(tmp_path):
    card = FakeCard(tmp_path)
    clock = Clock()
    with card.prober(
        free_bytes=lambda: 24 * GIB if clock.now == 0 or clock.now > 2 else GIB,
        clock=clock,
        sleep=clock.sleep,
    ) as prober:
        clock.now = 0.5
        assert prober.probe(w(1)).outcome is Outcome.FITS
        assert clock.now > 2


@pytest.mark.parametrize("options", [{"share": True}, {"free_bytes": lambda: None}])
def test_no_check_where_sharing_is_wanted_or_nothing_is_known(tmp_path, options):
    card = FakeCard(tmp_path)
    with card.prober(**options) as prober:
        prober.probe(w(1))
        card.free = 0
        assert prober.probe(w(2)).outcome is Outcome.FITS


def test_spilling_into_the_host_by_time(tmp_path):
    for spills, outcome in ((True, Outcome.SPILLED), (False, Outcome.FITS)):
        folder = tmp_path / str(spills)
        folder.mkdir()
        card = FakeCard(folder, spills=spills, behaviours={"4": "slow"})
        with card.prober() as prober:
            assert prober.probe(w(2)).outcome is Outcome.FITS
            assert prober.probe(w(4)).outcome is outcome
            assert prober.probe(w(3)).outcome is Outcome.FITS


def test_spilling_into_the_host_by_size(tmp_path):
    card = FakeCard(tmp_path, spills=True, fixed=20 * GIB)
    card.free = 20 * GIB
    with card.prober() as prober:
        m = prober.probe(w(1))
    assert m.outcome is Outcome.SPILLED
    assert "host's memory" in m.message


def test_an_interrupt_leaves_no_orphans(tmp_path):
    card = FakeCard(tmp_path, behaviours={"2": "hang"})
    with card.prober() as prober:
        prober.probe(w(1))
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            prober.probe(w(2))
        pids = {entry["pid"] for entry in card.log()} | set(card.imported())
        assert all(gone(pid) for pid in pids)


def test_closing_ends_every_process(tmp_path):
    card = FakeCard(tmp_path)
    prober = card.prober()
    prober.probe(w(1))
    workers = [prober._worker.pid, *card.imported()]
    prober.close()
    prober.close()
    assert all(gone(pid) for pid in workers)
