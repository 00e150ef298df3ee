"""What a dataset on disk holds, read from headers, and how fast it can be loaded."""
