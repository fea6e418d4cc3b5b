"""The common parts of the built-in tools: their workplace, their output, and the type of a tool.

Owns the state that the calls of one session share (working directory, files read, processes started). Knows no
particular tool.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio
import msgspec
from anyio import to_thread

from pilothouse.json_schema import find_violations
from pilothouse.transports.marks import Mark, end_marked, make_mark
from pilothouse.transports.watchdog import watchdog
from pilothouse_native.wire import JsonObject


class FileSnapshot(NamedTuple):
    """A file as it was last read or written here: a digest of its bytes, and whether all of it was read."""

    digest: bytes
    is_whole: bool


class Closeable(Protocol):
    """A resource that a tool started and that ends with the workplace."""

    async def close(self) -> None:
        """End the resource, within a bounded time."""
        ...


class Workplace:
    """The environment in which the tools of one session work.

    Args:
        cwd: working directory; Bash may change it.
        directories: additional working directories.
        env: complete environment of the commands; None: that of this process.
        ask_model: `await ask_model(prompt, text)` returns the model's answer about the text; for WebFetch.
        private_hosts: names or addresses that WebFetch may reach although they are private or loopback.
        keep_detached: leave running what commands have detached.
    """

    def __init__(
        self,
        cwd: Path | str,
        directories: list[Path] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        ask_model: Callable[[str, str], Awaitable[str]] | None = None,
        private_hosts: frozenset[str] = frozenset(),
        keep_detached: bool = False,
    ) -> None:
        self.cwd = Path(cwd).resolve()
        self.root = self.cwd  # where the session started; Bash returns to it after leaving the working directories
        self.directories: list[Path] = list(directories or ())
        self.env: Mapping[str, str] = dict(os.environ) if env is None else env
        self.ask_model, self.private_hosts = ask_model, private_hosts
        self.files_read: dict[Path, FileSnapshot] = {}  # by resolved path
        self.todos: list[dict[str, Any]] = []
        self.page_cache: dict[str, object] = {}  # of WebFetch, by URL
        self.open_resources: dict[str, Closeable] = {}  # what tools started, by id; `close` ends them
        self.scratch_directory: Path | None = None  # for files of tools; it may be read without permission
        self.is_hidden: Callable[[Path], bool] | None = None  # whether Glob and Grep must hide a path
        self._lock = threading.Lock()
        self._keep_detached = keep_detached
        self._mark: Mark | None = None

    def get_mark(self) -> Mark | None:
        """Return the mark for commands, by which `close` finds what they have detached; None: it finds nothing."""
        with self._lock:
            if self._mark is None and not self._keep_detached and sys.platform == "linux":
                self._mark = make_mark()
                watchdog.guard(self._mark)
            return self._mark

    def resolve_path(self, given: str) -> Path:
        """Make a path of a tool's input absolute: `~` is HOME of `env`, a relative path starts in `cwd`."""
        if given == "~" or given.startswith("~/"):
            return Path(self.env.get("HOME", "~")).expanduser() / given[2:]
        return self.cwd / given

    async def close(self) -> None:
        """End everything that tools started here. Idempotent; safe under cancellation."""
        with anyio.CancelScope(shield=True):
            while self.open_resources:
                _, last = self.open_resources.popitem()
                await last.close()
            mark, self._mark = self._mark, None
            if mark is not None:
                await to_thread.run_sync(end_marked, [mark])
                watchdog.release(mark)
            scratch, self.scratch_directory = self.scratch_directory, None
            if scratch is not None:
                await to_thread.run_sync(lambda: shutil.rmtree(scratch, ignore_errors=True))

    def make_scratch_path(self, name: str) -> Path:
        """Return a path in the private directory for temporary files of tools, which `close` removes."""
        with self._lock:  # read-only tools run concurrently, in threads
            if self.scratch_directory is None:
                self.scratch_directory = Path(
                    tempfile.mkdtemp(prefix="pilothouse-", dir=self.env.get("TMPDIR"))
                ).resolve()
        return self.scratch_directory / name


class ToolOutput(msgspec.Struct):
    """The output of a tool.

    Attributes:
        content: for the model: text, or content blocks in the format of the Messages API.
        is_error: whether the call failed.
        result: structured, for programs: the CLI's `tool_use_result`.
    """

    content: str | list[dict[str, Any]]
    is_error: bool = False
    result: Any = None


class BuiltinTool(Protocol):
    """A tool of the engine."""

    @property
    def name(self) -> str:
        """The CLI's name for it."""
        ...

    @property
    def description(self) -> str:
        """Its purpose, for the model."""
        ...

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """JSON schema of its input."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing."""
        ...

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        """Run a call. Failures are outputs with `is_error`; cancellation stops the call and its processes."""
        ...


ToolInput = Mapping[str, Any]
ToolFunction = Callable[[ToolInput, Workplace], Awaitable[ToolOutput]]


def run_in_thread(function: Callable[[ToolInput, Workplace], ToolOutput]) -> ToolFunction:
    """Make a tool's function from one that blocks. Not abandoned: a half-written file is worse than a late change."""

    async def run(tool_input: ToolInput, workplace: Workplace) -> ToolOutput:
        return await to_thread.run_sync(function, tool_input, workplace)

    return run


judged_path: ContextVar[Path | None] = ContextVar("judged_path", default=None)
"""The path, without links, on which permission was decided for the running call of a file tool."""


class BuiltinToolError(Exception):
    """The tool cannot carry out the call; the message is for the model."""


class BuiltinSpec(msgspec.Struct, frozen=True):
    """A built-in tool. Its function runs a call, and raises `BuiltinToolError` or `OSError` on failure."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    function: ToolFunction
    read_only: bool = False

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        """Run a call. Wrong input and failures become outputs with `is_error`."""
        if problem := self._find_problem(tool_input):
            return make_failure(f"{self.name} was called with wrong input: {problem}")
        try:
            return await self.function(tool_input, workplace)
        except BuiltinToolError as fault:
            return make_failure(str(fault))
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            return make_failure(f"{error.strerror or error}{where}")

    def _find_problem(self, tool_input: Mapping[str, Any]) -> str:
        """Return the first violation of the schema, or ""."""
        for problem in find_violations(self.input_schema, tool_input):
            return f"{problem.path}: {problem.text}"
        for name, value in tool_input.items():
            if "path" in name and "\0" in str(value):
                return f"`{name}` has a null byte in it"
        return ""


def make_failure(text: str) -> ToolOutput:
    """Make the output of a failed call."""
    return ToolOutput(text, is_error=True, result=f"Error: {text}")


def make_schema(properties: Mapping[str, JsonObject], *required: str) -> JsonObject:
    """Make the JSON schema of a tool's input."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": dict(properties)}
    return head | {"required": list(required), "additionalProperties": False}


def make_property(kind: str, description: str, **more: Any) -> JsonObject:
    """Make the schema of one parameter, such as `make_property("string", "The command to run")`."""
    return {"type": kind, "description": description, **more}


def format_size(size: float) -> str:
    """Format a number of bytes, as in "1.9MB"."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}GB"
