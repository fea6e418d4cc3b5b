"""The command line: flags, help, parsed requests as plain data, and suggestions for mistakes."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from argparse import Action
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from pilothouse._version import __version__
from pilothouse.cli.flags import (
    BATCH_DESCRIPTION,
    BATCH_EPILOG,
    BATCH_HELP,
    DEMO_DESCRIPTION,
    DEMO_EPILOG,
    DEMO_HELP,
    REPLAY_DESCRIPTION,
    REPLAY_HELP,
    SERVE_DESCRIPTION,
    SERVE_EPILOG,
    SERVE_HELP,
    SESSIONS_DESCRIPTION,
    SESSIONS_EPILOG,
    SESSIONS_HELP,
    SOURCES,
    WORKER_DESCRIPTION,
    WORKER_EPILOG,
    WORKER_HELP,
    BatchRequest,
    DemoRequest,
    ReplayRequest,
    ServeRequest,
    SessionsRequest,
    WorkerRequest,
    add_batch,
    add_demo,
    add_replay,
    add_serve,
    add_sessions,
    add_worker,
    make_batch_request,
    make_demo_request,
    make_replay_request,
    make_serve_request,
    make_sessions_request,
    make_worker_request,
    parse_transport,
)
from pilothouse.cli.install import (
    INSTALL_DESCRIPTION,
    INSTALL_EPILOG,
    INSTALL_HELP,
    InstallRequest,
    add_install,
    make_install_request,
)
from pilothouse.options import TABLE, Option, value_types
from pilothouse.options.value_checks import InvalidValueError
from pilothouse.options.value_types import make_parse_error

SIMILARITY_CUTOFF = 0.6
"""Minimum similarity of two names, from 0 to 1, for a suggestion."""


def find_closest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is most similar to `name`, or None."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=SIMILARITY_CUTOFF)), None)


def explain_wrong_command(word: str, commands: Collection[str]) -> str:
    """Explain a first word that is not a command: a prompt without a command, or a typing mistake."""
    if word.startswith("-"):
        return f"{word.partition('=')[0]} stands behind a command, as in `pilothouse ask {word.partition('=')[0]} …`"
    if " " in word.strip() or word.endswith("?"):
        return f"to ask a question: pilothouse ask {shlex.quote(word)}"
    near = find_closest(word.lower(), commands)
    hint = f"did you mean `pilothouse {near}`?" if near else f"the commands are {', '.join(commands)}"
    return f"there is no command {word!r}; {hint}"


def explain_wrong_arguments(rest: Sequence[str], flags: Collection[str]) -> str:
    """Explain arguments that a command does not take.

    Args:
        rest: the arguments; not empty.
        flags: the flags of the command.
    """
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is None:
        return f"unrecognized arguments: {' '.join(rest)}; put a text of several words in quotes"
    near = find_closest(unknown, flags)
    return f"unrecognized arguments: {unknown}" + (f"; did you mean {near}?" if near else "")


def collect_flags(words: Sequence[str], flags: Mapping[str, Action], without: Collection[str]) -> Iterator[str]:
    """Yield the flags of a command line with their values, to be repeated; without its other arguments.

    Args:
        words: the words after the command.
        flags: the flags of the command; each has one value or none.
        without: the destinations of flags to omit.
    """
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
    """Parse the value of an option.

    Args:
        option: a row of the table.
        text: the typed text; `@path` is the content of a file where the value is JSON.

    Raises:
        ValueError: the text is not valid; the message says what was expected.
    """
    kind = option.value_type
    if kind.parse is None:
        raise ValueError("it takes a Python object")
    value = kind.parse(_read_value_file(text) if _FROM_FILE in kind.metavar else text)
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=VALUE` of `--set`."""

    name: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Parse one assignment.

        Raises:
            argparse.ArgumentTypeError: there is no name, the option is unknown or not for the command line, or the
                value is not valid.
        """
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!a}")
        option = TABLE.get(name)
        if option is None:
            near = find_closest(name, TABLE)
            hint = f"; did you mean {near!r}?" if near else ""
            raise argparse.ArgumentTypeError(f"unknown option {name!r}{hint}")
        if option.secret:
            raise argparse.ArgumentTypeError(f"{name!r} may hold keys: set environment variables instead")
        if option.value_type.parse is None:
            raise argparse.ArgumentTypeError(f"{name!r} takes a Python object: use pilothouse from Python for it")
        try:
            return cls(name, parse_value(option, value))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from None


PROGRAM = "pilothouse"
USAGE_ERROR = 2

OutputFormat = Literal["text", "json", "stream-json"]

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


@dataclass(frozen=True, slots=True)
class AskRequest:
    """The parsed arguments of `pilothouse ask`."""

    prompt: str | None
    settings: Mapping[str, Any]
    form: OutputFormat = "text"
    thinking: bool = False
    local: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The parsed arguments of `pilothouse chat`."""

    prompt: str | None
    settings: Mapping[str, Any]
    thinking: bool = False
    local: bool = False
    verbose: bool = False
    quiet: bool = False
    history: str | None = None
    flags: tuple[str, ...] = field(default=(), compare=False)
    """The flags as typed, for the hint how to resume; without those that select the session."""


