"""Tape to bytes on a card: allocator replay, workspaces, context."""
