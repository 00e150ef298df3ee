"""`buy` from a YAML file, with days that are given instead of predicted."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segplan.api import buying
from segplan.api.experiments import Experiment
from segplan.errors import ConfigError, RequestError
from segplan.gpus import find_card
from segplan.purchase import Cannot, Hours, Reason
from segplan.results import Basis, Duration, MemoryEstimate, Plan
from segplan.schedule import FixedIterations, Schedule
from segplan.units import GIB
from segplan.workload import Workload

TODAY = datetime.date(2026, 9, 1)
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

TEXT = """\
currency: EUR
years: 3
budget: 9000
power_price: 0.3
demands:
  - name: swin
    config: btcv-swinunetr
    patch: 96
    batch: 2
    per_month: 10
    deadline_days: 3
offers:
  - card: rtx-3090
    price: 800
    date: 2026-08-01
    owned: 1
  - card: A100 PCIe 40GB
    price: 6000
    date: 2026-01-01
servers:
  - name: tower
    owned: 1
    cooling: workstation
    slots: 4
    power_supply_w: 1600
"""


class FakeDays:
    """An experiment takes 4800 GB-hours: fewer on cards with more memory. 24 GB hold batch 2."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, experiments, gpus, *, gpus_per_job=1, progress=None):
        self.calls.append((tuple(experiments), tuple(gpus), gpus_per_job))
        progress(1, 1, "traced")
        return tuple(self.plan(e, find_card(name)) for e in experiments for name in gpus)

    def plan(self, experiment, card):
        size = card.memory_nominal // GIB
        need = 10 * GIB * experiment.workload.batch
        memory = MemoryEstimate(need, need, need, need, need, context=GIB)
        fits = need + 1.5 * GIB <= card.memory_visible
        hours = 1200 / size
        total = Duration(hours * 3600, hours * 2880, hours * 4500, Basis.PREDICTED)
        return Plan(
            experiment.name, experiment.workload, card.slug, fits, memory=memory,
            total=total if fits else None, energy_kwh=hours * 0.3 if fits else None,
        )  # fmt: skip


def load(name: str) -> Experiment:
    schedule = None if name == "no-schedule" else Schedule(10, FixedIterations(250))
    return Experiment(name, Workload(), schedule)


@pytest.fixture
def days():
    return FakeDays()


def ask(tmp_path, text, days, **more):
    file = tmp_path / "buy.yaml"
    file.write_text(text, encoding="utf-8")
    return buying.buy(file, planner=days, load=load, today=TODAY, **more)


def test_days_become_a_plan(tmp_path, days):
    seen = []
    found = ask(tmp_path, TEXT, days, progress=lambda *step: seen.append(step))
    ((experiments, gpus, per_job),) = days.calls
    assert (experiments[0].workload.patch, experiments[0].workload.batch) == ((96, 96, 96), 2)
    assert (experiments[0].name, gpus, per_job) == ("swin", ("rtx-3090", "A100 PCIe 40GB"), 1)
    assert found.problem.times["swin", "rtx-3090"] == Hours(40, 50, 62.5, 15)
    assert found.problem.times["swin", "a100-pcie-40gb"].mid == pytest.approx(30)
    # 500 h on the one card there is: 584 h a month are enough.
    assert [(line.name, line.buy) for line in found.cheapest.order] == [
        ("tower", 0), ("rtx-3090", 0),
    ]  # fmt: skip
    assert found.cheapest.costs.power == pytest.approx(36 * 10 * 15 * 0.3)
    assert (Reason.PASSIVE, "a100-pcie-40gb") in {(r.reason, r.card) for r in found.ruled_out}
    assert seen[0] == (1, 1, "traced")
    assert len(seen) > 2


