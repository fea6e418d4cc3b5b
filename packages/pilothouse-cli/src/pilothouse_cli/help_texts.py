"""The texts of `--help`: the groups of commands, examples, and the options of a query in the words of a shell.

Owns how help is laid out. `arguments` has the commands, `flags` the texts of their own flags.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from itertools import groupby

from pilothouse.options import TABLE, Option

SHOWN_OPTIONS = frozenset({
    "add_dirs", "allowed_tools", "append_system_prompt", "cli", "continue_conversation", "cwd", "disallowed_tools",
    "effort", "fallback_model", "fork_session", "idle_timeout", "json_schema", "max_budget_usd", "max_turns",
    "mcp_servers", "model", "permission_mode", "resume", "session_id", "system_prompt", "timeout", "tools",
})  # fmt: skip
"""The options of a query that `--help` shows; `--help-all` shows every one."""

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
}
_SPELLING = {
    "add_dirs": "--add-dir",
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


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal, and leaves lines that begin with a blank as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for is_paragraph, group in groupby(text.splitlines(), lambda line: line.lstrip() == line != ""):
            lines = [*group]
            filled += textwrap.wrap(" ".join(lines), width) if is_paragraph else lines
        return "\n".join(filled)


OVERVIEW = """examples:
  pilothouse demo
  pilothouse chat
  pilothouse ask "What does this project do?"
  pilothouse ask --local "What is the capital of France?"

pilothouse COMMAND --help tells more. Exit codes: 0 done, 1 failed, 2 wrong usage or no Claude Code to run,
124 timeout, 130 Ctrl-C, 141 standard output was closed.
"""
EXAMPLES = {
    "acp": """Standard output is for the protocol alone. With --remote, --cwd is the directory on the host.

examples (what the editor runs):
  pilothouse acp
  pilothouse acp --model opus --permission-mode plan
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse acp --remote wss://host.example --cwd /srv/project
""",
    "ask": """The answer goes to standard output and nothing else does: tool runs, retries and the closing line go to
standard error. Keys are read from the environment alone (ANTHROPIC_API_KEY and the like).

examples:
  pilothouse ask "Explain this repository"
  git diff | pilothouse ask "Review this change"
  pilothouse ask --allowed-tools "Read,Bash(git log:*)" --max-turns 10 "What changed last week?"
  pilothouse ask --json --json-schema @invoice.schema.json "Read invoice.txt" | jq .structured
  pilothouse ask --resume 1f0c… "And now in French"
""",
    "batch": """A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt"
and, if need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
--output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

  status         show how many runs are in each state; changes nothing
  results        write the ended runs of the journal; changes nothing
  resume         continue the unfinished runs of the journal
  retry-failed   repeat the failed runs

With --enqueue the prompts are put into the journal, and `pilothouse worker` executes them, now or later. With
--concurrency 0 the worker executes them too, and this command waits for the results.

Ctrl-C once: nothing more is started, running ones are stopped and kept in the journal; twice: at once. The exit code
is 0 if every run succeeded.

examples:
  pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
  pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
  pilothouse batch prompts.jsonl --enqueue --journal runs.db
  pilothouse batch resume --journal runs.db -o out.jsonl
""",
    "chat": """In the conversation, /help lists the commands; those of Claude Code work too. A tool that needs
permission is asked about: once, for the session, or deny. Ctrl-C stops the answer, a second one leaves.

When standard input is not a terminal, each of its lines is a prompt, answers go to standard output, and no question
is asked: give --allowed-tools or --permission-mode.

examples:
  pilothouse chat
  pilothouse chat --model opus "Explain this repository"
  pilothouse chat --continue
  printf '%%s\\n' "My name is Alice." "What is my name?" | pilothouse chat
""",
    "compat": """examples:
  pilothouse compat run app.py --its-own-flag
  pilothouse compat run -m my_package
  PYTHONPATH="$(pilothouse compat path)" pytest
""",
    "completion": """examples:
  pilothouse completion bash > ~/.local/share/bash-completion/completions/pilothouse
  pilothouse completion zsh > "${fpath[1]}/_pilothouse"
  pilothouse completion fish > ~/.config/fish/completions/pilothouse.fish
""",
    "console": """The link contains the token: whoever has it can run commands as you. The token comes from
--token-file, else from PILOTHOUSE_HOST_TOKEN; else a new one is made. If port 8750 is in use, a free one is taken.

examples:
  pilothouse console
  pilothouse console --root ~/work --open
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse console --join http://127.0.0.1:8750
""",
    "demo": """Part 1 asks one question: the embedded open model answers, or the real one if a key is set in the
environment. Part 2 runs the Python program that it shows: the real Claude Code calls a function of it, a hook denies
a command, and a permission is asked, in a temporary directory; what the model says there is scripted.
""",
    "install-cli": """Claude Code is Anthropic's own software under its own terms. The download is checked against a
pinned digest. Copies of other versions that were not used for a week are removed. PILOTHOUSE_CACHE names another
cache.

examples:
  pilothouse install-cli
  pilothouse install-cli --check || echo "not the tested version"
  "$(pilothouse install-cli --path)" --version
""",
    "serve": """The token is read from --token-file, else from PILOTHOUSE_HOST_TOKEN; else one is made and shown once.
SIGTERM and Ctrl-C let running turns end, for --drain seconds; a second one ends at once.

examples:
  pilothouse serve
  pilothouse serve --root ~/work --max-sessions 8
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse serve --port 8750 --name pilot.example.com
  pilothouse serve --openai --map gpt-4o=sonnet   # base URL http://127.0.0.1:8750/v1, API key: the token
""",
    "sessions": """A session is named by its id, or by the first characters of it.

examples:
  pilothouse sessions
  pilothouse sessions search --all "connection reset"
  pilothouse sessions show 1f0c
  pilothouse sessions export 1f0c --format html --output session.html
  pilothouse sessions usage --all --since 2026-11-01 --json
""",
    "worker": """`pilothouse batch FILE --enqueue` adds runs. Options of a query given here apply to runs that do not
set them. A journal has one worker; whoever may write its file decides what is executed. A line for each run goes to
standard error.

SIGTERM, or Ctrl-C once: nothing more is started, running ones are stopped gracefully, and the next worker continues
them; twice: at once. It ends with 1 if the journal was lost, the budget is spent, or no run can succeed.

examples:
  pilothouse worker --journal runs.db
  pilothouse worker --journal runs.db --until-empty --concurrency 4 --model haiku
""",
}
