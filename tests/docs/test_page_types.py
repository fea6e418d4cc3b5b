"""Loops over events, as the pages show them, have no errors in type checkers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_pages import PAGES, blocks
from type_checkers import mypy, pyright

EVENT_LOOP = re.compile(r"\bfor event in\b")
PAGE_HEAD = """
import msgspec
import pilothouse as ph

agent = ph.Agent()
conversations: dict[str, str] = {}

def price(item: str) -> float:
    return 1.0

class Invoice(msgspec.Struct):
    number: str
"""


@pytest.mark.parametrize("check", [pyright, mypy])
def test_loops_over_events_in_the_docs_have_no_type_errors(check: Any, tmp_path: Path) -> None:
    found = [block for page in PAGES for block in blocks(page, "python") if EVENT_LOOP.search(block.text)]
    assert len(found) >= 3
    lines = list[str](PAGE_HEAD.strip().splitlines())
    places: dict[int, str] = {}
    for number, block in enumerate(found):
        lines.append(f"async def block_{number}() -> None:")
        for line in block.text.splitlines():
            lines.append(f"    {line}" if line else "")
            places[len(lines)] = f"{block.name}: {line}"
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
    assert {places.get(line, lines[line - 1]): what for line, what in check(tmp_path).items()} == {}
