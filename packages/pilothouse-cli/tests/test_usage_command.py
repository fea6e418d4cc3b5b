"""`pilothouse usage`: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilothouse_cli import main
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import BreakdownRequest
from pilothouse_transcripts import project_key

ONE, TWO = "1f0c0000-0000-4000-8000-000000000001", "1f0d0000-0000-4000-8000-000000000002"
HOSTILE = "\x1b[2Jtool"


def write(config: Path, cwd: Path, session_id: str, *, priced: bool = True) -> None:
    """A session with one tool call, two replies and the price of their model."""
    path = config / "projects" / project_key(cwd) / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {"input_tokens": 100, "output_tokens": 20}
    replies = [[{"type": "tool_use", "id": "t", "name": HOSTILE, "input": {}}], [{"type": "text", "text": "done"}]]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "12345678", "is_error": True}
    contents = [("user", "go"), ("assistant", replies[0]), ("user", [result]), ("assistant", replies[1])]
    rows: list[dict[str, Any]] = []
    for place, (kind, content) in enumerate(contents):
        body: dict[str, Any] = {"role": kind, "content": content}
        if kind == "assistant":
            body |= {"id": f"m{place}", "type": "message", "model": "some-model", "usage": counts}
        row = {"parentUuid": f"u{place - 1}" if place else None, "uuid": f"u{place}", "type": kind, "message": body}
        rows.append({**row, "sessionId": session_id, "cwd": str(cwd), "timestamp": f"2026-11-03T12:00:0{place}Z"})
    total = {"inputTokens": 200, "outputTokens": 40, "costUSD": 0.5}
    if priced:
        rows.append({"type": "cost-state", "sessionId": session_id, "modelUsage": {"some-model": total}})
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config, cwd = tmp_path / "config", tmp_path / "project"
    cwd.mkdir()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(config))
    monkeypatch.chdir(cwd)
    write(config, cwd, ONE)
    write(config, tmp_path, TWO)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["usage", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_flags() -> None:
    assert parse(["usage"]) == BreakdownRequest()
    assert parse(["usage", "1f0c", "--by", "tool", "--json"]) == BreakdownRequest(session="1f0c", by="tool", json=True)
    with pytest.raises(SystemExit):
        parse(["usage", "--by", "day"])


def test_the_newest_session_of_the_directory_by_agent(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, ONE in err) == (0, True)
    head, main_row, total = (line.split() for line in out.splitlines())
    assert head[0] == "agent"
    assert (main_row[0], main_row[-1]) == ("main", "$0.5000")
    assert (total[0], total[-1]) == ("total", "$0.5000")


def test_a_cost_without_a_price(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(disk / "config", disk, TWO, priced=False)
    code, out, err = run(capsys, "1f0d")
    assert (code, "have no price" in err) == (0, True)
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["–", "–"]


def test_groups(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in run(capsys, "1f0d", "--by", "tool")[1].splitlines()]
    assert rows[1] == ["\\x1b[2Jtool", "1", "1", "1.0", "s", "8", "2"]
    assert len(run(capsys, "--by", "turn")[1].splitlines()) == 4
    assert run(capsys, "--by", "model")[1].splitlines()[1].startswith("some-model")
    assert run(capsys, "--by", "server")[1].splitlines()[0].startswith("server")
    found = json.loads(run(capsys, "--json")[1])
    assert [row["cost_usd"] for row in found["turns"]] == [0.25, 0.25]
    assert set(found) == {"cost_usd", "unpriced_tokens", "agents", "turns", "models", "tools", "servers"}


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("1f0", 2, "4 characters"),
        ("", 2, "4 characters"),  # a variable without a value is not the newest session
        ("0000", 1, "no session id begins with 0000; `pilothouse sessions --all` lists all sessions"),
    ],
)
def test_an_unknown_session(disk: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, says: str) -> None:
    ended, out, err = run(capsys, name)
    assert (ended, out) == (code, "")
    assert says in err


def test_a_directory_without_sessions(
    disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "empty").mkdir()
    monkeypatch.chdir(disk / "empty")
    code, out, err = run(capsys)
    assert (code, out) == (1, "")
    assert "there is no session in this directory" in err
