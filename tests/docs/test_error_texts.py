"""The page of the site with the texts of all errors."""

from __future__ import annotations

import ast
import re

import pytest
from error_texts import collect_texts, escape, find_calls, make_page

from pilothouse import errors

# These are bases, or take their text from the CLI, from a library or from a function.
WITHOUT_A_TEXT = {
    "AuthenticationError", "ContextOverflowError", "ExecutionError", "InvalidModelError", "MaxTurnsError",
    "McpToolError", "OverloadedError", "PeerError", "QuotaError", "RateLimitError", "RefusalError", "ReplayMismatch",
    "ResultError", "StartupRefusedError", "ToolExecutionError", "ToolInputError",
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('raise UsageError("the prompt is empty")', "the prompt is empty"),
        (
            'raise UsageError(f"there is no model {name!r}; did you mean {near}?")',
            "there is no model …; did you mean …?",
        ),
        ('WORDS = "the store is closed"\nraise UsageError(WORDS)', "the store is closed"),
        ('WORDS = "the store"\nraise errors.UsageError(f"{WORDS} is " + state)', "the store is …"),
    ],
)
def test_a_text_shows_what_is_filled_in(source: str, text: str) -> None:
    assert list(find_calls(ast.parse(source), frozenset({"UsageError"}))) == [("UsageError", text)]


def test_what_is_no_text_of_an_error_is_left_out() -> None:
    source = 'raise UsageError(text)\nraise ValueError("not one of ours")'
    assert not list(find_calls(ast.parse(source), frozenset({"UsageError"})))


def test_every_error_has_its_texts() -> None:
    found = collect_texts()
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes - found.keys() <= WITHOUT_A_TEXT
    assert sum(map(len, found.values())) > 400
    assert "the session is closed; make a new one, with resume= to continue" in found["SessionClosedError"]


def test_markdown_changes_nothing_in_a_text() -> None:
    assert escape("use `a_b*`\n or <c>") == r"use \`a\_b\*\` or \<c\>"
    assert re.search(r"^## CLINotFoundError\n\n- .*Claude Code was not found", make_page(), re.MULTILINE)
