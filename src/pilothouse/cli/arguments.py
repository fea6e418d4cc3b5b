"""The command line: its flags, its help, and what was asked for as plain data.

Flags for options are made from the one table of options, so that their meaning and their documentation stand in one
place. Starts nothing and prints nothing but help, the version, and one line for a mistake.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from pilothouse._version import __version__
from pilothouse.cli import batch_arguments as batch
from pilothouse.cli import suggestions
from pilothouse.cli import worker_arguments as worker
from pilothouse.cli.demo_flags import (
    DEMO_DESCRIPTION,
    DEMO_EPILOG,
    DEMO_HELP,
    DemoRequest,
    add_demo,
    demo_request,
)
from pilothouse.cli.install import (
    INSTALL_DESCRIPTION,
    INSTALL_EPILOG,
    INSTALL_HELP,
    InstallRequest,
    add_install,
    install_request,
)
from pilothouse.cli.replay_flags import (
    REPLAY_DESCRIPTION,
    REPLAY_HELP,
    ReplayRequest,
    add_replay,
    read_transport,
    replay_request,
)
from pilothouse.cli.serve_flags import (
    SERVE_DESCRIPTION,
    SERVE_EPILOG,
    SERVE_HELP,
    ServeRequest,
    add_serve,
    serve_request,
)
from pilothouse.cli.sessions_arguments import (
    SESSIONS_DESCRIPTION,
    SESSIONS_EPILOG,
    SESSIONS_HELP,
    SessionsRequest,
    add_sessions,
    sessions_request,
)
from pilothouse.cli.values import Assignment, parse_value
from pilothouse.options import TABLE, Option, kinds

PROGRAM = "pilothouse"
USAGE_ERROR = 2

Form = Literal["text", "json", "stream-json"]

# Options that the help shows, in groups. Every other one that can be written as text has a flag as well.
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model", ("model", "fallback_model", "effort")),
    ("limits", ("max_turns", "max_budget_usd", "timeout", "idle_timeout")),
    ("prompt and output", ("system_prompt", "append_system_prompt", "json_schema")),
    ("tools", ("tools", "allowed_tools", "disallowed_tools", "permission_mode", "mcp_servers")),
    ("conversation", ("resume", "continue_conversation", "fork_session", "session_id")),
    ("place", ("cwd", "add_dirs", "cli")),
)  # fmt: skip
# Where the claude command has a name for it already, or this one means something else by it.
_SPELLING = {
    "add_dirs": "--add-dir",
    "continue_conversation": "--continue",
    "mcp_servers": "--mcp-config",
    "thinking": "--thinking-mode",
}

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

Ctrl-C stops the answer, a second one leaves; Ctrl-D leaves. When standard input is no terminal, each of its lines is
a prompt, answers go to standard output, and nobody is asked: give --allowed-tools or --permission-mode.

examples:
  pilothouse chat
  pilothouse chat --model opus "Explain this repository"
  pilothouse chat --continue
  pilothouse chat --resume 1f0c…
  printf '%s\\n' "My name is Alice." "What is my name?" | pilothouse chat

exit codes:
  0 left by its user; every piped line was answered    otherwise as `pilothouse ask`
"""


@dataclass(frozen=True, slots=True)
class AskRequest:
    """What `pilothouse ask` was asked for."""

    prompt: str | None
    settings: Mapping[str, Any]
    form: Form = "text"
    thinking: bool = False
    local: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What `pilothouse chat` was asked for."""

    prompt: str | None
    settings: Mapping[str, Any]
    thinking: bool = False
    local: bool = False
    verbose: bool = False
    quiet: bool = False
    history: str | None = None
    flags: tuple[str, ...] = field(default=(), compare=False)
    """As they were given, to go on with another time; without those that say which session."""


@dataclass(frozen=True, slots=True)
class OptionsRequest:
    """What `pilothouse options` was asked for."""

    name: str | None = None
    explain: bool = False
    json: bool = False
    policy: bool = False


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What `pilothouse doctor` was asked for."""

    cli: str | None = None
    json: bool = False
    quick: bool = False


Request = (
    AskRequest
    | batch.BatchRequest
    | ChatRequest
    | DemoRequest
    | DoctorRequest
    | InstallRequest
    | OptionsRequest
    | ReplayRequest
    | ServeRequest
    | SessionsRequest
    | worker.WorkerRequest
)


