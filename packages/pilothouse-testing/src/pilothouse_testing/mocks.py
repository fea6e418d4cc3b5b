"""The lightest stand-ins for tests.

A transport in memory that answers prompts with frames, and a temporary default agent for a block. For signals,
pipes and exit codes of a real process see `FakeCLI`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from pilothouse.client import Agent
from pilothouse.client.agent import use_default_agent
from pilothouse.client.settings_check import find_sent_settings
from pilothouse.options import Invocation, Options
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames
from pilothouse_testing.frames import Frame

MockTurn: TypeAlias = str | Sequence[Mapping[str, Any]]


def mock_transport(*turns: MockTurn, **controls: Any) -> MemoryTransport:
    """Make a transport that answers the first prompt with the first turn, and so on.

    `MemoryTransport.sent_frames` has what was sent; `MemoryTransport.feed` sends more frames to the client.

    Args:
        *turns: the answer to each prompt: a text (becomes init, assistant and result frames), or frames.
        **controls: by subtype, the payload of the response to a control request; `initialize`, `interrupt`,
            `get_settings` and `get_usage` have one, others get an error.

    Example:
        >>> import anyio
        >>> from pilothouse.client import query
        >>> async def main():
        ...     return (await query("Hi", transport=mock_transport("Hello"))).text
        >>> anyio.run(main)
        'Hello'
    """
    answers = deque(_make_frames(turn) for turn in turns)
    payloads: dict[str, Any] = {
        "initialize": frames.server_info(),
        "interrupt": {"still_queued": []},
        "get_usage": frames.no_usage(),
        **controls,
    }

    async def next_turn(peer: MemoryPeer, uuid: str | None = None) -> None:
        nothing_left = [frames.init(), frames.result("mock_transport has no turn left", is_error=True)]
        turn = answers.popleft() if answers else nothing_left
        if uuid is not None:  # the CLI reports the state of a prompt with a uuid
            begin = [frames.lifecycle(uuid, state) for state in ("queued", "started")]
            turn = [*begin, *turn, frames.lifecycle(uuid, "completed")]
        for frame in turn:
            await peer.write(frame)

    async def play(peer: MemoryPeer) -> None:
        if peer.invocation.initialize is None:  # the argv form: the prompt is in the arguments
            await next_turn(peer)
            return
        while (frame := await peer.read_frame()) is not None:
            if frame.get("type") == "user":
                await next_turn(peer, frame.get("uuid"))
            elif frame.get("type") == "control_request":
                subtype = frame["request"].get("subtype", "")
                if subtype == "get_settings":
                    payloads.setdefault(subtype, _make_settings_answer(peer.invocation))
                error = None if subtype in payloads else f"Unsupported control request subtype: {subtype}"
                await peer.write(frames.control_response(frame["request_id"], payloads.get(subtype), error=error))

    return MemoryTransport(play)


def _make_settings_answer(invocation: Invocation) -> dict[str, Any]:
    """Return what the CLI says of settings in which there is no mistake."""
    sent = find_sent_settings(invocation, Options())
    return {"effective": {}, "sources": [{"source": each.source, "settings": each.content} for each in sent]}


def _make_frames(turn: MockTurn) -> list[Frame]:
    if isinstance(turn, str):
        return [frames.init(), frames.assistant(turn), frames.result(turn)]
    return [dict(frame) for frame in turn]


@contextmanager
def as_default(agent: Agent | None = None) -> Generator[Agent]:
    """Use `agent` for the module-level `query` in a block.

    The agent is the default for this thread or task and for tasks that are started from it; other threads and
    requests keep theirs. Settings that the block makes with `pilothouse.configure`, which is process-wide, are undone
    at its end.

    Args:
        agent: None for a new one without settings.

    Yields:
        The agent.
    """
    chosen = Agent() if agent is None else agent
    with use_default_agent(chosen):
        yield chosen
