"""What the built-in tools share: their workspace, their output, and the type of a tool.

Owns the state that the calls of one session share (working directory, files read, processes started). Knows no
particular tool.
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

from pilothouse.json_schema import find_violations


class FileSnapshot(msgspec.Struct, frozen=True):
    """What a file looked like when its content was last read or written here.

    `mtime_ns` and `size` are those of the file; `digest` is of its bytes, so that a touched but equal file still counts
    as seen; `is_whole` is False when only a part was shown.
    """

    mtime_ns: int
    size: int
    digest: bytes
    is_whole: bool = True


class Closeable(Protocol):
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
        ask_model: asks the model: `await answer(prompt, text)` gives its answer about the text; WebFetch uses it.
        private_hosts: names or addresses that WebFetch may reach though they are private or loopback.

    Attributes:
        root: the directory in which the session started; Bash comes back to it when it left the work.
        files_read: what files looked like when they were last read or written, by resolved path.
        todos: the list that TodoWrite keeps.
        page_cache: what WebFetch has fetched, by address.
        open_resources: what tools started and has not ended, by id; `close` ends it.
        scratch_directory: a private directory for what tools put aside, once there is one; it may be read without
            asking.
        is_hidden: says of a path that Glob and Grep must not show it.
    """

    def __init__(
        self,
        cwd: Path | str,
        directories: list[Path] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        ask_model: Callable[[str, str], Awaitable[str]] | None = None,
        private_hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.cwd = Path(cwd).resolve()
        self.root = self.cwd
        self.directories: list[Path] = list(directories or ())
        self.env: Mapping[str, str] = dict(os.environ) if env is None else env
        self.ask_model = ask_model
        self.private_hosts = private_hosts
        self.files_read: dict[Path, FileSnapshot] = {}
        self.todos: list[dict[str, Any]] = []
        self.page_cache: dict[str, object] = {}
        self.open_resources: dict[str, Closeable] = {}
        self.scratch_directory: Path | None = None
        self.is_hidden: Callable[[Path], bool] | None = None
        self._lock = threading.Lock()

    def resolve_path(self, given: str) -> Path:
        """Make a path of a tool's input absolute: `~` is HOME of `env`, a relative one starts in `cwd`."""
        if given == "~" or given.startswith("~/"):
            return Path(self.env.get("HOME", "~")).expanduser() / given[2:]
        return self.cwd / given

    async def close(self) -> None:
        """End everything that tools started here. Idempotent; safe under cancellation."""
        with anyio.CancelScope(shield=True):
            while self.open_resources:
                _, last = self.open_resources.popitem()
                await last.close()
            scratch, self.scratch_directory = self.scratch_directory, None
            if scratch is not None:
                await to_thread.run_sync(lambda: shutil.rmtree(scratch, ignore_errors=True))

    def make_scratch_path(self, name: str) -> Path:
        """A path in the private directory for what tools put aside; it is removed on `close`."""
        with self._lock:  # tools that only look run side by side, in threads
            if self.scratch_directory is None:
                self.scratch_directory = Path(
                    tempfile.mkdtemp(prefix="pilothouse-", dir=self.env.get("TMPDIR"))
                ).resolve()
        return self.scratch_directory / name


class ToolOutput(msgspec.Struct):
    """What a tool answers.

    Attributes:
        content: for the model: text, or content blocks in the form of the Messages API.
        is_error: whether it failed.
        result: structured, for programs: what the CLI sends as `tool_use_result`.
    """

    content: str | list[dict[str, Any]]
    is_error: bool = False
    result: Any = None


class ToolDescription(Protocol):
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


class BuiltinTool(ToolDescription, Protocol):
    """A tool of the engine. Its name is that of the CLI."""

    @property
    def read_only(self) -> bool:
        """Whether it only looks."""
        ...

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        """Do it. Failures are outcomes with `is_error`; cancellation stops it and the processes it started."""
        ...


JsonObject = dict[str, Any]
ToolFunction = Callable[[Mapping[str, Any], Workplace], Awaitable[ToolOutput]]


class BuiltinToolError(Exception):
    """The tool cannot do what was asked; the message is for the model."""


class BuiltinSpec(msgspec.Struct, frozen=True):
    """A built-in tool; see `BuiltinTool`.

    Attributes:
        function: does the work, and raises `BuiltinToolError` or `OSError` where it cannot.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    function: ToolFunction
    read_only: bool = False

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        """Do it. Wrong input, and what the work cannot do, are outcomes with `is_error`."""
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
        """The first thing that does not fit the schema, or ""."""
        for problem in find_violations(self.input_schema, tool_input):
            return f"{problem.path}: {problem.text}"
        nulls = [key for key, value in tool_input.items() if isinstance(value, str) and "\0" in value and "path" in key]
        return f"`{nulls[0]}` has a null byte in it" if nulls else ""


def make_failure(text: str) -> ToolOutput:
    """An outcome that says what went wrong."""
    return ToolOutput(text, is_error=True, result=f"Error: {text}")


def make_schema(properties: Mapping[str, JsonObject], *required: str) -> JsonObject:
    """The JSON schema of a tool's input."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def make_text_schema(description: str, **more: Any) -> JsonObject:
    """The schema of a text."""
    return {"type": "string", "description": description, **more}


def make_number_schema(description: str, **more: Any) -> JsonObject:
    """The schema of a number."""
    return {"type": "number", "description": description, **more}


def make_boolean_schema(description: str) -> JsonObject:
    """The schema of a yes or no."""
    return {"type": "boolean", "description": description}


def format_size(size: float) -> str:
    """A number of bytes in words, as in "1.9MB"."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}GB"