@dataclass(frozen=True, slots=True)
class OptionsRequest:
    """The parsed arguments of `pilothouse options`."""

    name: str | None = None
    explain: bool = False
    json: bool = False
    policy: bool = False


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """The parsed arguments of `pilothouse doctor`."""

    cli: str | None = None
    json: bool = False
    quick: bool = False


Request = (
    AskRequest
    | BatchRequest
    | ChatRequest
    | DemoRequest
    | DoctorRequest
    | InstallRequest
    | OptionsRequest
    | ReplayRequest
    | ServeRequest
    | SessionsRequest
    | WorkerRequest
)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports an error in one line, with a pointer to the help."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        text = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{PROGRAM}: {text} (see `{self.prog} --help`)\n")


def parse(argv: list[str] | None) -> Request:
    """Parse the command line; `None` means that of this process.

    Raises:
        SystemExit: for help and the version (0), or for an error (2).
    """
    words = _add_default_action(sys.argv[1:] if argv is None else argv)
    parser, below = _build_parsers()
    if words and words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        parser.error(explain_wrong_command(words[0], COMMANDS))
    asked, rest = parser.parse_known_args(words)
    if asked.command is None:
        parser.error('which command? `pilothouse ask "…"` asks a question, `pilothouse demo` shows what it does')
    asked.words, asked.flags = words[1:], below[asked.command]._option_string_actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if rest:
        below[asked.command].error(explain_wrong_arguments(rest, asked.flags))
    return COMMANDS[asked.command].request(asked)


def _add_default_action(words: list[str]) -> list[str]:
    """Add the action `list` to `pilothouse sessions` without an action."""
    lists = words[:1] == ["sessions"] and (len(words) == 1 or words[1] in ("--all", "--directory", "--json", "--limit"))
    return ["sessions", "list", *words[1:]] if lists else words