class CommandParser(argparse.ArgumentParser):
    """A parser whose mistakes are one line that says where the help is."""

    def error(self, message: str) -> NoReturn:
        """Print the line and end with exit code 2."""
        text = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{PROGRAM}: {text} (see `{self.prog} --help`)\n")


def parse(argv: list[str] | None) -> Request:
    """Read the command line; `None` stands for that of this process.

    Raises:
        SystemExit: help or the version was asked for (0), or something is wrong (2).
    """
    words = _completed(sys.argv[1:] if argv is None else argv)
    parser, below = _parsers()
    if words and words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        parser.error(suggestions.wrong_command(words[0], COMMANDS))
    asked, rest = parser.parse_known_args(words)
    if asked.command is None:
        parser.error('which command? `pilothouse ask "…"` asks a question, `pilothouse demo` shows what it does')
    asked.words, asked.flags = words[1:], below[asked.command]._option_string_actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if rest:
        below[asked.command].error(suggestions.wrong_arguments(rest, asked.flags))
    return COMMANDS[asked.command].request(asked)


def _completed(words: list[str]) -> list[str]:
    """`pilothouse sessions`, with flags or without, lists them."""
    lists = words[:1] == ["sessions"] and (len(words) == 1 or words[1] in ("--all", "--directory", "--json", "--limit"))
    return ["sessions", "list", *words[1:]] if lists else words


