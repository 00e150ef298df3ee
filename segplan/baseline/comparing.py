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
from collections.abc import Iterable, Iterator, Sequence

from segplan.baseline.health import POWER_LIMIT, Health, at_its_power_limit, findings
from segplan.baseline.published import Published
from segplan.baseline.results import LABELS, Comparison, Method, Mode, Series, Standing, Verdict
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


def judge_card(
    measured: Sequence[Series],
    card: Card,
    card_name: str,
    mode: Mode,
    torch_version: str | None,
    health: Health,
    figures: Sequence[Published],
) -> tuple[tuple[Comparison, ...], Verdict]:
    """Published figures beside every series, and the verdict (arguments as for both)."""
    found = tuple(c for one in measured for c in compare(one, card, torch_version, figures))
    elsewhere: tuple[Mode, ...] = ()
    if not any(c.same_card for c in found):
        elsewhere = tuple(m for m in published_modes(card, figures) if m is not mode)
    return found, judge(measured, found, card_name, health, elsewhere)


def judge(
    measured: Sequence[Series],
    comparisons: Sequence[Comparison],
    card_name: str,
    health: Health | None = None,
    elsewhere: Sequence[Mode] = (),
) -> Verdict:
    """One sentence on whether the card performs as it should.

    Each series is judged by its own card's figure that differs least; where there is none, by all
    its neighbours together: slow is what is below every one of them.

    Args:
        measured: the series.
        comparisons: of all of them.
        card_name: for the sentence.
        health: what was seen of the card.
        elsewhere: other modes in which figures of this very card are published.
    """
    slow: list[Comparison] = []
    fine: list[Comparison] = []
    alone: list[Series] = []
    for series in measured:
        mine = [
            c for c in comparisons
            if (c.network, c.precision) == (series.network, series.precision)
        ]  # fmt: skip
        own = [c for c in mine if c.same_card]
        judges = own[:1] or mine
        if not judges:
            alone.append(series)
        elif all(c.slow for c in judges):
            slow.append(max(judges, key=lambda c: c.low))
        else:
            # Within what a neighbour promises says more than above it.
            passed = [c for c in judges if not c.slow]
            fine.append(min(passed, key=lambda c: c.above))
    found = () if health is None else findings(health)
    notes = tuple(_notes(measured, alone, fine, health, elsewhere))
    if slow:
        sentence = _slow_sentence(card_name, slow, fine, found)
        return Verdict(Standing.SLOW, sentence, found, notes)
    if fine:
        return Verdict(Standing.AS_EXPECTED, _fine_sentence(card_name, fine), found, notes)
    return Verdict(
        Standing.UNKNOWN,
        f"Nothing published can be set beside the {card_name}: neither it nor a card within a "
        f"factor of {NEIGHBOUR_FACTOR:.0f} was measured like this.",
        found,
        notes,
    )


def published_modes(card: Card, figures: Iterable[Published]) -> tuple[Mode, ...]:
    """The modes in which figures of this very card are published."""
    return tuple(mode for mode in Mode if any(f.mode is mode for f in figures if _is_same(f, card)))


def _notes(
    measured: Sequence[Series],
    alone: Sequence[Series],
    fine: Sequence[Comparison],
    health: Health | None,
    elsewhere: Sequence[Mode],
) -> Iterator[str]:
    """How far the verdict carries, and what is normal but worth knowing."""
    for c in fine:
        if c.above and c.high is not None:
            yield (
                f"{c.name} is {c.measured / c.high:.2f} times the most that the {c.card_name}'s "
                "figure promises, most likely as that was measured with slower software: it would "
                "not show a card that is somewhat slow."
            )
    if alone and len(alone) < len(measured):
        yield (
            f"{len(alone)} of {len(measured)} series have nothing published beside them: "
            f"{_listed(alone)}."
        )
    for mode in elsewhere:
        how = "with --train" if mode is Mode.TRAINING else "without --train"
        yield f"Figures of this very card are published for {mode.value}: run it {how}."
    limit = at_its_power_limit(health) if health is not None else None
    if limit is None:
        return
    held = [s for s in measured if POWER_LIMIT in (s.throttled or ())]
    if not held:
        yield f"It reached {limit}, as most cards do under load."
        return
    clocks = [s.sm_mhz for s in held if s.sm_mhz is not None]
    free = [s.sm_mhz for s in measured if s not in held and s.sm_mhz is not None]
    at = ""
    if clocks and free and min(clocks) < max(free):
        at = f", which lowers its clock to {min(clocks)} MHz from {max(free)} MHz"
    yield f"It reached {limit} in {_listed(held)}{at}: normal for a network that keeps it busy."


def _listed(series: Sequence[Series]) -> str:
    """Such as "ResNet50 fp32, ViT-B/16 tf32 and fp32"."""
    by_network: dict[str, list[str]] = {}
    for one in series:
        by_network.setdefault(LABELS[one.network], []).append(one.precision)
    told = []
    for network, names in by_network.items():
        last = f" and {names[-1]}" if len(names) > 1 else names[0]
        told.append(f"{network} {', '.join(names[:-1])}{last}")
    return ", ".join(told)


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


def _fine_sentence(card_name: str, fine: Sequence[Comparison]) -> str:
    own = [c for c in fine if c.same_card]
    judges = own or fine
    exact = all(not c.differences for c in judges)
    aside = "" if exact else f", though {_told_differences(judges)}"
    if not own:
        names = ", ".join(dict.fromkeys(c.card_name for c in fine))
        above = sum(c.above for c in fine)
        where = f"{len(fine) - above} of {len(fine)} figures lie where bandwidth and rate put them"
        if above:
            where += f", {above} above"
        if len(fine) == 1:
            where = f"its figure lies {'above ' if above else ''}where bandwidth and rate put it"
        return f"The {card_name} performs as it should by its neighbours ({names}): {where}{aside}."
    ratios = [c.ratio for c in own]
    span = f"{min(ratios):.2f}"
    if max(ratios) - min(ratios) >= 0.01:
        span += f" to {max(ratios):.2f}"
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
    return f"The {card_name} is slower than it should be: {worst.name} {against}{often}.{why}"