def test_what_the_catalogue_knows_of_a_card(tmp_path, days):
    found = ask(tmp_path, TEXT, days)
    mine, theirs = found.problem.offers
    assert (mine.width, mine.power_w, mine.passive) == (3, 350, False)
    assert (theirs.width, theirs.power_w, theirs.passive) == (2, 250, True)
    changed = TEXT.replace("owned: 1\n  - card", "width: 2\n    cooling: passive\n  - card")
    (mine, _) = ask(tmp_path, changed, days).problem.offers
    assert (mine.width, mine.passive) == (2, True)
    module = ask(tmp_path, TEXT.replace("A100 PCIe 40GB", "a100-sxm4-80gb"), days)
    assert module.problem.offers[1].module


def test_a_card_without_the_memory_is_ruled_out(tmp_path, days):
    found = ask(tmp_path, TEXT.replace("batch: 2", "batch: 3"), days)
    card = find_card("rtx-3090")
    assert found.problem.times["swin", "rtx-3090"] == Cannot(
        Reason.MEMORY, 31.5 * GIB, card.memory_visible
    )
    assert found.cheapest is None
    assert ("server", "a100-pcie-40gb") in {(c.kind.value, c.subject) for c in found.changes}


def test_why_there_are_no_hours():
    card = find_card("rtx-3090")
    small = MemoryEstimate(GIB, GIB, GIB, GIB, GIB, context=GIB)
    about = ("a", Workload(), card.slug)
    assert buying.hours_of(Plan(*about, False, memory=small), card) == Cannot(Reason.KERNEL)
    assert buying.hours_of(Plan(*about, False), card) == Cannot(Reason.MEMORY)
    assert buying.hours_of(Plan(*about, True), card) == Cannot(Reason.UNKNOWN_TIME)


def test_equal_experiments_are_predicted_once(tmp_path, days):
    entry = TEXT[TEXT.index("  - name: swin") : TEXT.index("offers:")]
    twice = entry.replace("swin", "again", 1) + entry.replace(
        "name: swin", "name: two\n    gpus: 2"
    )
    text = TEXT.replace(entry, entry + twice)
    found = ask(tmp_path, text, days)
    assert [(len(c[0]), c[2]) for c in days.calls] == [(1, 1), (1, 2)]
    times = found.problem.times
    assert times["again", "rtx-3090"] == times["swin", "rtx-3090"]


def test_years_and_budget_of_the_caller_win(tmp_path, days):
    found = ask(tmp_path, TEXT, days, budget=123.0, years=1.0)
    assert (found.problem.budget, found.problem.years) == (123.0, 1.0)
    assert found.fastest is None


