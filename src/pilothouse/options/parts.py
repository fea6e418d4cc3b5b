"""How values that go to several places are split. Pure; each function gives pairs of a target and a value.

Knows the stored forms of these values; what a target does with its part, `render` knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pilothouse.options.targets import EnvVar, Flag, Initialize, PathFlag, Switch, Target, Text

Pieces = Iterator[tuple[Target, Any]]

PROMPT = Text("system-prompt", "system-prompt-file")
APPEND = Text("append-system-prompt", "append-system-prompt-file")
PROMPT_FILE = PathFlag("system-prompt-file")
PROMPT_BLOCKS = Initialize("systemPrompt")
EXCLUDE_DYNAMIC = Switch("exclude-dynamic-system-prompt-sections")
SNAPSHOT = Flag("system-prompt-snapshot")
THINKING = Flag("thinking")
THINKING_TOKENS = Flag("max-thinking-tokens")
THINKING_DISPLAY = Flag("thinking-display")
PLUGIN_DIR = PathFlag("plugin-dir")
PLUGIN_DIR_NO_MCP = PathFlag("plugin-dir-no-mcp")
PREVIEW_FORMAT = EnvVar("CLAUDE_CODE_QUESTION_PREVIEW_FORMAT")
SKILL_NAMES = Initialize("skills")
SESSION_MIRROR = Switch("session-mirror")

PROMPT_TARGETS = (PROMPT, APPEND, PROMPT_FILE, EXCLUDE_DYNAMIC, SNAPSHOT, PROMPT_BLOCKS)
THINKING_TARGETS = (THINKING, THINKING_TOKENS, THINKING_DISPLAY)
PLUGIN_TARGETS = (PLUGIN_DIR, PLUGIN_DIR_NO_MCP)
PROVIDER_VARIABLES = {
    "bedrock": EnvVar("CLAUDE_CODE_USE_BEDROCK"),
    "vertex": EnvVar("CLAUDE_CODE_USE_VERTEX"),
    "foundry": EnvVar("CLAUDE_CODE_USE_FOUNDRY"),
}


def system_prompt(value: Any) -> Pieces:
    """Text is the prompt; the structs know their parts."""
    if isinstance(value, str):
        yield PROMPT, value
    else:
        yield from value.pieces()


def struct(value: Any) -> Pieces:
    """A struct knows its parts."""
    yield from value.pieces()


def structs(value: Any) -> Pieces:
    """Each one after the other."""
    for item in value:
        yield from item.pieces()


def skills(value: Any) -> Pieces:
    """Only names narrow the list that the model sees; the permission is a part of `allowed_tools`."""
    if value != "all":
        yield SKILL_NAMES, value


def mirrored(value: Any) -> Pieces:
    """A store hears of transcripts from the CLI itself."""
    yield SESSION_MIRROR, True


def provider(value: str) -> Pieces:
    """The switch of the one that was chosen; what the others would inherit is removed."""
    for name, variable in PROVIDER_VARIABLES.items():
        yield variable, "1" if name == value else None
