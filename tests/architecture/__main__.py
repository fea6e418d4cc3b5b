"""Prints what is measured of the source, and draws the picture of docs/architecture.md.

python -m tests.architecture           prints the table
python -m tests.architecture --write   writes docs/architecture.svg as well
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from tests.architecture.source_map import PICTURE, draw, measure

if __name__ == "__main__":
    for name, (value, limit) in measure().items():
        print(f"{name:<44} {value:>8,}   at most {limit:,}")
    if "--write" in sys.argv:
        PICTURE.write_text(draw())
        print(f"wrote {PICTURE}")
