"""`python -m pilothouse`: the command, for when its script is not on PATH."""

import sys

from pilothouse.cli import main

if __name__ == "__main__":
    sys.exit(main())
