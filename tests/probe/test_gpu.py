"""The step on a real card."""

import pytest

from segplan.errors import CardError
from segplan.gpus.nvml import local_cards
from segplan.probe import Prober
from segplan.results import Outcome
from segplan.units import GIB, MIB
from segplan.workload import Workload

pytestmark = pytest.mark.gpu

W = Workload(model="unet", patch=(32, 32, 32), batch=1)


@pytest.fixture(scope="module")
def card():
    torch = pytest.importorskip("torch")
    try:
        cards = local_cards()
    except CardError as error:
        pytest.skip(str(error))
    if not cards or not torch.version.cuda:
        pytest.skip("no card, or a torch without CUDA")
    return cards[0]


def resolved(workload):
    from segplan.networks import resolve

    return resolve(workload)


def test_a_small_network_is_measured_and_its_process_reused(card):
    w = resolved(W)
    with Prober(card, share=True) as prober:
        first = prober.probe(w)
        # Large enough for activations, not the optimizer's temporaries, to make the peak.
        second = prober.probe(resolved(W.replace(patch=(96, 96, 96), batch=2)))
    assert [first.outcome, second.outcome] == [Outcome.FITS] * 2, (first.message, second.message)
    assert (first.fresh, second.fresh) == (True, False)
    assert len(first.step_seconds) == 5
    assert all(0 < s < 5 for s in first.step_seconds)
    assert 20 * MIB < first.peak_allocated <= first.peak_reserved < 4 * GIB
    assert second.peak_allocated > first.peak_allocated
    assert first.allocator_retries == 0
    environment = first.environment
    assert environment.card_uuid == card.uuid
    assert all((environment.driver, environment.torch, environment.cuda, environment.cudnn))
    assert 100 * MIB < prober.context_bytes < 2 * GIB
    if first.process_bytes is not None:
        assert first.process_bytes > first.peak_reserved


def test_a_tiny_limit_is_out_of_memory_and_the_next_process_answers(card):
    w = resolved(W.replace(patch=(128, 128, 128), batch=4))
    with Prober(card, allocator_limit=512 * MIB, share=True) as prober:
        failed = prober.probe(w)
        assert failed.outcome is Outcome.OUT_OF_MEMORY, failed.message
        assert failed.peak_reserved <= 512 * MIB
        after = prober.probe(resolved(W))
    assert after.outcome is Outcome.FITS, after.message
    assert after.fresh


def test_only_whether_it_trains(card):
    with Prober(card, share=True) as prober:
        m = prober.probe(resolved(W.replace(precision="bf16")), timed_steps=0)
    assert m.outcome is Outcome.FITS, m.message
    assert m.step_seconds == ()
