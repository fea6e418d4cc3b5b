"""Code on the pages fits its box: no line is wider than 80 characters."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from build_site import OUTSIDE
from markdown_pages import PAGES, ROOT

WIDTH = 80
WIDE = Path(__file__).parent / "wide_lines.txt"
"""How many wider lines a page still has, one page a line. A number only gets smaller."""
_CODE = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_SITE = [*PAGES, *(ROOT / place for place in OUTSIDE if place.endswith(".md"))]


def find_wide_lines(text: str) -> list[str]:
    fenced = [line for code in _CODE.findall(text) for line in code.splitlines()]
    rest = _CODE.sub("", text).splitlines()
    indented = [line[4:] for line in rest if line.startswith("    ") and not line.lstrip().startswith("- ")]
    return [line for line in fenced + indented if len(line) > WIDTH]


def read_exceptions() -> Counter[str]:
    rows = (line.rsplit(" ", 1) for line in WIDE.read_text("utf-8").splitlines())
    return Counter({page: int(number) for page, number in rows})


@pytest.mark.parametrize("page", OF_SITE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_fits_its_box(page: Path) -> None:
    wide = find_wide_lines(page.read_text("utf-8"))
    assert len(wide) <= read_exceptions()[page.relative_to(ROOT).as_posix()], "\n".join(wide)


def test_lines_of_text_may_be_wider() -> None:
    assert find_wide_lines(f"{'x' * 90}\n```python\n{'y' * 81}\n{'z' * 80}\n```\n") == ["y" * 81]
    assert find_wide_lines(f"{'x' * 90}\n\n    {'y' * 81}\n    {'z' * 80}\n") == ["y" * 81]
    assert find_wide_lines(f"- list\n    - {'x' * 90}\n") == []
