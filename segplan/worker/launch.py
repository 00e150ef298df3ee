"""Starting a child process with pipes that nothing else knows."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def launch(target: str, env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """Start `segplan.worker.child` in a process group of its own.

    Args:
        target: the handler it shall import.
        env: variables added to its environment.

    Returns:
        The process, and this side's ends of its pipes, none of which blocks: "request" to
        write to, "reply" and "output" (what the child prints) to read from.

    Raises:
        OSError: the system starts no process.
    """
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    output_read, output_write = os.pipe()
    ours = {"request": request_write, "reply": reply_read, "output": output_read}
    command = [sys.executable, "-P", "-m", "segplan.worker.child", target]
    command += ["--request-fd", str(request_read), "--reply-fd", str(reply_write)]
    command += ["--parent", str(os.getpid())]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            pass_fds=(request_read, reply_write),
            start_new_session=True,
            env=_environment(env),
        )
    except BaseException:
        for fd in ours.values():
            os.close(fd)
        raise
    finally:
        for fd in (request_read, reply_write, output_write):
            os.close(fd)
    for fd in ours.values():
        os.set_blocking(fd, False)
    return process, ours


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The child's environment; it must find this very segplan, installed or not."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **extra}
    root = str(Path(__file__).resolve().parents[2])
    if root not in [*site.getsitepackages(), site.getusersitepackages()]:
        known = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
        env["PYTHONPATH"] = os.pathsep.join([root, *known])
    return env