def _build_parsers() -> tuple[CommandParser, dict[str, argparse.ArgumentParser]]:
    """Build the main parser and those of the commands."""
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
    """Add the flags that `ask` and `chat` share: the source of answers, and all options of a query."""
    parser.add_argument("--local", action="store_true", help="a small open model on this machine; no key")
    # With its own destination: `thinking` is an option as well.
    parser.add_argument("--thinking", dest="shows_thinking", action="store_true", help="show what the model thinks")
    parser.add_argument("--verbose", action="store_true", help="show what Claude Code writes to its standard error")
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add flags for all options of a query."""
    parser.add_argument(
        "--transport",
        type=parse_transport,
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
        "dest": option.name,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if doc is None else doc.replace("%", "%%"),
    }
    if option.value_type is value_types.BOOL:
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


def _read_settings(asked: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(asked, name) for name in TABLE if hasattr(asked, name)}
    return settings | {assignment.name: assignment.value for assignment in asked.set}


_SESSION_OPTIONS = frozenset(
    ["resume", "continue_conversation", "fork_session", "session_id", "resume_session_at", "resume_drops_turn"]
)


def _make_chat_request(asked: argparse.Namespace) -> ChatRequest:
    return ChatRequest(
        prompt=asked.prompt,
        settings=_read_settings(asked),
        thinking=asked.shows_thinking,
        local=asked.local,
        verbose=asked.verbose,
        quiet=asked.quiet,
        history=asked.history,
        flags=tuple(collect_flags(asked.words, asked.flags, _SESSION_OPTIONS)),
    )


def _make_ask_request(asked: argparse.Namespace) -> AskRequest:
    return AskRequest(
        prompt=asked.prompt,
        settings=_read_settings(asked),
        form=asked.form,
        thinking=asked.shows_thinking,
        local=asked.local,
        verbose=asked.verbose,
    )


def _make_settings_adder(add: Callable[[argparse.ArgumentParser], None]) -> Callable[[argparse.ArgumentParser], None]:
    def add_both(parser: argparse.ArgumentParser) -> None:
        add(parser)
        _add_settings(parser)

    return add_both


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one option, in full")
    parser.add_argument("--explain", action="store_true", help="only what is set here, and where each value comes from")
    parser.add_argument("--policy", action="store_true", help="what runs unasked here, what asks, and what is denied")
    parser.add_argument("--json", action="store_true", help="print a JSON array")


def _make_options_request(asked: argparse.Namespace) -> OptionsRequest:
    return OptionsRequest(name=asked.name, explain=asked.explain, json=asked.json, policy=asked.policy)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cli", metavar="PATH", help=TABLE["cli"].doc.replace("%", "%%"))
    parser.add_argument("--quick", action="store_true", help="do not ask Claude Code anything")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _make_doctor_request(asked: argparse.Namespace) -> DoctorRequest:
    return DoctorRequest(cli=asked.cli, json=asked.json, quick=asked.quick)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its help, its flags, and the function that makes its request."""

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
        _make_ask_request,
        epilog=_ASK_EPILOG,
        usage="%(prog)s [options] [prompt]",
    ),
    "batch": Command(
        BATCH_HELP,
        BATCH_DESCRIPTION,
        _make_settings_adder(add_batch),
        lambda asked: make_batch_request(asked, _read_settings(asked)),
        epilog=BATCH_EPILOG,
        usage=f"%(prog)s [options] {SOURCES}",
    ),
    "chat": Command(
        "talk with Claude Code in the terminal",
        "Talk with Claude Code in the terminal: one conversation, many prompts.",
        _add_chat,
        _make_chat_request,
        epilog=_CHAT_EPILOG,
        usage="%(prog)s [options] [prompt]",
    ),
    "demo": Command(DEMO_HELP, DEMO_DESCRIPTION, add_demo, make_demo_request, epilog=DEMO_EPILOG),
    "doctor": Command(
        "check that everything a query needs is there",
        "Check the CLI, the key or login, the configuration, the limits of this system, and ask the CLI one question "
        "with a scripted model. Ends with 0 if nothing failed, else with 1.",
        _add_doctor,
        _make_doctor_request,
    ),
    "install-cli": Command(INSTALL_HELP, INSTALL_DESCRIPTION, add_install, make_install_request, epilog=INSTALL_EPILOG),
    "options": Command(
        "list the options, explain one, or show where values come from",
        "List the options of a query, explain one, or show what is set here and where.",
        _add_options,
        _make_options_request,
    ),
    "replay": Command(REPLAY_HELP, REPLAY_DESCRIPTION, add_replay, make_replay_request),
    "serve": Command(SERVE_HELP, SERVE_DESCRIPTION, add_serve, make_serve_request, epilog=SERVE_EPILOG),
    "sessions": Command(
        SESSIONS_HELP, SESSIONS_DESCRIPTION, add_sessions, make_sessions_request, epilog=SESSIONS_EPILOG
    ),
    "worker": Command(
        WORKER_HELP,
        WORKER_DESCRIPTION,
        _make_settings_adder(add_worker),
        lambda asked: make_worker_request(asked, _read_settings(asked)),
        epilog=WORKER_EPILOG,
    ),
}
