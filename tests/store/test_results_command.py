"""`segplan results`: from the command line to what a person sees."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from segplan.api.results_store import stored_results
from segplan.cli.main import main
from segplan.errors import RequestError
from segplan.report.console import make_console
from segplan.report.stored import render
from segplan.results import Environment, Outcome
from segplan.store import Store
from segplan.workload import Workload
from tests.report.test_json import validator
from tests.store.samples import OTHER_H200, failure, sample

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "s.db"))
    monkeypatch.setenv("COLUMNS", "80")
    with Store.open() as store:
        store.add(sample())
        store.add(failure(workload=Workload(model="unet", patch=(128, 128, 64), batch=2)))
        store.add(sample(environment=OTHER_H200, made_at="2026-12-02T09:00:00+00:00"))
    return tmp_path / "s.db"


@pytest.fixture
def run(capsys):
    def run(*words):
        status = main(["results", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def shown(results):
    stream = io.StringIO()
    render(results, make_console(stream, width=80))
    return stream.getvalue()


def test_the_table(path, run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert out.index("GPU-2222") < out.index("GPU-1111")
    assert "torch 2.11.0+cu130, CUDA 13.0" in out
    assert "swinunetr" in out
    assert "128×128×64" in out
    assert "out of memory" in out
    assert "22.5 GiB" in out  # the limit: 23,000 / 1,024
    assert "17.3 GiB" in out  # the peak: 17,700 / 1,024
    assert "410 ms" in out  # the median, 0.412 s, at two digits
    assert "3 measurements (3 in" in out
    assert max(map(len, out.splitlines()[:-2])) <= 80


@pytest.mark.parametrize(
    ("words", "matching"),
    [
        (["--model", "unet"], 1),
        (["--card", "h200"], 3),
        (["--card", "GPU-2222"], 1),
        (["--card", "rtx-3090"], 0),
        (["--patch", "96"], 2),
        (["--patch", "128x128x64"], 1),
        (["--outcome", "fits"], 2),
        (["--outcome", "out-of-memory"], 1),
        (["--outcome", "fits", "--model", "unet"], 0),
    ],
)
def test_filters(path, run, words, matching):
    status, out, _ = run("--json", *words)
    assert status == 0
    document = json.loads(out)
    assert document["schema_version"] == 1
    assert (document["matching"], document["total"]) == (matching, 3)
    assert len(document["measurements"]) == matching


def test_json_has_the_attributes(path, run):
    _, out, _ = run("--json", "--limit", "1")
    document = json.loads(out)
    validator("results.schema.json").validate(document)
    (row,) = document["measurements"]
    assert document["matching"] == 3
    assert row["median_step_s"] == 0.412
    assert row["measurement"]["environment"]["card_uuid"] == "GPU-2222"
    assert row["measurement"]["step_seconds"] == [0.41, 0.412, 0.43]


def test_the_table_is_limited_and_says_so(path, run):
    with Store.open() as store:
        for number in range(30):
            store.add(sample(wall_s=float(number)))
    _, out, _ = run()
    assert "20 of 33 shown; --limit N shows more (33 in" in out
    _, out, _ = run("--limit", "2", "--model", "unet")
    assert "1 measurement (33 in" in out
    _, out, _ = run("--json")
    assert len(json.loads(out)["measurements"]) == 33


def test_export_and_import(path, run, tmp_path):
    status, out, _ = run("--export", str(tmp_path / "out.json"), "--model", "swinunetr")
    assert status == 0
    assert "2 measurements written to" in out
    other = str(tmp_path / "other.db")
    status, out, _ = run("--store", other, "--import", str(tmp_path / "out.json"))
    assert status == 0
    assert "2 measurements added" in out
    _, out, _ = run("--store", other, "--import", str(tmp_path / "out.json"), "--json")
    document = json.loads(out)
    validator("results.schema.json").validate(document)
    assert document["imported"]["known"] == 2
    assert document["total"] == 2
    run("--export", str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_text().count("\n") == 4


def test_skipped_rows_are_named(path, run, tmp_path):
    document = {"schema_version": 1, "measurements": [{"schema_version": 1, "workload": {}}] * 12}
    (tmp_path / "in.json").write_text(json.dumps(document))
    status, out, _ = run("--import", str(tmp_path / "in.json"))
    assert status == 0
    assert "12 skipped" in out
    assert "measurement 10: it has no 'outcome'." in out
    assert "measurement 11" not in out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--outcome", "fit"], 2, "did you mean fits?"),
        (["--patch", "12y"], 2, "no patch size"),
        (["--limit", "0"], 2, "--limit must be at least 1"),
        (["--export", "out.xlsx"], 2, "end its name in .json or .csv"),
        (["--import", "nowhere.json"], 2, "there is no file 'nowhere.json'"),
        (["--store", "nowhere.db"], 2, "there is no store"),
        (["--export", "/nowhere/out.csv"], 2, "cannot be written"),
    ],
)
def test_errors_are_one_sentence(path, run, tmp_path, monkeypatch, words, status, message):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(*words)
    assert (got, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.db"]


def test_a_damaged_store_is_status_1(path, run):
    path.write_text("no database")
    status, out, err = run()
    assert (status, out) == (1, "")
    assert "damaged" in err


def test_looking_makes_no_file(tmp_path, monkeypatch, run):
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "dir" / "s.db"))
    status, out, _ = run()
    assert status == 0
    assert "Nothing measured yet" in out
    assert list(tmp_path.iterdir()) == []
    assert stored_results().measurements == ()
    with pytest.raises(RequestError, match="limit must be"):
        stored_results(limit=0)


def test_an_imported_name_cannot_steer_the_terminal(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        evil = "\x1b]0;owned\x07 [bold]A40[/bold]\n"
        store.add(sample(environment=Environment(card_name=evil, torch=evil)))
        store.add(failure(Outcome.CRASHED, workload=Workload(model="a.b:\x1b[2Jc")))
    out = shown(stored_results(tmp_path / "s.db"))
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[bold]A40[/bold]" in out


@pytest.mark.parametrize("width", [80, 100])
def test_names_are_never_cut(tmp_path, width):
    with Store.open(tmp_path / "s.db") as store:
        store.add(failure(workload=Workload(model="basicunetplusplus", patch=(128, 128, 64))))
    stream = io.StringIO()
    render(stored_results(tmp_path / "s.db"), make_console(stream, width=width))
    assert "…" not in stream.getvalue()
    assert ("made" in stream.getvalue()) == (width == 100)
    assert "basicunetplusplus" in stream.getvalue()


def test_unknown_values_are_no_zeros(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.add(failure(peak_allocated=None, allocator_limit=None, environment=Environment()))
    out = shown(stored_results(tmp_path / "s.db"))
    assert "unknown card (no UUID)" in out
    assert "versions not known" in out
    assert "0 B" not in out
    assert out.count("–") >= 3


def test_the_help_has_an_example_and_nothing_heavy_is_loaded(run):
    program = (
        "import sys, segplan.cli.results, segplan.api.results_store, segplan.report.stored\n"
        "print({'torch', 'monai', 'pandas', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
    _, out, _ = run("--help")
    assert "segplan results --import theirs.json" in out


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """A store with nothing but two baseline checks, one of them interrupted."""
    monkeypatch.setenv("SEGPLAN_STORE", str(tmp_path / "s.db"))
    monkeypatch.setenv("COLUMNS", "80")
    whole = json.loads((DATA / "h200_bench.json").read_text("utf-8"))["document"]
    part = {**whole, "series": whole["series"][:2], "comparisons": [], "interrupted": True,
            "made_at": "2026-12-02T09:00:00+00:00"}  # fmt: skip
    with Store.open() as store:
        store.add_bench(whole)
        store.add_bench(part)
    return tmp_path / "s.db"


def test_baseline_checks_are_listed(checked, run):
    status, out, _ = run()
    assert status == 0
    assert "Baseline checks" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("2026-12-0")]
    assert [row[0] for row in rows] == ["2026-12-02", "2026-12-01"]
    assert rows[0][-1] == "interrupted"
    assert rows[1][-2:] == ["as", "expected"]
    assert "9859 /s" in out
    assert "2 baseline checks in" in out
    assert "Nothing" not in out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], 2),
        (["--card", "h200"], 2),
        (["--card", "rtx-3090"], 0),
        (["--limit", "1"], 1),
        (["--model", "unet"], 0),
        (["--patch", "96"], 0),
        (["--outcome", "fits"], 0),
    ],
)
def test_which_baseline_checks(checked, run, words, shown):
    _, out, _ = run("--json", *words)
    document = json.loads(out)
    validator("results.schema.json").validate(document)
    assert document["total_benches"] == 2
    assert len(document["benches"]) == shown
    _, out, _ = run(*words)
    assert ("Nothing matches" in out) == (shown == 0)


def test_baseline_checks_travel(checked, run, tmp_path):
    _, out, _ = run("--export", str(tmp_path / "out.json"))
    assert "2 baseline checks written to" in out
    other = str(tmp_path / "other.db")
    _, out, _ = run("--store", other, "--import", str(tmp_path / "out.json"))
    assert "2 baseline checks added" in out
    _, out, _ = run("--store", other, "--import", str(tmp_path / "out.json"))
    assert "2 there already" in " ".join(out.split())
    with Store.open(checked) as mine, Store.open(other) as theirs:
        assert mine.benches() == theirs.benches()
    _, out, _ = run("--export", str(tmp_path / "out.csv"))
    assert "A .csv file holds no baseline checks" in " ".join(out.split())


def test_what_is_no_baseline_check_is_skipped_and_named(checked, run, tmp_path):
    run("--export", str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_text())
    for number, bad in enumerate(({"series": 3}, 7, {**document["benches"][0], "mode": "x"})):
        document["benches"].insert(number, bad)
    (tmp_path / "out.json").write_text(json.dumps(document))
    _, out, _ = run("--store", str(tmp_path / "o.db"), "--import", str(tmp_path / "out.json"))
    assert "2 baseline checks added" in out
    assert "3 skipped" in out
    assert "baseline check 3: it is no baseline check: mode" in " ".join(out.split())


def test_a_check_that_cannot_be_read_costs_none_of_the_others(checked, run):
    with Store.open() as store:
        store.add_bench({"made_at": "2026-01-01", "environment": {}})
    status, out, _ = run()
    assert status == 0
    assert "2 baseline checks" in out
    assert "A baseline check cannot be read" in out


def test_a_store_with_both(path, run):
    with Store.open() as store:
        store.add_bench(json.loads((DATA / "h200_bench.json").read_text("utf-8"))["document"])
    _, out, _ = run()
    assert "3 measurements and 1 baseline check (3 measurements and 1 baseline check in" in out
