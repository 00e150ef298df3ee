"""Child processes: a JSON request in, a JSON result out, an answer even on abort or time-out."""

from segplan.worker.failures import WorkerCrashed, WorkerFailed, WorkerGarbled, WorkerTimedOut
from segplan.worker.inprocess import InProcessWorker
from segplan.worker.nursery import Nursery
from segplan.worker.pool import WorkerPool
from segplan.worker.process import Worker

__all__ = [
    "InProcessWorker",
    "Nursery",
    "Worker",
    "WorkerCrashed",
    "WorkerFailed",
    "WorkerGarbled",
    "WorkerPool",
    "WorkerTimedOut",
]
