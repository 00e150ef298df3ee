"""The step on a real GPU, in a child process: a `Measurement`."""

from segplan.probe.prober import Prober

__all__ = ["Prober"]
