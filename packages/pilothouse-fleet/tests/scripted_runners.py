"""Runners without a model: what a run says is decided by its prompt or by the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from pilothouse.client import QueryResult
from pilothouse.errors import PilothouseError
from pilothouse.messages import from_dict
from pilothouse_fleet import Attempt
from pilothouse_testing import frames


def answer(
    text: str, *, cost: float = 0.001, tokens: int = 10, turns: int = 1, error: PilothouseError | None = None
) -> QueryResult:
    """An answer as the CLI gives it."""
    usage = {"inputTokens": tokens, "outputTokens": 0, "cacheReadInputTokens": 0, "cacheCreationInputTokens": 0}
    frame = frames.result(text, num_turns=turns, total_cost_usd=cost, modelUsage={"model": {**usage, "costUSD": cost}})
    return QueryResult([from_dict(frames.init()), from_dict(frame)], failure=error)


class PlayedRunner:
    """Answers with the prompt, after `seconds`; notes who was there.

    Args:
        play: what an attempt gives instead.
        seconds: how long it takes.
    """

    def __init__(self, play: Callable[[Attempt], Awaitable[QueryResult]] | None = None, seconds: float = 1.0) -> None:
        self.attempts: list[Attempt] = []
        self.starts: list[float] = []
        self.most = 0
        self.now = 0
        self.tries: Counter[str] = Counter()
        self._play = play
        self._seconds = seconds

    async def run(self, attempt: Attempt) -> QueryResult:
        self.attempts.append(attempt)
        self.starts.append(anyio.current_time())
        self.tries[attempt.key] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self._play is not None:
                return await self._play(attempt)
            await anyio.sleep(self._seconds)
            return answer(f"{attempt.prompt}!")
        finally:
            self.now -= 1

    @property
    def keys(self) -> list[str]:
        return [attempt.key for attempt in self.attempts]


class Interruptible:
    """An attempt that lasts until it is interrupted."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.session_id: str | None = None

    async def __call__(self, attempt: Attempt) -> QueryResult:
        stopped = anyio.Event()

        async def interrupt() -> None:
            stopped.set()

        attempt.interrupt = interrupt
        self.session_id = attempt.session_id
        self.started.set()
        await stopped.wait()
        return QueryResult([from_dict(frames.init(session_id=str(attempt.session_id)))], interrupted=True)


async def all_of(runs: Any) -> list[Any]:
    return [run async for run in runs]
