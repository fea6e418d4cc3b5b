"""`durable_query`: a query for a step of a durable program, which may be repeated after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pilothouse.client import Agent, QueryResult, default_agent
from pilothouse.errors import SessionNotFoundError
from pilothouse_fleet.limits import RESUME_PROMPT


async def durable_query(
    prompt: str | Sequence[Any], *, key: str, agent: Agent | None = None, **options: Any
) -> QueryResult[Any]:
    """Ask a prompt; if an earlier attempt with this key was interrupted, continue its conversation instead.

    For a step or task of DBOS, Temporal, Celery, procrastinate and the like, which happens at least once: what the
    earlier attempt has done and paid for is not repeated. The session's id follows from the key.

    Args:
        prompt: text, or a list of content blocks.
        key: names the work, the same in each attempt and in no other work: the id of the task, for example.
        agent: its settings apply; None: the default agent.
        **options: as for `Agent.query`, `output_type` among them.

    Returns:
        The answer, which is never an error.

    Raises:
        PilothouseError: as for `Agent.query`, and any error of the answer.
    """
    session_id = str(uuid5(NAMESPACE_URL, f"pilothouse:{key}"))
    agent = default_agent() if agent is None else agent
    with suppress(SessionNotFoundError):
        result = await agent.query(RESUME_PROMPT, resume=session_id, **options).result()
        return result.raise_for_error()
    result = await agent.query(prompt, session_id=session_id, **options).result()
    return result.raise_for_error()
