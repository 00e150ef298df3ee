"""The `segplan` command and `python -m segplan`: Ctrl-C is quiet from the first moment."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Load the command line and run it; returns the exit status."""
    try:
        from segplan.cli.main import main as run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
