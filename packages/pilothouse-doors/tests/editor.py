"""An editor that runs `pilothouse acp` and speaks the Agent Client Protocol in lines of JSON, like a real one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from served_agents import ServedCli

LIMIT = 60.0
COMMAND = [sys.executable, "-m", "pilothouse", "acp"]


class RequestFailedError(Exception):
    """The agent refused a request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


def make_environment(served: ServedCli, **env: str) -> dict[str, str]:
    return {**served.model.env(max_retries=0), "PILOTHOUSE_CLI": served.cli, **env}


class Editor:
    """One run of the command. `answer` returns the result of a request of the agent; it may wait."""

    def __init__(self, served: ServedCli, *flags: str, **env: str) -> None:
        self.updates: list[dict[str, Any]] = []
        self.asks: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Any] = choose("allow_once")
        self.process: asyncio.subprocess.Process
        self._command = [*COMMAND, *flags]
        self._env = make_environment(served, **env)
        self._served = served
        self._count = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, env=self._env, limit=1 << 26
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def start(self, **capabilities: Any) -> str:
        """Open a session in the project; returns its id."""
        await self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)
        return (await self.request("session/new", cwd=str(self._served.cwd), mcpServers=[]))["sessionId"]

    async def leave(self) -> int:
        """Close the connection, and wait until the agent has ended; returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = await asyncio.wait_for(self.process.wait(), 20)
        await self._reader  # raises if a line was not of the protocol
        return code

    async def request(self, method: str, **params: Any) -> Any:
        self._count += 1
        number, found = self._count, asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        self.send({"id": number, "method": method, "params": params})
        response = await asyncio.wait_for(found, LIMIT)
        if "error" in response:
            raise RequestFailedError(response["error"])
        return response["result"]

    async def prompt(self, session: str, text: str) -> str:
        """Send a text; returns why the turn ended."""
        blocks = [{"type": "text", "text": text}]
        return (await self.request("session/prompt", sessionId=session, prompt=blocks))["stopReason"]

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def wait_until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not is_done():
                self._changed.clear()
                await self._changed.wait()

    def kinds(self) -> list[str]:
        return [update["sessionUpdate"] for update in self.updates]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(each["content"]["text"] for each in self.updates if each["sessionUpdate"] == kind)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            if "method" in message and "id" in message:
                self.asks.append(message)
                task = asyncio.create_task(self._answer(message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            elif "method" in message:
                assert message["method"] == "session/update"
                self.updates.append(message["params"]["update"])
            else:
                found = self._waiting.pop(message["id"])
                if not found.cancelled():
                    found.set_result(message)
            self._changed.set()

    async def _answer(self, message: dict[str, Any]) -> None:
        result = self.answer(message)
        if result is not None:
            self.send({"id": message["id"], "result": result})


def choose(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Answer requests for permission with the option of this kind."""

    def answer(message: dict[str, Any]) -> Any:
        [chosen] = [each for each in message["params"]["options"] if each["kind"] == kind][:1]
        return {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}}

    return answer
