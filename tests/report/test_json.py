"""The JSON documents keep to their published schemas."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pytest
import referencing

from segplan.report import json as report_json
from segplan.results import Basis, Cell
from segplan.workload import Workload
from tests.cli.fakes import USUAL, estimate_of, fit_of

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


def validator(name):
    schemas = {p.name: json.loads(p.read_text(encoding="utf-8")) for p in SCHEMAS.glob("*.json")}
    resources = [
        (key, referencing.Resource.from_contents(schema)) for key, schema in schemas.items()
    ]
    jsonschema.Draft202012Validator.check_schema(schemas[name])
    registry = referencing.Registry().with_resources(resources)
    return jsonschema.Draft202012Validator(schemas[name], registry=registry)


@pytest.mark.parametrize(
    "fit",
    [
        USUAL,
        fit_of(recommended=None, smallest_card="a40", warnings=("careful",)),
        fit_of(
            Cell((64, 64, 64), 0, None, None, status="failed", basis=Basis.MEASURED, retries=0),
            measured_on="NVIDIA H200",
        ),
    ],
)
def test_fit(fit):
    validator("fit.schema.json").validate(report_json.fit_document(fit))


def test_several_fits():
    validator("fit.schema.json").validate(report_json.fits_document([USUAL, USUAL]))


@pytest.mark.parametrize("card", [None, "rtx-3090"])
def test_estimate(card):
    document = report_json.estimate_document(estimate_of(10.5), Workload(), card)
    validator("estimate.schema.json").validate(document)


@pytest.mark.parametrize("change", [{"extra": 1}, {"schema_version": 2}, {"budget": -1}])
def test_the_schema_is_strict(change):
    document = {**report_json.fit_document(USUAL), **change}
    with pytest.raises(jsonschema.ValidationError):
        validator("fit.schema.json").validate(document)


def test_written_text_is_ascii_and_ends_with_a_newline():
    stream = io.StringIO()
    report_json.write(report_json.fit_document(USUAL), stream)
    assert stream.getvalue().isascii()
    assert stream.getvalue().endswith("}\n")
    assert json.loads(stream.getvalue()) == report_json.fit_document(USUAL)
