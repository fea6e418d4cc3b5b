"""The engine's side of the wire: lines in and out, and the questions that it asks the host.

Owns request ids, who waits for which answer, and what happens to them when the host is gone. Knows neither turns nor
tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol, cast

import anyio

from pilothouse.messages.jsonline import dump_line
from pilothouse.native.shapes import JSON

WITHDRAW_SECONDS = 1.0
"""To tell the host that an answer is no longer wanted; it is a courtesy."""


class Port(Protocol):
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


class HostGoneError(Exception):
    """The input ended before the host had answered."""


class HostRefusedError(Exception):
    """The host answered a question with an error."""


class _Waiting:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: JSON | None = None
        self.error: Exception | None = None


class Wire:
    """Frames out, and questions.

    Args:
        port: where bytes go.
        session_id: gives the id that every frame carries.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._waiting: dict[str, _Waiting] = {}
        self._is_over = False
        self.session_id = ""

    async def say(self, frame: Mapping[str, Any]) -> str:
        """Send a message; gives its uuid. It goes out whole, even if this task is cancelled meanwhile."""
        name = frame.get("uuid") or str(uuid.uuid4())
        # The type comes first: who looks for one kind of frame need not read the others.
        await self._write({"type": frame["type"], "session_id": self.session_id, **frame, "uuid": name})
        return name

    async def _write(self, frame: Mapping[str, Any]) -> None:
        with anyio.CancelScope(shield=True):
            await self._port.write(dump_line(frame) + b"\n")

    def stderr(self, text: str) -> None:
        """Say a line on standard error."""
        self._port.stderr(text + "\n")

    # Answers to the host.

    async def answer(self, request_id: str, payload: Mapping[str, Any] | None = None) -> None:
        """Answer a control request."""
        body: JSON = {"subtype": "success", "request_id": request_id}
        if payload is not None:
            body["response"] = payload
        await self._write({"type": "control_response", "response": body})

    async def refuse(self, request_id: str, error: str, code: str | None = None) -> None:
        """Answer a control request with an error."""
        body = {"subtype": "error", "request_id": request_id, "error": error}
        await self._write({"type": "control_response", "response": body | ({"error_code": code} if code else {})})

    # Questions to the host.

    async def ask(self, subtype: str, body: Mapping[str, Any], timeout: float | None = None) -> JSON:
        """Ask the host, and wait for its answer.

        Args:
            subtype: of the control request.
            body: the rest of it.
            timeout: seconds; None: as long as it takes.

        Raises:
            HostGoneError: its input has ended.
            HostRefusedError: it answered with an error.
            TimeoutError: it did not answer in time; the question is withdrawn.
        """
        if self._is_over:
            raise HostGoneError
        request_id = str(uuid.uuid4())
        waiting = self._waiting[request_id] = _Waiting()
        try:
            await self._write(
                {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **body}}
            )
            with anyio.fail_after(timeout):
                await waiting.done.wait()
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            if not waiting.done.is_set():
                with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):
                    await self._write({"type": "control_cancel_request", "request_id": request_id})
            raise
        finally:
            del self._waiting[request_id]
        if waiting.error is not None:
            raise waiting.error
        return waiting.answer or {}

    def on_answer(self, frame: Mapping[str, Any]) -> None:
        """A `control_response` of the host; one to an unknown question is ignored, as the CLI does."""
        given = frame.get("response")
        if not isinstance(given, dict):
            return
        response = cast("JSON", given)
        waiting = self._waiting.get(str(response.get("request_id")))
        if waiting is None:
            return
        if response.get("subtype") == "success":
            payload = response.get("response")
            waiting.answer = cast("JSON", payload) if isinstance(payload, dict) else {}
        else:
            waiting.error = HostRefusedError(str(response.get("error") or "the host refused"))
        waiting.done.set()

    def end(self) -> None:
        """The host says no more: whoever waits for an answer gets none."""
        self._is_over = True
        for waiting in self._waiting.values():
            waiting.error = HostGoneError()
            waiting.done.set()
