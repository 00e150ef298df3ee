"""Measured figures beside published ones, and whether the card performs as it should. Pure.

A figure of the same card is compared as it is. A neighbour's is carried over: throughput follows
memory bandwidth where a network waits for memory and the arithmetic rate where it does not, so this
card should lie between the neighbour's figure times either ratio. Over the 478 ordered pairs of
cards in `published.csv` that lie within a factor of two in both (same network, precision, method
and software), 88 % of the figures are in that range widened by 10 %, and 2 % more than 20 % below
it.

Known limits: published figures come with other batch sizes, hosts and coolers, and most with older
software, which is seldom faster; so only a figure clearly below is called slow, and none too fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from segplan.baseline.published import Published
from segplan.baseline.results import LABELS, Comparison, Method, Series, Standing, Verdict
from segplan.gpus.card import Card, card_key
from segplan.gpus.catalog import catalogue

TOLERANCE = 0.10
"""Share a card may stay below its own published figure under the same conditions."""

LOOSE_TOLERANCE = 0.20
"""The same where conditions differ, and below what neighbours promise."""

NEIGHBOUR_FACTOR = 2.0
"""How far a neighbour's bandwidth and rate may be away."""

NEIGHBOURS = 3
"""Neighbours shown for a figure."""


def compare(
    series: Series, card: Card, torch_version: str | None, figures: Iterable[Published]
) -> tuple[Comparison, ...]:
    """Published figures for one series: the same card's, then its nearest neighbours'.

    Only figures of the same network, mode and arithmetic count. Among the same card's those that
    differ least come first; a neighbour is represented by its figure that differs least.

    Args:
        series: what was measured.
        card: this card; without bandwidth and rates it has no neighbours.
        torch_version: such as "2.11.0+cu130", or None.
        figures: the published ones.
    """
    arithmetic = _arithmetic(series.precision, card)
    own: list[Comparison] = []
    near: dict[str, tuple[float, Comparison]] = {}
    cards = {c.slug: c for c in catalogue()}
    for figure in figures:
        if (figure.network, figure.mode) != (series.network, series.mode):
            continue
        differences = _differences(series, figure, torch_version)
        same = _is_same(figure, card)
        if same and figure.precision == arithmetic:
            own.append(_beside(series, figure, differences, True, (1.0, None)))
            continue
        other = next((cards[slug] for slug in figure.cards if slug in cards), None)
        if same or other is None or figure.precision != _arithmetic(series.precision, other):
            continue
        ratios = _ratios(card, other, series.precision)
        if ratios is None:
            continue
        distance = max(abs(math.log(ratio)) for ratio in ratios)
        if distance > math.log(NEIGHBOUR_FACTOR):
            continue
        found = _beside(series, figure, differences, False, (min(ratios), max(ratios)))
        known = near.get(figure.cards[0])
        if known is None or len(found.differences) < len(known[1].differences):
            near[figure.cards[0]] = (distance, found)
    own.sort(key=lambda c: len(c.differences))
    nearest = sorted(near.values(), key=lambda pair: pair[0])[:NEIGHBOURS]
    return (*own, *(found for _, found in nearest))


def judge(
    measured: Sequence[Series],
    comparisons: Sequence[Comparison],
    card_name: str,
    findings: Sequence[str] = (),
) -> Verdict:
    """One sentence on whether the card performs as it should.

    Each series is judged by its own card's figure that differs least; where there is none, by all
    its neighbours together: slow is what is below every one of them.

    Args:
        measured: the series.
        comparisons: of all of them.
        card_name: for the sentence.
        findings: sentences on what was noticed about the card (throttling, power limit …).
    """
    slow: list[Comparison] = []
    fine: list[Comparison] = []
    for series in measured:
        mine = [
            c for c in comparisons
            if (c.network, c.precision) == (series.network, series.precision)
        ]  # fmt: skip
        own = [c for c in mine if c.same_card]
        judges = own[:1] or mine
        if not judges:
            continue
        if all(c.slow for c in judges):
            slow.append(max(judges, key=lambda c: c.low))
        else:
            fine.append(next(c for c in judges if not c.slow))
    found = tuple(findings)
    if slow:
        return Verdict(Standing.SLOW, _slow_sentence(card_name, slow, fine, found), found)
    if fine:
        return Verdict(Standing.AS_EXPECTED, _fine_sentence(card_name, fine), found)
    return Verdict(
        Standing.UNKNOWN,
        f"Nothing published can be set beside the {card_name}: neither it nor a card within a "
        f"factor of {NEIGHBOUR_FACTOR:.0f} was measured like this.",
        found,
    )


def _arithmetic(precision: str, card: Card) -> str:
    """A card without TF32 computes "tf32" as fp32."""
    old = card.compute_capability is not None and card.compute_capability < (8, 0)
    return "fp32" if precision == "tf32" and old else precision


