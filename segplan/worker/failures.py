"""How a worker can fail, and how an error crosses from the child to its parent."""

from __future__ import annotations

import contextlib
import re
import signal
from typing import Any

from segplan import errors
from segplan.errors import RequestError, SegplanError, WorkerError


class WorkerCrashed(WorkerError):
    """The child died: it was killed, aborted, or exited without an answer.

    Attributes:
        returncode: as `subprocess` gives it: minus the signal, or the exit code; None if unknown.
        tail: the end of what the child printed.
    """

    def __init__(self, message: str, returncode: int | None = None, tail: str = "") -> None:
        super().__init__(message)
        self.returncode = returncode
        self.tail = tail


class WorkerTimedOut(WorkerError):
    """The child gave no answer in time, and was killed."""


class WorkerGarbled(WorkerError):
    """The child answered with something that is no message, and was killed."""


class WorkerFailed(WorkerError):
    """The handler raised an error that is not segplan's own; the child lives on.

    Attributes:
        error_type: the class's name in the child.
        detail: the error's whole text.
    """

    def __init__(self, error_type: str, detail: str) -> None:
        first = detail.strip().splitlines()
        super().__init__(f"{error_type}: {first[0]}" if first else error_type)
        self.error_type = error_type
        self.detail = detail


def describe(error: BaseException) -> dict[str, Any]:
    """An error as JSON values, for `revive` on the other side."""
    return {
        "type": type(error).__name__,
        "kinds": [cls.__name__ for cls in type(error).__mro__ if issubclass(cls, SegplanError)],
        "message": str(error),
        "request_error": isinstance(error, RequestError),
    }


def revive(described: dict[str, Any]) -> SegplanError:
    """The error that `describe` described.

    segplan's own come back as the same class (or the nearest one that `segplan.errors`
    defines), all others as `WorkerFailed`.
    """
    message = str(described.get("message", ""))
    for name in described.get("kinds", ()):
        cls = getattr(errors, str(name), None)
        if isinstance(cls, type) and issubclass(cls, SegplanError):
            return cls(message)
    return WorkerFailed(str(described.get("type", "Error")), message)


def crashed(returncode: int | None, tail: str) -> WorkerCrashed:
    """The error for a child that ended with this code after printing this."""
    why = ""
    if returncode is None:
        how = "went away"
    elif returncode < 0:
        how = f"was ended by signal {-returncode}"
        with contextlib.suppress(ValueError):
            how += f" ({signal.Signals(-returncode).name})"
        if returncode == -9:
            why = " (the system does that when main memory runs out)"
    else:
        how = f"exited with code {returncode}"
    line = telling_line(tail)
    return WorkerCrashed(
        f"The child process {how} without an answer{why}{f': {line}' if line else '.'}",
        returncode,
        tail,
    )


_TELLING = re.compile(r"error|what\(\)|terminate called|assert|fatal|cannot|killed", re.IGNORECASE)
_NOISE = re.compile(r"^\s*(File \"|Extension modules|Current thread|<no Python frame>|#)")


def telling_line(tail: str) -> str:
    """The line of a child's last output that most likely says what went wrong; "" if none."""
    lines = [s for s in (line.strip() for line in tail.splitlines()) if s and not _NOISE.match(s)]
    telling = [line for line in lines if _TELLING.search(line)]
    chosen = (telling or lines)[-1:]
    return chosen[0][:300] if chosen else ""
