"""What the tests of the native engine share: agents that talk to a scripted model without the CLI, and a raw host."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from pilothouse.options import Invocation
from pilothouse.transports import Transport
from pilothouse_native import NativeTransport
from pilothouse_native.tools.base import BuiltinTool, ToolOutput, Workplace
from pilothouse_testing import ScriptedModel

ARGV = ("--print", "--input-format=stream-json", "--output-format=stream-json", "--verbose")
LIMIT = 30.0


class Echo:
    """A tool that gives back what it got, and keeps what it saw."""

    description = "Gives back the text."
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    def __init__(self, name: str = "Echo", *, read_only: bool = False) -> None:
        self.name, self.read_only = name, read_only
        self.seen: list[str] = []
        self.ended: list[str] = []
        self.began = anyio.Event()

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        self.seen.append(tool_input["text"])
        self.began.set()
        try:
            if tool_input["text"] == "hang":
                await anyio.sleep_forever()
        finally:
            self.ended.append(tool_input["text"])
        if tool_input["text"] == "raise":
            raise RuntimeError("it broke")
        return ToolOutput(f"{self.name}: {tool_input['text']}")


def settings(model: ScriptedModel, *tools: BuiltinTool, **env: str) -> dict[str, Any]:
    """Settings of an agent over the native engine, hermetic; `tools` in the place of the engine's own."""
    project = model.home / "project"
    project.mkdir(exist_ok=True)
    given = {tool.name: tool for tool in tools} if tools else None
    return {
        "transport": partial(NativeTransport, model.url, "native-test-key", tools=given),
        "env": model.env(max_retries=0, **env),
        "inherit_env": False,
        "cwd": str(project),
    }


class Host:
    """The other end of the wire, frame by frame."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.frames: list[dict[str, Any]] = []
        self._rest = b""

    async def send(self, *frames: Mapping[str, Any]) -> None:
        for frame in frames:
            await self.transport.send(json.dumps(frame).encode() + b"\n")

    async def ask(self, subtype: str, **body: Any) -> dict[str, Any]:
        """Send a control request, and wait for its answer."""
        request_id = f"t{len(self.frames)}-{subtype}"
        await self.send({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}})
        frame = await self.until(
            lambda f: f["type"] == "control_response" and f["response"]["request_id"] == request_id
        )
        return frame["response"]

    async def prompt(self, text: str | list[dict[str, Any]], **about: Any) -> None:
        await self.send({"type": "user", "message": {"role": "user", "content": text}, **about})

    async def answer(self, question: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
        """Answer a control request of the engine."""
        response = {"subtype": "success", "request_id": question["request_id"], "response": payload}
        await self.send({"type": "control_response", "response": response})

    async def next(self) -> dict[str, Any] | None:
        while b"\n" not in self._rest:
            data = await self.transport.receive()
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        frame = json.loads(line)
        self.frames.append(frame)
        return frame

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while (frame := await self.next()) is not None:
            if wanted(frame):
                return frame
        raise AssertionError(
            f"it ended before: {[kind_of(f) for f in self.frames]}; {await self.transport.exit_info()}"
        )

    async def result(self) -> dict[str, Any]:
        return await self.until(lambda f: f["type"] == "result")

    async def question(self, subtype: str) -> dict[str, Any]:
        return await self.until(lambda f: f["type"] == "control_request" and f["request"]["subtype"] == subtype)

    async def rest(self) -> list[dict[str, Any]]:
        """Everything until the end."""
        found: list[dict[str, Any]] = []
        while (frame := await self.next()) is not None:
            found.append(frame)
        return found

    def kinds(self) -> list[str]:
        return [kind_of(frame) for frame in self.frames]


def kind_of(frame: Mapping[str, Any]) -> str:
    """Type and subtype of a frame, or of its event."""
    inner = frame.get("subtype") or frame.get("state") or frame.get("event", {}).get("type")
    return f"{frame['type']}/{inner}" if inner else str(frame["type"])


@asynccontextmanager
async def hosted(
    model: ScriptedModel,
    *flags: str,
    tools: Mapping[str, BuiltinTool] | None = None,
    cwd: Path | None = None,
    **env: str,
) -> AsyncGenerator[Host]:
    """The engine with these flags, and its host."""
    project = cwd or model.home / "project"
    project.mkdir(exist_ok=True)
    transport = NativeTransport(tools=tools)
    invocation = Invocation(cli="auto", argv=(*ARGV, *flags), env=model.env(max_retries=0, **env), cwd=str(project))
    with anyio.fail_after(LIMIT):
        await transport.start(invocation)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(transport.serve)
                yield Host(transport)
                group.cancel_scope.cancel()
        finally:
            await transport.close()


async def talk(model: ScriptedModel, prompt: str, *flags: str, **settings: Any) -> tuple[Host, dict[str, Any]]:
    """Send one prompt to an engine of its own; returns its host, with all frames, and the result."""
    async with hosted(model, *flags, **settings) as host:
        await host.prompt(prompt)
        result = await host.result()
        await host.transport.end_input()
        await host.rest()
    return host, result
