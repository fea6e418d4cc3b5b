"""The command line: the table of commands, the flags of the options, and suggestions for mistakes.

`flags` declares the flags of each command; those of the options of a query come from the table of options.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from argparse import Action, Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import shtab

from pilothouse import __version__
from pilothouse.options import TABLE, Option, value_types
from pilothouse.options.value_types import InvalidValueError, make_parse_error
from pilothouse.support import find_similar_name
from pilothouse_cli import flags

if TYPE_CHECKING:
    from pilothouse_cli.screen import Screen

_ASK = 'to ask a question: pilothouse ask "…"'
_CLAUDE_FLAGS = {"-p": _ASK, "--print": _ASK, "--output-format": "pilothouse ask has --json and --stream-json"}
"""Flags of `claude` that this command does not have, and what to use here."""


def explain_wrong_command(word: str, commands: Collection[str]) -> str:
    """Explain a first word that is not a command: a prompt without a command, or a typing mistake."""
    if word in _CLAUDE_FLAGS:
        return _CLAUDE_FLAGS[word]
    if word.startswith("-"):
        return f"{word.partition('=')[0]} stands behind a command, as in `pilothouse ask {word.partition('=')[0]} …`"
    if " " in word.strip() or word.endswith("?"):
        return f"to ask a question: pilothouse ask {shlex.quote(word)}"
    near = find_similar_name(word.lower(), commands)
    hint = f"did you mean `pilothouse {near}`?" if near else f"the commands are {', '.join(commands)}"
    return f"there is no command {word!r}; {hint}"


def explain_wrong_arguments(rest: Sequence[str], flags: Collection[str]) -> str:
    """Explain the `rest`, arguments that a command with these flags does not take."""
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is None:
        return f"unrecognized arguments: {' '.join(rest)}; put a text of several words in quotes"
    if unknown in _CLAUDE_FLAGS:
        return f"unrecognized arguments: {unknown}; {_CLAUDE_FLAGS[unknown]}"
    near = find_similar_name(unknown, flags)
    return f"unrecognized arguments: {unknown}" + (f"; did you mean {near}?" if near else "")


def collect_flags(words: Sequence[str], flags: Mapping[str, Action], without: Collection[str]) -> Iterator[str]:
    """Yield the flags of a command line with their values, to be repeated; omit the destinations `without`."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        action = flags.get(word.partition("=")[0])
        if action is None:
            continue
        takes_next = action.nargs != 0 and "=" not in word
        given = (word, next(rest, "")) if takes_next else (word,)
        if action.dest not in without:
            yield from given


# Already resolved relative to the directory of this process, and shown as typed.
_PROCESS_OPTIONS = frozenset({"cli", "cwd"})
_FROM_FILE = "@FILE"


def parse_value(option: Option, text: str) -> Any:
    """Parse the value of an option; raises ValueError. Where the value is JSON, `@path` is the content of a file."""
    kind = option.value_type
    if kind.parse is None:
        raise ValueError("it takes a Python object")
    try:
        value = kind.parse(_read_value_file(text) if _FROM_FILE in kind.metavar else text)
    except ValueError as error:
        if _FROM_FILE in kind.metavar and not text.lstrip().startswith(("@", "{", "[")):
            raise ValueError(f"{error}; for the content of a file write @FILE") from None
        raise
    try:
        kind.clean(value)
    except InvalidValueError as fault:
        plain = f"{make_parse_error(fault.expected, text)}{fault.hint}"
        raise ValueError(fault.describe() if fault.path or fault.message else plain) from None
    # The process may run in another directory: a path is relative to this one.
    return value if option.name in _PROCESS_OPTIONS else kind.resolve_paths(value, os.getcwd())  # noqa: PTH109


