"""How an answer stands in a terminal: formatted Markdown, however it comes in pieces."""

from __future__ import annotations

import random
import threading
from io import StringIO
from typing import Any

import pyte
import pytest

from pilothouse_cli.markdown_view import MarkdownView
from pilothouse_cli.screen import Screen

COLUMNS, LINES = 30, 10
ANSWER = """\
**Bold** and `code` <div>and HTML</div>
that goes over the end of a line.

- one
- two three four five six seven eight

```python
{code}
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""
CODE = [f"print({number})" for number in range(2 * LINES)]
SHOWN = [
    "Bold and code <div>and",
    "HTML</div> that goes over the",
    "end of a line.",
    "",
    " • one",
    " • two three four five six",
    "   seven eight",
    "",
    *(f" {line}" for line in CODE),
    "",
    " a  b",
    " ────",
    " 1  2",
    "",
    "The end.",
]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """All lines that stand there, those that have scrolled away included."""
        screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        gone = ["".join(row[column].data for column in range(COLUMNS)) for row in screen.history.top]
        return [line.rstrip() for line in [*gone, *screen.display]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("LINES", str(LINES))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize("seed", range(5))
def test_markdown_is_formatted_however_it_comes(terminal: Terminal, seed: int) -> None:
    view, chance, at = MarkdownView(terminal), random.Random(seed), 0
    text = ANSWER.format(code="\n".join(CODE))
    while at < len(text):
        size = chance.randint(1, 9)
        view.feed(text[at : at + size])
        at += size
    view.finish()
    assert terminal.lines()[: len(SHOWN)] == SHOWN
    assert not any(terminal.lines()[len(SHOWN) :])
    view.feed("*Next*")
    view.finish()
    assert terminal.lines()[len(SHOWN)] == "Next"


def test_a_redraw_while_a_block_is_printed_takes_no_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    view, draw = MarkdownView(terminal), MarkdownView.__rich_console__

    def redraw_meanwhile(self: MarkdownView, *given: Any) -> Any:
        if view._live is not None and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=view._live.refresh)
            other.start()
            other.join(0.05)  # or it waits until this one has been drawn
        return draw(self, *given)

    view.feed("Above.\n\n- one\n- two\n")
    assert view._live is not None
    view._live.refresh()
    monkeypatch.setattr(MarkdownView, "__rich_console__", redraw_meanwhile)
    view.feed("\nNext.\n")
    view.finish()
    assert terminal.lines()[:6] == ["Above.", "", " • one", " • two", "", "Next."]


def test_a_note_comes_after_the_answer_before_it(terminal: Terminal) -> None:
    screen = Screen(terminal, terminal)
    screen.show_answers_by(MarkdownView)
    for piece in ("One **tw", "o** thr", "ee"):
        screen.text(piece)
    screen.note("a note")
    screen.text("again")
    screen.end_text()
    assert terminal.lines()[:4] == ["One two three", "a note", "again", ""]


@pytest.mark.parametrize("dumb", [True, False])
def test_elsewhere_an_answer_stays_as_it_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, dumb: bool) -> None:
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    out = terminal if dumb else StringIO()
    screen = Screen(out, terminal)
    screen.show_answers_by(MarkdownView)
    screen.text("**stays** as it is, however long the line becomes")
    assert out.getvalue() == "**stays** as it is, however long the line becomes"
