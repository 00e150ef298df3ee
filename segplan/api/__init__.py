"""The public functions, each composing the rooms below."""
