from __future__ import annotations

import dataclasses
import itertools

import pytest

from segplan.baseline.comparing import (
    LOOSE_TOLERANCE,
    TOLERANCE,
    compare,
    judge,
    published_modes,
)
from segplan.baseline.health import Health, at_its_power_limit, findings
from segplan.baseline.published import published
from segplan.baseline.results import NETWORKS, PRECISIONS, Method, Mode, Series, Standing, method_of
from segplan.errors import CardError
from segplan.gpus import catalogue, find_card


def series(network="resnet50", precision="fp16", rate=2402.61, mode=Mode.INFERENCE, **changes):
    values = {
        "network": network, "precision": precision, "mode": mode, "batch": 128, "images": 1920,
        "method": method_of(precision, mode), "seconds": (1920 / rate,) * 5, "zeros": True,
    }  # fmt: skip
    return Series(**{**values, **changes})


def figure(network="resnet50", card="rtx-3090", **changes):
    """AutoDL's row of PyTorch 1.9, unless changed."""
    found = next(
        p for p in published()
        if (p.network, p.precision, p.software) == (network, "fp16", "PyTorch 1.9.0")
        and card in p.cards
    )  # fmt: skip
    return dataclasses.replace(found, **changes)


def test_the_table_is_whole():
    rows = published()
    assert len(rows) > 150
    for row in rows:
        assert row.source.startswith("https://")
        assert row.network in NETWORKS
        assert row.precision in PRECISIONS
        assert 10 < row.images_per_s < 20_000
        for slug in row.cards:
            try:
                card = find_card(slug)
            except CardError:
                continue
            assert card.slug == slug
            # Arithmetic is named by what it was: no TF32 before Ampere, no plain fp32 called so.
            assert row.precision != "tf32" or card.compute_capability >= (8, 0)


def test_the_known_result_is_in_it():
    """The 2022 table: the A40 loses to the 3090 on ResNet50 and wins on the ViT."""
    rates = {
        (p.card_name, p.network, p.precision): p.images_per_s
        for p in published() if p.software == "PyTorch 1.9.0"
    }  # fmt: skip
    assert rates["RTX 3090", "resnet50", "tf32"] == 1494.50
    assert rates["A40", "vit_b_16", "tf32"] == 678.21
    for precision in ("fp16", "tf32"):
        pairs = [(rates["A40", n, precision], rates["RTX 3090", n, precision]) for n in NETWORKS]
        assert pairs[0][0] < pairs[0][1]
        assert pairs[1][0] > pairs[1][1]


def test_a_figure_of_the_same_card_in_the_same_conditions():
    found = compare(series(), find_card("rtx-3090"), "1.9.0", [figure()])
    assert len(found) == 1
    assert found[0].same_card
    assert found[0].differences == ()
    assert found[0].ratio == pytest.approx(1)
    assert found[0].low == pytest.approx(2402.61 * (1 - TOLERANCE))


def test_another_software_generation_is_said_so():
    found = compare(series(), find_card("rtx-3090"), "2.11.0+cu130", [figure()])
    assert found[0].differences == ("other software generation: PyTorch 1.9.0",)
    assert found[0].low == pytest.approx(2402.61 * (1 - LOOSE_TOLERANCE))
    verdict = judge([series()], found, "RTX 3090")
    assert "PyTorch 1.9.0" in verdict.sentence
    unknown = figure(torch_major=None, software="not stated")
    found = compare(series(), find_card("rtx-3090"), "2.11.0", [unknown])
    assert found[0].differences == ("software not stated",)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"method": Method.AUTOCAST}, "autocast, not pure 16-bit"),
        ({"channels_last": True}, "channels_last"),
        ({"channels_last": None}, "layout not stated"),
        ({"zeros": False}, "random images"),
    ],
)
def test_every_other_difference_is_said_too(changes, difference):
    found = compare(series(), find_card("rtx-3090"), "1.9.0", [figure(**changes)])
    assert found[0].differences == (difference,)


@pytest.mark.parametrize(
    "changes",
    [{"mode": Mode.TRAINING}, {"precision": "tf32"}, {"network": "vit_b_16"}],
)
def test_what_is_another_thing_is_not_compared(changes):
    assert compare(series(), find_card("rtx-3090"), "1.9.0", [figure(**changes)]) == ()


