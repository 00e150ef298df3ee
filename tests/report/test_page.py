"""The capacity report: its page, Markdown, CSV and JSON, and what they make of hostile names."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import json
import os
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from segplan.api.exporting import read_bundle
from segplan.api.report_nouns import CapacityReport, Change, ChangeKind
from segplan.api.report_reading import read_report, report_from_plain
from segplan.errors import RequestError
from segplan.report import markdown, tables
from segplan.report.page import embedded_json, page, sentences
from segplan.report.page.charts import charts
from segplan.report.times import interval
from segplan.results import Basis, LimitedBy
from segplan.units import GIB
from tests.report.page_browser import Browser
from tests.report.test_json import validator

SAVED = Path(__file__).parent / "saved_report.json"
"""Written by segplan report --config spleen-unet brats-segresnet btcv-swinunetr
--gpus rtx-3090,rtx-2080-ti,a40,a100-sxm4-80gb."""

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "\"'><img src=x onerror='window.hacked = 1'>",
    "--><b id=hacked>{{ 7 * 7 }}${7*7}\u2028\u2029",
    '=HYPERLINK("http://example.com")',
    "| [a](http://example.com) ![b](http://example.com/b.png) `x` <i>y</i> www.example.com",
    "</style></title><svg onload=alert(1)>&lt;b&gt;\n\n# heading\n- item",
)


@pytest.fixture(scope="module")
def report() -> CapacityReport:
    return read_report(SAVED)


def renamed(report: CapacityReport, text: str) -> CapacityReport:
    """The report with this text everywhere a user or a file may have put one."""
    workloads = []
    for part in report.workloads:
        entries = []
        for entry in part.entries:
            cells = tuple(dataclasses.replace(cell, note=text) for cell in entry.fit.cells)
            fit = dataclasses.replace(entry.fit, cells=cells, reason=text, warnings=(text,))
            plan = dataclasses.replace(entry.plan, name=text, notes=(text,))
            change = Change(ChangeKind.CARD, (96, 96, 96), 4, "x", text)
            entries.append(
                dataclasses.replace(entry, fit=fit, plan=plan, changes=(*entry.changes, change))
            )
        workload = part.workload.replace(model_args={text: text})
        workloads.append(
            dataclasses.replace(part, name=text, workload=workload, entries=tuple(entries))
        )
    cards = tuple(
        dataclasses.replace(card, name=text, source=text, launch=text, visible_basis=text)
        for card in report.cards
    )
    return dataclasses.replace(
        report,
        made_at=text,
        versions={text: text},
        cards=cards,
        workloads=tuple(workloads),
        baselines={card.slug: text for card in cards},
        store=text,
        warnings=(text,),
    )


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, scripts with their text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def handle_endtag(self, tag):
        self.lasttag = ""


def test_one_file_that_asks_for_nothing(report):
    elements = Elements(page(report))
    for tag, attributes in elements.found:
        assert tag not in ("img", "iframe", "object", "embed", "base", "audio", "video")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "action", "data"):
                assert value is not None
                assert value.startswith(("#", "data:,"))
    style = page(report).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_only_scripts_with_a_hash_in_the_policy_run(report):
    text = page(report)
    policy = next(a for t, a in Elements(text).found if a.get("http-equiv"))["content"] or ""
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = [s for a, s in Elements(text).scripts if a.get("type") != "application/json"]
    assert len(scripts) == 4
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in allowed
    assert "University of Washington Interactive Data Lab" in text  # the licence travels along


def test_every_chart_has_tables_beside_it(report):
    text = page(report)
    elements = Elements(text)
    drawn = [a["data-chart"] for t, a in elements.found if "data-chart" in a]
    assert sorted(drawn) == sorted(charts(report))
    assert len(drawn) == 3 * len(report.workloads)
    count = sum(t == "table" for t, _ in elements.found)
    assert count == 2 + 5 * len(report.workloads)
    assert sum(t == "caption" for t, _ in elements.found) == count
    assert all(a.get("scope") in ("row", "col") for t, a in elements.found if t == "th")
    rows = [a["data-card"] for t, a in elements.found if t == "tr" and "data-card" in a]
    assert len(rows) == count * len(report.cards)
    for part in report.workloads:
        for entry in part.entries:
            if entry.fits and entry.plan.total is not None:
                assert interval(entry.plan.total) in text


def test_six_workloads_on_twelve_cards_stay_below_three_megabytes(report):
    def copy(entry, slug):
        fit, plan = (dataclasses.replace(x, card=slug) for x in (entry.fit, entry.plan))
        return dataclasses.replace(entry, card=slug, fit=fit, plan=plan)

    slugs = [f"{card.slug}-{i}" for i in range(3) for card in report.cards]
    cards = [
        dataclasses.replace(card, slug=slug)
        for card, slug in zip(report.cards * 3, slugs, strict=True)
    ]
    parts = [
        dataclasses.replace(
            part, name=f"{part.name}-{i}",
            entries=tuple(copy(e, s) for e, s in zip(part.entries * 3, slugs, strict=True)),
        )
        for i in range(2)
        for part in report.workloads
    ]  # fmt: skip
    large = dataclasses.replace(report, cards=tuple(cards), workloads=tuple(parts))
    assert (len(large.workloads), len(large.cards)) == (6, 12)
    assert len(page(large).encode()) < 3_000_000


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text_on_the_page(report, text):
    plain = Elements(page(report))
    hostile = page(renamed(report, text))
    elements = Elements(hostile)
    allowed = {tag for tag, _ in plain.found}
    assert {tag for tag, _ in elements.found} <= allowed
    assert len(elements.scripts) == len(plain.scripts)
    assert all(a.get("id") != "hacked" for _, a in elements.found)
    assert not any(name.startswith("on") for _, a in elements.found for name in a)
    if "{{" in text:  # no template in a name ran
        assert "{{ 7 * 7 }}" in hostile
    data = next(s for a, s in elements.scripts if a.get("type") == "application/json")
    assert not set("<>&\u2028\u2029") & set(data)
    rows = json.loads(data)["memory-0"]["layer"][1]["data"]["values"]
    assert all(text in row["name"] for row in rows)


def test_embedded_json_ends_no_script():
    value = {"a": "</script><!--&\u2028\u2029", "b": [1.5, None, True]}
    text = embedded_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)
    with pytest.raises(ValueError, match="JSON"):
        embedded_json(float("nan"))


def test_no_name_becomes_part_of_an_expression(report):
    """Vega evaluates filters, tests, and lists to sort by: names may only be data."""

    def without_data(node):
        if isinstance(node, dict):
            return {k: without_data(v) for k, v in node.items() if k not in ("values", "domain")}
        return [without_data(v) for v in node] if isinstance(node, list) else node

    for spec in charts(renamed(report, "MARK'ED\"; alert(1)")).values():
        assert "MARK" in json.dumps(spec)
        assert "MARK" not in json.dumps(without_data(spec))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text_in_markdown(report, text):
    stream = io.StringIO()
    markdown.render(renamed(report, text), stream)
    parser = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")
    plain = io.StringIO()
    markdown.render(report, plain)
    tokens, expected = parser.parse(stream.getvalue()), parser.parse(plain.getvalue())
    kinds = {"html_block", "html_inline", "link_open", "image", "code_inline", "em_open", "fence"}
    for token in tokens:
        assert not {t.type for t in (token, *(token.children or ()))} & kinds, token.content
    for kind in ("table_open", "heading_open"):
        assert sum(t.type == kind for t in tokens) == sum(t.type == kind for t in expected)
    for kind in ("tr_open", "th_open"):  # a pipe in a name makes no new cell
        assert sum(t.type == kind for t in tokens) == sum(t.type == kind for t in expected)
    if "example.com" in text:  # GitHub makes links of bare addresses
        assert not re.search(r"(?<!\\)://|(?i:www)\.", stream.getvalue())


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n+1"])
def test_no_cell_of_the_csv_is_a_formula(report, text):
    frame = tables.answers_frame(renamed(report, text))
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(frame))))
    assert len(rows) == len(frame)
    for row in rows:
        assert row["workload"] == "'" + text.translate({9: " ", 10: " ", 13: " "})
        assert not any(v.lstrip().startswith(("=", "+", "-", "@")) for v in row.values())


def test_the_frames_hold_the_reports_numbers(report):
    frontier, memory, days = (
        make(report) for make in (tables.frontier_frame, tables.memory_frame, tables.days_frame)
    )
    pairs = len(report.workloads) * len(report.cards)
    cells = sum(len(e.fit.cells) for p in report.workloads for e in p.entries)
    assert (len(frontier), len(memory), len(days)) == (cells, pairs, pairs)
    assert len(tables.answers_frame(report)) == cells
    for row, entry in zip(
        memory.to_dict("records"),
        (e for p in report.workloads for e in p.entries),
        strict=True,
    ):
        assert row["least_memory_bytes"] == entry.memory.least_memory
        parts = sum(row[f"{name}_bytes"] for name in tables.PARTS)
        assert parts == entry.memory.least_memory
        assert row["fits"] == (row["least_memory_bytes"] <= row["budget_bytes"])
    text = tables.csv_text(frontier)
    assert ".0," not in "".join(re.findall(r"predicted.*", text))
    assert set(frontier["max_batch"].dtype.name.split()) == {"Int64"}


def test_the_chart_of_memory_adds_up(report):
    for index, part in enumerate(report.workloads):
        rows = charts(report)[f"memory-{index}"]["layer"][0]["data"]["values"]
        for entry in part.entries:
            shown = sum(row["gib"] for row in rows if row["card"] == entry.card)
            aside = entry.fit.context + entry.fit.reserve
            assert shown == pytest.approx((entry.memory.least_memory + aside) / GIB)


def test_the_summary_names_fastest_and_smallest(report):
    part = report.workloads[-1]
    answer = sentences.workload_answer(report, part)
    names = {card.slug: card for card in report.cards}
    fitting = [e for e in part.entries if e.fits]
    fastest = min(fitting, key=lambda e: e.plan.total.seconds)
    smallest = min(fitting, key=lambda e: names[e.card].memory_visible)
    assert f"{len(fitting)} of {len(part.entries)} cards" in answer
    assert f"on the {names[fastest.card].name}" in answer
    assert f"Smallest card that trains it: {names[smallest.card].name}" in answer
    assert sentences.summary(report)[-1].startswith("All ")
    assert "none was measured" in sentences.evidence(report)


def test_nothing_fits(report):
    entries = tuple(dataclasses.replace(e, fits=False) for e in report.workloads[0].entries)
    part = dataclasses.replace(report.workloads[0], entries=entries)
    answer = sentences.workload_answer(report, part)
    assert answer.startswith("None of these 4 cards trains 96³ at batch 8. It needs ")
    broken = dataclasses.replace(report, workloads=(part,))
    assert "does not fit" in page(broken)


def test_what_was_measured_is_told_apart(report):
    entry = report.workloads[0].entries[0]
    cells = (dataclasses.replace(entry.fit.cells[0], basis=Basis.MEASURED), *entry.fit.cells[1:])
    entry = dataclasses.replace(entry, fit=dataclasses.replace(entry.fit, cells=cells))
    part = dataclasses.replace(
        report.workloads[0], entries=(entry, *report.workloads[0].entries[1:])
    )
    changed = dataclasses.replace(report, workloads=(part, *report.workloads[1:]))
    assert sentences.evidence(changed).startswith("1 of ")
    assert '<span class="badge measured">measured</span>' in page(changed)
    rows = charts(changed)["frontier-0"]["data"]["values"]
    assert [row["ran"] for row in rows[:2]] == [True, False]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limited_by": LimitedBy.CAP, "max_batch": 64}, "Nothing up to batch 64"),
        ({"limited_by": LimitedBy.KERNEL, "max_batch": 3}, "Not memory: a kernel cannot index"),
        ({"limited_by": LimitedBy.MEMORY, "max_batch": 0}, "not even one patch of"),
        ({"status": "timed_out", "note": None}, "No answer: timed out"),
    ],
)
def test_what_limits(report, changes, words):
    part = report.workloads[0]
    entry = part.entries[0]
    cells = tuple(
        dataclasses.replace(c, **changes) if c.patch == part.workload.patch else c
        for c in entry.fit.cells
    )
    entry = dataclasses.replace(entry, fit=dataclasses.replace(entry.fit, cells=cells))
    assert words in sentences.limit_text(part, entry)


def test_a_report_comes_back_from_its_json(report, tmp_path):
    document = sentences.document(report)
    validator("report.schema.json").validate(document)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert read_report(file) == report
    assert page(read_report(file)) == page(report)


def _without(document, *path):
    *way, last = path
    for key in way:
        document = document[key]
    del document[last]


def _put(document, value, *path):
    *way, last = path
    for key in way:
        document = document[key]
    document[last] = value


ENTRY = ("workloads", 0, "entries", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: _put(d, 2, "schema_version"), "schema_version 2"),
        (lambda d: _without(d, "cards"), "is no report"),
        (lambda d: _without(d, *ENTRY, "fit"), "fit"),
        (lambda d: _put(d, [], "workloads"), "needs cards"),
        (lambda d: _put(d, -1, *ENTRY, "fit", "budget"), "budget must be a number"),
        (lambda d: _put(d, 99, *ENTRY, "fit", "recommended"), "recommends a cell"),
        (lambda d: _put(d, [], *ENTRY, "fit", "cells"), "lacks the patch"),
        (lambda d: _put(d, "other", *ENTRY, "card"), "one entry for each card"),
        (lambda d: _put(d, 0.0, *ENTRY, "plan", "step", "low"), "step"),
        (lambda d: _put(d, 10**400, *ENTRY, "memory", "least_memory"), "is no report"),
        (lambda d: _put(d, "often", *ENTRY, "memory", "basis"), "basis"),
        (lambda d: _put(d, {"model": 3}, "workloads", 0, "workload"), "is no report"),
        (lambda d: _put(d, "x" * 9, *ENTRY, "plan", "total"), "total"),
    ],
)
def test_a_broken_document_is_refused_in_a_sentence(report, change, words):
    document = json.loads(json.dumps(sentences.document(report)))
    change(document)
    with pytest.raises(RequestError, match=re.escape(words)):
        report_from_plain(document, "r.json")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"schema_version": NaN}', "is no JSON"),
        (b"[1, 2]", "is no report"),
        (b'{"schema_version": 1, "cards": 1e999, "workloads": 2}', "is no report"),
        (b"<html>", "is no JSON"),
    ],
)
def test_a_file_that_is_no_report(tmp_path, raw, words):
    file = tmp_path / "r.json"
    file.write_bytes(raw)
    with pytest.raises(RequestError, match=words):
        read_report(file)
    with pytest.raises(RequestError, match="cannot be read"):
        read_report(tmp_path / "none.json")


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for read in (read_report, read_bundle):
        with pytest.raises(RequestError, match="no regular file"):
            read(tmp_path / "pipe.json")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def written(report, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page(report), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_in_a_browser(browser, written, report, width, dark):
    browser.open(written, width=width, dark=dark)
    assert browser.requests == [written.as_uri()]
    assert browser.messages == []
    drawn = browser.run(
        "[...document.querySelectorAll('[data-chart]')].map(chart => "
        "chart.querySelectorAll('svg .role-mark path, svg .role-mark text').length)"
    )
    assert len(drawn) == 3 * len(report.workloads)
    assert min(drawn) >= len(report.cards)
    inside = browser.run(
        "[...document.querySelectorAll('[data-chart] svg')].every(svg => "
        "svg.getBoundingClientRect().width <= svg.closest('.chart').clientWidth + 1)"
    )
    assert inside
    assert browser.run("document.documentElement.scrollWidth") == width  # no sideways scroll
    colours = browser.run(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in colours]
    assert (light[0] > light[1]) == dark


def test_tables_in_a_browser_are_complete(browser, written, report):
    browser.open(written)
    shown = browser.run(
        "[...document.querySelectorAll('main table')].map(t => "
        "[...t.rows].map(r => r.cells.length).concat(t.querySelectorAll('td:empty').length))"
    )
    assert len(shown) == 2 + 5 * len(report.workloads)
    for *rows, empty in shown:
        assert len(rows) == 1 + len(report.cards)
        assert len(set(rows)) == 1
        assert empty == 0


def test_filters(browser, written, report):
    browser.open(written)
    last = len(report.workloads) - 1
    browser.run(
        f"{{ const pick = document.getElementById('pick-workload'); pick.value = '{last}';"
        "pick.dispatchEvent(new Event('change', {bubbles: true})); }"
    )
    browser.wait("document.documentElement.dataset.charts === 'drawn'")
    visible = "[...document.querySelectorAll('section[data-workload]')].filter(s => !s.hidden)"
    assert browser.run(f"{visible}.map(s => s.dataset.workload)") == [str(last)]
    browser.run("document.querySelectorAll('#filters input')[0].click()")
    browser.wait("document.documentElement.dataset.charts === 'drawn'")
    gone = report.cards[0]
    assert browser.run("document.getElementById('picked').textContent") == "3 of 4"
    assert "cards 3 of 4" in browser.run("document.getElementById('said').textContent")
    rows = "document.querySelectorAll('tr[data-card]:not([hidden])')"
    assert gone.slug not in browser.run(f"[...{rows}].map(r => r.dataset.card)")
    text = browser.run(f"document.querySelector('[data-chart=days-{last}] svg').textContent")
    assert gone.name not in text
    assert report.cards[2].name in text
    assert browser.messages == []


def test_the_keyboard_reaches_everything(browser, written):
    browser.open(written)
    browser.press("Tab", 9)
    assert browser.run("document.activeElement.className") == "skip"
    seen = []
    for _ in range(40):
        browser.press("Tab", 9)
        seen.append(browser.run(
            "(e => e.id || e.getAttribute('aria-label') || e.tagName)(document.activeElement)"
        ))  # fmt: skip
    for wanted in ("theme", "pick-workload", "SUMMARY", "Overview, scrolls sideways"):
        assert wanted in seen
    browser.run("document.getElementById('theme').focus()")
    before = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.press(" ", 32)
    browser.wait(f"getComputedStyle(document.body).backgroundColor !== '{before}'")


def test_it_prints(browser, written):
    browser.open(written)
    assert browser.pdf().startswith(b"%PDF-")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.resize(1040, 720)  # A4 landscape less its margins, 96 px an inch
    wide = browser.run(
        "[...document.querySelectorAll('main table, main svg')]"
        ".filter(t => t.getBoundingClientRect().right > 1041).length"
    )
    assert wide == 0
    browser.call("Emulation.setEmulatedMedia", media="")


def test_hostile_names_run_nothing_in_a_browser(browser, report, tmp_path):
    for i, text in enumerate(HOSTILE):
        file = tmp_path / f"hostile{i}.html"
        file.write_text(page(renamed(report, text)), encoding="utf-8")
        browser.open(file)
        assert browser.run("window.hacked === undefined && !document.getElementById('hacked')")
        assert browser.requests == [file.as_uri()]
        assert browser.messages == []
        browser.run(
            "document.querySelector('[data-chart=memory-0]')"
            ".scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        x, y = browser.run(
            "[...document.querySelectorAll('[data-chart=memory-0] .mark-rect path')]"
            ".map(path => path.getBoundingClientRect()).sort((a, b) => b.width - a.width)"
            ".slice(0, 1).map(r => [r.x + r.width / 2, r.y + r.height / 2])[0]"
        )
        for shift in (0, 1):
            browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + shift, y=y)
        browser.wait("document.querySelector('#vg-tooltip-element.visible') !== null")
        tip = browser.run("document.querySelector('#vg-tooltip-element').textContent")
        assert text.split("\n")[0][:20].strip() in tip
        assert browser.run("document.querySelectorAll('#vg-tooltip-element img').length") == 0
        assert browser.run("window.hacked === undefined")
