"""A peer in memory that answers prompts with frames: the lightest way to test code that runs queries.

Owns a `Transport` without a process. What frames look like is in `frames.py`; what a real child does with signals,
pipes and exit codes is the business of `FakeCLI`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel

from pilothouse.errors import UsageError
from pilothouse.options import Invocation
from pilothouse.testing import frames
from pilothouse.testing.frames import Frame
from pilothouse.transports.base import Ending, Health, Transport

CHUNK_BYTES = 65536

Turn: TypeAlias = str | Sequence[Mapping[str, Any]]


def mock_transport(*turns: Turn, **controls: Any) -> MockTransport:
    """A transport whose peer answers the first prompt with the first turn, and so on. (R39)

    Args:
        *turns: what each prompt is answered with: a text (init, assistant and result are made for it), or frames.
        **controls: by subtype, the payload of the answer to a control request; `initialize` and `interrupt` have one,
            others are answered with an error.

    Example:
        >>> async def main():
        ...     transport = mock_transport("Hello")
        ...     await transport.start(Invocation("auto", (), {}, initialize={}))
        ...     await transport.send(frames.lines([{"type": "user", "message": {"role": "user", "content": "Hi"}}]))
        ...     received = await transport.receive()
        ...     return [json.loads(line)["type"] for line in received.splitlines()]
        >>> anyio.run(main)
        ['system', 'assistant', 'result']
    """
    return MockTransport(turns, controls)


class MockTransport(Transport):
    """See `mock_transport`.

    Attributes:
        sent: the frames that were sent, in order.
        invocation: what `start` was given.
    """

    def __init__(self, turns: Sequence[Turn], controls: Mapping[str, Any]) -> None:
        self.sent: list[Frame] = []
        self.invocation: Invocation | None = None
        self._turns = deque(_frames_of(turn) for turn in turns)
        self._controls: dict[str, Any] = {
            "initialize": frames.server_info(),
            "interrupt": {"still_queued": []},
            **controls,
        }
        self._output: deque[bytes] = deque()
        self._pending = b""
        self._news = anyio.Event()
        self._ended = False
        self._closed = False

    @property
    def prompts(self) -> list[Any]:
        """The content of each user message."""
        return [frame["message"]["content"] for frame in self.sent if frame.get("type") == "user"]

    async def start(self, invocation: Invocation) -> None:
        """Begin; a prompt in the arguments (the argv form) is answered at once, and the output ends after it."""
        if self.invocation is not None:
            raise UsageError("a transport starts once")
        self._check_open()
        self.invocation = invocation
        if invocation.initialize is None:
            self._next_turn()
            self._ended = True

    async def send(self, data: bytes) -> None:
        """Take frames and answer them."""
        await anyio.lowlevel.checkpoint()
        self._check_open()
        if self._ended:
            raise anyio.BrokenResourceError
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in filter(None, lines):
            self._take(cast("Frame", json.loads(line)))

    async def receive(self) -> bytes:
        """The next bytes."""
        await anyio.lowlevel.checkpoint()
        while True:
            self._check_open()
            if self._output:
                return self._output.popleft()
            if self._ended:
                return b""
            await self._news.wait()

    async def end_input(self) -> None:
        """End; what is not read yet can still be read."""
        await anyio.lowlevel.checkpoint()
        self._ended = True
        self._wake()

    async def ending(self) -> Ending:
        """As of a child that ended well."""
        await anyio.lowlevel.checkpoint()
        return Ending(exit_code=0)

    async def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self._output.clear()
        self._wake()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()

    def health(self) -> Health:
        """Healthy from the start until the end."""
        state = "closed" if self._closed else "ended" if self._ended else "" if self.invocation else "not started"
        return Health("unhealthy", state) if state else Health("healthy")

    def say(self, *said: Mapping[str, Any]) -> None:
        """Send frames without being asked, such as a `can_use_tool` request."""
        data = frames.lines(dict(frame) for frame in said)
        self._output.extend(data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
        self._wake()

    def _take(self, frame: Frame) -> None:
        self.sent.append(frame)
        if frame.get("type") == "user":
            self._next_turn()
        elif frame.get("type") == "control_request":
            subtype = frame["request"].get("subtype", "")
            error = None if subtype in self._controls else f"Unsupported control request subtype: {subtype}"
            self.say(frames.control_response(frame["request_id"], self._controls.get(subtype), error=error))

    def _next_turn(self) -> None:
        if not self._turns:
            self.say(frames.init(), frames.result("mock_transport has no turn left", is_error=True))
            return
        self.say(*self._turns.popleft())

    def _check_open(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _frames_of(turn: Turn) -> list[Frame]:
    if isinstance(turn, str):
        return [frames.init(), frames.assistant(turn), frames.result(turn)]
    return [dict(frame) for frame in turn]
