"""Nursery: children that have imported torch before they are born.

One process imports what all children need, which takes seconds, and then only forks; a forked
child starts within milliseconds and has run nothing. The process touches no card: CUDA does not
survive a fork. Where an import has opened one (or the system cannot fork safely), it starts new
processes instead, as without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Self

from segplan.worker.launch import REAP_S, above_standard, environment


class Nursery:
    """The process that forks children for `Worker`.

    Args:
        startup: "package.module:function" it calls once, without arguments: the imports.
        env: variables added to its environment, and so to its children's.
    """

    def __init__(self, startup: str, *, env: Mapping[str, str] | None = None) -> None:
        self.startup = startup
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self) -> Self:
        """Let it begin to import; returns at once. A dead one is replaced.

        Raises:
            OSError: the system starts no process.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        self.close()
        ours, theirs = (
            socket.socket(fileno=above_standard(end.detach()))
            for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "segplan.worker.forking",
                    "--fd", str(theirs.fileno()), "--parent", str(os.getpid()),
                    "--startup", self.startup,
                    "--sys-path", json.dumps(absolute_path()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment(self._env),
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        return self

    def launch(self, target: str, env: Mapping[str, str], theirs: tuple[int, int, int]) -> Forked:
        """A child with these ends of its worker's pipes; it starts once the imports are done.

        Raises:
            OSError: the process cannot be started or reached.
        """
        self.start()
        assert self._socket is not None
        ours, control = socket.socketpair()
        try:
            order = json.dumps({"target": target, "env": dict(env)}).encode()
            self._socket.settimeout(REAP_S)
            socket.send_fds(self._socket, [order], [*theirs, control.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            control.close()
        ours.setblocking(False)
        assert self._process is not None
        return Forked(ours, self._process)

    def close(self) -> None:
        """End the process; its children end with it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_S)
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class Forked:
    """A child of a nursery, known by a socket on which the nursery tells of it.

    The nursery writes "pid N" and later "exit CODE"; when this side closes, it kills the child.

    Args:
        control: this side of the socket.
        nursery: its process.
    """

    def __init__(self, control: socket.socket, nursery: subprocess.Popen[bytes]) -> None:
        self._control = control
        self._nursery = nursery
        self._text = ""
        self._closed = False
        self.pid: int | None = None
        self.returncode: int | None = None

    def ended(self) -> bool:
        """Whether the child, or the nursery with it, has ended."""
        self._look()
        return self._closed or self.returncode is not None

    def kill(self) -> None:
        """Have the child and its group killed, and wait until it is gone.

        A nursery that still imports has no child yet: it is not waited for, and ends the child
        as soon as it is born.
        """
        if self._control.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        end = time.monotonic() + REAP_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            while not self.ended() and self.pid is not None and time.monotonic() < end:
                selector.select(0.1)
        self._control.close()
        self._closed = True

    def filenos(self) -> tuple[int, ...]:
        """The socket."""
        return (self._control.fileno(),) if self._control.fileno() >= 0 else ()

    def _look(self) -> None:
        while not self._closed and self._control.fileno() >= 0:
            try:
                piece = self._control.recv(256)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self._text += piece.decode(errors="replace")
            self._read_lines()
            if not piece:
                self._closed = True
                if self.returncode is None:  # the nursery went away, and the child with it
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.returncode = self._nursery.wait(1)

    def _read_lines(self) -> None:
        *lines, self._text = self._text.split("\n")
        for line in lines:
            what, _, number = line.partition(" ")
            if what == "pid":
                self.pid = int(number)
            elif what == "exit":
                self.returncode = int(number)


def absolute_path() -> list[str]:
    """`sys.path` in a form that means the same in another folder."""
    return [os.path.abspath(entry or os.curdir) for entry in sys.path]
