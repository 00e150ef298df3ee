"""JSON and YAML files from anywhere, read so that none of them can harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from segplan.errors import RequestError
from segplan.files import read_regular

MAX_BYTES = 64 * 2**20
"""A larger file describes no dataset: 1,000 cases take about 10 MB of MONAI's statistics."""

MAX_DEPTH = 50
"""Deeper nesting describes no dataset either, and would exhaust the parser's stack."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        RequestError: it cannot be read, is too large, is nested too deep, or is no JSON.
    """
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is no JSON: {first_line(error)}.") from error


def read_yaml(path: Path) -> Any:
    """The value in a YAML file; aliases may stand in it, as PyYAML writes them, merges not.

    Raises:
        RequestError: it cannot be read, is too large, is nested too deep, or is no YAML.
    """
    text = _read(path)
    try:
        _refuse_bombs(text, path)
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is no YAML: {first_line(error)}.") from error


def _refuse_bombs(text: str, path: Path) -> None:
    """Refuse absurd nesting, and merge keys: those alone copy what an alias stands for."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and event.value == "<<":
            raise RequestError(f"{path} merges YAML mappings (<<), which is not taken.")
        if depth > MAX_DEPTH:
            raise RequestError(f"{path} is nested more than {MAX_DEPTH} deep.")


def _read(path: Path) -> str:
    raw = read_regular(path, MAX_BYTES, too_large="it describes no dataset")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is no text: name the dataset's folder, or its dataset.json or fingerprint."
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message without its stop, or the error's name."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
