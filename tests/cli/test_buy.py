"""`segplan buy`: what people see, with a plan that is given."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import typer
from rich.console import Console

import segplan.api.buying  # noqa: F401 (its function is replaced)
from segplan.cli import buy as command
from segplan.cli import main as cli
from segplan.errors import ConfigError
from segplan.purchase import Cannot, Demand, Hours, Reason, plan
from segplan.report import buy as report
from segplan.report.console import make_console
from segplan.workload import Workload
from tests.purchase.lab import FAST, GIB, SLOW, TOWER, lab
from tests.report.test_json import validator

RENTED = dataclasses.replace(FAST, card="rtx-rented", price=None, rent_per_hour=1.5)
EVIL = "[bold]<script>alert(1)</script>&[/bold]"


def full_problem(**changes):
    """Everything a report can show: rent, memory, deadlines, two GPUs at a time, a budget."""
    demands = (
        Demand("segmentation of organs", 12, 3, workload=Workload()),
        Demand("two at a time", 3, 2.5, gpus=2),
        Demand("large patches", 2, 2),
    )
    times = {
        (d.name, c): Hours(h * 0.8, h, h * 1.3)
        for d in demands
        for c, h in (("fast", 24), ("slow", 48), ("rtx-rented", 20))
    }
    times["large patches", "slow"] = Cannot(Reason.MEMORY, 27 * GIB, 24 * GIB)
    values = {
        "demands": demands,
        "offers": (FAST, dataclasses.replace(SLOW, owned=1), RENTED),
        "times": times,
        "budget": 9000,
        "power_price": 0.3,
    }
    return lab(**(values | changes))


FULL = dataclasses.replace(plan(full_problem()), notes=("The price of fast is 300 days old.",))
IMPOSSIBLE = plan(lab(demands=(Demand("a", 10, 0.75),), budget=100))
POOR = plan(lab(demands=(Demand("a", 10, 1.5),), budget=1000))


@pytest.fixture
def buy(run, monkeypatch):
    """The command with a plan instead of predictions; registered here if it is not yet."""
    names = {c.callback.__name__ for c in cli.app.registered_commands}
    if "buy" not in names:
        app = typer.Typer(no_args_is_help=True, add_completion=False)
        app.registered_commands.extend(cli.app.registered_commands)
        app.command()(command.buy)
        monkeypatch.setattr(cli, "app", app)

    class Fake:
        def __init__(self):
            self.found, self.calls, self.error = FULL, [], None

        def __call__(self, file, progress, **more):
            self.calls.append((file, more))
            if self.error is not None:
                raise self.error
            progress(1, 2, "the fastest plan")
            return self.found

        def run(self, *words):
            return run("buy", *words)

    fake = Fake()
    monkeypatch.setattr(sys.modules["segplan.api.buying"], "buy", fake)
    return fake


def text_of(found, width=80) -> str:
    stream = io.StringIO()
    report.render(found, make_console(stream, width=width))
    return stream.getvalue()


def test_the_answer_in_order(buy):
    ran = buy.run("buy.yaml", "--budget", "9000", "--years", "2")
    assert ran.status == 0
    assert buy.calls == [("buy.yaml", {"budget": 9000.0, "years": 2.0})]
    places = [
        ran.out.index(part)
        for part in (
            "Cheapest plan that meets the deadlines", "Fastest plan for 9,000 EUR",
            "Cost against days", "Where the answer flips", "Ruled out", "To know",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    cost = f"{FULL.cheapest.costs.total:,.0f} EUR"
    assert f"meets the deadlines: {cost}" in ran.out
    for text in (
        "memory: needs 27.0 GiB, has 24.0 GiB", "300 days old", "Queues are not modelled",
        "1 year", "PUE 1",
    ):  # fmt: skip
        assert text in ran.out


@pytest.mark.parametrize("found", [FULL, IMPOSSIBLE, POOR])
def test_eighty_columns_are_enough(found):
    text = text_of(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "None" not in text


def test_numbers_of_a_plan():
    choice = FULL.cheapest
    text = text_of(FULL)
    assert report.summary(FULL, choice) in " ".join(text.split())
    costs = choice.costs
    assert costs.total == pytest.approx(costs.purchase + costs.power + costs.rent)
    for value in (costs.purchase, costs.power, costs.rent):
        assert f"{value:,.0f}" in text


def test_an_impossible_request_names_the_change():
    text = text_of(IMPOSSIBLE)
    assert "No plan meets every deadline." in text
    assert "- a: the deadline from 0.75 to 1 days." in text
    assert "Where the answer flips" not in text


def test_a_budget_that_is_too_small():
    text = text_of(POOR)
    assert "It misses deadlines: the budget is too small for them." in text
    assert "A budget of 2,000 EUR, 1,000 EUR more, meets the deadlines." in text


def test_deadlines_are_rounded_up():
    assert report._up(3.601) == "3.61"
    assert report._up(3.0) == "3"


@pytest.mark.parametrize("found", [FULL, IMPOSSIBLE, POOR])
def test_json(buy, found):
    buy.found = found
    ran = buy.run("buy.yaml", "--json")
    document = json.loads(ran.out)
    validator("buy.schema.json").validate(document)
    assert len(document["problem"]["times"]) == len(found.problem.times)
    if found.cheapest is not None:
        total = document["cheapest"]["costs"]["total"]
        assert total == pytest.approx(found.cheapest.costs.total)
    assert "the fastest plan" in ran.err


@pytest.fixture(scope="module")
def hostile():
    """Names full of markup, as a YAML file may hold them."""
    problem = full_problem(
        demands=(Demand(f"a{EVIL}", 10, 3),),
        offers=(dataclasses.replace(FAST, card=f"fast{EVIL}"),),
        servers=(dataclasses.replace(TOWER, name=f"tower{EVIL}"),),
        times={(f"a{EVIL}", f"fast{EVIL}"): Hours(20, 24, 30)},
        currency=f"EUR{EVIL}",
    )
    found = plan(problem)
    points = found.pareto * 1
    quicker = dataclasses.replace(points[0], days=points[0].days / 2, cost=points[0].cost * 2)
    return dataclasses.replace(found, pareto=(*points, quicker))


def test_names_are_text_not_markup(hostile):
    text = text_of(hostile, width=400)
    for name in (f"a{EVIL}", f"fast{EVIL}", f"tower{EVIL}"):
        assert name in text
    svg = report.picture(hostile)
    assert "<script" not in svg
    root = ElementTree.fromstring(svg)
    assert any(EVIL in (node.text or "") for node in root.iter())


def test_a_picture(buy, tmp_path):
    file = tmp_path / "cost.svg"
    ran = buy.run("buy.yaml", "--plot", str(file))
    assert ran.status == 0
    assert "wrote" in ran.err
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    circles = [n for n in root.iter() if n.tag.endswith("circle")]
    assert len(circles) == len(FULL.pareto) >= 2
    xs = [float(c.get("cx")) for c in circles]
    ys = [float(c.get("cy")) for c in circles]
    assert xs == sorted(xs)
    assert ys == sorted(ys)  # fewer days are lower on the page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plot", "cost.pdf"), "must end in .svg"),
        (("--plot", "no/where.svg"), "there is no folder"),
        (("--budget", "-1"), "--budget must be a number above 0"),
        (("--years", "nan"), "--years must be a number above 0"),
    ],
)
def test_wrong_options_are_refused_before_any_work(buy, words, message):
    ran = buy.run("buy.yaml", *words)
    assert ran.status == 2
    assert message in ran.err
    assert buy.calls == []


def test_errors_keep_their_sentence(buy):
    buy.error = ConfigError("buy.yaml line 3: offers[0].prize is no key: did you mean price?")
    ran = buy.run("buy.yaml")
    assert (ran.status, ran.out) == (2, "")
    assert "did you mean price?" in ran.err


def test_no_colour_and_ascii(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    report.render(FULL, make_console(stream, width=80))
    stream.flush()
    assert b"\x1b" not in stream.buffer.getvalue()
    assert isinstance(make_console(stream), Console)
