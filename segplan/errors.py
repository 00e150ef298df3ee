"""Errors that a person can act on: one sentence saying what, why and what to do."""

from __future__ import annotations


class SegplanError(Exception):
    """Base of every error segplan raises on purpose; `exit_code` is the CLI's exit status.

    A plain `SegplanError` means that something failed on the way (exit 1); a
    `RequestError` means that the request cannot be answered as asked (exit 2).
    """

    exit_code = 1


class RequestError(SegplanError, ValueError):
    """The request is wrong, or the card is busy: the message names the fix (exit status 2)."""

    exit_code = 2


class WorkloadError(RequestError):
    """A workload's value has the wrong type or range."""


class NetworkError(RequestError):
    """The network is unknown, cannot be built as asked, or refuses the patch."""


class CardError(RequestError):
    """The card is unknown, not here, busy, or not usable as asked."""


class ConfigError(RequestError):
    """A configuration file cannot be read or holds something it should not."""


class StoreError(SegplanError):
    """The store of measurements cannot be read or written."""


class FileError(StoreError, RequestError):
    """A file to import or export is not what it should be, or cannot be written (exit 2)."""


class WorkerError(SegplanError):
    """A child process ended without an answer (crashed, was killed, or ran out of time)."""
