"""`--local`: the embedded model for a command, with what it needs fetched first."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import cast

from pilothouse.cli.install import ensure_cli
from pilothouse.cli.screen import Screen
from pilothouse.local import LocalModel
from pilothouse.local.model import check_extra
from pilothouse.options import Options, Settings

LOCAL_MODEL_NOTES = {
    False: "the answer comes from a small open model on this machine; it is weak and calls no tools",
    True: "the answer comes from a small open model on this machine; it is weak, and calls tools with little sense",
}
"""By whether it is given tools."""


async def start_local_model(options: Options, stack: AsyncExitStack, screen: Screen) -> Options:
    """Start the model, and give the settings with which Claude Code asks it; others are merged onto them.

    Args:
        options: what the command was asked for.
        stack: ends the model.
        screen: where it is said, and where the progress is shown.

    Raises:
        UsageError: an extra is missing.
        PilothouseError: Claude Code or the model cannot be fetched or started.
    """
    check_extra()
    await ensure_cli(options.cli, os.environ, screen)
    # A JSON Schema is asked for with a tool. Where tools are called, it answers more slowly.
    calls_tools = bool(options.tools) or options.json_schema is not None
    screen.note(LOCAL_MODEL_NOTES[calls_tools], "quiet")
    with screen.progress("local model") as progress:
        model = await stack.enter_async_context(LocalModel(calls_tools=calls_tools, progress=progress))
    return Options(**cast("Settings", model.options()))
