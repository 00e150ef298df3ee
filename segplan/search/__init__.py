"""The largest batch for each patch, from any oracle: pure, no torch."""
