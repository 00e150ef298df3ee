"""The step on a real GPU, in a child process: a `Measurement`."""
