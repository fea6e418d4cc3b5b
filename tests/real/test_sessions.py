"""The real CLI keeps conversations: resume, fork, continue, ids, what is written to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversations import user_texts

import pilothouse as ph
from pilothouse.errors import SessionExistsError
from pilothouse_testing import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

ID = "5e551017-0000-4000-8000-0000000000aa"


def on_disk(claude: Any) -> set[str]:
    return {path.stem for path in (claude.home / ".claude" / "projects").rglob("*.jsonl")}


@pytest.mark.requirement("L60", "E11", "E12", "E30", "L47", "E26", "R2")
async def test_resume_fork_and_continue(claude: Any, model: ScriptedModel) -> None:
    model.default = "noted"
    first = await claude.ask("My name is Alice.")
    again = await claude.ask("What is my name?", resume=first.session_id)
    assert again.session_id == first.session_id
    assert user_texts(model.requests[-1]) == ["My name is Alice.", "What is my name?"]

    branch = await claude.ask("I am Bob now.", resume=first.session_id, fork_session=True)
    assert branch.session_id not in (None, first.session_id)
    assert user_texts(model.requests[-1]) == ["My name is Alice.", "What is my name?", "I am Bob now."]

    original = await claude.ask("And now?", resume=first.session_id)
    assert original.session_id == first.session_id
    assert user_texts(model.requests[-1]) == ["My name is Alice.", "What is my name?", "And now?"]

    latest = await claude.ask("Go on.", continue_conversation=True)
    assert latest.session_id == first.session_id
    assert user_texts(model.requests[-1])[-2:] == ["And now?", "Go on."]
    assert on_disk(claude) == {first.session_id, branch.session_id}


async def test_an_id_of_ones_own(claude: Any, model: ScriptedModel) -> None:
    model.default = "noted"
    query = claude.ask("one", session_id=ID)
    assert query.session_id is None
    result = await query
    assert query.session_id == result.session_id == ID
    assert {m.session_id for m in result.messages if m.session_id} == {ID}
    with pytest.raises(SessionExistsError, match="resume="):
        await claude.ask("two", session_id=ID)
    resumed = await claude.ask("three", resume=ID)
    assert resumed.session_id == ID


async def test_nothing_is_written_when_asked_so(claude: Any, model: ScriptedModel) -> None:
    model.default = "noted"
    result = await claude.ask("one", persist_session=False)
    assert on_disk(claude) == set()
    missing = await claude.ask("two", resume=result.session_id)
    assert type(missing.error) is ph.SessionNotFoundError


@pytest.mark.requirement("L60")
async def test_a_session_is_found_from_another_directory_but_not_from_another_home(
    claude: Any, model: ScriptedModel, tmp_path: Path
) -> None:
    """`continue_conversation` looks in the working directory only."""
    model.default = "noted"
    result = await claude.ask("one")
    (claude.home / "elsewhere").mkdir()
    moved = await claude.ask("two", resume=result.session_id, cwd=claude.home / "elsewhere")
    assert moved.session_id == result.session_id
    assert user_texts(model.requests[-1]) == ["one", "two"]
    await claude.ask("here", cwd=claude.home / "elsewhere" / "..", continue_conversation=True)
    assert user_texts(model.requests[-1]) == ["here"]
    missing = await claude.ask("three", resume=result.session_id, env={"CLAUDE_CONFIG_DIR": str(tmp_path)})
    assert type(missing.error) is ph.SessionNotFoundError
    assert "CLAUDE_CONFIG_DIR" in str(missing.error)
