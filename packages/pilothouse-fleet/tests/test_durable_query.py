"""`durable_query`: one session for each key, which a repeated step resumes."""

from __future__ import annotations

from typing import Any

import pytest

import pilothouse_fleet.sync
from pilothouse import sync as ph
from pilothouse.client import Agent
from pilothouse.errors import RateLimitError
from pilothouse_fleet import durable_query
from pilothouse_fleet.limits import RESUME_PROMPT
from pilothouse_testing import FakeCLI

pytestmark = pytest.mark.anyio


def remembering(child: Any) -> None:
    """Knows the sessions that were begun here; answers with the prompt."""
    import pathlib
    import sys

    begun = pathlib.Path(sys.argv[0]).with_name("begun")
    [(flag, session)] = [word.split("=") for word in child.argv if word.startswith(("--session-id=", "--resume="))]
    if flag == "--resume" and not (begun.exists() and session in begun.read_text()):
        words = f"No conversation found with session ID: {session}"
        child.emit({"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": [words]})
        child.exit(1)
    with begun.open("a") as file:
        file.write(f"{session}\n")
    prompt = child.expect("user")["message"]["content"]
    child.emit(
        {"type": "system", "subtype": "init", "session_id": session},
        {"type": "result", "subtype": "success", "is_error": False, "result": prompt, "session_id": session},
    )


async def test_the_same_key_resumes_its_session_and_another_begins_one() -> None:
    with FakeCLI.from_function(remembering) as fake:
        agent = Agent(cli=fake.path)
        first = await durable_query("Triage", key="a", agent=agent)
        again = await durable_query("Triage", key="a", agent=agent)
        other = await durable_query("Triage", key="b", agent=agent)
    assert [result.text for result in (first, again, other)] == ["Triage", RESUME_PROMPT, "Triage"]
    assert first.session_id == again.session_id != other.session_id


async def test_an_error_of_the_answer_is_raised_and_not_asked_again() -> None:
    failure = {"is_error": True, "api_error_status": 429, "terminal_reason": "api_error"}
    with FakeCLI().text("API Error: 429 rate limited", **failure).forever() as fake:
        with pytest.raises(RateLimitError):
            await durable_query("Triage", key="a", agent=Agent(cli=fake.path, retry=0))
        assert len(fake.calls) == 1


def test_from_plain_code() -> None:
    with FakeCLI.from_function(remembering) as fake:
        agent = ph.Agent(cli=fake.path)
        texts = [pilothouse_fleet.sync.durable_query("Triage", key="a", agent=agent).text for _ in range(2)]
    assert texts == ["Triage", RESUME_PROMPT]
