"""The frames between a worker and its child: a mark, a length, and that many bytes of JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

_MARK = b"SGP1"
_HEADER = struct.Struct(">4sI")
_LONGEST = 2**29


class NoFrameError(ValueError):
    """The bytes are no frame: something else wrote into the pipe."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame.

    Raises:
        TypeError, ValueError: the message holds something that is no JSON, or is too long.
    """
    body = json.dumps(message).encode()
    if len(body) > _LONGEST:
        raise ValueError(f"a message of {len(body)} bytes is too long for a worker's pipe")
    return _HEADER.pack(_MARK, len(body)) + body


class Decoder:
    """Cuts a stream of bytes, fed in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with this piece.

        Raises:
            NoFrameError: the stream holds something that is no frame.
        """
        self._buffer += piece
        messages: list[dict[str, Any]] = []
        while True:
            start = bytes(self._buffer[: len(_MARK)])
            if start != _MARK[: len(start)]:
                raise NoFrameError(f"expected a message, found {bytes(self._buffer[:40])!r}")
            if len(self._buffer) < _HEADER.size:
                return messages
            _, length = _HEADER.unpack_from(self._buffer)
            if length > _LONGEST:
                raise NoFrameError(f"a message claims {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return messages
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                message = json.loads(body)
            except ValueError:
                raise NoFrameError(f"a message is no JSON: {body[:40]!r}") from None
            if not isinstance(message, dict):
                raise NoFrameError(f"a message is no object: {body[:40]!r}")
            messages.append(message)
