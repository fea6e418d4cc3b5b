"""A stand-in for the CLI in memory, to be run hundreds of times: it asks, defers, and can be interrupted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

import pilothouse as ph
from pilothouse.transports import MemoryPeer, MemoryTransport
from pilothouse_testing import frames

NAME = "mcp__tools__add"


@ph.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await anyio.sleep(0)
    return a + b


async def watch(event: Any) -> None:
    await anyio.sleep(0)


class Child:
    """One run of it. A prompt "slow" is answered when it is interrupted; "ask" after a hook and a tool; "permit" after
    a permission; "defer" leaves a tool to the host; any other at once."""

    def __init__(self, peer: MemoryPeer) -> None:
        self._peer = peer
        self._hooks: list[str] = []
        self._answers: dict[str, anyio.Event] = {}
        self._asked = 0
        self._turn: anyio.CancelScope | None = None
        self._user: dict[str, Any] = {}

    async def live(self) -> None:
        async with anyio.create_task_group() as group:
            while frame := await self._peer.read_frame():
                if frame["type"] == "control_request":
                    await self._control(frame)
                elif frame["type"] == "control_response":
                    self._answers[frame["response"]["request_id"]].set()
                elif frame["type"] == "user":
                    self._user = frame
                    group.start_soon(self._answer, frame)
            group.cancel_scope.cancel()

    async def _control(self, frame: dict[str, Any]) -> None:
        request = frame["request"]
        if request["subtype"] == "initialize":
            matchers = (request.get("hooks") or {}).get("PreToolUse") or ()
            self._hooks = [key for each in matchers for key in each["hookCallbackIds"]]
        if request["subtype"] == "interrupt" and self._turn is not None:
            self._turn.cancel()
        await self._peer.write(frames.control_response(frame["request_id"], frames.server_info()))

    async def _answer(self, frame: dict[str, Any]) -> None:
        content = frame["message"]["content"]
        text = content if isinstance(content, str) else ""
        with anyio.CancelScope() as self._turn:
            await self._peer.write(frames.init())
            await self._say("part ")
            await self.acts.get(text, Child._nothing)(self)
            return
        self._turn = None
        aborted = {"subtype": "error_during_execution", "terminal_reason": "aborted_streaming"}
        await self._end("", is_error=True, **aborted)

    async def _say(self, content: Any) -> None:
        await self._peer.write(frames.assistant(content))

    async def _end(self, text: str, **fields: Any) -> None:
        await self._peer.write(frames.result(text, user_message_uuid=self._user["uuid"], **fields))

    async def _ask(self, subtype: str, **body: Any) -> None:
        self._asked += 1
        key = f"q{self._asked}"
        self._answers[key] = anyio.Event()
        await self._peer.write(frames.control_request(subtype, request_id=key, **body))
        await self._answers[key].wait()

    async def _nothing(self) -> None:
        await self._say("and the rest")
        await self._end("fine")

    async def _slow(self) -> None:
        await anyio.sleep_forever()

    async def _call(self) -> None:
        arguments = {"a": 1, "b": 2}
        await self._say([frames.tool_use(NAME, arguments, "t")])
        event = {"hook_event_name": "PreToolUse", "tool_name": NAME, "tool_input": arguments, "tool_use_id": "t"}
        for key in self._hooks:
            await self._ask("hook_callback", callback_id=key, input=event, tool_use_id="t")

    async def _ask_host(self) -> None:
        await self._call()
        call = {"name": "add", "arguments": {"a": 1, "b": 2}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        await self._ask("mcp_message", server_name="tools", message=message)
        await self._peer.write(frames.user_tool_result("3", tool_use_id="t"))
        await self._nothing()

    async def _ask_permission(self) -> None:
        await self._ask("can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="t")
        await self._nothing()

    async def _defer(self) -> None:
        await self._call()
        await self._end("", stop_reason="tool_deferred", terminal_reason="tool_deferred")

    acts: dict[str, Callable[[Child], Awaitable[None]]] = {  # noqa: RUF012 - a table
        "slow": _slow,
        "ask": _ask_host,
        "defer": _defer,
        "permit": _ask_permission,
    }


class Memory:
    """Makes transports to such children.

    Attributes:
        transports: those that were made.
    """

    def __init__(self) -> None:
        self.transports: list[MemoryTransport] = []

    def __call__(self) -> MemoryTransport:
        self.transports.append(MemoryTransport(lambda peer: Child(peer).live()))
        return self.transports[-1]

    @property
    def open(self) -> int:
        return sum(transport._invocation is not None and not transport._is_closed for transport in self.transports)

    settings = property(lambda self: {"transport": self, "hooks": {"PreToolUse": [ph.HookMatcher(None, [watch])]}})

    def agent(self, **settings: Any) -> ph.Agent:
        return ph.Agent(transport=self, **settings)


def with_tools(**settings: Any) -> dict[str, Any]:
    return {"custom_tools": [add], "hooks": {"PreToolUse": [ph.HookMatcher(None, [watch])]}, **settings}


deferred = partial(with_tools, tool_bridge="deferred")