def _parsers() -> tuple[CommandParser, dict[str, argparse.ArgumentParser]]:
    """The parser of everything, and those of the commands."""
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
        command.add(below[name])
    return parser, below


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", help="the question; '-' or none reads standard input, piped text is added to a question"
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print one JSON object at the end",
    )
    forms.add_argument(
        "--stream-json",
        dest="form",
        action="store_const",
        const="stream-json",
        help="print every message of Claude Code as a line of JSON, as it came",
    )
    _add_run(parser)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the first thing to say")
    parser.add_argument("--quiet", action="store_true", help="no line with cost and tokens after each answer")
    parser.add_argument(
        "--history", metavar="FILE", help="keep what was typed in this file; without it nothing of it is kept"
    )
    _add_run(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    """What `ask` and `chat` have in common: where the answer comes from, and every option of a query."""
    parser.add_argument("--local", action="store_true", help="a small open model on this machine; no key")
    # With a name of its own: `thinking` is an option as well.
    parser.add_argument("--thinking", dest="shows_thinking", action="store_true", help="show what the model thinks")
    parser.add_argument("--verbose", action="store_true", help="show what Claude Code writes to its standard error")
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Every option of a query."""
    parser.add_argument(
        "--transport",
        type=read_transport,
        default=argparse.SUPPRESS,
        metavar="record:FILE|replay:FILE|native|ws://HOST:PORT",
        help="record the run in a file; answer from one, with neither Claude Code nor a model; ask the Messages API "
        "without Claude Code; or run on a host, whose token is in PILOTHOUSE_HOST_TOKEN",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=Assignment.parse,
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


def flag_of(option: Option) -> str | None:
    """The flag of `pilothouse ask` that sets an option; None for keys, and for what cannot be written as text."""
    if option.secret or option.kind.parse is None:
        return None
    return _SPELLING.get(option.name, "--" + option.name.replace("_", "-"))


def _add_option(group: Any, option: Option, doc: str | None) -> None:
    flag = flag_of(option)
    if flag is None:
        return
    common: dict[str, Any] = {
        "dest": option.name,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if doc is None else doc.replace("%", "%%"),
    }
    if option.kind is kinds.BOOL:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    else:
        action = "extend" if option.kind is kinds.PATHS else "store"
        group.add_argument(flag, action=action, type=_reader(option), metavar=option.kind.metavar, **common)


def _reader(option: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return parse_value(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _settings(asked: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(asked, name) for name in TABLE if hasattr(asked, name)}
    return settings | {assignment.name: assignment.value for assignment in asked.set}


_WHICH_SESSION = frozenset(
    ["resume", "continue_conversation", "fork_session", "session_id", "resume_session_at", "resume_drops_turn"]
)


def _chat_request(asked: argparse.Namespace) -> ChatRequest:
    return ChatRequest(
        prompt=asked.prompt,
        settings=_settings(asked),
        thinking=asked.shows_thinking,
        local=asked.local,
        verbose=asked.verbose,
        quiet=asked.quiet,
        history=asked.history,
        flags=tuple(suggestions.repeated_flags(asked.words, asked.flags, _WHICH_SESSION)),
    )


def _ask_request(asked: argparse.Namespace) -> AskRequest:
    return AskRequest(
        prompt=asked.prompt,
        settings=_settings(asked),
        form=asked.form,
        thinking=asked.shows_thinking,
        local=asked.local,
        verbose=asked.verbose,
    )


def _with_settings(add: Callable[[argparse.ArgumentParser], None]) -> Callable[[argparse.ArgumentParser], None]:
    def add_both(parser: argparse.ArgumentParser) -> None:
        add(parser)
        _add_settings(parser)

    return add_both


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one option, in full")
    parser.add_argument("--explain", action="store_true", help="only what is set here, and where each value comes from")
    parser.add_argument("--policy", action="store_true", help="what runs unasked here, what asks, and what is denied")
    parser.add_argument("--json", action="store_true", help="print a JSON array")


def _options_request(asked: argparse.Namespace) -> OptionsRequest:
    return OptionsRequest(name=asked.name, explain=asked.explain, json=asked.json, policy=asked.policy)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cli", metavar="PATH", help=TABLE["cli"].doc.replace("%", "%%"))
    parser.add_argument("--quick", action="store_true", help="do not ask Claude Code anything")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _doctor_request(asked: argparse.Namespace) -> DoctorRequest:
    return DoctorRequest(cli=asked.cli, json=asked.json, quick=asked.quick)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: how it presents itself, its flags, and how they are read."""

    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    request: Callable[[argparse.Namespace], Request]
    epilog: str | None = None
    usage: str | None = None


COMMANDS: dict[str, Command] = {
    "ask": Command(
        "ask one question and stream the answer",
        "Ask one question and stream the answer.",
        _add_ask,
        _ask_request,
        epilog=_ASK_EPILOG,
        usage="%(prog)s [options] [prompt]",
    ),
    "batch": Command(
        batch.BATCH_HELP,
        batch.BATCH_DESCRIPTION,
        _with_settings(batch.add_batch),
        lambda asked: batch.batch_request(asked, _settings(asked)),
        epilog=batch.BATCH_EPILOG,
        usage=f"%(prog)s [options] {batch.SOURCES}",
    ),
    "chat": Command(
        "talk with Claude Code in the terminal",
        "Talk with Claude Code in the terminal: one conversation, many prompts.",
        _add_chat,
        _chat_request,
        epilog=_CHAT_EPILOG,
        usage="%(prog)s [options] [prompt]",
    ),
    "demo": Command(DEMO_HELP, DEMO_DESCRIPTION, add_demo, demo_request, epilog=DEMO_EPILOG),
    "doctor": Command(
        "check that everything a query needs is there",
        "Check the CLI, the key or login, the configuration, the limits of this system, and ask the CLI one question "
        "with a scripted model. Ends with 0 if nothing failed, else with 1.",
        _add_doctor,
        _doctor_request,
    ),
    "install-cli": Command(INSTALL_HELP, INSTALL_DESCRIPTION, add_install, install_request, epilog=INSTALL_EPILOG),
    "options": Command(
        "list the options, explain one, or show where values come from",
        "List the options of a query, explain one, or show what is set here and where.",
        _add_options,
        _options_request,
    ),
    "replay": Command(REPLAY_HELP, REPLAY_DESCRIPTION, add_replay, replay_request),
    "serve": Command(SERVE_HELP, SERVE_DESCRIPTION, add_serve, serve_request, epilog=SERVE_EPILOG),
    "sessions": Command(SESSIONS_HELP, SESSIONS_DESCRIPTION, add_sessions, sessions_request, epilog=SESSIONS_EPILOG),
    "worker": Command(
        worker.WORKER_HELP,
        worker.WORKER_DESCRIPTION,
        _with_settings(worker.add_worker),
        lambda asked: worker.worker_request(asked, _settings(asked)),
        epilog=worker.WORKER_EPILOG,
    ),
}
