"""Writing the transcript, and telling the host of it.

Owns when rows reach the disk and what happens when they do not: the session goes on, and says so once.
"""

from __future__ import annotations

import errno
from typing import Any

import anyio

from pilothouse.native import frames
from pilothouse.native.history import History
from pilothouse.native.wire import Wire
from pilothouse.transports.errands import run_briefly


class Saving:
    """Writes the rows of a history.

    Args:
        history, wire: of the session.
        mirrors: tell the host every row as well. (`--session-mirror`)
    """

    def __init__(self, history: History, wire: Wire, *, mirrors: bool) -> None:
        self._history, self._wire, self._mirrors = history, wire, mirrors
        self._one = anyio.Lock()
        self._is_lost = False

    async def flush(self) -> None:
        """Write what is pending. It is written whole, even if this task is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            async with self._one:
                rows = self._history.take()
                if not rows:
                    return
                path = str(self._history.path)
                try:
                    await run_briefly(self._history.write, rows)
                except OSError as error:
                    await self._lost(error)
                if self._mirrors:
                    await self._wire.say({"type": "transcript_mirror", "filePath": path, "entries": rows})

    async def _lost(self, error: OSError) -> None:
        self._wire.stderr(f"the transcript cannot be written: {error}")
        if self._is_lost:
            return
        self._is_lost = True
        code = errno.errorcode.get(error.errno or 0, "EIO")
        about: dict[str, Any] = {"error_code": code, "lost": ["transcript"]}
        ids = [self._history.session_id]
        await self._wire.say(frames.system("session_writes_lost", transcript_session_ids=ids, **about))
