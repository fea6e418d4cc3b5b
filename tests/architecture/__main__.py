"""Prints the numbers of the source that we keep an eye on, and draws the picture of docs/architecture.md.

python -m tests.architecture           prints the table
python -m tests.architecture --write   writes docs/architecture.svg as well
"""

from __future__ import annotations

import sys

from tests.architecture.source_map import PICTURE, draw, measure

if __name__ == "__main__":
    for name, (value, limit) in measure().items():
        print(f"{name:<44} {value:>8,}" + (f"   at most {limit:,}" if limit is not None else ""))
    if "--write" in sys.argv:
        PICTURE.write_text(draw())
        print(f"wrote {PICTURE}")
