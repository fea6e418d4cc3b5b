"""An API that fails as it is told to, behind the stand-in for the CLI; asked alone and in sessions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
from msgspec import Struct
from session_cli import Cli

import pilothouse as ph
from pilothouse.client import Query
from pilothouse.client.sessions import Session
from pilothouse.messages import Message, SystemMessage
from pilothouse.options import RetryPolicy
from pilothouse.transports import MemoryPeer
from pilothouse_testing import frames

SOON = RetryPolicy(attempts=3, first_delay=0.01, jitter=0.0)
LONG = RetryPolicy(attempts=3, first_delay=60.0, jitter=0.0)
DEADLINE = 8


class Fault(Struct, frozen=True):
    """One turn that fails.

    Args:
        status: of the API; None: it could not be reached.
        words: of the CLI.
        spoken: what the model has said before.
        resets_in: seconds until the limit resets that has rejected it.
        limit: type of that limit.
    """

    status: int | None = 529
    words: str = "API Error: Overloaded"
    spoken: str | None = None
    resets_in: float | None = None
    limit: str = "five_hour"


QUOTA = "You've hit your limit"
OVERLOADED = Fault()
RATE_LIMITED = Fault(429, "API Error: Request rejected (429)")
BROKEN = Fault(500, "API Error: Internal server error")
UNREACHABLE = Fault(None, "API Error: Connection error.")


class Api(Cli):
    """As `Cli`, but each turn meets the next of `faults`, until there is none left."""

    def __init__(self, *faults: Fault | None) -> None:
        super().__init__()
        self.faults = list(faults)
        self.uuids: list[str] = []
        self.times: list[float] = []
        self.rejected_until: float | None = None

    async def _turn_of(self, number: int, peer: MemoryPeer, frame: dict[str, Any]) -> None:
        self.uuids.append(frame["uuid"])
        self.times.append(time.time())
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            await super()._turn_of(number, peer, frame)
            return
        uuid, content = frame["uuid"], frame["message"]["content"]
        self.prompts[number].append(content if isinstance(content, str) else content[-1]["text"])
        await self._lifecycle(peer, uuid, "started")
        await peer.write(frames.init(session_id=self._ids[number]))
        self.saved.setdefault(self._ids[number], []).append(self.prompts[number][-1])
        for frame in self._failing(fault, uuid):
            await peer.write(frame)
        await self._lifecycle(peer, uuid, "completed")

    def _failing(self, fault: Fault, uuid: str) -> list[dict[str, Any]]:
        failing: list[dict[str, Any]] = []
        if fault.spoken is not None:
            failing.append(frames.assistant(fault.spoken))
        if fault.resets_in is not None:
            self.rejected_until = time.time() + fault.resets_in
            info = {"status": "rejected", "resetsAt": self.rejected_until, "rateLimitType": fault.limit}
            failing.append({"type": "rate_limit_event", "rate_limit_info": info, "session_id": frames.SESSION_ID})
        facts: dict[str, Any] = {"api_error_status": fault.status}
        if fault.status is None:
            facts["api_error"] = "connection_failed"
        failing.append(frames.assistant(fault.words, model="<synthetic>", is_api_error_message=True, **facts))
        failed: dict[str, Any] = {"is_error": True, "terminal_reason": "api_error", "user_message_uuid": uuid}
        failing.append(frames.result(fault.words, cost_usd=0.0, **failed, **facts))
        return failing


class Asking:
    """Asks an agent, alone or in a session of it."""

    def __init__(self, api: Cli, agent: ph.Agent, session: Session | None) -> None:
        self.api = api
        self.agent = agent
        self.session = session

    def query(self, prompt: Any, **settings: Any) -> Query:
        return (self.agent if self.session is None else self.session).query(prompt, **settings)

    @property
    def prompts(self) -> list[str]:
        """All prompts that came, whatever the child."""
        return [prompt for child in self.api.prompts for prompt in child]


@asynccontextmanager
async def asking(api: Cli, kind: str, **settings: Any) -> AsyncGenerator[Asking]:
    agent = ph.Agent(transport=api.transport, **settings)
    if kind == "alone":
        yield Asking(api, agent, None)
    else:
        async with agent.session() as session:
            yield Asking(api, agent, session)
    with anyio.fail_after(DEADLINE):
        while api.running:
            await anyio.lowlevel.checkpoint()


async def ask_each(cli: Cli, kind: str, *prompts: str, **settings: Any) -> str:
    """Send the prompts one after the other; the text of the last answer."""
    async with asking(cli, kind, **settings) as it:
        return [(await it.query(prompt)).text for prompt in prompts][-1]


def notes(messages: list[Message], subtype: str) -> list[dict[str, Any]]:
    """What pilothouse's own messages of one kind say."""
    return [dict(m.raw) for m in messages if isinstance(m, SystemMessage) and m.subtype == subtype]


async def wait_for_event(query: Query, subtype: str) -> dict[str, Any]:
    """Read until the first such message."""
    async for message in query:
        for note in notes([message], subtype):
            return note
    raise AssertionError(f"no {subtype}")
