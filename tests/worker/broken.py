"""A module that cannot be imported."""

raise ImportError("libcudart.so.12: cannot open shared object file")
