"""`pilothouse policy suggest`: what it reads, prints and writes, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pilothouse_cli import main
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import OptionsRequest, PolicyRequest, SuggestRequest
from pilothouse_transcripts import project_key

ONE, TWO = "1f0c0000-0000-4000-8000-000000000001", "2a7b0000-0000-4000-8000-000000000002"
KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz"


def write(config: Path, cwd: Path, session: str, *calls: tuple[str, dict[str, Any]], agent: bool = False) -> Path:
    """Write a session, or a sub-agent of one, with calls that ran."""
    path = config / "projects" / project_key(cwd) / f"{session}.jsonl"
    if agent:
        path = path.with_suffix("") / "subagents" / "agent-a1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number, (tool, given) in enumerate(calls):
        call = {"type": "tool_use", "id": f"t{number}", "name": tool, "input": given}
        messages.append({"role": "assistant", "id": f"m{number}", "model": "m", "content": [call]})
        answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "x", "is_error": False}
        messages.append({"role": "user", "content": [answer]})
    rows: list[str] = []
    for place, body in enumerate(messages):
        row = {"parentUuid": f"u{place - 1}" if place else None, "uuid": f"u{place}", "type": body["role"]}
        row |= {"message": body, "sessionId": session, "cwd": str(cwd), "timestamp": "2026-11-03T12:00:00Z"}
        rows.append(json.dumps({**row, "isSidechain": agent, **({"agentId": "a1"} if agent else {})}))
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config, cwd = tmp_path / "config", tmp_path / "project"
    cwd.mkdir()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(config))
    monkeypatch.chdir(cwd)
    write(config, cwd, ONE, ("Bash", {"command": "npm test"}), ("Bash", {"command": f"make \x1b[2J {KEY}"}))
    write(config, cwd, ONE, ("Bash", {"command": "npm run lint"}), agent=True)
    write(config, cwd, TWO, ("Edit", {"file_path": "src/a.py"}), ("Bash", {"command": "npm test && curl x"}))
    return cwd


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["policy", "suggest", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_flags() -> None:
    given = ["policy", "suggest", "--json", "1f0c", "x.jsonl", "--try", "2a7b", "--write", "s.json", "--force"]
    asked = SuggestRequest(sessions=("1f0c", "x.jsonl"), tried=("2a7b",), write="s.json", force=True, json=True)
    assert parse(given) == PolicyRequest(action="suggest", request=asked)
    assert parse(["policy"]) == OptionsRequest(policy=True)
    assert parse(["policy", "--json"]) == OptionsRequest(policy=True, json=True)
    for wrong in (["policy", "sugest"], ["policy", "suggest", "--nothing"]):
        with pytest.raises(SystemExit) as ended:
            parse(wrong)
        assert ended.value.code == 2


def test_all_sessions_of_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert f"5 calls of 2 sessions in {project}" in out
    for rule in ("Bash(npm test)", "Bash(npm run lint)", "Edit(/src/a.py)"):
        assert f"  {rule}\n" in out
    assert KEY not in out
    assert "\x1b" not in out
    assert "dry run" not in out
    assert run(capsys, "--project", str(project))[1] == out


def test_one_session_tried_on_another(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "1f0c", "--try", "2a7b")[1]
    assert "3 calls of 1 session" in out
    assert "Edit(/src/a.py)" not in out
    assert "asks    'src/a.py': no rule matches" in out
    assert "asks    'npm test && curl x'" in out
    assert out.rstrip().endswith("runs: 0, asks: 2, denied: 0")
    [file] = (project.parent / "config").rglob(f"{TWO}.jsonl")
    assert "Edit(/src/a.py)" in run(capsys, str(file))[1]


def test_json_has_options_and_settings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json", "--try", ONE)
    found = json.loads(out)
    assert code == 0
    assert set(found["options"]["allowed_tools"]) == {"Bash(npm test)", "Bash(npm run lint)", "Edit(/src/a.py)"}
    assert found["settings"]["permissions"]["allow"] == found["options"]["allowed_tools"]
    assert [each["outcome"] for each in found["tried"]] == ["runs", "asks", "runs"]
    assert found["rules"][0]["calls"] >= 1
    assert KEY not in out


def test_a_file_is_written_only_on_request(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys)
    assert not [*project.iterdir()]
    code, _, err = run(capsys, "--write", "new.json")
    assert code == 0
    assert "new.json: 3 allow rules, " in err
    assert err.endswith("deny rules; copy it to .claude/settings.json to use it\n")
    assert "Bash(npm test)" in json.loads((project / "new.json").read_text())["permissions"]["allow"]


def test_a_file_is_replaced_only_by_force(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, link = project / "kept.json", project / "link.json"
    kept.write_text('{"model": "opus"}' + " " * 9000)
    link.symlink_to(kept)
    for name in ("kept.json", "link.json"):
        code, out, err = run(capsys, "--write", name)
        assert (code, out) == (2, "")
        assert "exists already" in err
    assert run(capsys, "--write", "link.json", "--force")[0] == 1  # a link may lead anywhere
    assert '"opus"' in kept.read_text()
    assert run(capsys, "--write", "kept.json", "--force")[0] == 0
    assert json.loads(kept.read_text()).keys() == {"permissions", "sandbox"}
    assert run(capsys, "--write", "no/where.json")[0] == 1


def test_nothing_recorded(project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    code, out, err = run(capsys, "--project", str(other))
    assert (code, out, err) == (2, "", f"pilothouse: there is no directory {other}\n")
    other.mkdir()
    code, out, err = run(capsys, "--project", str(other))
    assert (code, out) == (1, "")
    assert "no tool calls in the transcripts of this project" in err
    empty = write(tmp_path / "config", other, ONE.replace("1f", "3f"))
    assert run(capsys, str(empty)) == (1, "", f"{empty} has no tool calls\n")
    assert run(capsys, "0000")[0] == 1
    assert run(capsys, "x")[0] == 2
    code, _, err = run(capsys, os.fspath(tmp_path / "none.jsonl"))
    assert code == 1
    assert err == f"pilothouse: {tmp_path / 'none.jsonl'}: No such file or directory\n"


def test_force_needs_write(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--force") == (2, "", "pilothouse: --force needs --write\n")


@pytest.mark.parametrize(
    ("words", "near", "page"),
    [
        (("policy", "suggest", "--wirte", "x"), "--write", "policy suggest"),
        (("sessions", "search", "--alll", "x"), "--all", "sessions search"),
    ],
)
def test_a_misspelled_flag_of_an_action(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], near: str, page: str
) -> None:
    with pytest.raises(SystemExit):
        parse([*words])
    err = capsys.readouterr().err
    assert f"did you mean {near}?" in err
    assert f"(see `pilothouse {page} --help`)" in err
