"""What the built-in tools share: where they work, what they answer, what a tool is.

Owns the state that calls of one session share (working directory, files seen, processes started). Knows no tool, no
permission and no wire.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec
from anyio import to_thread


class FileSeen(msgspec.Struct, frozen=True):
    """What a file looked like when its content was last read or written here.

    `mtime_ns` and `size` are those of the file; `digest` is of its bytes, so that a touched but equal file still counts
    as seen; `whole` is False when only a part was shown.
    """

    mtime_ns: int
    size: int
    digest: bytes
    whole: bool = True


class Closing(Protocol):
    """Something that a tool started and that ends with the workplace."""

    async def close(self) -> None:
        """End it, within a bounded time."""
        ...


class Workplace:
    """Where the tools of one session work.

    Args:
        cwd: working directory; Bash may change it.
        directories: additional directories that belong to the work.
        env: complete environment of the commands that are run; None is that of this process.
        answer: asks the model: `await answer(prompt, text)` gives its answer about the text; WebFetch uses it.
        private_hosts: names or addresses that WebFetch may reach though they are private or loopback.

    Attributes:
        root: the directory in which the session started; Bash comes back to it when it left the work.
        read: what files looked like when they were last read or written, by resolved path.
        todos: the list that TodoWrite keeps.
        pages: what WebFetch has fetched, by address.
        open: what tools started and has not ended, by id; `close` ends it.
        scratch: a private directory for what tools put aside, once there is one; it may be read without asking.
        hidden: says of a path that Glob and Grep must not show it.
    """

    def __init__(
        self,
        cwd: Path | str,
        directories: list[Path] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        answer: Callable[[str, str], Awaitable[str]] | None = None,
        private_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.cwd = Path(cwd).resolve()
        self.root = self.cwd
        self.directories: list[Path] = list(directories or ())
        self.env: Mapping[str, str] = dict(os.environ) if env is None else env
        self.answer = answer
        self.private_hosts = private_hosts
        self.read: dict[Path, FileSeen] = {}
        self.todos: list[dict[str, Any]] = []
        self.pages: dict[str, object] = {}
        self.open: dict[str, Closing] = {}
        self.scratch: Path | None = None
        self.hidden: Callable[[Path], bool] | None = None
        self._lock = threading.Lock()

    def path(self, given: str) -> Path:
        """Make a path of a tool's input absolute: `~` is HOME of `env`, a relative one starts in `cwd`."""
        if given == "~" or given.startswith("~/"):
            return Path(self.env.get("HOME", "~")).expanduser() / given[2:]
        return self.cwd / given

    async def close(self) -> None:
        """End everything that tools started here. Idempotent; safe under cancellation."""
        with anyio.CancelScope(shield=True):
            while self.open:
                _, last = self.open.popitem()
                await last.close()
            scratch, self.scratch = self.scratch, None
            if scratch is not None:
                await to_thread.run_sync(lambda: shutil.rmtree(scratch, ignore_errors=True))

    def aside(self, name: str) -> Path:
        """A path in the private directory for what tools put aside; it is removed on `close`."""
        with self._lock:  # tools that only look run side by side, in threads
            if self.scratch is None:
                self.scratch = Path(tempfile.mkdtemp(prefix="pilothouse-", dir=self.env.get("TMPDIR"))).resolve()
        return self.scratch / name


class ToolOutcome(msgspec.Struct):
    """What a tool answers.

    Attributes:
        content: for the model: text, or content blocks in the form of the Messages API.
        is_error: whether it failed.
        result: structured, for programs: what the CLI sends as `tool_use_result`.
    """

    content: str | list[dict[str, Any]]
    is_error: bool = False
    result: Any = None


class ToolLike(Protocol):
    """What the model is told of a tool."""

    @property
    def name(self) -> str:
        """How it is called."""
        ...

    @property
    def description(self) -> str:
        """What it is for."""
        ...

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """JSON schema of its input."""
        ...


class BuiltinTool(ToolLike, Protocol):
    """A tool of the engine. Its name is that of the CLI."""

    @property
    def read_only(self) -> bool:
        """Whether it only looks."""
        ...

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutcome:
        """Do it. Failures are outcomes with `is_error`; cancellation stops it and the processes it started."""
        ...
