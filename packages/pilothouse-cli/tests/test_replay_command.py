"""`--transport record:FILE`, `--transport replay:FILE`, and `pilothouse replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_process import Command

from pilothouse_cli.arguments import find_command, parse
from pilothouse_cli.flags import AskRequest, ReplayRequest
from pilothouse_cli.main import run_command
from pilothouse_cli.screen import Screen
from pilothouse_testing import FakeCLI, Player, Recorder, frames


def show(capsys: pytest.CaptureFixture[str], file: Path, **settings: Any) -> tuple[int, str, str]:
    import sys

    request = ReplayRequest(file=str(file), **settings)
    code = run_command(find_command(request), request, Screen(sys.stdout, sys.stderr))
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    asked = parse(["ask", "--transport", f"record:{file}", "Hi"])
    assert isinstance(asked, AskRequest)
    assert isinstance(asked.settings["transport"], Recorder)
    file.write_text("")
    asked = parse(["ask", f"--transport=replay:{file}", "Hi"])
    assert isinstance(asked, AskRequest)
    assert isinstance(asked.settings["transport"], Player)
    assert parse(["replay", "--speed", "2", "--json", "f"]) == ReplayRequest(file="f", form="json", speed=2.0)
    for wrong, words in (
        (["ask", "--transport", "tape:x", "Hi"], "pod:NAMESPACE/NAME, got 'tape:x'"),
        (["ask", "--transport", "replay", "Hi"], "expected native, record:FILE, replay:FILE"),
        (["ask", "--transport", "record:", "Hi"], "expected native, record:FILE, replay:FILE"),
        (["replay", "--speed", "0", "f"], "expected a number greater than 0, got '0'"),
        (["replay", "--speed", "inf", "f"], "expected a number greater than 0"),
        (["replay"], "FILE"),
    ):
        with pytest.raises(SystemExit):
            parse(wrong)
        assert words in capsys.readouterr().err


def test_a_question_is_recorded_and_answered_again(pilothouse: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with FakeCLI().turn(*frames.sample_messages()) as fake:
        first = pilothouse.run("ask", "--cli", fake.path, "--transport", f"record:{file}", "Hi")
    again = pilothouse.run("ask", "--cli", "/nowhere", "--transport", f"replay:{file}", "Hi")
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert again.out == first.out
    assert "It printed hi." in first.out
    other = pilothouse.run("ask", "--transport", f"replay:{file}", "Ho")
    assert other.code == 1
    assert "the program sends a prompt that differs from the recorded one" in other.err
    assert '+    "content": "Ho",' in other.err.splitlines()
    missing = pilothouse.run("ask", "--transport", "replay:/no/where", "Hi")
    assert missing.code == 1
    assert "/no/where: the cassette cannot be read: No such file or directory" in missing.err
    shown = pilothouse.run("replay", str(file))
    assert (shown.code, shown.out) == (0, first.out)
    assert "you: Hi" in shown.err
    assert first.err.strip() in shown.err


def test_a_conversation_is_recorded_and_had_again(pilothouse: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with FakeCLI().text("First.").text("Second.") as fake:
        first = pilothouse.run("chat", "--cli", fake.path, "--transport", f"record:{file}", stdin=b"one\ntwo\n")
    again = pilothouse.run("chat", "--transport", f"replay:{file}", stdin=b"one\ntwo\n")
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert again.out == first.out
    assert "First." in first.out


def test_forms(capsys: pytest.CaptureFixture[str], transcripts: list[Path]) -> None:
    two = next(path for path in transcripts if path.name.startswith("06_"))
    code, out, err = show(capsys, two)
    assert code == 0
    assert out.splitlines()[0] == "Hello from fake model (step 0)."
    assert err.count("you: ") == 2
    assert "> Bash: echo hi-from-bash" in err
    assert err.count("session 773b3986") == 2
    code, out, err = show(capsys, two, form="json")
    assert [json.loads(line)["turns"] for line in out.splitlines()] == [1, 2]
    assert err == ""
    code, out, err = show(capsys, two, form="stream-json")
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert types.count("result") == 2
    assert "control_response" not in types


@pytest.mark.parametrize(
    ("name", "expected", "words"),
    [
        ("30_http_529.", 1, "529"),
        ("39_sigkill_mid_stream", 1, "the CLI was ended by SIGKILL before the answer was complete"),
        ("37_unknown_flag", 2, "does not know the flag --no-such-flag"),
        ("16_interrupt_mid_stream", 1, "the query was interrupted"),
    ],
)
def test_it_ends_as_the_run_did(
    capsys: pytest.CaptureFixture[str], transcripts: list[Path], name: str, expected: int, words: str
) -> None:
    code, _, err = show(capsys, next(path for path in transcripts if path.name.startswith(name)), verbose=True)
    assert code == expected
    assert words in err


def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, transcripts: list[Path]) -> None:
    file = tmp_path / "run.jsonl"
    for content, words in (("", "the file is empty"), ("# A page\n", "line 1: not a line of a cassette")):
        file.write_text(content)
        code, out, err = show(capsys, file)
        assert (code, out) == (1, "")
        assert words in err
    assert "Is a directory" in show(capsys, tmp_path)[2]
    whole = next(path for path in transcripts if path.name.startswith("06_")).read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(whole[:9]) + whole[9][:50])
    code, out, err = show(capsys, file)
    assert code == 0
    assert "it was cut off by a crash" in err


def test_speed_is_the_pace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import time

    file = tmp_path / "run.jsonl"
    lines = [{"t": 0.1 * n, "dir": "out", "msg": frame} for n, frame in enumerate(frames.sample_messages())]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    began = time.monotonic()
    code, out, _ = show(capsys, file, speed=2.0)
    assert time.monotonic() - began >= 0.05 * (len(lines) - 1)
    assert code == 0
    assert out
