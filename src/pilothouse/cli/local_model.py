"""`--local`: the embedded model for a command; missing parts are downloaded first."""

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
"""By whether the model gets tools."""


async def start_local_model(options: Options, stack: AsyncExitStack, screen: Screen) -> Options:
    """Start the model, and return the settings for Claude Code to use it, merged with those of the command.

    Args:
        options: the options of the command.
        stack: ends the model.
        screen: the output of notes and progress.

    Raises:
        UsageError: an extra is missing.
        PilothouseError: Claude Code or the model cannot be downloaded or started.
    """
    check_extra()
    await ensure_cli(options.cli, os.environ, screen)
    # A JSON Schema needs a tool. With tools the model answers more slowly.
    calls_tools = bool(options.tools) or options.json_schema is not None
    screen.note(LOCAL_MODEL_NOTES[calls_tools], "quiet")
    with screen.progress("local model") as progress:
        model = await stack.enter_async_context(LocalModel(calls_tools=calls_tools, progress=progress))
    return Options(**cast("Settings", model.options()))
