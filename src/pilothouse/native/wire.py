"""The engine's side of the wire, and the values that come over it.

Sends frames and control requests to the host, and matches the host's responses to them. Knows neither turns nor
tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast

import anyio

from pilothouse.messages.json_lines import encode_json

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


class _PendingRequest:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.response: JsonObject | None = None
        self.error: Exception | None = None


class Wire:
    """Sends frames and requests.

    Args:
        port: the output.

    Attributes:
        session_id: the id that every frame carries.
    """

    def __init__(self, port: WirePort) -> None:
        self._port = port
        self._pending: dict[str, _PendingRequest] = {}
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
        """Send a request to the host, and wait for the response.

        Args:
            subtype: subtype of the control request.
            body: the other fields.
            timeout: seconds; None for no limit.

        Raises:
            HostDisconnectedError: the input has ended.
            HostRefusedError: the host responded with an error.
            TimeoutError: the host did not respond in time; the request is cancelled.
        """
        if self._input_ended:
            raise HostDisconnectedError
        request_id = str(uuid.uuid4())
        waiting = self._pending[request_id] = _PendingRequest()
        try:
            await self._write(
                {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}
            )
            with anyio.fail_after(timeout):
                await waiting.done.wait()
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            if not waiting.done.is_set():
                with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                    await self._write({"type": "control_cancel_request", "request_id": request_id})
            raise
        finally:
            del self._pending[request_id]
        if waiting.error is not None:
            raise waiting.error
        return waiting.response or {}

    def on_response(self, frame: Mapping[str, Any]) -> None:
        """Handle a `control_response` of the host; a response to an unknown request is ignored, as in the CLI."""
        given = frame.get("response")
        if not isinstance(given, dict):
            return
        response = cast("JsonObject", given)
        waiting = self._pending.get(str(response.get("request_id")))
        if waiting is None:
            return
        if response.get("subtype") == "success":
            payload = response.get("response")
            waiting.response = cast("JsonObject", payload) if isinstance(payload, dict) else {}
        else:
            waiting.error = HostRefusedError(str(response.get("error") or "the host refused"))
        waiting.done.set()

    def end_input(self) -> None:
        """Handle the end of the input: all pending requests fail."""
        self._input_ended = True
        for waiting in self._pending.values():
            waiting.error = HostDisconnectedError()
            waiting.done.set()
