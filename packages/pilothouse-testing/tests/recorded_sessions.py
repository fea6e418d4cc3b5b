"""A peer that behaves as the CLI does where ids are concerned, and recordings of what is done with it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pilothouse as ph
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import Player, Recorder, frames


async def talk(peer: MemoryPeer) -> None:
    """Answers prompts, and names them; asks for permission, or hangs until it is interrupted, if told to."""
    session_id = str(uuid.uuid4())
    asked = 0
    while frame := await peer.read_frame():
        if frame["type"] == "control_request":
            await _obey(peer, frame)
            continue
        if frame["type"] != "user":
            continue
        prompt, own = frame["message"]["content"], {"session_id": session_id}
        await peer.write({"type": "command_lifecycle", "command_uuid": frame["uuid"], "state": "started", **own})
        await peer.write(frames.init(**own))
        answer = f"You said: {prompt}"
        if prompt.startswith("ask"):
            asked += 1
            body = {"tool_name": "Bash", "input": {"command": prompt}, "tool_use_id": f"toolu_{asked}"}
            await peer.write(frames.control_request("can_use_tool", request_id=f"q{asked}", **body))
            response = (await _answer(peer))["response"]["response"]
            answer = f"{response['behavior']}: {response.get('message', '')}"
        elif prompt == "hang":
            while (frame_ := await peer.read_frame()) and frame_.get("request", {}).get("subtype") != "interrupt":
                pass
            assert frame_ is not None
            await peer.write(frames.control_response(frame_["request_id"], {"still_queued": []}))
            answer = "interrupted"
        await peer.write(frames.assistant(answer, **own))
        await peer.write(frames.result(answer, session_id=session_id, user_message_uuids=[frame["uuid"]]))


async def _answer(peer: MemoryPeer) -> dict[str, Any]:
    while True:
        frame = await peer.read_frame()
        assert frame is not None
        if frame["type"] == "control_response":
            return frame


async def _obey(peer: MemoryPeer, frame: dict[str, Any]) -> None:
    payload = frames.server_info() if frame["request"]["subtype"] == "initialize" else {}
    await peer.write(frames.control_response(frame["request_id"], payload))


def recorder(path: Path) -> Recorder:
    return Recorder(path, lambda: MemoryTransport(talk))


async def record(path: Path, *prompts: str, **settings: Any) -> list[str]:
    """Record a session; the answers."""
    return await say(prompts, transport=recorder(path), **settings)


async def say(prompts: tuple[str, ...] | list[str], **settings: Any) -> list[str]:
    async with ph.session(**settings) as session:
        return [(await session.query(prompt)).text for prompt in prompts]


async def replay(path: Path, *prompts: str, strict: bool | None = None, **settings: Any) -> list[str]:
    """The same session over its recording, with no peer; it must do all that was recorded."""
    player = Player(path, strict=strict, patience=settings.pop("patience", 5.0))
    answers = await say(prompts, transport=player, cli="/nowhere/claude", **settings)
    player.check_complete()
    return answers