def _read_value_file(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"cannot read {text[1:]!r}: {reason}") from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE` of `--set`."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!a}")
    option = TABLE.get(name)
    if option is None:
        near = find_similar_name(name, TABLE)
        hint = f"; did you mean {near!r}?" if near else ""
        raise argparse.ArgumentTypeError(f"unknown option {name!r}{hint}")
    if option.secret:
        raise argparse.ArgumentTypeError(f"{name!r} may hold keys: set environment variables instead")
    if option.value_type.parse is None:
        raise argparse.ArgumentTypeError(f"{name!r} takes a Python object: use pilothouse from Python for it")
    try:
        return name, parse_value(option, value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


PROGRAM = "pilothouse"
USAGE_ERROR = 2

# Options that the help shows, in groups. All other options with a text form have a flag as well.
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model", ("model", "fallback_model", "effort")),
    ("limits", ("max_turns", "max_budget_usd", "timeout", "idle_timeout")),
    ("prompt and output", ("system_prompt", "append_system_prompt", "json_schema")),
    ("tools", ("tools", "allowed_tools", "disallowed_tools", "permission_mode", "mcp_servers")),
    ("conversation", ("resume", "continue_conversation", "fork_session", "session_id")),
    ("place", ("cwd", "add_dirs", "cli")),
)  # fmt: skip
# The claude command has this name already, or pilothouse uses it for something else.
_SPELLING = {
    "add_dirs": "--add-dir",
    "continue_conversation": "--continue",
    "mcp_servers": "--mcp-config",
    "thinking": "--thinking-mode",
    "worktree": "--git-worktree",  # `batch` has another --worktree
}


class CommandParser(argparse.ArgumentParser):
    """A parser that reports an error in one line, with a pointer to the help."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        text = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{PROGRAM}: {text} (see `{self.prog} --help`)\n")


def parse(argv: list[str] | None) -> Any:
    """Parse the command line; `None` means that of this process. Returns a request, such as `AskRequest`."""
    words = _add_default_action(sys.argv[1:] if argv is None else argv)
    parser, below = _build_parsers()
    if words and words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        parser.error(explain_wrong_command(words[0], COMMANDS))
    asked, rest = parser.parse_known_args(words)
    if asked.command is None:
        parser.error('which command? `pilothouse ask "…"` asks a question, `pilothouse demo` shows what it does')
    known = below[asked.command]._option_string_actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if rest:
        below[asked.command].error(explain_wrong_arguments(rest, known))
    kind = COMMANDS[asked.command].request
    own: dict[str, Any] = {}
    if "settings" in kind.__dataclass_fields__:
        own["settings"] = _read_settings(asked)
    if kind is flags.ChatRequest:
        own["flags"] = tuple(collect_flags(words[1:], known, _SESSION_OPTIONS))
    if kind is flags.SessionsRequest:
        own["request"] = flags.make_request(flags.SESSION_ACTIONS[asked.action][1], asked)
    return flags.make_request(kind, asked, **own)


def _add_default_action(words: list[str]) -> list[str]:
    """Add the action `list` to `pilothouse sessions` without an action."""
    lists = words[:1] == ["sessions"] and (len(words) == 1 or words[1] in ("--all", "--directory", "--json", "--limit"))
    return ["sessions", "list", *words[1:]] if lists else words


def _build_parsers() -> tuple[CommandParser, dict[str, argparse.ArgumentParser]]:
    parser = CommandParser(
        prog=PROGRAM,
        description="Steer Claude Code, the claude command-line agent, from Python. Unofficial.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    below: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        below[name] = commands.add_parser(
            name,
            help=command.help,
            usage=command.usage,
            description=command.description,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        flags.add_flags(below[name], command.request)
        if "settings" in command.request.__dataclass_fields__:
            _add_settings(below[name])
        if command.request is flags.SessionsRequest:
            _add_session_actions(below[name])
    return parser, below


def _add_session_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (text, kind) in flags.SESSION_ACTIONS.items():
        flags.add_flags(actions.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}."), kind)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport",
        dest=_OPTION_DEST + "transport",
        type=flags.parse_transport,
        default=argparse.SUPPRESS,
        metavar="record:FILE|replay:FILE|native|ws://HOST:PORT|ssh:HOST|podman:IMAGE|pod:NAME",
        help="record the run in a file; answer from one, with neither Claude Code nor a model; ask the Messages API "
        "without Claude Code; run on a host, whose token is in PILOTHOUSE_HOST_TOKEN; or run Claude Code over ssh, in "
        "a container that has this directory as /work, or in a pod",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=parse_assignment,
        metavar="NAME=VALUE",
        help="any other option of pilothouse; lists as A,B, mappings as JSON",
    )
    shown = set[str]()
    for title, names in _GROUPS:
        group = parser.add_argument_group(title)
        shown.update(names)
        for name in names:
            _add_option(group, TABLE[name], TABLE[name].doc)
    for option in TABLE.values():
        if option.name not in shown:
            _add_option(parser, option, None)


def get_flag(option: Option) -> str | None:
    """Return the flag of `pilothouse ask` for an option; None for keys, and for options without a text form."""
    if option.secret or option.value_type.parse is None:
        return None
    return _SPELLING.get(option.name, "--" + option.name.replace("_", "-"))


def _add_option(group: Any, option: Option, doc: str | None) -> None:
    flag = get_flag(option)
    if flag is None:
        return
    common: dict[str, Any] = {
        "dest": _OPTION_DEST + option.name,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if doc is None else doc.replace("%", "%%"),
    }
    if option.value_type in (value_types.BOOL, value_types.INHERIT):  # a list of names with --set
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    else:
        action = "extend" if option.value_type is value_types.PATHS else "store"
        group.add_argument(flag, action=action, type=_make_reader(option), metavar=option.value_type.metavar, **common)


def _make_reader(option: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return parse_value(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


# Options have destinations of their own: some share their name with a flag of a command.
_OPTION_DEST = "option "


def _read_settings(asked: Namespace) -> dict[str, Any]:
    settings = {name: getattr(asked, _OPTION_DEST + name) for name in TABLE if hasattr(asked, _OPTION_DEST + name)}
    return {**settings, **dict(asked.set)}


_SESSION_OPTIONS = frozenset(
    _OPTION_DEST + name
    for name in (
        "resume", "continue_conversation", "fork_session", "session_id", "resume_session_at", "resume_drops_turn"
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Args:
        request: the class of its request, with its flags.
        run: its function, as "module.function" of this package: a command imports nothing of the others.
        help: one line for the list of commands.
        description: the first lines of its help.
        epilog: the last lines of its help.
        usage: the first line of its help, if argparse would make a long one.
        has_answer: whether standard output is for its answer alone.
    """

    request: type[Any]
    run: str
    help: str
    description: str
    epilog: str | None = None
    usage: str | None = None
    has_answer: bool = True


_EPILOG = """examples:
  pilothouse demo
  pilothouse chat
  pilothouse ask "What does this project do?"
  pilothouse ask --local "What is the capital of France?"
"""
_ASK_EPILOG = """The answer goes to standard output and nothing else does: tool runs, retries and the closing line go to
standard error. Keys are read from the environment alone (ANTHROPIC_API_KEY and the like).

examples:
  pilothouse ask "Explain this repository"
  git diff | pilothouse ask "Review this change"
  pilothouse ask --allowed-tools "Read,Bash(git log:*)" --max-turns 10 "What changed last week?"
  pilothouse ask --json --json-schema @invoice.schema.json "Read invoice.txt" | jq .structured
  pilothouse ask --resume 1f0c… "And now in French"
  pilothouse ask --set betas=context-1m-2025-08-07 --set bare=true "Hello"

exit codes:
  0 answered    1 the run failed    2 wrong usage, or no Claude Code to run
  124 timeout   130 Ctrl-C          141 standard output was closed
"""
_CHAT_EPILOG = """In the conversation, /help lists the commands: /model, /mode, /cost, /status, /fork, /clear, /resume,
/exit; those of Claude Code work too. A tool that needs permission is asked about: once, for the session, or deny.

Ctrl-C stops the answer, a second one leaves; Ctrl-D leaves. When standard input is not a terminal, each of its lines
is a prompt, answers go to standard output, and no question is asked: give --allowed-tools or --permission-mode.

examples:
  pilothouse chat
  pilothouse chat --model opus "Explain this repository"
  pilothouse chat --continue
  pilothouse chat --resume 1f0c…
  printf '%s\\n' "My name is Alice." "What is my name?" | pilothouse chat

exit codes:
  0 left by its user; every piped line was answered    otherwise as `pilothouse ask`
"""
_BATCH_EPILOG = """A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt"
and, if need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
--output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

  status         show the number of runs in the journal by state; changes nothing
  results        write the ended runs of the journal; changes nothing
  resume         continue the unfinished runs of the journal
  retry-failed   repeat the failed runs

With --enqueue the prompts are put into the journal, and `pilothouse worker` executes them, now or later. With
--concurrency 0 the worker executes them too, and this command waits for the results.

Ctrl-C once: nothing more is started, running ones are stopped and kept in the journal; twice: at once.

examples:
  pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
  pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
  pilothouse batch prompts.jsonl --enqueue --journal runs.db
  pilothouse batch status --journal runs.db
  pilothouse batch results --journal runs.db -o out.csv
  pilothouse batch resume --journal runs.db -o out.jsonl

exit codes:
  0 every run succeeded    1 some failed or are left    2 wrong usage    130 Ctrl-C
"""
_ACP_EPILOG = """Standard output is for the protocol alone. With --remote, --cwd is the directory on the host.

examples (what the editor runs):
  pilothouse acp
  pilothouse acp --model opus --permission-mode plan
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse acp --remote wss://host.example --cwd /srv/project

exit codes:
  0 the editor has left    1 failed    2 wrong usage    130 Ctrl-C
"""
_COMPAT_EPILOG = """examples:
  pilothouse compat run app.py --its-own-flag
  pilothouse compat run -m my_package
  PYTHONPATH="$(pilothouse compat path)" pytest
"""
_COMPLETION_EPILOG = """examples:
  pilothouse completion bash > ~/.local/share/bash-completion/completions/pilothouse
  pilothouse completion zsh > "${fpath[1]}/_pilothouse"
  pilothouse completion fish > ~/.config/fish/completions/pilothouse.fish
"""
_DEMO_EPILOG = """Part 1 asks one question: the embedded open model answers, or the real one if a key is set in the
environment. Part 2 runs the Python program that it shows: the real Claude Code calls a function of it, a hook denies a
command, and a permission is asked, in a temporary directory; what the model says there is scripted.
"""
_INSTALL_EPILOG = """Claude Code is Anthropic's own software under its own terms. The download is checked against a
pinned digest. Copies of other versions that were not used for a week are removed. PILOTHOUSE_CACHE names another cache.

examples:
  pilothouse install-cli
  pilothouse install-cli --check || echo "not the tested version"
  "$(pilothouse install-cli --path)" --version

exit codes:
  0 it is there    1 it is not, or does not work here    130 Ctrl-C
"""
_SERVE_EPILOG = """\
The token is read from --token-file, else from PILOTHOUSE_HOST_TOKEN; else one is made and shown once.
SIGTERM and Ctrl-C let running turns end, for --drain seconds; a second one ends at once.

examples:
  pilothouse serve
  pilothouse serve --root ~/work --max-sessions 8
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse serve --port 8750 --name pilot.example.com
  pilothouse serve --openai --map gpt-4o=sonnet   # base URL http://127.0.0.1:8750/v1, API key: the token

exit codes:
  0 ended in order    1 the journal cannot be written    2 wrong usage, or the address or the journal is taken
"""
_CONSOLE_EPILOG = """\
The link contains the token: whoever has it can run commands as you. The token comes from --token-file,
else from PILOTHOUSE_HOST_TOKEN; else a new one is made. If port 8750 is in use, a free one is taken.

examples:
  pilothouse console
  pilothouse console --root ~/work --open
  PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse console --join http://127.0.0.1:8750
"""
_SESSIONS_EPILOG = """A session is named by its id, or by the first characters of it.

examples:
  pilothouse sessions list
  pilothouse sessions search --all "connection reset"
  pilothouse sessions show 1f0c
  pilothouse sessions export 1f0c --format html --output session.html
  pilothouse sessions usage --all --since 2026-11-01 --json

exit codes:
  0 done    1 it failed, or nothing was found    2 wrong usage    130 Ctrl-C
"""
_WORKER_EPILOG = """`pilothouse batch FILE --enqueue` adds runs. Options of a query given here apply to runs that do not
set them. A journal has one worker; whoever may write its file decides what is executed. A line for each run goes to
standard error.

SIGTERM, or Ctrl-C once: nothing more is started, running ones are stopped gracefully, and the next worker continues
them; twice: at once.

examples:
  pilothouse worker --journal runs.db
  pilothouse worker --journal runs.db --until-empty --concurrency 4 --model haiku

exit codes:
  0 nothing is left (--until-empty), or SIGTERM    1 the journal was lost, the budget is spent, or no run can succeed
  2 wrong usage, or no Claude Code to run          130 Ctrl-C
"""

COMMANDS: dict[str, Command] = {
    "acp": Command(
        flags.AcpRequest, "acp.acp", "be the agent of an editor: Zed, JetBrains, Neovim",
        "Speak the Agent Client Protocol on standard input and output; an editor starts this. Options given here "
        "apply to all its sessions.",
        _ACP_EPILOG, "%(prog)s [options]",
    ),
    "ask": Command(
        flags.AskRequest, "ask.ask", "ask one question and stream the answer",
        "Ask one question and stream the answer.", _ASK_EPILOG, "%(prog)s [options] [prompt]",
    ),
    "batch": Command(
        flags.BatchRequest, "batch.batch", "run many prompts, a few at a time, and survive crashes",
        "Run every prompt of a file, a few at a time. With a journal a run that has ended is never repeated.",
        _BATCH_EPILOG, f"%(prog)s [options] {flags.SOURCES}",
    ),
    "chat": Command(
        flags.ChatRequest, "chat.chat", "talk with Claude Code in the terminal",
        "Talk with Claude Code in the terminal: one conversation, many prompts.",
        _CHAT_EPILOG, "%(prog)s [options] [prompt]",
    ),
    "compat": Command(
        flags.CompatRequest, "compat.run_compat", "run a program for claude-agent-sdk, unchanged",
        "Run a Python program that was written for claude-agent-sdk, unchanged: `import claude_agent_sdk` gives it "
        "pilothouse, also below packages that depend on claude-agent-sdk.", _COMPAT_EPILOG,
    ),
    "completion": Command(
        flags.CompletionRequest, "arguments.show_completion", "print a script that completes commands in your shell",
        "Print the script with which a shell completes commands, flags, choices and files.", _COMPLETION_EPILOG,
    ),
    "console": Command(
        flags.ConsoleRequest, "console.console", "see and steer all sessions in the browser",
        "Print one link to the console: all sessions, what they ask, what they cost. Starts a host that runs until "
        "Ctrl-C, or joins the one that runs already.",
        _CONSOLE_EPILOG, "%(prog)s [options]",
    ),
    "demo": Command(
        flags.DemoRequest, "demo.demo", "show what it does; needs no key",
        "Show what pilothouse does, with the real Claude Code and without a key.", _DEMO_EPILOG, has_answer=False,
    ),
    "doctor": Command(
        flags.DoctorRequest, "doctor.doctor", "check that everything a query needs is there",
        "Check the CLI, the key or login, the configuration, the limits of this system, and ask the CLI one question "
        "with a scripted model. Ends with 0 if nothing failed, else with 1.",
        has_answer=False,
    ),
    "install-cli": Command(
        flags.InstallRequest, "install.install", "install the tested Claude Code, for pilothouse alone",
        "Install the version of Claude Code that this pilothouse is tested with, into its cache, with your own npm or "
        "pip. If it is there already, nothing is fetched.",
        _INSTALL_EPILOG, has_answer=False,
    ),
    "options": Command(
        flags.OptionsRequest, "options.show_options", "list the options, explain one, or show where values come from",
        "List the options of a query, explain one, or show what is set here and where.", has_answer=False,
    ),
    "replay": Command(
        flags.ReplayRequest, "replay.replay", "show a recorded run",
        "Show a recorded run as the command would have shown it: answers on standard output, prompts, tools and the "
        "closing line on standard error. Nothing is started. Ends as the run did.",
    ),
    "serve": Command(
        flags.ServeRequest, "serve.serve", "own sessions for clients elsewhere",
        "Own Claude Code sessions for clients elsewhere, over WebSocket and REST: they go on while no client is "
        "attached, and their messages are kept.",
        _SERVE_EPILOG,
    ),
    "sessions": Command(
        flags.SessionsRequest, "sessions.sessions", "list, show, search, change and count the sessions on this machine",
        "What Claude Code keeps of its sessions on this machine: list, show, search, fork, rename, tag, delete, "
        "export, and what they used. No Claude Code is started.",
        _SESSIONS_EPILOG,
    ),
    "worker": Command(
        flags.WorkerRequest, "batch.worker", "execute the runs of a journal",
        "Execute the runs of a journal, also those that other processes add later, a few at a time.",
        _WORKER_EPILOG,
    ),
}  # fmt: skip


def find_command(request: object) -> Command:
    """Return the command of a request."""
    return next(command for command in COMMANDS.values() if command.request is type(request))


async def show_completion(request: flags.CompletionRequest, screen: Screen) -> int:
    """Print the script that completes the command in a shell."""
    parser, below = _build_parsers()
    for each in below.values():
        for action in each._actions:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            word = str(action.metavar).partition("|")[0]
            if word in ("FILE", "PATH", "DIR"):
                action.complete = shtab.DIRECTORY if word == "DIR" else shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    screen.text(shtab.complete(parser, request.shell))
    return 0
