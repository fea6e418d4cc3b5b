"""Stores that misbehave, and peers in memory that say what they have added to their transcripts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio

from pilothouse.options import Invocation
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames
from pilothouse_transcripts import project_key
from pilothouse_transcripts.stores import MemoryStore
from pilothouse_transcripts.stores.base import Entry, Lease, SessionKey, TranscriptKey

ID = "cb1760d4-6353-4c24-b1cf-670386ad0f92"
OTHER_ID = "0b1760d4-6353-4c24-b1cf-670386ad0f93"
PLACE = TranscriptKey("-w", ID)
FILE = f"/home/u/.claude/projects/-w/{ID}.jsonl"
AGENT = f"/home/u/.claude/projects/-w/{ID}/subagents/agent-1.jsonl"

Fault = Callable[[], Awaitable[None]]


def make_entries(*numbers: int) -> list[Entry]:
    return [{"type": "x", "n": number} for number in numbers]


def numbers(entries: list[Entry] | None) -> list[int]:
    return [entry.get("n", -1) for entry in entries or []]


class Plain:
    """A store with nothing but the two calls that every store has.

    Attributes:
        calls: the entries of each `append` that arrived, by number.
        faults: what happens in the next calls of `append`, before it arrives.
        after: the same, when it has arrived, and its answer is on the way.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[str, ...], list[Entry]] = {}
        self.calls: list[list[int]] = []
        self.faults: list[Fault | None] = []
        self.after: list[Fault | None] = []

    async def append(self, key: SessionKey, entries: list[Entry]) -> None:
        await self._meet(self.faults)
        self.calls.append(numbers(entries))
        self.kept.setdefault((key["project_key"], key["session_id"], key.get("subpath", "")), []).extend(entries)
        await self._meet(self.after)

    async def load(self, key: SessionKey) -> list[Entry] | None:
        return self.kept.get((key["project_key"], key["session_id"], key.get("subpath", "")))

    async def _meet(self, faults: list[Fault | None]) -> None:
        if faults and (fault := faults.pop(0)) is not None:
            await fault()


class Moody(MemoryStore):
    """The same with all that our own stores have."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.calls: list[list[int]] = []
        self.faults: list[Fault | None] = []
        self.after: list[Fault | None] = []

    async def append(
        self, key: SessionKey, entries: list[Entry], *, after: int | None = None, lease: Lease | None = None
    ) -> int:
        if self.faults and (fault := self.faults.pop(0)) is not None:
            await fault()
        self.calls.append(numbers(entries))
        count = await super().append(key, entries, after=after, lease=lease)
        if self.after and (fault := self.after.pop(0)) is not None:
            await fault()
        return count


async def fail() -> None:
    raise OSError("the network is gone")


async def leave() -> None:
    raise SystemExit(3)


async def hang() -> None:
    await anyio.sleep_forever()


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def mirror_frame(*entries: Entry, path: str = FILE) -> dict[str, Any]:
    return {"type": "transcript_mirror", "filePath": path, "entries": list(entries)}


def peer(
    *turns: list[dict[str, Any]],
    then: list[dict[str, Any]] | None = None,
    look: Callable[[Invocation], object] | None = None,
) -> MemoryTransport:
    """Answers each prompt with the frames of a turn, and says `then` when its input has ended; `look`s about first."""

    async def play(peer: MemoryPeer) -> None:
        left = list(turns)
        if look is not None:
            look(peer.invocation)
        while (frame := await peer.read_frame()) is not None:
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            else:
                for one in left.pop(0):
                    await peer.write(one)
        for one in then or []:
            await peer.write(one)

    return MemoryTransport(play)


def turn(*before: dict[str, Any], after: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    """A turn with mirror frames in front of its result, and behind it, as the CLI (2.1.330) has them."""
    return [frames.init(session_id=ID), *before, frames.assistant("hi"), frames.result("hi", session_id=ID), *after]


class Talk:
    """A session on disk, row by row.

    Attributes:
        id: of the session.
        path: its file.
    """

    def __init__(self, config: Path, cwd: Path, *texts: str, path: Path | None = None, **fields: Any) -> None:
        self.id = str(uuid4())
        self.path = path or config / "projects" / project_key(cwd) / f"{self.id}.jsonl"
        self._fields = {"sessionId": self.id, "cwd": str(cwd), "gitBranch": "main", "isSidechain": False, **fields}
        self._cwd = cwd
        self._last: str | None = None
        self._count = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for text in texts:
            self.say(text)

    def say(self, text: str) -> None:
        """One more, of the user and of the model in turn."""
        self._count += 1
        role = "user" if self._count % 2 else "assistant"
        body: dict[str, Any] = {"role": role, "content": text if role == "user" else [{"type": "text", "text": text}]}
        if role == "assistant":
            body |= {"id": f"msg_{uuid4().hex}", "model": "claude-opus-5-5", "usage": {"input_tokens": 1}}
        when = f"2026-11-01T12:{self._count:02}:00.000Z"
        row = {"type": role, "uuid": str(uuid4()), "parentUuid": self._last, "timestamp": when, "message": body}
        self._last = str(row["uuid"])
        self._write({**row, **self._fields})

    def note(self, kind: str, **fields: Any) -> None:
        self._write({"type": kind, **fields, "sessionId": self.id})

    def agent(self, agent_id: str, *texts: str, **about: Any) -> None:
        folder = self.path.with_suffix("") / "subagents"
        own = {"isSidechain": True, "agentId": agent_id, "sessionId": self.id}
        Talk(Path(), self._cwd, *texts, path=folder / f"agent-{agent_id}.jsonl", **own)
        (folder / f"agent-{agent_id}.meta.json").write_text(json.dumps(about))

    def _write(self, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