def test_prices_are_watched(tmp_path, days):
    text = TEXT.replace("    price: 800\n    date: 2026-08-01\n", "")
    text += "  - {name: rack, price: 5000, cooling: server, slots: 4}\n"
    notes = " ".join(ask(tmp_path, text, days).notes)
    assert "rtx-3090 has no price: only the 1 owned count" in notes
    assert "A100 PCIe 40GB is 243 days old (2026-01-01)" in notes
    assert "price of rack has no date" in notes
    later = TEXT.replace("2026-08-01", "2026-10-01").replace("power_price: 0.3\n", "")
    notes = " ".join(ask(tmp_path, later, days).notes)
    assert "lies ahead" in notes
    assert "Power costs nothing" in notes
    fresh = ask(tmp_path, TEXT.replace("2026-01-01", "2026-03-05"), days)
    assert fresh.notes == ()  # 180 days are not too old


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (
            "deadline_days",
            "deadline_dayz",
            11,
            "demands[0].deadline_dayz is no key: did you mean d",
        ),
        ("price: 800", "prize: 800", 14, "offers[0].prize is no key: did you mean price?"),
        ("years: 3", "yeers: 3", 2, "yeers is no key: did you mean years?"),
        ("slots: 4", "slots: four", 24, "servers[0].slots must be a whole number, not 'four'"),
        ("slots: 4", "slots: 0", 24, "servers[0].slots must be greater than or equal to 1"),
        ("cooling: workstation", "cooling: workstaton", 23, "did you mean workstation?"),
        ("    slots: 4\n", "", 21, "servers[0].slots is missing"),
        ("price: 800", "price: -1", 14, "offers[0].price must be greater than or equal to 0"),
        ("price: 800", "price: .nan", 14, "offers[0].price must be"),
        ("price: 800", "price: yes", 14, "offers[0].price must be a number"),
        ("date: 2026-08-01", "date: soon", 15, "must be a date like 2026-01-31"),
        ("patch: 96", "patch: big", 8, "no patch size"),
        ("name: swin", 'name: "a\\x1b[31m"', 6, "must be 1 to 60 printable characters"),
        ("name: swin", "name: [1]", 6, "demands[0].name must be text"),
        ("price: 6000", "price: 6000\n    currency: USD", 19, "the price is in USD"),
        ("owned: 1\n    cooling", "cooling", 21, "no price and none is owned"),
        ("years: 3", "years: 3\nyears: 4", 3, "years is given twice"),
        ("years: 3", "3: years", 2, "a key must be text"),
        ("years: 3", "years: &a 3\nbudget2: *a", 3, "aliases are not taken"),
        ("years: 3", "years: [3", 3, "broken YAML"),
        ("years: 3", "years: !!python/object/apply:os.system [id]", 2, "broken YAML"),
    ],
)
def test_mistakes_name_line_key_and_fix(old, new, line, words):
    text = TEXT.replace(old, new)
    assert text != TEXT
    with pytest.raises(ConfigError) as error:
        buying.parse_file(text, "buy.yaml")
    message = str(error.value)
    assert f"buy.yaml line {line}" in message
    assert words in message
    assert "\x1b" not in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rtx-3090", "rtx-309", "offers[0]: no card is called 'rtx-309': did you mean"),
        ("rtx-3090", "rtx-3090,a40", "names several cards"),
        ("A100 PCIe 40GB", "RTX 3090", "offers[1]: rtx-3090 is offered twice"),
        ("btcv-swinunetr", "no-schedule", "no-schedule has no schedule"),
        ("offers:", "  - {name: swin, config: a, per_month: 1, deadline_days: 1}\noffers:",
         "swin is there twice"),
    ],
)  # fmt: skip
def test_mistakes_beyond_one_value(tmp_path, days, old, new, words):
    with pytest.raises(RequestError) as error:
        ask(tmp_path, TEXT.replace(old, new), days)
    assert words in str(error.value)
    assert days.calls == []  # found before the first trace


def test_what_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        buying.read_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="holds no keys"):
        buying.parse_file("", "buy.yaml")
    with pytest.raises(ConfigError, match="holds no keys"):
        buying.parse_file("- 1", "buy.yaml")


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, len(TEXT.splitlines()) - 1),
    st.sampled_from(["price", "demands", "name", "- x", "{", "&a", "*a", "!!set", "?", ""]),
    st.text(max_size=8),
)
def test_whatever_is_in_the_file_has_an_answer(number, word, noise):
    lines = TEXT.splitlines()
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = f"{indent}{word}: {noise}"
    message = "buy.yaml"
    try:
        buying.parse_file("\n".join(lines), "buy.yaml")
    except ConfigError as error:
        message = str(error)
    assert message.startswith("buy.yaml")
    assert len(message) < 500


@pytest.mark.parametrize("name", ["offers-example.yaml", "founding-case.yaml"])
def test_the_examples_are_read_and_say_that_prices_are_invented(name):
    found = buying.read_file(EXAMPLES / name)
    assert "EVERY PRICE HERE IS INVENTED" in (EXAMPLES / name).read_text(encoding="utf-8")
    for offer in found.offers:
        find_card(offer.card)
        assert offer.source == "invented"
        assert offer.date is not None
    for demand in found.demands:
        assert buying.load_experiment(demand.config).schedule is not None