def test_tf32_of_a_card_without_it_is_fp32():
    turing = find_card("rtx-2080-ti")
    assert turing.compute_capability < (8, 0)
    of_fp32 = compare(series(precision="tf32", rate=1000), turing, "1.9.0", published())
    assert of_fp32[0].published == 1000.07
    # An Ampere neighbour's tf32 figure is no measure for its fp32.
    assert all(
        c.card_name not in ("RTX 3060", "RTX A4000")
        for c in compare(series(precision="fp32", rate=1000), turing, "1.9.0", published())
    )


def test_a_neighbours_figure_is_carried_over_by_bandwidth_and_rate():
    a5000, rtx = find_card("rtx-a5000"), find_card("rtx-3090")
    found = compare(series(rate=2118.01), a5000, "1.9.0", [figure()])
    assert not found[0].same_card
    ratio = a5000.memory_bandwidth / rtx.memory_bandwidth  # 768 / 936, the smaller of the two
    assert found[0].low == pytest.approx(2402.61 * ratio * (1 - LOOSE_TOLERANCE))
    assert found[0].high > found[0].low
    assert not found[0].slow


def test_neighbours_are_near():
    found = compare(series(rate=1800), find_card("a40"), "1.9.0", published())
    names = [c.card_name for c in found if not c.same_card]
    assert len(names) == 3
    assert not {"A100", "H800", "GTX 1080 Ti", "RTX 4090"} & set(names)


def test_neighbours_promise_what_they_keep():
    """The range's coverage, as the module's docstring claims it."""
    rows = {}
    for p in published():
        if p.cards[0] in {card.slug for card in catalogue()}:
            key = (p.network, p.mode, p.precision, p.method, p.channels_last, p.software)
            rows.setdefault(key, []).append((find_card(p.cards[0]), p.images_per_s))
    pairs = inside = below = 0
    for key, cards in rows.items():
        for (a, x), (b, y) in itertools.permutations(cards, 2):
            rates = a.rate(key[2]), b.rate(key[2])
            if not all(rates):
                continue
            ratios = b.memory_bandwidth / a.memory_bandwidth, rates[1] / rates[0]
            if max(*ratios, *(1 / r for r in ratios)) > 2:
                continue
            pairs += 1
            inside += min(ratios) * 0.9 <= y / x <= max(ratios) * 1.1
            below += y / x < min(ratios) * 0.8
    assert pairs == 478
    assert inside / pairs == pytest.approx(0.88, abs=0.01)
    assert below / pairs == pytest.approx(0.02, abs=0.005)


def test_slow_and_why():
    slow = series(rate=0.6 * 2402.61)
    found = compare(slow, find_card("rtx-3090"), "1.9.0", published())
    verdict = judge([slow], found, "RTX 3090", Health(power_limit_w=200, power_default_w=350))
    assert verdict.standing is Standing.SLOW
    assert "60 %" in verdict.sentence
    assert "Its power limit is 200 W, below its default" in verdict.sentence
    # To reach the default limit is normal: it explains nothing.
    normal = Health(throttled=("power limit",), power_limit_w=350, power_default_w=350)
    unexplained = judge([slow], found, "RTX 3090", normal)
    assert "Nothing was noticed" in unexplained.sentence
    assert unexplained.notes == (
        "It reached its power limit of 350 W (the default), as most cards do under load.",
    )


def test_one_slow_series_of_two_is_slow():
    both = [series(rate=2500), series("vit_b_16", rate=500)]
    card = find_card("rtx-3090")
    found = [c for one in both for c in compare(one, card, "1.9.0", published())]
    verdict = judge(both, found, "RTX 3090")
    assert verdict.standing is Standing.SLOW
    assert "ViT-B/16" in verdict.sentence
    assert "1 of 2" in verdict.sentence


