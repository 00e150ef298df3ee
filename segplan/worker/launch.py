"""Starting a child process with pipes that nothing else knows."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

REAP_S = 10.0
"""Seconds a killed child may take to end (one that is stuck in the driver does)."""


class Child(Protocol):
    """A process that was started, by whatever means."""

    @property
    def pid(self) -> int | None:
        """Its number; None as long as it is not known."""

    @property
    def returncode(self) -> int | None:
        """As `subprocess` gives it; None while it runs or where nobody knows."""

    def ended(self) -> bool:
        """Whether it has ended, without waiting."""

    def kill(self) -> None:
        """End it and its process group at once; `returncode` is known afterwards."""

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when `ended` may have changed."""


class SpawnedChild:
    """A child of this very process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Minus the signal, or the exit code; None while it is not reaped."""
        return self._process.returncode

    def ended(self) -> bool:
        """Whether the child has ended; it is not reaped, so that its group can be killed."""
        if self._process.returncode is not None:
            return True
        if sys.platform == "darwin":
            return self._process.poll() is not None
        return has_ended(self._process.pid) or self._process.poll() is not None

    def kill(self) -> None:
        """End the child and everything it started."""
        if self._process.returncode is None:
            # Not reaped yet, so the number still is this child's, and its group's.
            kill_group(self._process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_S)

    def filenos(self) -> tuple[int, ...]:
        """None: its pipes close when it ends."""
        return ()


def has_ended(pid: int) -> bool:
    """Whether a child of this process has ended and waits to be reaped."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, flags) is not None
    except ChildProcessError:
        return False


def kill_group(pid: int) -> None:
    """SIGKILL to a process group, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def above_standard(fd: int) -> int:
    """The same file under a number above 2; the given one is closed if it is not.

    Where this process was started without a standard input or output, new descriptors get those
    numbers, and a child's own standard streams would replace them.
    """
    if fd > 2:
        return fd
    try:
        return above_standard(os.dup(fd))
    finally:
        os.close(fd)


@contextlib.contextmanager
def pipes() -> Iterator[tuple[dict[str, int], tuple[int, int, int]]]:
    """The pipes between a worker and its child.

    Yields:
        This side's ends, none of which blocks: "request" to write to, "reply" and "output" (what
        the child prints) to read from; and the child's ends of the same, which are closed here
        at the end. Everything is closed when an error passes through.
    """
    request_read, request_write = map(above_standard, os.pipe())
    reply_read, reply_write = map(above_standard, os.pipe())
    output_read, output_write = map(above_standard, os.pipe())
    ours = {"request": request_write, "reply": reply_read, "output": output_read}
    theirs = (request_read, reply_write, output_write)
    for fd in ours.values():
        os.set_blocking(fd, False)
    try:
        yield ours, theirs
    except BaseException:
        for fd in ours.values():
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)


def spawn(target: str, env: Mapping[str, str], theirs: tuple[int, int, int]) -> SpawnedChild:
    """Start `segplan.worker.child` in a process group of its own.

    Args:
        target: the handler it shall import.
        env: variables added to its environment.
        theirs: its ends of the pipes.

    Raises:
        OSError: the system starts no process.
    """
    request, reply, output = theirs
    command = [sys.executable, "-P", "-m", "segplan.worker.child", target]
    command += ["--request-fd", str(request), "--reply-fd", str(reply)]
    command += ["--parent", str(os.getpid())]
    return SpawnedChild(
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(request, reply),
            start_new_session=True,
            env=environment(env),
        )
    )


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A child's environment; it must find this very segplan, installed or not."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **extra}
    root = str(Path(__file__).resolve().parents[2])
    if root not in [*site.getsitepackages(), site.getusersitepackages()]:
        known = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
        env["PYTHONPATH"] = os.pathsep.join([root, *known])
    return env
