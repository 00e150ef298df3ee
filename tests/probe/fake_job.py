"""A probe's child process without a GPU: memory is a + b x batch x voxels, and it can misbehave.

The environment variable FAKE_CARD names a JSON file; `tests.probe.fakes.FakeCard` writes it.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from segplan.errors import NetworkError
from segplan.probe.outcomes import KERNEL_ELEMENTS, classify, first_line

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate {need} bytes. GPU 0 has a total capacity of 23.65 GiB "
    "of which 11.06 MiB is free."
)
OTHER_ERRORS = {
    "no_engine": "GET was unable to find an engine to execute this computation",
    "shape": "The size of tensor a (6) must match the size of tensor b (7) at non-singleton",
}


class OutOfMemoryError(RuntimeError):
    pass


_imported = False


def startup():
    """Once in a process and those forked from it, as an import is."""
    global _imported
    if _imported:
        return
    _imported = True
    card = json.loads(Path(os.environ["FAKE_CARD"]).read_text())
    time.sleep(card["import_s"])
    with open(card["log"], "a") as log:
        log.write(json.dumps({"imported": os.getpid()}) + "\n")


def handle(request, progress):
    card = json.loads(Path(os.environ["FAKE_CARD"]).read_text())
    workload = request["workload"]
    batch, patch = workload["batch"], workload["patch"]
    entry = {"pid": os.getpid(), "batch": batch, "patch": patch, "steps": request["steps"]}
    entry |= {"limit": request["allocator_limit"], "free_before": request["free_before"]}
    entry["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    with open(card["log"], "a") as log:
        log.write(json.dumps(entry) + "\n")
    known = {"torch": "9.9.9", "card_name": "Fake Card", "cuda": "99.0"}
    progress({"environment": known | card["environment"]})
    behaviour = card["behaviours"].get(f"{'x'.join(map(str, patch))}b{batch}")
    behaviour = behaviour or card["behaviours"].get(str(batch))
    reply = misbehave(behaviour) if behaviour else None
    if reply is not None:
        return reply
    voxels = batch * patch[0] * patch[1] * patch[2]
    need = card["fixed"] + card["per_voxel"] * voxels
    limit = request["allocator_limit"] or card["total"] - card["context"]
    elements = voxels * card["channels"]
    try:
        if behaviour in OTHER_ERRORS:
            raise RuntimeError(OTHER_ERRORS[behaviour])
        if elements >= KERNEL_ELEMENTS:
            raise RuntimeError("input tensor must fit into 32-bit index math")
        if need > limit:
            raise OutOfMemoryError(OUT_OF_MEMORY.format(need=need))
    except RuntimeError as error:
        name = type(error).__name__
        outcome = classify(name, str(error), largest_elements=elements)
        return answer(card, outcome=outcome.value, message=first_line(name, str(error)))
    seconds = card["seconds_per_voxel"] * voxels * (10 if behaviour == "slow" else 1)
    return answer(
        card,
        outcome="fits",
        step_seconds=[seconds] * request["steps"],
        peak_allocated=need * 9 // 10,
        peak_reserved=need,
        process_bytes=need + card["context"],
        allocator_retries=2 if need > 0.95 * limit else 0,
        clean=behaviour != "dirty",
    )


def answer(card, **changes):
    reply = {
        "outcome": None, "message": None, "step_seconds": [], "warmup_seconds": [],
        "peak_allocated": None, "peak_reserved": None, "process_bytes": None,
        "context_bytes": card["context"], "held_bytes": card["context"],
        "allocator_retries": None, "clean": False,
    }  # fmt: skip
    return reply | changes


def misbehave(behaviour):
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "abort":
        os.write(2, b"terminate called after throwing an instance of 'c10::Error'\n")
        os.abort()
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "exit":
        sys.exit(1)
    if behaviour == "print":
        print("\x00 garbage " * 1000)
    if behaviour == "garbage":
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(fd, b"\x00 garbage")
        time.sleep(600)
    if behaviour == "nonsense":
        return {"outcome": "splendid"}
    if behaviour == "key_error":
        raise KeyError("missing")
    if behaviour == "network_error":
        raise NetworkError("unet refuses this patch.")
    return None
