"""`SubprocessCLITransport`: the CLI as a child, for programs that wrap the transport or start it themselves."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import anyio

from pilothouse.options import render
from pilothouse.transports import CliTransport

from ..._errors import CLIConnectionError, ProcessError, convert_error
from ..._options import make_options
from ...types import ClaudeAgentOptions
from . import Transport


class SubprocessCLITransport(Transport):
    """Starts the CLI, and carries dictionaries. The prompt is ignored: prompts are written."""

    def __init__(self, prompt: Any, options: ClaudeAgentOptions) -> None:
        self._options = make_options(options)
        self._inner: CliTransport | None = None

    async def connect(self) -> None:
        """Start the CLI. Raises CLIConnectionError."""
        made = CliTransport()
        try:
            await made.start(render(self._options, os.environ))
        except Exception as error:
            raise convert_error(error) from error
        self._inner = made

    def _require(self) -> CliTransport:
        if self._inner is None:
            raise CLIConnectionError("ProcessTransport is not ready for writing")
        return self._inner

    async def write(self, data: str) -> None:
        try:
            await self._require().send(data.encode())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise CLIConnectionError("Cannot write to Claude Code: its input is closed") from error

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over what the CLI sends, without lines that are not JSON. Raises ProcessError if it has failed."""
        inner, rest = self._require(), b""
        while data := await inner.receive():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.strip().startswith(b"{"):
                    yield json.loads(line)
        ended = await inner.exit_info()
        if ended.exit_code:
            raise ProcessError(
                f"Command failed with exit code {ended.exit_code}", ended.exit_code, ended.stderr or None
            )

    async def serve(self) -> None:
        """Read standard error, until the CLI ends. `query` and `ClaudeSDKClient` run this."""
        await self._require().serve()

    async def close(self) -> None:
        """End the CLI, and wait until it is gone."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.close()

    def is_ready(self) -> bool:
        return self._inner is not None and self._inner.health().state != "unhealthy"

    async def end_input(self) -> None:
        """Tell the CLI that nothing more comes."""
        if self._inner is not None:
            await self._inner.end_input()

    def _build_command(self) -> list[str]:
        return [str(self._options.cli), *self._options.to_cli_args()]


_OWN_CLASS: Final = SubprocessCLITransport
_OWN_PARTS: Final = dict(vars(SubprocessCLITransport))


def make_replacement(found: Any, prompt: Any, options: ClaudeAgentOptions) -> Transport | None:
    """Return a transport if the program has replaced the class or a part of it; else None: it is not needed.

    `found` is what now stands where the class was imported.
    """
    if found is _OWN_CLASS:
        found = SubprocessCLITransport  # of this module
    if found is _OWN_CLASS and dict(vars(found)) == _OWN_PARTS:
        return None
    if options.can_use_tool is not None:
        options = replace(options, permission_prompt_tool_name="stdio")
    return found(prompt=prompt, options=options)
