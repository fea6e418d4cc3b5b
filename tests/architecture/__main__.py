"""Prints the size and shape of the source, and draws the picture of docs/architecture.md.

python -m tests.architecture           prints the tables
python -m tests.architecture --write   writes docs/architecture.svg as well
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from tests.architecture.source_map import PICTURE, class_sizes, draw, measure, package_sizes

SHOWN_CLASSES = 12

if __name__ == "__main__":
    for name, (value, limit) in measure().items():
        print(f"{name:<44} {value:>8,}" + (f"   at most {limit:,}" if limit is not None else ""))
    print("\nlines of code")
    for name, size in package_sizes().items():
        print(f"{name:<44} {size:>8,}")
    print("\nattributes, flags, methods of the largest classes")
    for size in class_sizes()[:SHOWN_CLASSES]:
        print(f"{size.name:<60} {size.attributes:>4} {size.flags:>4} {size.methods:>4}")
    if "--write" in sys.argv:
        PICTURE.write_text(draw())
        print(f"wrote {PICTURE}")
