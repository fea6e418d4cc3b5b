"""`pilothouse sessions`: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import io
import json
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from pilothouse_cli import main
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import ListRequest, SessionsRequest, UsageRequest
from pilothouse_cli.screen import Screen
from pilothouse_cli.sessions import LONG_SCAN_BYTES, sessions
from pilothouse_transcripts import get_session_info, list_sessions, project_key

ONE, TWO = "1f0c0000-0000-4000-8000-000000000001", "1f0d0000-0000-4000-8000-000000000002"


def write(config: Path, cwd: Path, session_id: str, *output: str) -> Path:
    path = config / "projects" / project_key(cwd) / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for place, text in enumerate(output):
        kind = "assistant" if place % 2 else "user"
        body = {"role": kind, "content": [{"type": "text", "text": text}]}
        if place % 2:
            usage = {"input_tokens": 1000, "output_tokens": 200}
            body |= {"id": f"m{session_id}{place}", "type": "message", "model": "some-model", "usage": usage}
        row = {"parentUuid": f"u{place - 1}" if place else None, "uuid": f"u{place}", "type": kind, "message": body}
        rows.append({**row, "sessionId": session_id, "cwd": str(cwd), "timestamp": "2026-11-03T12:00:00Z"})
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config, cwd = tmp_path / "config", tmp_path / "project"
    cwd.mkdir()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(config))
    monkeypatch.chdir(cwd)
    write(config, cwd, ONE, "first words", "an answer", "more", "the needle")
    write(config, tmp_path, TWO, "elsewhere")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["sessions", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_flags() -> None:
    assert parse(["sessions", "list"]) == SessionsRequest(action="list", request=ListRequest())
    assert parse(["sessions", "list", "--all"]) == SessionsRequest(action="list", request=ListRequest(directory=None))
    request = parse(["sessions", "usage", "1f0c", "--since", "2026-11-01", "--by", "model", "--json"])
    assert request == SessionsRequest(
        action="usage", request=UsageRequest(session="1f0c", since=date(2026, 11, 1), by="model", json=True)
    )
    for wrong in (["sessions", "lst"], ["sessions", "list", "--limit", "-1"], ["sessions", "usage", "--since", "x"]):
        with pytest.raises(SystemExit) as ended:
            parse(wrong)
        assert ended.value.code == 2


def test_list(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    head, row = out.splitlines()
    assert head.split() == ["session", "changed", "size", "about"]
    assert row.startswith("1f0c0000  20")
    assert row.endswith("first words")
    assert len(run(capsys, "list", "--all")[1].splitlines()) == 3
    found = json.loads(run(capsys, "list", "--all", "--json", "--limit", "1")[1])
    assert len(found) == 1
    assert set(found[0]) >= {"session_id", "summary", "last_modified", "path"}


def test_an_empty_list_says_how_to_see_more(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", "--directory", str(disk / "config"))
    assert (code, out) == (0, "")
    assert "--all" in err


def test_show(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "1f0c", "--limit", "2")
    assert (code, out) == (0, "── you\nfirst words\n\n── claude\nan answer\n\n")
    lines = run(capsys, "show", ONE, "--json")[1].splitlines()
    assert [json.loads(line)["uuid"] for line in lines] == ["u0", "u1", "u2", "u3"]
    code, _, err = run(capsys, "show", "1f0c", "--agent", "x")
    assert code == 2
    assert "it has none" in err


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("1f0", 2, "4 characters"),
        ("../x", 2, "'../x' is not a session id: give the id or at least its first 4 characters (0-9, a-f, '-')"),
        ("0000", 1, "no session id begins with 0000; `pilothouse sessions --all` lists all sessions"),
        ("1f0e0000-0000-4000-8000-000000000003", 1, "there is no session"),
    ],
)
def test_a_name_that_leads_nowhere(
    disk: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, says: str
) -> None:
    ended, out, err = run(capsys, "rename", name, "title")
    assert (ended, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_variable_without_a_value_does_not_count_all_sessions(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "usage", "")
    assert (code, out) == (2, "")
    assert "'' is not a session id" in err


def test_a_name_of_several(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(disk / "config", disk, ONE[:8] + TWO[8:], "x")
    code, _, err = run(capsys, "show", "1f0c")
    assert code == 2
    assert "2 session ids begin with 1f0c" in err


def test_search(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "search", "NEEDLE")
    assert (code, out) == (0, "1f0c0000  claude: the needle\n")
    hit = json.loads(run(capsys, "search", "need.e", "--regex", "--json")[1])
    assert (hit["session_id"], hit["line"], hit["where"]) == (ONE, 4, "text")
    code, out, err = run(capsys, "search", "NEEDLE", "--case")
    assert (code, out) == (1, "")
    assert err == "no matches\n"
    assert run(capsys, "search", "(", "--regex")[0] == 2


def test_rename_tag_and_fork(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "rename", "1f0c", "New title")[0] == 0
    assert run(capsys, "tag", "1f0c", "work")[0] == 0
    info = get_session_info(ONE)
    assert info is not None
    assert (info.custom_title, info.tag) == ("New title", "work")
    assert run(capsys, "tag", "1f0c")[0] == 0
    code, out, err = run(capsys, "fork", "1f0c", "--up-to", "u1", "--title", "Copy")
    assert code == 0
    fork = get_session_info(out.strip())
    assert fork is not None
    assert fork.custom_title == "Copy"
    assert "--resume" in err
    assert json.loads(run(capsys, "fork", "1f0c", "--json")[1])["messages"] == 4


def test_delete_asks_or_is_reported(
    disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, "delete", "1f0c")
    assert code == 2
    assert "--yes" in err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert run(capsys, "delete", "1f0c")[0] == 1
    assert get_session_info(ONE) is not None
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, _, err = run(capsys, "delete", "1f0c")
    assert code == 0
    assert "first words" in err
    assert get_session_info(ONE) is None
    assert run(capsys, "delete", TWO, "--yes")[0] == 0
    assert list_sessions() == []


def test_tokens_without_a_price_have_no_cost(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "usage", "--by", "model")
    assert [line.split()[-1] for line in out.splitlines()[-2:]] == ["–", "–"]
    assert "$0.0000" in run(capsys, "usage", "--until", "2026-01-01")[1]  # nothing was used


def test_export(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "export", "1f0c")
    assert code == 0
    assert out.startswith("# first words\n")
    target = disk / "page.html"
    assert run(capsys, "export", "1f0c", "--format", "html", "--output", str(target))[0] == 0
    assert target.read_text().startswith("<!doctype html>")
    code, _, err = run(capsys, "export", "1f0c", "--output", str(target))
    assert code == 1
    assert "exists" in err


def test_an_export_cannot_steer_the_terminal(
    disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(disk / "config", disk / "project", ONE, "evil \x1b]52;c;eA==\x07", "\x9b2J\u202eanswer\ttwo")
    assert "\x1b]52" in run(capsys, "export", ONE)[1]  # a program gets it as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run(capsys, "export", ONE)
    assert "evil ]52;c;eA==" in out
    assert "2Janswer\ttwo" in out


def test_usage(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "usage")
    assert code == 0
    head, day, total = out.splitlines()
    assert head.split()[0] == "day"
    assert day.split() == ["2026-11-03", "2", "2,000", "0", "0", "400", "–"]
    assert total.startswith("total")
    assert "2,400 tokens have no price" in err
    report = json.loads(run(capsys, "usage", "1f0c", "--json")[1])
    assert report["total"]["messages"] == 2
    assert list(report["days"]) == ["2026-11-03"]
    assert run(capsys, "usage", "--by", "model")[1].splitlines()[1].startswith("some-model")


def test_broken_lines_are_reported_beside_the_answer(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = disk / "config" / "projects" / project_key(disk / "project") / f"{ONE}.jsonl"
    path.write_text(path.read_text() + "junk\n")
    code, out, err = run(capsys, "show", "1f0c", "--json")
    assert code == 0
    assert len(out.splitlines()) == 4
    assert f"{path}:5: not a JSON object" in err


def test_text_that_utf8_cannot_express(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(disk / "config", disk / "project", ONE, "half a HALF pair")
    path.write_bytes(path.read_bytes().replace(b"HALF", rb"\ud83d"))
    assert "pair" in json.loads(run(capsys, "list", "--json")[1])[0]["first_prompt"]
    assert json.loads(run(capsys, "search", "pair", "--json")[1])["match"] == "pair"
    for args in (["show", "1f0c", "--json"], ["export", "1f0c"], ["export", "1f0c", "--format", "json"]):
        assert run(capsys, *args)[0] == 0


class Window(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_table_is_clean_and_a_long_scan_shows_how_far_it_is(
    disk: Path, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "80")
    write(disk / "config", disk / "project", ONE, "evil \x1b]0;title\x07 [red]words", "answer")
    shown: list[tuple[str, int, int | None]] = []

    class Watched(Screen):
        def progress(self, label: str) -> Any:
            from contextlib import nullcontext

            return nullcontext(lambda *now: shown.append(now))

    out, notes = Window(), Window()
    screen = Watched(out, notes)
    for words in (["list"], ["search", "zzz"]):
        request = parse(["sessions", *words])
        assert anyio.run(partial(sessions, request, screen)) in (0, 1)
    assert "[red]words" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert shown == []
    monkeypatch.setattr("pilothouse_cli.sessions.LONG_SCAN_BYTES", 1)
    anyio.run(partial(sessions, parse(["sessions", "usage"]), screen))
    assert shown
    assert shown[-1][0] == "read"
    assert shown[-1][1] == shown[-1][2]
    assert LONG_SCAN_BYTES > 1
