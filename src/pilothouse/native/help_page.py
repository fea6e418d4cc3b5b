"""What `pilothouse-agent --help` prints. Pure."""

from __future__ import annotations

import textwrap
from typing import Final

from pilothouse.native.flags import FLAGS, WITHOUT_EFFECT, Form

TEXTS: Final = {
    "add-dir": "further directories that tools may use",
    "allow-dangerously-skip-permissions": "let a running session change to bypassPermissions",
    "allowedTools": "tools that run without asking, such as 'Bash(git log:*)'",
    "append-system-prompt": "text to add to the end of the system prompt",
    "append-system-prompt-file": "the same, from a file",
    "await-initialize": "wait for the handshake before anything else",
    "bare": "read no settings files and no CLAUDE.md",
    "betas": "beta features of the API",
    "continue": "go on with the latest session of the directory",
    "dangerously-skip-permissions": "run every tool without asking: permission mode bypassPermissions",
    "disable-slash-commands": "no commands that begin with /",
    "disallowedTools": "tools that may not be used",
    "effort": "how much effort the model puts into its answer",
    "exclude-dynamic-system-prompt-sections": "leave out of the system prompt what changes from run to run",
    "fallback-model": "model to use while the first one is overloaded",
    "fork-session": "resume into a new session, and leave the old one as it was",
    "help": "show this page",
    "include-partial-messages": "stream the answer while it is written",
    "input-format": "text, or stream-json: messages as lines of JSON on standard input",
    "json-schema": "JSON Schema that the answer must fit",
    "max-budget-usd": "stop when the estimated cost passes this many US dollars",
    "max-thinking-tokens": "thinking budget, on models that have one",
    "max-turns": "stop after this many turns of the model",
    "mcp-config": "MCP servers: files, or JSON texts",
    "model": "model alias (sonnet, opus, haiku) or full model id",
    "name": "title of the session",
    "no-session-persistence": "do not write the session to disk",
    "output-format": "text, json: one object at the end, or stream-json: each message as a line",
    "permission-mode": "what happens when a tool needs permission",
    "permission-prompt-tool": "an MCP tool that answers when a tool needs permission, or stdio",
    "permission-prompts": "who answers when a tool needs permission: host or none",
    "print": "answer once, and end",
    "replay-user-messages": "repeat the messages of the user in the output",
    "resume": "id of a session to continue",
    "resume-session-at": "with --resume: uuid of the last message to keep",
    "session-id": "uuid for the new session",
    "session-mirror": "report what is written to the session, for a store",
    "setting-sources": "which settings files to read: user, project, local",
    "settings": "settings: a file, or JSON text",
    "strict-mcp-config": "use no MCP servers but those of --mcp-config",
    "system-prompt": "text in place of the system prompt",
    "system-prompt-file": "the same, from a file",
    "system-prompt-snapshot": "a system prompt that an earlier run has reported",
    "thinking": "whether the model thinks: adaptive or disabled",
    "thinking-display": "how much of the thinking is shown",
    "tools": "which built-in tools exist; default for all",
    "verbose": "needed with --output-format stream-json",
    "version": "show the version",
}
_VALUES: Final = {Form.SWITCH: "", Form.VALUE: " <value>", Form.LIST: " <values...>", Form.OPTIONAL: " [value]"}


def help_page() -> str:
    """The page: every flag with a line about it."""
    names = sorted(name for name in FLAGS if name not in WITHOUT_EFFECT)
    heads = {name: f"  --{name}{_VALUES[FLAGS[name]]}" for name in names}
    width = max(map(len, heads.values())) + 2
    unused = " ".join(f"--{name}" for name in sorted(WITHOUT_EFFECT))
    return (
        "Usage: pilothouse-agent --print [options] [prompt]\n\n"
        "An agent over the Messages API that takes the flags of Claude Code and speaks its stream-json.\n\n"
        "Options:\n" + "\n".join(f"{heads[name]:<{width}}{TEXTS[name]}" for name in names) + "\n\n"
        "Taken, and without effect:\n"
        + textwrap.fill(unused, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        + "\n"
    )
