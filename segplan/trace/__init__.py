"""The step on fake tensors: a `Tape`."""