def _is_same(figure: Published, card: Card) -> bool:
    key = card_key(card.name)
    return card.slug in figure.cards or key in {card_key(slug) for slug in figure.cards}


def _ratios(card: Card, other: Card, precision: str) -> tuple[float, float] | None:
    """(bandwidth, rate) of this card by the other's; None where one is not known."""
    rates = card.rate(precision), other.rate(precision)
    if not (card.memory_bandwidth and other.memory_bandwidth and rates[0] and rates[1]):
        return None
    return card.memory_bandwidth / other.memory_bandwidth, rates[0] / rates[1]


def _differences(series: Series, figure: Published, torch_version: str | None) -> tuple[str, ...]:
    found = []
    major = (torch_version or "").partition(".")[0]
    if figure.torch_major is None:
        found.append("software not stated")
    elif str(figure.torch_major) != major:
        found.append(f"other software generation: {figure.software}")
    if figure.method is not series.method:
        found.append(f"{_METHODS[figure.method]}, not {_METHODS[series.method]}")
    if series.network == "resnet50":  # the ViT has no layout to choose
        if figure.channels_last is None:
            found.append("layout not stated")
        elif figure.channels_last != series.channels_last:
            found.append("channels_last" if figure.channels_last else "not channels_last")
    if figure.zeros != series.zeros:
        found.append("zeros as images" if figure.zeros else "random images")
    return tuple(found)


def _beside(
    series: Series,
    figure: Published,
    differences: tuple[str, ...],
    same: bool,
    scale: tuple[float, float | None],
) -> Comparison:
    tolerance = TOLERANCE if same and not differences else LOOSE_TOLERANCE
    least, most = scale
    return Comparison(
        network=series.network,
        precision=series.precision,
        measured=series.images_per_s,
        card_name=figure.card_name,
        same_card=same,
        published=figure.images_per_s,
        low=figure.images_per_s * least * (1 - tolerance),
        high=None if most is None else figure.images_per_s * most,
        differences=differences,
        software=figure.software,
        source=figure.source,
        note=figure.note,
    )


_METHODS = {
    Method.CAST: "pure 16-bit",
    Method.AUTOCAST: "autocast",
    Method.PLAIN: "32-bit tensors",
}


def _what(comparison: Comparison) -> str:
    return f"{LABELS[comparison.network]} {comparison.precision}"


def _fine_sentence(card_name: str, fine: Sequence[Comparison]) -> str:
    own = [c for c in fine if c.same_card]
    if not own:
        names = ", ".join(dict.fromkeys(c.card_name for c in fine))
        exact = all(not c.differences for c in fine)
        aside = "" if exact else f", though {_told_differences(fine)}"
        return (
            f"The {card_name} performs as it should by its neighbours ({names}){aside}; no figure "
            "of its own was published for this."
        )
    ratios = [c.ratio for c in own]
    span = f"{min(ratios):.2f}"
    if max(ratios) - min(ratios) >= 0.01:
        span += f" to {max(ratios):.2f}"
    exact = all(not c.differences for c in own)
    aside = "" if exact else f", though {_told_differences(own)}"
    return f"The {card_name} performs as it should: {span} of its published figures{aside}."


def _told_differences(own: Sequence[Comparison]) -> str:
    kinds = dict.fromkeys(d for c in own for d in c.differences)
    return f"those are not quite alike ({'; '.join(kinds)})"


def _software(comparison: Comparison) -> str:
    """The published figure's software, and that it is of another generation where it is."""
    about = [d for d in comparison.differences if comparison.software in d]
    return about[0] if about else comparison.software


def _slow_sentence(
    card_name: str,
    slow: Sequence[Comparison],
    fine: Sequence[Comparison],
    findings: Sequence[str],
) -> str:
    worst = min(slow, key=lambda c: c.measured / c.low)
    share = f"{100 * worst.measured / worst.published:.0f} %"
    if worst.same_card:
        against = f"{share} of its published {worst.published:.0f} images/s ({_software(worst)})"
    else:
        against = (
            f"{worst.measured:.0f} images/s where the {worst.card_name}'s {worst.published:.0f} "
            f"({_software(worst)}) promise at least {worst.low:.0f}"
        )
    unlike = [d for d in worst.differences if worst.software not in d]
    if unlike:
        against += f", which is not quite alike ({'; '.join(unlike)})"
    count = len(slow) + len(fine)
    often = "" if count == 1 else f" ({len(slow)} of {count} figures are low)"
    why = (
        f" Noticed: {findings[0]}"
        if findings
        else " Nothing was noticed that explains it: look at cooling, power cables and ECC."
    )
    return f"The {card_name} is slower than it should be: {_what(worst)} {against}{often}.{why}"
