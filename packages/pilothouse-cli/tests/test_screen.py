"""The plain screen: whose line it is, what progress looks like; and fetching in a thread that can be called off."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from pilothouse.errors import CLIExitedError, CLINotFoundError, OptionsError, ProvisionError, QueryTimeout
from pilothouse_cli.failures import describe_failure, join_lines
from pilothouse_cli.progress import format_tool_input, shorten_text
from pilothouse_cli.screen import Screen


def test_a_note_in_the_middle_of_a_line_starts_a_new_one_where_both_are_seen() -> None:
    both = io.StringIO()
    screen = Screen(both, both)
    screen.text("Half a")
    screen.note("trying again")
    screen.text(" line.")
    screen.end_text()
    screen.end_text()
    assert both.getvalue() == "Half a\ntrying again\n line.\n"


def test_a_note_does_not_break_an_answer_that_goes_elsewhere() -> None:
    out, notes = io.StringIO(), io.StringIO()
    screen = Screen(out, notes)
    screen.text("Half a")
    screen.note("trying again")
    screen.text(" line.\n")
    screen.end_text()
    assert (out.getvalue(), notes.getvalue()) == ("Half a line.\n", "trying again\n")


def test_thinking_and_answer_take_turns() -> None:
    both = io.StringIO()
    screen = Screen(both, both)
    for piece in ("Let me", " see."):
        screen.thought(piece)
    screen.text("Yes.")
    screen.thought("And")
    screen.note("done")
    assert both.getvalue() == "thinking: Let me see.\nYes.\nthinking: And\ndone\n"


def test_progress_is_a_line_for_every_stage() -> None:
    notes = io.StringIO()
    with Screen(io.StringIO(), notes).progress("model") as report:
        for done in (0, 50_000_000, 98_000_000):
            report("download", done, 98_000_000)
        report("verify", 0, None)
        report("something new", 0, None)
    assert notes.getvalue() == "model: downloading (98 MB)\nmodel: checking\nmodel: something new\n"


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (OptionsError("no such option"), 2, "no such option"),
        (
            QueryTimeout("too long", seconds=1, kind="idle_timeout"),
            124,
            "too long; raise --idle-timeout to wait longer",
        ),
        (CLIExitedError("it exited; its standard error ends with:\n  a\n  b"), 1, "ends with: a | b; --verbose"),
        (
            CLINotFoundError(
                "Claude Code was not found (cli='x'). Tried:\n  /a\nInstall it so:\n  pilothouse install-cli"
            ),
            2,
            "Claude Code was not found (--cli x); install it with `pilothouse install-cli`, or give its path",
        ),
        (ProvisionError("no network"), 1, "no network"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
    ],
)
def test_errors_in_one_line(error: Exception, code: int, output: str) -> None:
    reported = describe_failure(error)
    assert reported.code == code
    assert output in reported.line
    assert "\n" not in reported.line


def test_nothing_is_to_be_installed_here_when_the_other_side_has_no_claude() -> None:
    assert describe_failure(CLINotFoundError("there is no claude over there")).line == "there is no claude over there"


def test_texts_are_shortened_to_one_line() -> None:
    assert join_lines("a\n\n  b:\n c\n") == "a | b: c"
    assert len(shorten_text("word " * 1000)) == 100
    assert shorten_text("a\n\t b") == "a b"
    assert format_tool_input({"file_path": "/x", "limit": 3}) == "/x"
    assert format_tool_input({"a": 1, "ä": [None]}) == '{"a": 1, "ä": [null]}'
    assert format_tool_input({}) == ""


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_window_cuts_texts_and_no_number(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    head = ("agent", "replies", "input", "write", "read", "output", "time", "cost")
    row = ("general-purpose: 検索 every caller of it", "12", "46,750", "7,000", "7,000", "≈1,300", "12.5 s", "$0.0469")
    Screen(out, io.StringIO()).table(head, [row])
    _, line = out.getvalue().splitlines()
    assert line.split()[-8:] == [*row[1:6], "12.5", "s", "$0.0469"]
    assert line.startswith("general-purpo" if columns == 80 else "general-p…")
    assert cell_len(line) <= 80
    for head, row in (
        (("day", "input", "output"), ("2026-11-30", "12,345,678,901,234,567,890", "12,345,678,901,234,567,890")),
        (("id", "input", "file"), ("1f0c", "12,345,678,901,234,567,890", "sixteen_letters.")),
    ):
        out.seek(0)
        out.truncate()
        Screen(out, io.StringIO()).table(head, [row])
        assert out.getvalue().splitlines()[1].split()[:2] == [*row[:2]]


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\x1b", "\x9b"])
def test_nothing_reaches_a_terminal_that_changes_how_the_rest_is_shown(char: str) -> None:
    out, notes = io.StringIO(), io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    screen = Screen(out, notes)
    screen.text(f"rm{char} safe")
    screen.thought(f"I{char} think")
    screen.note(f"runs{char} it")
    assert char not in out.getvalue() + notes.getvalue()
    assert "rm safe" in out.getvalue()
