"""The pages of the documentation, and the code blocks in them.

The convention: every `python` block is compiled and, page by page and in order, executed in one namespace, with
top-level `await`; `ph`, `anyio` and `asyncio` are there. Words after `python` say otherwise: `no-run` is only compiled,
`pytest` is a test module of its own (a block with a `def test_` is one too).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from places import ROOT

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    words: frozenset[str]
    text: str

    @property
    def name(self) -> str:
        return f"{name_page(self.page)}:{self.line}"

    @property
    def is_pytest(self) -> bool:
        return "pytest" in self.words or ("def test_" in self.text and "no-run" not in self.words)

    @property
    def is_run(self) -> bool:
        return "no-run" not in self.words and not self.is_pytest

    def compiled(self) -> CodeType:
        """The code; its line numbers are those of the page."""
        text = "\n" * self.line + self.text
        return compile(text, str(self.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def name_page(page: Path) -> str:
    """The name of a page in messages and tables: its path below docs."""
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def blocks(page: Path, language: str) -> list[Block]:
    return [block for block in _all_blocks(page) if block.language == language]


def _all_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match[1], frozenset(match[2].split()), match[3])


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))
