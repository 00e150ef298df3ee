"""Handlers: the functions that answer requests, named by dotted text."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from segplan.errors import WorkerError
from segplan.worker.failures import describe

Handler = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], dict[str, Any]]


def load(dotted: str) -> Callable[..., Any]:
    """The function that "package.module:function" names.

    Raises:
        WorkerError: there is none.
    """
    module, _, name = dotted.partition(":")
    function = getattr(importlib.import_module(module), name or "?", None)
    if not callable(function):
        raise WorkerError(f"'{dotted}' names no function: write it as package.module:function.")
    return function  # type: ignore[no-any-return]


def answer(handler: Handler, request: dict[str, Any], progress: Any) -> dict[str, Any]:
    """The handler's answer, or its error, as a message for the parent."""
    try:
        return {"result": handler(request, progress)}
    except Exception as error:  # whatever it is, the parent shall know
        return {"error": describe(error)}
