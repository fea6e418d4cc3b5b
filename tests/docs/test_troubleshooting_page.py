"""The page on troubleshooting has every error, and what it says that a message contains is what the source says."""

from __future__ import annotations

import re

from markdown_pages import DOCS, prose
from places import source_files

from pilothouse import errors

PAGE = prose(DOCS / "guides" / "troubleshooting.md")
TEXTS = re.findall(r"^- `([^`]+)`", PAGE, re.MULTILINE)


def texts_of_the_source() -> str:
    """The source, with the texts that stand on several lines put together."""
    files = (path.read_text("utf-8") for path in source_files())
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(files))


def test_every_error_has_a_heading() -> None:
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert {name for name in classes if issubclass(getattr(errors, name), Exception)} >= {"UsageError", "QuotaError"}
    headings = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == classes


def test_there_are_texts_to_search_for() -> None:
    assert len(TEXTS) > 60


def test_the_texts_of_the_page_are_those_of_the_source() -> None:
    said = texts_of_the_source()
    assert not [text for text in TEXTS if text not in said]
