"""The help of the options of a query, in the words of a shell, and how help is laid out.

`flags` has the texts of the commands and of their own flags.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from itertools import groupby
from typing import cast

from pilothouse.errors import OptionsError
from pilothouse.options import TABLE, Option, Options, Settings

USUAL_OPTIONS: Mapping[str, str] = {
    "model": "opus, sonnet, haiku or the id of a model",
    "allowed_tools": "run these without asking: 'Read,Bash(git log:*)'",
    "permission_mode": "mode for other tool calls, such as acceptEdits",
    "max_turns": "stop after N turns of the model",
    "max_budget_usd": "stop when the estimated cost passes this",
    "timeout": "fail after this long",
    "json_schema": "answer with JSON of this schema",
    "resume": "continue the session with this id",
    "continue_conversation": "continue the latest session of the directory",
    "cwd": "work in this directory",
}
"""The options of a query that `--help` shows, each in one line; `--help-all` shows every one."""

# Where the table of options speaks of Python.
_SHELL_WORDS: Mapping[str, str] = {
    "agents": "Sub-agents by name, each with its description, prompt, tools and model.",
    "cwd": "Working directory, from which settings, programs and instructions are loaded. Default: this one.",
    "debug": "Let Claude Code write a debug log of everything, or of categories such as 'api,mcp'.",
    "idle_timeout": "Seconds of silence until it fails; not counted while a tool runs. No limit by default.",
    "inherit_env": "Do not start from the environment of this shell.",
    "mcp_servers": "MCP servers: a configuration file, or JSON with the servers by name.",
    "nonessential_traffic": "No network beyond the API: no updates, telemetry and error reports.",
    "output_repairs": "Number of further attempts when the answer does not fit --json-schema.",
    "partial_messages": "Stream the answer while the model writes it.",
    "persist_session": "Do not write the session to disk.",
    "plugins": "Directories of plugins for this session.",
    "retry": "Number of retries after those of --api-max-retries, or a policy as JSON. Default: none.",
    "sandbox": "A sandbox around the commands that tools run. A part of --settings.",
    "session_id": "Id for the new session. With --resume, --fork-session makes one.",
    "setting_sources": "Settings files to load, of user, project and local; '' for none.",
    "settings": "Settings for Claude Code: a file, or JSON. They are checked before the first prompt.",
    "supported_dialog_kinds": "Kinds of dialogs that can be shown.",
    "system_prompt": "Replaces the system prompt of Claude Code.",
    "thinking": "'adaptive', 'disabled', or JSON with a budget or display settings.",
    "timeout": "Seconds until it fails. No limit by default.",
    "tool_bridge": "How calls of the program's own tools reach it: 'mcp', 'deferred' or 'xml'.",
    "tools": "The available built-in tools; '' for none, 'default' for all.",
    "user": "System user that runs Claude Code; only root may set it. HOME does not change.",
    "wait_for_mcp": "Wait for the MCP servers before the first prompt: true, or seconds. Fails if one is late.",
    "worktree": "Work in a new git worktree, below .claude/worktrees. It stays when Claude has ended.",
}
_SPELLING = {
    "add_dirs": "--add-dir",
    "worktree": "--git-worktree",  # `batch` has another --worktree
    "continue_conversation": "--continue",
    "mcp_servers": "--mcp-config",
    "thinking": "--thinking-mode",
}
"""Flags that the claude command has under this name, or whose name pilothouse uses for something else."""


def get_flag(option: Option) -> str | None:
    """Return the flag of `pilothouse ask` for an option; None for keys, and for options without a text form."""
    if option.secret or option.value_type.parse is None:
        return None
    return _SPELLING.get(option.name, "--" + option.name.replace("_", "-"))


def describe_option(option: Option) -> str:
    """Return what an option does, in the words of a shell."""

    def to_flag(match: re.Match[str]) -> str:
        named = TABLE.get(match[1])
        return (named and get_flag(named)) or match[1]

    return re.sub(r"`([^`]+)`", to_flag, _SHELL_WORDS.get(option.name, option.doc))


_MENTION = re.compile(
    rf"`(?P<quoted>{'|'.join(TABLE)})`"
    rf"|\b(?P<given>{'|'.join(TABLE)})=(?P<value>\[\]|\[…\]|True|\{{[^}}]*\}})"
    rf"|(?<![\w/.-])(?P<name>{'|'.join(name for name in TABLE if '_' in name)})\b(?![/-]|\.\w)"  # in no path
    rf"|(?P<start>(?m:^)|: )(?P<first>{'|'.join(TABLE)})(?=$|: | does not| has |, )"
)
_SHELL_VALUES = {"[]": " ''", "[…]": " A,B", "True": ""}
_FUNCTIONS = {"can_use_tool": "the permission function of a program"}


def spell_options(text: str, *, has_headings: bool = True) -> str:
    """Return a text about options, written for Python, in the words of a shell: `allowed_tools` as --allowed-tools.

    Args:
        text: the text.
        has_headings: whether a word at the start of a line, or after a colon, may be an option, such as "model".
    """

    def spell(found: re.Match[str]) -> str:
        name = found["quoted"] or found["given"] or found["name"] or (found["first"] if has_headings else None)
        if name is None:
            return found[0]
        flag = get_flag(TABLE[name]) or _FUNCTIONS.get(name, name)
        value = found["value"] or ""
        if value.startswith("{"):
            value = f" '{value.replace(chr(39), chr(34)).replace('True', 'true')}'"
        return f"{found['start'] or ''}{flag}{_SHELL_VALUES.get(value, value)}"

    return _MENTION.sub(spell, text).replace("no function", "nobody")


_NAMED_IN_ERROR = re.compile(
    r"\boptions? (?P<quote>'?)(?P<name>\w+)(?P=quote)|(?<=\band )'(?P<second>\w+)'(?= can)"
    r"|(?<=\bneeds )'(?P<needed>\w+)'|(?<=\bor )'(?P<other>\w+)'(?=:|$)"
)


def spell_options_in_error(text: str) -> str:
    """Return the text of an error about options in the words of a shell; one about a line of a file as it is.

    What the API or a program says, such as "model: not found", is no option.
    """
    if re.match(r"(/|\w+\.toml|PILOTHOUSE_)", text):
        return text
    text = text.replace("with its session_id", "with --resume and its id")

    def spell(found: re.Match[str]) -> str:
        option = TABLE.get(next(name for name in found.groupdict().values() if name and name != "'"))
        return (option and get_flag(option)) or found[0]

    return re.sub(
        r"\(cli='([^']*)'\)", r"(--cli \1)", spell_options(_NAMED_IN_ERROR.sub(spell, text), has_headings=False)
    )


def explain_unknown_option(name: str) -> str:
    """Say what an option is called here, or which name is similar."""
    try:
        Options(**cast("Settings", {name: None}))
    except OptionsError as error:
        return str(error).replace("`pilothouse.options.TABLE`", "`pilothouse options`")
    return f"unknown option {name!r}"


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal, and leaves lines that begin with a blank as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for is_paragraph, group in groupby(text.splitlines(), lambda line: line.lstrip() == line != ""):
            lines = [*group]
            filled += textwrap.wrap(" ".join(lines), width) if is_paragraph else lines
        return "\n".join(filled)


OVERVIEW = """Examples:
  pilothouse demo
  pilothouse chat
  pilothouse ask "What does this project do?"
  pilothouse ask --local "What is the capital of France?"

Run pilothouse COMMAND --help for details. Exit codes: 0 done, 1 failed, 2 wrong usage or no Claude Code to run,
124 timeout, 130 Ctrl-C, 141 standard output was closed.
"""
