import os
import time

import pytest


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process ends (or is only waiting to be reaped) within some seconds."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(autouse=True)
def _no_leaked_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