def test_neighbours_judge_together_where_the_card_has_no_figure():
    card = find_card("rtx-3090")
    mine = [p for p in published() if "rtx-3090" not in p.cards]
    for rate, standing in ((2400, Standing.AS_EXPECTED), (800, Standing.SLOW)):
        one = series(rate=rate)
        verdict = judge([one], compare(one, card, "1.9.0", mine), "RTX 3090")
        assert verdict.standing is standing
        assert "RTX 3080" in verdict.sentence


def test_nothing_to_compare_with():
    one = series(precision="bf16")
    verdict = judge([one], compare(one, find_card("rtx-3090"), "2.9", published()), "RTX 3090")
    assert verdict.standing is Standing.UNKNOWN


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (Health(throttled=("temperature (hardware)",)), "too hot"),
        (Health(power_limit_w=200, power_default_w=350), "nvidia-smi -pl 350"),
        (Health(build="ptx"), "no kernels of its own"),
        (Health(others=1), "1 other process held"),
        (Health(pcie_width=8, pcie_width_max=16), "8 PCIe lanes of 16"),
        (Health(pcie_gen=1, pcie_gen_max=4), "generation 1 of 4"),
        (Health(is_slice=True), "MIG slice"),
    ],
)
def test_findings(health, words):
    assert len(findings(health)) == 1
    assert words in findings(health)[0]


def test_a_healthy_card_gives_nothing_to_find():
    healthy = Health(
        throttled=(), power_limit_w=350, power_default_w=350, pcie_gen=4, pcie_gen_max=4,
        pcie_width=16, pcie_width_max=16, others=0, build="native",
    )  # fmt: skip
    assert findings(healthy) == ()
    assert findings(Health()) == ()


def test_the_gravest_comes_first():
    health = Health(throttled=("power limit", "temperature (software)"), pcie_width=8,
                    pcie_width_max=16, power_limit_w=200, power_default_w=350)  # fmt: skip
    assert "too hot" in findings(health)[0]
    assert "Its power limit is 200 W" in findings(health)[1]
    assert "PCIe" in findings(health)[2]
    assert at_its_power_limit(health) is None  # it is a finding already


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (Health(), None),
        (Health(throttled=(), power_limit_w=350), None),
        (Health(throttled=("power limit",)), "its power limit"),
        (Health(throttled=("power limit",), power_limit_w=350), "its power limit of 350 W"),
        (
            Health(throttled=("power limit",), power_limit_w=350, power_default_w=350),
            "its power limit of 350 W (the default)",
        ),
    ],
)
def test_reaching_the_default_power_limit_is_no_finding(health, words):
    assert at_its_power_limit(health) == words
    assert findings(health) == ()


def test_the_clock_that_the_power_limit_costs_is_told():
    health = Health(throttled=("power limit",), power_limit_w=350, power_default_w=350)
    held = [series(precision=p, throttled=("power limit",), sm_mhz=mhz)
            for p, mhz in (("fp16", 1500), ("tf32", 1450))]  # fmt: skip
    free = series("vit_b_16", "fp32", throttled=(), sm_mhz=1695)
    (note,) = judge([*held, free], (), "RTX 3090", health).notes[-1:]
    assert "in ResNet50 fp16 and tf32, which lowers its clock to 1450 MHz from 1695 MHz" in note


def test_a_figure_above_what_a_neighbour_promises_proves_less():
    """The H200 has the H800's rates and 4,800 / 3,350 of its bandwidth, and does more than that."""
    one = series("vit_b_16", rate=9800)
    card = find_card("h200")
    found = compare(one, card, "2.11.0", published())
    verdict = judge([one], found, card.name, elsewhere=published_modes(card, published()))
    assert verdict.standing is Standing.AS_EXPECTED
    assert found[0].high == pytest.approx(5812.47 * 4800 / 3350)
    assert "above where bandwidth and rate put it" in verdict.sentence
    assert "1.18 times the most" in verdict.notes[0]
    assert "published for training: run it with --train" in verdict.notes[1]


def test_series_without_anything_published_are_counted():
    both = [series(), series("vit_b_16", "bf16")]
    found = compare(both[0], find_card("rtx-3090"), "1.9.0", [figure()])
    (note,) = judge(both, found, "RTX 3090").notes
    assert note == "1 of 2 series have nothing published beside them: ViT-B/16 bf16."
