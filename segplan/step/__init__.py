"""The training step and the sliding-window validation step, written once."""
