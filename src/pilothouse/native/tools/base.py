"""The common parts of the built-in tools: their workplace, their output, and the type of a tool.

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
    """The state of a file when its content was last read or written here.

    `mtime_ns` and `size` are those of the file; `digest` is of its bytes, so that a file with a new time but equal
    content still counts as read; `is_whole` is False if only a part was read.
    """

    mtime_ns: int
    size: int
    digest: bytes
    is_whole: bool = True


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
        ask_model: asks the model: `await ask_model(prompt, text)` returns its answer about the text; for WebFetch.
        private_hosts: names or addresses that WebFetch may reach although they are private or loopback.

    Attributes:
        root: the directory in which the session started; Bash returns to it after leaving the working directories.
        files_read: state of files when they were last read or written, by resolved path.
        todos: the list of TodoWrite.
        page_cache: pages that WebFetch fetched, by URL.
        open_resources: running resources that tools started, by id; `close` ends them.
        scratch_directory: a private directory for temporary files of tools, once there is one; it may be read
            without permission.
        is_hidden: returns whether Glob and Grep must hide a path.
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


class ToolDescription(Protocol):
    """The description of a tool for the model."""

    @property
    def name(self) -> str:
        """Name of the tool."""
        ...

    @property
    def description(self) -> str:
        """Purpose of the tool."""
        ...

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """JSON schema of its input."""
        ...


class BuiltinTool(ToolDescription, Protocol):
    """A tool of the engine, with the CLI's name for it."""

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing."""
        ...

    async def run(self, tool_input: Mapping[str, Any], workplace: Workplace) -> ToolOutput:
        """Run a call. Failures are outputs with `is_error`; cancellation stops the call and its processes."""
        ...


JsonObject = dict[str, Any]
ToolFunction = Callable[[Mapping[str, Any], Workplace], Awaitable[ToolOutput]]


class BuiltinToolError(Exception):
    """The tool cannot carry out the call; the message is for the model."""


class BuiltinSpec(msgspec.Struct, frozen=True):
    """A built-in tool; see `BuiltinTool`.

    Attributes:
        function: runs a call; raises `BuiltinToolError` or `OSError` on failure.
    """

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
        nulls = [key for key, value in tool_input.items() if isinstance(value, str) and "\0" in value and "path" in key]
        return f"`{nulls[0]}` has a null byte in it" if nulls else ""


def make_failure(text: str) -> ToolOutput:
    """Make the output of a failed call."""
    return ToolOutput(text, is_error=True, result=f"Error: {text}")


def make_schema(properties: Mapping[str, JsonObject], *required: str) -> JsonObject:
    """Make the JSON schema of a tool's input."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def make_text_schema(description: str, **more: Any) -> JsonObject:
    """Make the schema of a text."""
    return {"type": "string", "description": description, **more}


def make_number_schema(description: str, **more: Any) -> JsonObject:
    """Make the schema of a number."""
    return {"type": "number", "description": description, **more}


def make_boolean_schema(description: str) -> JsonObject:
    """Make the schema of a boolean."""
    return {"type": "boolean", "description": description}


def format_size(size: float) -> str:
    """Format a number of bytes, as in "1.9MB"."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}GB"
