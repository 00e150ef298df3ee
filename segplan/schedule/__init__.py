"""A dataset and epochs become iterations, hours and energy; pure arithmetic."""
