"""The default agent of a test: another one for a while, and everything as before afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pilothouse.client import Agent, defaults_kept, set_default_agent


@contextmanager
def as_default(agent: Agent | None = None) -> Generator[Agent]:
    """Put `agent` behind the module-level `query` for the length of the block. (L4)

    What the block configures with `pilothouse.configure`, for every agent, is also gone at its end.

    Args:
        agent: None for a fresh one without settings.

    Yields:
        The agent.
    """
    with defaults_kept():
        chosen = Agent() if agent is None else agent
        set_default_agent(chosen)
        yield chosen
