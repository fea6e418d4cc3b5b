"""The real CLI keeps conversations: resume, fork, continue, ids, what is written to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.errors import SessionExistsError
from pilothouse.testing import RecordedRequest, ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

ID = "5e551017-0000-4000-8000-0000000000aa"


def texts(request: RecordedRequest) -> list[str]:
    """The user's side of the conversation that the model was shown."""
    found: list[str] = []
    for message in request.messages:
        if message["role"] == "user":
            content = message["content"]
            blocks: list[Any] = [{"text": content}] if isinstance(content, str) else content
            found += [b["text"] for b in blocks if "text" in b and not b["text"].startswith("<system-reminder>")]
    return found


def on_disk(claude: Any) -> set[str]:
    return {path.stem for path in (claude.home / ".claude" / "projects").rglob("*.jsonl")}


@pytest.mark.requirement("L60", "E11", "E12", "E30", "L47", "E26", "R2")
async def test_resume_fork_and_continue(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "noted"
    first = await claude.ask("My name is Alice.")
    again = await claude.ask("What is my name?", resume=first.session_id)
    assert again.session_id == first.session_id
    assert texts(scripted_model.requests[-1]) == ["My name is Alice.", "What is my name?"]

    branch = await claude.ask("I am Bob now.", resume=first.session_id, fork_session=True)
    assert branch.session_id not in (None, first.session_id)
    assert texts(scripted_model.requests[-1]) == ["My name is Alice.", "What is my name?", "I am Bob now."]

    original = await claude.ask("And now?", resume=first.session_id)
    assert original.session_id == first.session_id
    assert texts(scripted_model.requests[-1]) == ["My name is Alice.", "What is my name?", "And now?"]

    latest = await claude.ask("Go on.", continue_conversation=True)
    assert latest.session_id == first.session_id
    assert texts(scripted_model.requests[-1])[-2:] == ["And now?", "Go on."]
    assert on_disk(claude) == {first.session_id, branch.session_id}


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_session_that_does_not_exist(claude: Any) -> None:
    # The CLI never answers the handshake then; the result that it gives instead must be enough.
    result = await claude.ask(resume=ID)
    assert type(result.error) is ph.SessionNotFoundError
    assert ID in str(result.error)
    with pytest.raises(ph.SessionNotFoundError):
        result.raise_for_error()


async def test_an_id_of_ones_own(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "noted"
    query = claude.ask("one", session_id=ID)
    assert query.session_id is None
    result = await query
    assert query.session_id == result.session_id == ID
    assert {m.session_id for m in result.messages if m.session_id} == {ID}
    with pytest.raises(SessionExistsError, match="resume="):
        await claude.ask("two", session_id=ID)
    resumed = await claude.ask("three", resume=ID)
    assert resumed.session_id == ID


async def test_nothing_is_written_when_asked_so(claude: Any, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "noted"
    result = await claude.ask("one", persist_session=False)
    assert on_disk(claude) == set()
    missing = await claude.ask("two", resume=result.session_id)
    assert type(missing.error) is ph.SessionNotFoundError


async def test_a_session_is_found_from_another_directory_but_not_from_another_home(
    claude: Any, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.default = "noted"
    result = await claude.ask("one")
    (claude.home / "elsewhere").mkdir()
    moved = await claude.ask("two", resume=result.session_id, cwd=claude.home / "elsewhere")
    assert moved.session_id == result.session_id
    assert texts(scripted_model.requests[-1]) == ["one", "two"]
    missing = await claude.ask("three", resume=result.session_id, env={"CLAUDE_CONFIG_DIR": str(tmp_path)})
    assert type(missing.error) is ph.SessionNotFoundError
    assert "CLAUDE_CONFIG_DIR" in str(missing.error)


@pytest.mark.requirement("L60")
async def test_a_conversation_goes_on_in_another_working_directory(claude: Any, scripted_model: ScriptedModel) -> None:
    """`resume` finds a session wherever the child runs; `continue_conversation` looks in its directory only."""
    scripted_model.default = lambda request: f"{len(request.messages)} messages"
    elsewhere = claude.home / "elsewhere"
    elsewhere.mkdir()
    first = await claude.ask("My name is Alice.")
    second = await claude.ask("What is my name?", cwd=elsewhere, resume=first.session_id)
    assert second.raise_for_error().session_id == first.session_id
    assert "My name is Alice." in str(scripted_model.requests[-1].messages)
    await claude.ask("Go on.", cwd=elsewhere / "..", continue_conversation=True)
    assert "My name is Alice." not in str(scripted_model.requests[-1].messages)
