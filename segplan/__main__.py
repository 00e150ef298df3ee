"""`python -m segplan`: the command line."""

import sys

from segplan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
