"""The engine's side of the wire, and the values that come over it.

Sends frames and control requests to the host, and matches the host's responses to them. Knows neither turns nor
tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, cast

import anyio
from anyio import create_memory_object_stream
from anyio.streams.memory import MemoryObjectSendStream

from pilothouse.support import encode_json

JsonObject: TypeAlias = dict[str, Any]


def as_object(value: Any) -> JsonObject:
    """Return the value if it is an object; else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list; else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_objects(value: Any) -> list[JsonObject]:
    """Return the objects in a list, and drop everything else."""
    return [cast("JsonObject", item) for item in as_list(value) if isinstance(item, dict)]


def join_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text in content of the Messages API."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


CANCEL_SECONDS = 1.0
"""Seconds for the attempt to tell the host that a request is cancelled."""


class WirePort(Protocol):
    """The engine's input and output: a pair of pipes, or another task of this process."""

    async def read_line(self) -> bytes:
        """Return the next line with its newline; b"" once the input has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all bytes."""
        ...

    def stderr(self, text: str) -> None:
        """Write text that is not a message."""
        ...


class HostDisconnectedError(Exception):
    """The input ended before the host responded."""


class HostRefusedError(Exception):
    """The host responded to a request with an error."""


class Wire:
    """Sends frames, which carry `session_id`, and requests."""

    def __init__(self, port: WirePort) -> None:
        self._port = port
        self._pending: dict[str, MemoryObjectSendStream[JsonObject | Exception]] = {}
        self._input_ended = False
        self.session_id = ""

    async def send(self, frame: Mapping[str, Any]) -> str:
        """Send a message; returns its uuid. The message is sent whole, even if this task is cancelled meanwhile."""
        name = frame.get("uuid") or str(uuid.uuid4())
        # The type comes first, so that readers can skip other kinds of frames without parsing them.
        await self._write({"type": frame["type"], "session_id": self.session_id, **frame, "uuid": name})
        return name

    async def _write(self, frame: Mapping[str, Any]) -> None:
        with anyio.CancelScope(shield=True):
            await self._port.write(encode_json(frame) + b"\n")

    def stderr(self, text: str) -> None:
        """Write a line to standard error."""
        self._port.stderr(text + "\n")

    # Responses to the host.

    async def respond(self, request_id: str, payload: Mapping[str, Any] | None = None) -> None:
        """Respond to a control request."""
        body: JsonObject = {"subtype": "success", "request_id": request_id}
        if payload is not None:
            body["response"] = payload
        await self._write({"type": "control_response", "response": body})

    async def respond_error(self, request_id: str, error: str, code: str | None = None) -> None:
        """Respond to a control request with an error."""
        body = {"subtype": "error", "request_id": request_id, "error": error}
        await self._write({"type": "control_response", "response": body | ({"error_code": code} if code else {})})

    # Requests to the host.

    async def request(self, subtype: str, body: Mapping[str, Any], timeout: float | None = None) -> JsonObject:
        """Send a request to the host, and return its response.

        Raises HostDisconnectedError, HostRefusedError, or, after `timeout` seconds, TimeoutError: it is cancelled.
        """
        if self._input_ended:
            raise HostDisconnectedError
        request_id = str(uuid.uuid4())
        self._pending[request_id], answers = create_memory_object_stream[JsonObject | Exception](1)
        frame = {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}
        try:
            await self._write(frame)
            with anyio.fail_after(timeout):
                answer = await answers.receive()
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                await self._write({"type": "control_cancel_request", "request_id": request_id})
            raise
        finally:
            self._pending.pop(request_id).close()
            answers.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_response(self, frame: Mapping[str, Any]) -> None:
        """Handle a `control_response` of the host; a response to an unknown request is ignored, as in the CLI."""
        response = as_object(frame.get("response"))
        answer: JsonObject | Exception = as_object(response.get("response"))
        if response.get("subtype") != "success":
            answer = HostRefusedError(str(response.get("error") or "the host refused"))
        self._settle(str(response.get("request_id")), answer)

    def end_input(self) -> None:
        """Handle the end of the input: all pending requests fail."""
        self._input_ended = True
        for request_id in self._pending:
            self._settle(request_id, HostDisconnectedError())

    def _settle(self, request_id: str, answer: JsonObject | Exception) -> None:
        waiting = self._pending.get(request_id)
        if waiting is not None:
            with suppress(anyio.WouldBlock):  # only the first response counts
                waiting.send_nowait(answer)
