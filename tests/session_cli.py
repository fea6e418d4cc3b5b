"""A stand-in for the CLI in memory that keeps its rules (2.1.330): one turn at a time, prompts queued, named by uuid.

It also keeps conversations: what a turn said is there for the next child that resumes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest

import pilothouse as ph
from pilothouse.client.sessions import Session
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

Say = Callable[[dict[str, Any]], Awaitable[None]]
Act = Callable[["Cli", Say, str], Awaitable[str]]
STOPPED: dict[str, Any] = {
    "subtype": "error_during_execution",
    "is_error": True,
    "terminal_reason": "aborted_streaming",
}


CALLBACK_REQUESTS: dict[str, dict[str, Any]] = {
    "can_use_tool": {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": "toolu_1"},
    "hook": {
        "subtype": "hook_callback",
        "callback_id": "hook_0",
        "input": {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}},
    },
    "tool": {
        "subtype": "mcp_message",
        "server_name": "tools",
        "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": {}}},
    },
}
"""What the CLI sends to have a callback called: a function, a hook, the tool `ask`."""


class Cli:
    """Plays the CLI for any number of children, one after the other or side by side.

    Attributes:
        acts: what a prompt with this text makes it do; else it answers "re: <prompt>".
        answers: payloads of answers to control requests by subtype, or an error text.
        controls: control requests that came, without the handshakes.
        handshakes: the handshakes that came, also those that tell of other hooks.
        prompts: prompts that came, by child.
        uuids: of the prompts that were taken up.
        children: the peers, oldest first.
        saved: the prompts of each conversation, by its id.
        taken: ids under which something lies that cannot be resumed.
        info: what a child says in the handshake beside the usual.
        silent: control requests that get no answer.
        refused: control requests that get an error, and have no effect.
        hold: takes prompts instead of the child; the rest is up to the test.
        running: the numbers of the children that have not ended.
    """

    def __init__(self, *, says_lifecycle: bool = True) -> None:
        self.acts: dict[str, Act] = {}
        self.answers: dict[str, Any] = {}
        self.controls: list[dict[str, Any]] = []
        self.handshakes: list[dict[str, Any]] = []
        self.prompts: list[list[str]] = []
        self.uuids: list[str] = []
        self.children: list[MemoryPeer] = []
        self.says_lifecycle = says_lifecycle
        self.saved: dict[str, list[str]] = {}
        self.taken: set[str] = set()
        self.info: dict[str, Any] = {}
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self.hold: Callable[[dict[str, Any]], object] | None = None
        self.running: set[int] = set()
        self._saved_uuids: dict[str, list[str]] = {}  # of the prompts in `saved`
        self._ids: dict[int, str] = {}
        self._waiting: dict[int, deque[dict[str, Any]]] = {}
        self._turn: dict[int, anyio.CancelScope | None] = {}
        self._more: dict[int, list[anyio.Event]] = {}

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self._play)

    @property
    def sessions(self) -> list[tuple[str, ...]]:
        """The arguments about the conversation that each child was started with."""
        names = ("--resume", "--session-id", "--fork-session", "--continue")
        return [tuple(a for a in child.invocation.argv if a.startswith(names)) for child in self.children]

    async def _play(self, peer: MemoryPeer) -> None:
        number = len(self.children)
        self.children.append(peer)
        self.running.add(number)
        try:
            await self._serve(number, peer)
        finally:
            self.running.discard(number)

    async def _serve(self, number: int, peer: MemoryPeer) -> None:
        self.prompts.append([])
        self._waiting[number] = deque()
        self._turn[number] = None
        if not await self._begin(number, peer):
            return
        more = self._more[number] = [anyio.Event()]
        async with anyio.create_task_group() as group:
            group.start_soon(self._work, number, peer, more)
            while (frame := await peer.read_frame()) is not None:
                if frame["type"] == "control_request":
                    await self._control(number, peer, frame)
                elif frame["type"] == "user":
                    await self._lifecycle(peer, frame["uuid"], "queued")
                    if self.hold is not None:
                        self.hold(frame)
                        continue
                    self._waiting[number].append(frame)
                    more[0].set()
            group.cancel_scope.cancel()

    async def _begin(self, number: int, peer: MemoryPeer) -> bool:
        """Find the conversation; the real one says that there is none with a result, and leaves the handshake open."""
        flags = {a.partition("=")[0]: a.partition("=")[2] for a in peer.invocation.argv}
        resumed = flags.get("--resume")
        if "--continue" in flags:
            resumed = list(self.saved)[-1]
        if resumed is not None and resumed not in self.saved:
            errors = [f"No conversation found with session ID: {resumed}"]
            await peer.write(frames.result(None, subtype="error_during_execution", is_error=True, errors=errors))
            peer.end(exit_code=1)
            return False
        own = flags.get("--session-id", str(uuid4())) if resumed is None or "--fork-session" in flags else resumed
        if own in {*self.saved, *self.taken} and own != resumed:
            peer.end(exit_code=1, stderr=f"Error: Session ID {own} is already in use.")
            return False
        if resumed is not None and own != resumed:
            self.saved[own] = list(self.saved[resumed])
            self._saved_uuids[own] = list(self._saved_uuids.get(resumed, ()))
        self._ids[number] = own
        return True

    async def _work(self, number: int, peer: MemoryPeer, more: list[anyio.Event]) -> None:
        while True:
            while not self._waiting[number]:
                more[0] = anyio.Event()
                await more[0].wait()
            frame = self._waiting[number].popleft()
            with anyio.CancelScope() as scope:
                self._turn[number] = scope
                await self._turn_of(number, peer, frame)
            self._turn[number] = None
            if scope.cancelled_caught:
                own: dict[str, Any] = {"session_id": self._ids[number], "user_message_uuid": frame["uuid"]}
                self._save(self._ids[number], frame["uuid"], "(stopped)")
                await peer.write(frames.result("", **own, **STOPPED))
                await self._lifecycle(peer, frame["uuid"], "cancelled")

    async def _turn_of(self, number: int, peer: MemoryPeer, frame: dict[str, Any]) -> None:
        uuid, content = frame["uuid"], frame["message"]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        self.prompts[number].append(text)
        self.uuids.append(uuid)
        await self._lifecycle(peer, uuid, "started")
        session = self._ids[number]
        if text == "/clear":
            await self._clear(number, peer, uuid)
            return
        await peer.write(frames.init(session_id=session, user_message_uuids=[uuid]))
        act = self.acts.get(text)
        answer = f"re: {text}" if act is None else await act(self, peer.write, text)
        with anyio.CancelScope(shield=True):
            self._save(session, uuid, text)
            await peer.write(frames.assistant(answer, session_id=session))
            await peer.write(frames.result(answer, session_id=session, user_message_uuid=uuid))
            await self._lifecycle(peer, uuid, "completed")

    def _save(self, session: str, uuid: str, text: str) -> None:
        self.saved.setdefault(session, []).append(text)
        self._saved_uuids.setdefault(session, []).append(uuid)

    def _rewind(self, session: str, target: str, last: str | None) -> dict[str, Any]:
        """Take back a prompt and all after it; refused if there are some after the last one that the request names."""
        uuids = self._saved_uuids.get(session, [])
        if target not in uuids:
            return {"rewound": False, "reason": "target_not_found"}
        if uuids[-1] not in (target, last):
            return {"rewound": False, "reason": "stale_target" if last is None else "unseen_later_turn"}
        del self.saved[session][uuids.index(target) - len(uuids) :]
        del uuids[uuids.index(target) :]
        return {"rewound": True, "targetMessageUuid": target}

    async def _clear(self, number: int, peer: MemoryPeer, uuid: str) -> None:
        before, self._ids[number] = self._ids[number], str(uuid4())
        named: dict[str, Any] = {"session_id": self._ids[number]}
        self.saved[self._ids[number]] = []
        reset = {"type": "conversation_reset", "new_conversation_id": self._ids[number], "user_message_uuid": uuid}
        await peer.write({**reset, "session_id": before})
        await peer.write(frames.init(user_message_uuids=[uuid], **named))
        await peer.write(frames.result("", user_message_uuid=uuid, local_command="clear", num_turns=0, **named))
        await self._lifecycle(peer, uuid, "completed")

    async def wake(self, peer: MemoryPeer, *output: dict[str, Any], answer: str = "I was woken") -> None:
        """A turn that the child starts by itself, because a background task has ended."""
        own: dict[str, Any] = {"session_id": self._ids[self.children.index(peer)]}
        await peer.write(frames.init(**own))
        for frame in output:
            await peer.write(frame)
        await peer.write(frames.assistant(answer, **own))
        await peer.write(frames.result(answer, origin={"kind": "task-notification"}, **own))

    async def _lifecycle(self, peer: MemoryPeer, uuid: str, state: str) -> None:
        if self.says_lifecycle:
            await peer.write({"type": "command_lifecycle", "command_uuid": uuid, "state": state})

    async def _control(self, number: int, peer: MemoryPeer, frame: dict[str, Any]) -> None:
        request, key = frame["request"], frame["request_id"]
        if request["subtype"] == "initialize":
            self.handshakes.append(request)
            if "initialize" not in self.silent:
                await peer.write(frames.control_response(key, frames.server_info(**self.info)))
            return
        self.controls.append(request)
        if request["subtype"] in self.silent:
            return
        if request["subtype"] in self.refused:
            await peer.write(frames.control_response(key, error="refused"))
            return
        payload: Any = self.answers.get(request["subtype"], {})
        if callable(payload):
            payload = payload(request)
        if request["subtype"] == "interrupt":
            payload = self._interrupt(number, cancel_queued=request.get("cancel_queued", False))
            for uuid in payload["cancelled"]:
                await self._lifecycle(peer, uuid, "cancelled")
        if request["subtype"] == "rewind_conversation":
            seen = request.get("last_seen_user_message_uuid")
            payload = self._rewind(self._ids[number], request["target_message_uuid"], seen)
        if request["subtype"] == "cancel_async_message":
            payload = self._take_out(number, request["message_uuid"])
        if isinstance(payload, str):
            await peer.write(frames.control_response(key, error=payload))
        else:
            await peer.write(frames.control_response(key, payload))
        if request["subtype"] == "cancel_async_message" and payload == {"cancelled": True}:
            await self._lifecycle(peer, request["message_uuid"], "cancelled")

    def _interrupt(self, number: int, *, cancel_queued: bool) -> dict[str, Any]:
        scope = self._turn[number]
        if scope is not None:
            scope.cancel()
        queued = [frame["uuid"] for frame in self._waiting[number]]
        if cancel_queued:
            self._waiting[number].clear()
        return {"still_queued": [] if cancel_queued else queued, "cancelled": queued if cancel_queued else []}

    def uuids_queued(self, number: int) -> list[str]:
        """The prompts in the queue of a child."""
        return [frame["uuid"] for frame in self._waiting[number]]

    def queue(self, number: int, frame: dict[str, Any]) -> None:
        """Let a prompt wait in the queue of a child, which is in a turn of its own."""
        self._waiting[number].append(frame)

    def take(self, number: int, frame: dict[str, Any]) -> None:
        """Let a child work on a prompt that was held."""
        self.queue(number, frame)
        self._more[number][0].set()

    def _take_out(self, number: int, uuid: str) -> dict[str, Any]:
        waiting = self._waiting[number]
        found = [frame for frame in waiting if frame["uuid"] == uuid]
        for frame in found:
            waiting.remove(frame)
        return {"cancelled": bool(found)}


TASK_STARTED: dict[str, Any] = {"type": "system", "subtype": "task_started", "task_id": "t1", "description": "tests"}
TASK_ENDED: dict[str, Any] = {
    "type": "system",
    "subtype": "task_notification",
    "task_id": "t1",
    "status": "completed",
}


def bash_request(request_id: str) -> dict[str, Any]:
    """The CLI asks whether a command may run."""
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": "call_1"}
    return {"type": "control_request", "request_id": request_id, "request": request}


async def start_task(cli: Cli, say: Say, text: str) -> str:
    """Starts a task in the background, and answers."""
    await say(TASK_STARTED)
    return "LAUNCHED"


async def die(cli: Cli, say: Say, text: str) -> str:
    """Says a part of an answer, and is killed."""
    await say(frames.assistant(f"part of {text}"))
    cli.children[-1].end(signal="SIGKILL")
    await anyio.sleep_forever()
    raise AssertionError


async def hang(cli: Cli, say: Say, text: str) -> str:
    """Says a part of an answer, and then nothing until it is interrupted."""
    await say(frames.assistant(f"part of {text}"))
    await anyio.sleep_forever()
    raise AssertionError


@asynccontextmanager
async def talking(cli: Cli, **settings: Any) -> AsyncGenerator[Session]:
    async with ph.Agent(transport=cli.transport).session(**settings) as session:
        yield session


@pytest.fixture
def cli() -> Cli:
    return Cli()
