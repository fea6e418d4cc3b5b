"""Takes what a child asks out of its output, so that people at the host decide and not the client that drives it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.abc

from pilothouse.errors import LineDecodeError
from pilothouse.permissions import Asks
from pilothouse.permissions.dispatcher import ElicitationDispatcher, PermissionDispatcher
from pilothouse.protocol import CompleteLines, success_line
from pilothouse.support import decode_line
from pilothouse.transports import Transport, TransportWrapper


class InboxTransport(TransportWrapper):
    """A child whose permissions, questions, plans and elicitations wait in `asks`. The client sees none of them.

    Args:
        inner: the transport to the child; not started.
        asks: where they wait.
    """

    def __init__(self, inner: Transport, asks: Asks) -> None:
        super().__init__(inner)
        park = partial(asks.park, self)
        self._handlers = {
            "can_use_tool": PermissionDispatcher(park=park).handle,
            "elicitation": ElicitationDispatcher(park=park).handle,
        }
        self._lines = CompleteLines()
        self._sending = anyio.Lock()  # a response must not get between two parts of what the client sends
        self._open: dict[str, anyio.CancelScope] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_serving = anyio.Event()

    async def serve(self) -> None:
        """See `Transport`. Also runs the requests that wait."""
        async with anyio.create_task_group() as self._tasks:
            self._is_serving.set()
            await self.inner.serve()
            await anyio.sleep_forever()  # the owner cancels this when the output has ended

    async def send(self, data: bytes) -> None:
        """See `Transport`. `data` is whole lines."""
        async with self._sending:
            await self.inner.send(data)

    async def receive(self) -> bytes:
        """See `Transport`. Returns whole lines, without those that were taken."""
        await self._is_serving.wait()
        while data := await self.inner.receive():
            lines = self._lines.feed(data).splitlines(keepends=True)
            if kept := b"".join([line for line in lines if not self._take(line)]):
                return kept
        return self._lines.flush()

    def _take(self, line: bytes) -> bool:
        """Start to work on a line if it is a request for a person, or takes one back."""
        if b'"control_' not in line:  # by far the most lines
            return False
        try:
            frame: Any = decode_line(line)
        except LineDecodeError:
            return False
        match frame:
            case {
                "type": "control_request",
                "request_id": str(request_id),
                "request": {"subtype": str(subtype)} as body,
            } if subtype in self._handlers:
                assert self._tasks is not None
                scope = self._open[request_id] = anyio.CancelScope()  # it may be taken back before the task runs
                self._tasks.start_soon(self._decide, request_id, scope, cast("Mapping[str, Any]", body))
                return True
            case {"type": "control_cancel_request", "request_id": str(request_id)} if request_id in self._open:
                self._open.pop(request_id).cancel()
                return True
            case _:
                return False

    async def _decide(self, request_id: str, scope: anyio.CancelScope, body: Mapping[str, Any]) -> None:
        with scope:
            try:
                decision = await self._handlers[str(body["subtype"])](body)
            finally:
                if self._open.get(request_id) is scope:  # the child may have used the id again
                    del self._open[request_id]
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the child has ended
                await self.send(success_line(request_id, decision))
