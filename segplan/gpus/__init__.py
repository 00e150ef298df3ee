"""Which cards exist (the catalogue) and which are here (NVML)."""
