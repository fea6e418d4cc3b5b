"""How an answer stands in a terminal: broken between words, with the commonest Markdown."""

from __future__ import annotations

import random
import re
from io import StringIO

import pytest

from pilothouse_cli.screen import BOLD_OFF, BOLD_ON, CODE_OFF, CODE_ON, ERASE_LINE, AnswerFormatter, Screen

MARKS = {BOLD_ON: "<b>", BOLD_OFF: "</b>", CODE_ON: "<c>", CODE_OFF: "</c>"}


def on_screen(written: str) -> str:
    """What stands there once words that did not fit were taken back."""
    while (at := written.find("\b")) >= 0:
        end = written.index(ERASE_LINE)
        cells, kept = end - at, written[:at]
        while cells:
            cells -= 2 if kept[-1] in "漢字" else 1
            kept = kept[:-1]
        written = kept + written[end + len(ERASE_LINE) :]
    return written


def shown(text: str, width: int = 20, *, styled: bool = True, sizes: int | None = None) -> str:
    flow = AnswerFormatter(lambda: width, styled=styled)
    luck = random.Random(sizes)
    found, at = "", 0
    while at < len(text):
        size = len(text) if sizes is None else luck.randint(1, 3)
        found += flow.feed(text[at : at + size])
        at += size
    found = on_screen(found + flow.finish())
    for code, mark in MARKS.items():
        found = found.replace(code, mark)
    return found


CASES = [
    ("One two three four five six", "One two three four\nfive six"),
    ("sailors on the coast of Normandy", "sailors on the coast\nof Normandy"),
    ("exactly twenty cells and more", "exactly twenty cells\nand more"),
    ("a" * 30 + " b", "a" * 30 + "\nb"),
    ("# The *title*\ntext", "<b>The *title*</b>\ntext"),
    ("This is **very bold** text", "This is <b>very bold</b>\ntext"),
    ("(**bold**), 2**3 and ** too", "(<b>bold</b>), 2**3 and **\ntoo"),
    ("Use `ls -l` now", "Use <c>ls -l</c> now"),
    ("`**` is code", "<c>**</c> is code"),
    ("- one two three four five\n* b", "• one two three four\n  five\n• b"),
    ("  1. one two three four five", "  1. one two three\n     four five"),
    ("```python\nx = '**'   # a long line of code is kept\n```\n**b**", None),
    ("an open **bold\n\nnext", "an open <b>bold\n</b>\nnext"),
    ("a - b * c # d", "a - b * c # d"),
    ("漢字漢字漢字 漢字漢字 漢字", "漢字漢字漢字\n漢字漢字 漢字"),
    ("ends in spaces  \nnext\n\n", "ends in spaces  \nnext\n\n"),
    ("end `code", "end <c>code</c>"),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_markdown_in_a_terminal(text: str, expected: str | None) -> None:
    if expected is None:
        expected = text.replace("**b**", "<b>b</b>")
    assert shown(text) == expected
    for seed in range(20):
        assert shown(text, sizes=seed) == expected


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_without_codes_only_lines_are_broken(text: str, expected: str | None) -> None:
    found = shown(text, styled=False)
    assert "<" not in found
    assert re.sub(r"\s+", " ", found) == re.sub(r"\s+", " ", text)
    for seed in range(20):
        assert shown(text, styled=False, sizes=seed) == found


def test_the_next_answer_begins_anew() -> None:
    flow = AnswerFormatter(lambda: 20, styled=True)
    assert flow.feed("```\n**x") == "```\n"
    assert flow.finish() == "**x"
    assert flow.feed("**y** ") == f"{BOLD_ON}y{BOLD_OFF}"
    assert flow.finish() == ""


class Window(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_a_note_or_a_thought_comes_after_the_buffered_word(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm" if rich else "dumb")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Window()
    screen = Screen(out, out)
    screen.enable_formatting()
    for piece in ("One two thr", "ee four **fi", "ve** si", "x"):
        screen.text(piece)
    screen.note("a note")
    screen.text("again")
    screen.end_text()
    five = f"{BOLD_ON}five{BOLD_OFF}" if rich else "**five**"
    assert out.getvalue() == f"One two three four\n{five} six\na note\nagain\n"
    piped = StringIO()
    screen = Screen(piped, out)
    screen.enable_formatting()
    screen.text("**stays** as it is, however long the line becomes")
    assert piped.getvalue() == "**stays** as it is, however long the line becomes"
