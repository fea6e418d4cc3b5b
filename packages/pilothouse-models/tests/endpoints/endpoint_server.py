"""Endpoints on a free port of loopback, in a thread with its own event loop, and models that say what they are told."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import anthropic
import openai
import uvicorn
from starlette.applications import Starlette

from pilothouse.options import Invocation
from pilothouse.transports import MemoryTransport
from pilothouse_models.endpoints import EndpointModels, anthropic_routes, openai_routes
from pilothouse_testing import frames, mock_transport

Frame = dict[str, Any]
TOKEN = "token-of-the-endpoints"
LIMIT = 20.0
NONCE = "n0nce"
USAGE = {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1}


def call_text(name: str, /, **arguments: Any) -> str:
    """A call as the model writes it."""
    named = f"<tool_name>{name}</tool_name>"
    return f"<tool_use-{NONCE}>{named}<arguments>{json.dumps(arguments)}</arguments></tool_use-{NONCE}>"


def speak(text: str, thinking: str = "", *, pieces: int = 3, **result: Any) -> list[Frame]:
    """One turn, as the CLI streams it."""
    made: list[Frame] = [frames.init()]

    def event(body: Frame) -> None:
        made.append(frames.stream_event(body, api_message_id="msg_1"))

    event({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}})
    blocks = [("thinking", thinking)] if thinking else []
    for index, (kind, said) in enumerate([*blocks, ("text", text)]):
        block = frames.thinking(said) if kind == "thinking" else frames.text(said)
        event({"type": "content_block_start", "index": index, "content_block": {**block, kind: ""}})
        size = -(-len(said) // pieces) or 1
        for at in range(0, len(said), size):
            delta = {"type": f"{kind}_delta", kind: said[at : at + size]}
            event({"type": "content_block_delta", "index": index, "delta": delta})
        made.append(frames.assistant([block], message_id="msg_1"))
        event({"type": "content_block_stop", "index": index})
    event({"type": "message_delta", "delta": {"stop_reason": result.get("stop_reason", "end_turn")}, "usage": {}})
    event({"type": "message_stop"})
    closing: dict[str, Any] = {"usage": USAGE, "stop_reason": "end_turn", **result}
    return [*made, frames.result(text, **closing)]


class ToldTransports:
    """Makes a transport for each request; the first one says the first turns, and so on."""

    def __init__(self, *requests: str | Sequence[Frame] | Sequence[Sequence[Frame]]) -> None:
        self._waiting = deque(requests)
        self.made: list[MemoryTransport] = []
        self.invocations: list[Invocation] = []

    def __call__(self) -> MemoryTransport:
        told: Any = self._waiting.popleft()
        turns = [speak(told)] if isinstance(told, str) else told if isinstance(told[0], list) else [told]
        made = mock_transport(*turns)
        start = made.start

        async def start_recorded(invocation: Invocation) -> None:
            self.invocations.append(invocation)
            await start(invocation)

        made.start = start_recorded  # type: ignore[method-assign]
        self.made.append(made)
        return made

    def prompt(self, at: int = -1) -> str:
        """The prompt that a request sent to the CLI."""
        [user] = [frame for frame in self.made[at].sent_frames if frame.get("type") == "user"]
        content = user["message"]["content"]
        return content if isinstance(content, str) else json.dumps(content)

    def system(self, at: int = -1) -> str:
        """The arguments and the handshake of a request, which have the system prompt."""
        started = self.invocations[at]
        return json.dumps([started.argv, dict(started.initialize or {}), [str(each.content) for each in started.files]])


class EndpointServer:
    """Both endpoints, until the block is left."""

    def __init__(self, models: EndpointModels, *, token: str | None = TOKEN) -> None:
        routes = [*openai_routes(models, token=token), *anthropic_routes(models, token=token)]
        self.application: Any = Starlette(routes=routes)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server: uvicorn.Server
        self.port = self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self.application, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._server.startup(sockets=[self._listening])
        self._ready.set()
        await self._stop.wait()
        self._server.should_exit = True
        await self._server.shutdown(sockets=[self._listening])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LIMIT)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


class Clients:
    """Both clients of one server, and what the CLI got."""

    def __init__(self, server: EndpointServer, told: ToldTransports) -> None:
        self.server, self.told = server, told
        self.openai: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, timeout=LIMIT)
        self.anthropic: Any = anthropic.Anthropic(base_url=server.url, api_key=TOKEN, max_retries=0, timeout=LIMIT)

    def chat(self, content: Any = "Hi", **more: Any) -> Any:
        return self.openai.chat.completions.create(
            model="sonnet", messages=[{"role": "user", "content": content}], **more
        )

    def message(self, content: Any = "Hi", **more: Any) -> Any:
        asked: dict[str, Any] = {"model": "sonnet", "max_tokens": 64_000, **more}
        return self.anthropic.messages.create(messages=[{"role": "user", "content": content}], **asked)

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()


Connect = Callable[..., Clients]
