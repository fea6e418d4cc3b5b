"""The configuration directory of a child that goes on with a session from a store."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from faulty_stores import ID, make_entries, rows_of

from pilothouse.errors import StoreError
from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import restore
from pilothouse_transcripts.stores.base import TranscriptKey
from pilothouse_transcripts.stores.restore import (
    RestoredSession,
    SessionConfigDirectory,
    is_safe_subpath,
    strip_refresh_tokens,
)

pytestmark = pytest.mark.anyio


def recalled(cwd: Path, **subpaths: Any) -> RestoredSession:
    return RestoredSession(TranscriptKey(project_key(cwd), ID), make_entries(1, 2), subpaths)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Made(SessionConfigDirectory):
    path = Path()


def make(cwd: Path, config: Path, *, env: dict[str, str] | None = None, session: RestoredSession | None = None) -> Made:
    made = Made()
    made.path = Path(made.make(env or {"CLAUDE_CONFIG_DIR": str(config)}, session or recalled(cwd), str(cwd)))
    return made


async def test_only_the_user_can_read_it_and_it_goes(cwd: Path, config: Path, temporary: Path) -> None:
    (config / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "a", "refreshToken": "r"}}')
    sub = [
        {"type": "agent_metadata", "agentType": "old"},
        *make_entries(7),
        {"type": "agent_metadata", "agentType": "Explore"},
    ]
    private = make(cwd, config, session=recalled(cwd, **{"subagents/agent-1": sub}))
    directory = private.path
    folder = directory / "projects" / project_key(cwd)
    assert rows_of(folder / f"{ID}.jsonl") == make_entries(1, 2)
    beside = folder / ID / "subagents"
    assert rows_of(beside / "agent-1.jsonl") == make_entries(7)
    assert json.loads((beside / "agent-1.meta.json").read_text()) == {"agentType": "Explore"}
    if os.name == "posix":
        found = [path for path in (directory, *directory.rglob("*")) if not path.is_symlink()]
        assert {mode(path) for path in found if path.is_dir()} == {0o700}
        assert {mode(path) for path in found if path.is_file()} == {0o600}
    private.remove()
    assert list(temporary.iterdir()) == []


SECRETS = {
    "claudeAiOauth": {"accessToken": "keep", "refreshToken": "SECRET", "refreshTokenExpiresAt": 1, "scopes": ["x"]},
    "mcpOAuth": {
        "server|1": {"access_token": "keep", "refresh_token": "SECRET", "deep": [{"refresh-token": "SECRET"}]}
    },
    "REFRESH_TOKEN": "SECRET",
}


async def test_refresh_tokens_are_never_copied(cwd: Path, config: Path, temporary: Path) -> None:
    (config / ".credentials.json").write_text(json.dumps(SECRETS))
    (config / ".claude.json").write_text(json.dumps({"primaryApiKey": "keep", "oauth": SECRETS}))
    (config / "settings.json").write_text("\ufeff" + json.dumps({"env": {"CLAUDE_CONFIG_DIR": "/x", "A": "1"}, "b": 2}))
    directory = (private := make(cwd, config)).path
    assert "SECRET" not in "".join(path.read_text() for path in directory.rglob("*.json"))
    assert json.loads((directory / ".credentials.json").read_text()) == strip_refresh_tokens(SECRETS)
    assert json.loads((directory / ".credentials.json").read_text())["claudeAiOauth"] == {
        "accessToken": "keep",
        "scopes": ["x"],
    }
    assert json.loads((directory / "settings.json").read_text()) == {"env": {"A": "1"}, "b": 2}
    private.remove()


@pytest.mark.parametrize("content", [b"{refreshToken: SECRET", b'["SECRET"]', b"\xff\xfe", b""])
async def test_a_login_that_cannot_be_read_is_left_out(
    cwd: Path, config: Path, temporary: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (config / ".credentials.json").write_bytes(content)
    private = make(cwd, config)
    assert not (private.path / ".credentials.json").exists()
    assert "SECRET" not in caplog.text
    private.remove()


async def test_what_was_typed_in_other_projects_stays_there(cwd: Path, config: Path, temporary: Path) -> None:
    projects = {str(cwd): {"hasTrustDialogAccepted": True}, "/elsewhere": {"history": ["x"]}}
    (config / ".claude.json").write_text(json.dumps({"userID": "u", "projects": projects}))
    private = make(cwd, config)
    state = json.loads((private.path / ".claude.json").read_text())
    assert state == {"userID": "u", "projects": {str(cwd): {"hasTrustDialogAccepted": True}}}
    private.remove()


async def test_what_the_user_has_set_up_is_there(cwd: Path, config: Path, temporary: Path) -> None:
    (config / "CLAUDE.md").write_text("be kind")
    (config / "skills" / "cook").mkdir(parents=True)
    (config / "projects").mkdir()
    private = make(cwd, config)
    assert (private.path / "CLAUDE.md").read_text() == "be kind"
    assert (private.path / "skills" / "cook").is_dir()
    private.remove()
    assert (config / "skills" / "cook").is_dir()
    assert (config / "CLAUDE.md").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
async def test_it_belongs_to_the_user_that_the_child_runs_as(cwd: Path, config: Path, temporary: Path) -> None:
    (config / "settings.json").write_text("{}")
    (config / "CLAUDE.md").write_text("mine")
    private = SessionConfigDirectory()
    session = recalled(cwd, **{"subagents/agent-1": make_entries(7)})
    directory = Path(private.make({"CLAUDE_CONFIG_DIR": str(config)}, session, str(cwd), owner=(65534, 65534)))
    assert {path.lstat().st_uid for path in (directory, *directory.rglob("*"))} == {65534}
    assert (config / "CLAUDE.md").stat().st_uid == 0  # the link was given away, not what it leads to
    private.remove()


@pytest.mark.skipif(os.name != "posix", reason="there are no named pipes")
async def test_a_pipe_in_place_of_a_file_holds_up_nothing(
    cwd: Path, config: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(config / "settings.json")
    make(cwd, config).remove()
    assert "not a regular file" in caplog.text


async def test_the_login_of_macos_comes_from_its_keychain(
    cwd: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    security = programs / "security"
    security.write_text(f"#!/bin/sh\n[ \"$3\" = me ] && echo '{json.dumps(SECRETS)}'\n")
    security.chmod(0o700)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "platform", "darwin")
    env = {"HOME": str(tmp_path), "USER": "me"}
    private = make(cwd, tmp_path, env=env)
    assert json.loads((private.path / ".credentials.json").read_text()) == strip_refresh_tokens(SECRETS)
    private.remove()
    for other in ({"ANTHROPIC_API_KEY": "k"}, {"USER": "you"}):
        private = make(cwd, tmp_path, env={**env, **other})
        assert not (private.path / ".credentials.json").exists()
        private.remove()


@pytest.mark.parametrize("fault", ["entry", "disk"])
async def test_nothing_is_left_of_a_directory_that_could_not_be_written(
    cwd: Path, config: Path, temporary: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = recalled(cwd)
    if fault == "entry":
        session.entries.append({"bad": object()})
    else:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(restore, "_write_lines", full)
    with pytest.raises((StoreError, OSError)):
        make(cwd, config, session=session)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "subpath",
    [
        "", ".", "..", "/etc/x", "../x", "subagents/../../x", "a//b", "a/", "C:x", "a\\b", "a\0", "a\nb", 7, None,
        "a/./b",
    ],
)  # fmt: skip
async def test_a_subpath_that_leads_elsewhere_is_refused(subpath: Any) -> None:
    assert not is_safe_subpath(subpath)
    assert is_safe_subpath("subagents/agent-1")
