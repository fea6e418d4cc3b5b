"""The default agent of a test: another one for a while, and everything as before afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pilothouse.client import Agent, default_in_context


@contextmanager
def as_default(agent: Agent | None = None) -> Generator[Agent]:
    """Put `agent` behind the module-level `query` for the length of the block.

    It holds for this thread or task and for tasks that are started from it; other threads and requests keep theirs.
    What the block configures with `pilothouse.configure`, which is for the whole process, is also gone at its end.

    Args:
        agent: None for a fresh one without settings.

    Yields:
        The agent.
    """
    chosen = Agent() if agent is None else agent
    with default_in_context(chosen):
        yield chosen
