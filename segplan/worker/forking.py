"""The nursery's own process: imports once, then forks a child for each order.

Run as `python -m segplan.worker.forking`. It starts no thread, opens no card, and ends when the
other side of its socket closes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from segplan.worker.child import die_with, serve
from segplan.worker.handlers import load
from segplan.worker.launch import has_ended, kill_group, spawn

_LOOK_S = 0.05  # how often it looks for children that have ended
_LOOK_KILLED_S = 0.005  # the same while somebody waits for one that was killed
_LONGEST_ORDER = 2**20
_FDS = 4  # request, reply, output, control


def main(argv: list[str] | None = None) -> None:
    """Serve until the parent closes the socket or dies."""
    parser = argparse.ArgumentParser(prog="segplan.worker.forking")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--startup", required=True)
    parser.add_argument("--sys-path", type=json.loads, required=True)
    args = parser.parse_args(argv)
    die_with(args.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = args.sys_path
    with contextlib.suppress(Exception, SystemExit):  # a child that imports the same will tell
        load(args.startup)()
    orders = socket.socket(fileno=args.fd)
    os.set_inheritable(args.fd, False)
    _serve_orders(orders, forks=not _holds_card())


def _serve_orders(orders: socket.socket, *, forks: bool) -> None:
    children: dict[socket.socket, int] = {}
    killed: set[socket.socket] = set()
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select(_pause(children, killed)):
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready is not orders:  # nothing is ever sent on it: its other side has closed
                selector.unregister(ready)
                kill_group(children[ready])
                killed.add(ready)
                continue
            order, fds, _flags, _address = socket.recv_fds(orders, _LONGEST_ORDER, _FDS)
            if not order:
                for pid in children.values():
                    kill_group(pid)
                return
            *pipes, control_fd = fds
            control = socket.socket(fileno=control_fd)
            pid = _start(json.loads(order), (pipes[0], pipes[1], pipes[2]), forks)
            for fd in pipes:
                os.close(fd)
            _tell(control, f"pid {pid}\n")
            children[control] = pid
            selector.register(control, selectors.EVENT_READ)
        for control, pid in list(children.items()):
            if has_ended(pid):
                kill_group(pid)  # what it started; until it is reaped the number is its own
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(control, f"exit {code}\n")
                with contextlib.suppress(KeyError):
                    selector.unregister(control)
                killed.discard(control)
                control.close()
                del children[control]


def _pause(children: Collection[socket.socket], killed: Collection[socket.socket]) -> float | None:
    """Seconds to wait for orders before it looks at its children; None: as long as it takes."""
    if killed:
        return _LOOK_KILLED_S
    return _LOOK_S if children else None


def _start(order: dict[str, Any], theirs: tuple[int, int, int], forks: bool) -> int:
    if not forks:
        return spawn(order["target"], order["env"], theirs).pid
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python counts threads of numpy's libraries, which see to forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _be_child(lambda request, reply: serve(order["target"], request, reply, parent),
                  order["env"], theirs)  # fmt: skip
    with contextlib.suppress(OSError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    return pid


def _be_child(
    run: Callable[[int, int], None], env: dict[str, str], theirs: tuple[int, int, int]
) -> NoReturn:
    """Become a process as `spawn` makes them: own group, own output, no other pipes."""
    code = 1
    try:
        request, reply, output = (os.dup(fd) for fd in theirs)
        os.setpgid(0, 0)  # the session is the nursery's, which has no terminal
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, standard in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, standard)
        keep = {request, reply}
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(env)
        run(request, reply)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _tell(control: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the other side may be gone: then nobody asks
        control.send(line.encode())


def _holds_card() -> bool:
    """Whether this process has opened an NVIDIA device: then its children could not use CUDA."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return True
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                return True
    return False


if __name__ == "__main__":
    main()
