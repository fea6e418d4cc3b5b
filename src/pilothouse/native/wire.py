"""The engine's side of the wire.

Sends frames and control requests to the host, and matches the host's responses to them. Knows neither turns nor tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol, cast

import anyio

from pilothouse.messages.json_lines import encode_json
from pilothouse.native.json_values import JsonObject

CANCEL_SECONDS = 1.0
"""To tell the host that an answer is no longer wanted; it is a courtesy."""


class WirePort(Protocol):
    """What the engine is plugged into: a pair of pipes, or another task of this process."""

    async def read_line(self) -> bytes:
        """The next line with its newline; b"" once the input has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Say bytes, whole."""
        ...

    def stderr(self, text: str) -> None:
        """Say something that is no message."""
        ...


class HostDisconnectedError(Exception):
    """The input ended before the host had answered."""


class HostRefusedError(Exception):
    """The host answered a question with an error."""


class _PendingRequest:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.response: JsonObject | None = None
        self.error: Exception | None = None


class Wire:
    """Frames out, and questions.

    Args:
        port: where bytes go.

    Attributes:
        session_id: the id that every frame carries.
    """

    def __init__(self, port: WirePort) -> None:
        self._port = port
        self._pending: dict[str, _PendingRequest] = {}
        self._input_ended = False
        self.session_id = ""

    async def send(self, frame: Mapping[str, Any]) -> str:
        """Send a message; gives its uuid. It goes out whole, even if this task is cancelled meanwhile."""
        name = frame.get("uuid") or str(uuid.uuid4())
        # The type comes first: who looks for one kind of frame need not read the others.
        await self._write({"type": frame["type"], "session_id": self.session_id, **frame, "uuid": name})
        return name

    async def _write(self, frame: Mapping[str, Any]) -> None:
        with anyio.CancelScope(shield=True):
            await self._port.write(encode_json(frame) + b"\n")

    def stderr(self, text: str) -> None:
        """Say a line on standard error."""
        self._port.stderr(text + "\n")

    # Answers to the host.

    async def respond(self, request_id: str, payload: Mapping[str, Any] | None = None) -> None:
        """Answer a control request."""
        body: JsonObject = {"subtype": "success", "request_id": request_id}
        if payload is not None:
            body["response"] = payload
        await self._write({"type": "control_response", "response": body})

    async def respond_error(self, request_id: str, error: str, code: str | None = None) -> None:
        """Answer a control request with an error."""
        body = {"subtype": "error", "request_id": request_id, "error": error}
        await self._write({"type": "control_response", "response": body | ({"error_code": code} if code else {})})

    # Questions to the host.

    async def request(self, subtype: str, body: Mapping[str, Any], timeout: float | None = None) -> JsonObject:
        """Ask the host, and wait for its answer.

        Args:
            subtype: of the control request.
            body: the rest of it.
            timeout: seconds; None: as long as it takes.

        Raises:
            HostDisconnectedError: its input has ended.
            HostRefusedError: it answered with an error.
            TimeoutError: it did not answer in time; the question is withdrawn.
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
        """A `control_response` of the host; one to an unknown question is ignored, as the CLI does."""
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
        """The host says no more: whoever waits for an answer gets none."""
        self._input_ended = True
        for waiting in self._pending.values():
            waiting.error = HostDisconnectedError()
            waiting.done.set()
