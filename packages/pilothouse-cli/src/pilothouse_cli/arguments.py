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
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import shtab

from pilothouse import __version__
from pilothouse.options import TABLE, InvalidValueError, Option, value_types
from pilothouse.options.value_types import make_parse_error
from pilothouse.support import find_similar_name
from pilothouse_cli import flags
from pilothouse_cli.help_texts import (
    OVERVIEW,
    USUAL_OPTIONS,
    HelpFormatter,
    describe_option,
    explain_unknown_option,
    get_flag,
)

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
        return f"{word.partition('=')[0]} goes after a command, as in `pilothouse ask {word.partition('=')[0]} …`"
    if " " in word.strip() or word.endswith("?"):
        return f"to ask a question: pilothouse ask {shlex.quote(word)}"
    near = find_similar_name(word.lower(), commands)
    hint = f"did you mean `pilothouse {near}`?" if near else f"the commands are {', '.join(commands)}"
    return f"there is no command {word!r}; {hint}"


def explain_wrong_arguments(rest: Sequence[str], flags: Collection[str]) -> str:
    """Explain the `rest`, arguments that a command with these flags does not take."""
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is None:
        return f"unrecognized arguments: {' '.join(rest)}; put text with spaces in quotes"
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
        raise argparse.ArgumentTypeError(explain_unknown_option(name))
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


class CommandParser(argparse.ArgumentParser):
    """A parser that reports an error in one line, with a pointer to the help."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        text = " ".join(message.split())
        self.exit(USAGE_ERROR, f"{PROGRAM}: {text} (see `{self.prog} --help`)\n")


def parse(argv: list[str] | None) -> Any:
    """Parse the command line; `None` means that of this process. Returns a request, such as `AskRequest`."""
    words = _add_default_action(sys.argv[1:] if argv is None else argv)
    parser, below = _build_parsers(show_all="--help-all" in words)
    if words and words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        parser.error(explain_wrong_command(words[0], COMMANDS))
    asked, rest = parser.parse_known_args(words)
    if asked.command is None:
        parser.error('which command? `pilothouse ask "…"` asks a question, `pilothouse demo` shows what it does')
    kind = COMMANDS[asked.command].request
    used = below[f"{asked.command} {asked.action}" if kind in flags.ACTIONS else asked.command]
    known = used._option_string_actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if rest:
        used.error(explain_wrong_arguments(rest, known))
    own: dict[str, Any] = {}
    if "settings" in kind.__dataclass_fields__:
        own["settings"] = _read_settings(asked)
    if kind is flags.ChatRequest:
        own["flags"] = tuple(collect_flags(words[1:], known, _SESSION_OPTIONS))
    if kind in flags.ACTIONS:
        own["request"] = flags.make_request(flags.ACTIONS[kind][asked.action][1], asked)
    return flags.make_request(kind, asked, **own)


def _add_default_action(words: list[str]) -> list[str]:
    """Add the action `list` to `pilothouse sessions` without an action; `policy` alone is a flag of `options`."""
    if words[:1] == ["policy"] and (len(words) == 1 or words[1] in ("--json", "--config")):
        return ["options", "--policy", *words[1:]]
    lists = words[:1] == ["sessions"] and (len(words) == 1 or words[1] in ("--all", "--directory", "--json", "--limit"))
    return ["sessions", "list", *words[1:]] if lists else words


def _build_parsers(*, show_all: bool = False) -> tuple[CommandParser, dict[str, argparse.ArgumentParser]]:
    parser = CommandParser(
        prog=PROGRAM,
        usage="%(prog)s COMMAND [options]",
        description="Steer Claude Code, the claude command-line agent: ask, chat, run many prompts, serve. Unofficial.",
        epilog=f"{_list_commands()}\n\n{OVERVIEW}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}", help="show the version")
    listed = None if show_all else argparse.SUPPRESS  # the epilog lists them by group; completion needs them here
    commands = parser.add_subparsers(prog=PROGRAM, dest="command", metavar="COMMAND", help=listed)
    below: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        text, head, examples = cleandoc(command.request.__doc__ or "").partition("\nExamples")
        below[name] = commands.add_parser(
            name,
            help=command.summary,
            usage=flags.make_usage(command.request),
            description=text,
            epilog=(head + examples).strip(),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        flags.add_flags(below[name], command.request, show_all=show_all)
        if flags.has_rare_flags(command.request):
            below[name].add_argument("--help-all", action="help", help="show this help with every option")
        if "settings" in command.request.__dataclass_fields__:
            _add_settings(below[name], command.request, show_all=show_all)
        if command.request in flags.ACTIONS:
            below |= _add_actions(below[name], name, flags.ACTIONS[command.request])
    return parser, below


def _list_commands() -> str:
    """List the commands by group, a line each."""
    width = max(map(len, COMMANDS)) + 2
    groups = groupby(COMMANDS.items(), key=lambda item: item[1].group)
    return "\n\n".join(
        "\n".join([f"{group}:", *(f"  {name:<{width}}{command.summary}" for name, command in commands)])
        for group, commands in groups
    )


def _add_actions(
    parser: argparse.ArgumentParser, command: str, known: Mapping[str, tuple[str, type[Any]]]
) -> dict[str, argparse.ArgumentParser]:
    """Add the actions of a command; returns their parsers by command and action."""
    actions = parser.add_subparsers(
        prog=f"{PROGRAM} {command}", title="actions", dest="action", metavar="ACTION", required=True
    )
    below: dict[str, argparse.ArgumentParser] = {}
    for name, (text, kind) in known.items():
        described = f"{text[:1].upper()}{text[1:]}."
        usage = flags.make_usage(kind)
        added = actions.add_parser(name, help=text, usage=usage, description=described, formatter_class=HelpFormatter)
        flags.add_flags(added, kind, show_all=True)
        below[f"{command} {name}"] = added
    return below


def _add_settings(parser: argparse.ArgumentParser, kind: type[Any], *, show_all: bool) -> None:
    """Add the flags of the options of a query, in the groups of their table."""
    parser.add_argument(
        "--transport",
        dest=_OPTION_DEST + "transport",
        type=flags.parse_transport,
        default=argparse.SUPPRESS,
        metavar="KIND",
        help=argparse.SUPPRESS
        if not show_all
        else "where it runs: record:FILE records the run in a file; replay:FILE answers from one; native asks the "
        "Messages API without Claude Code; ws://HOST:PORT runs on a host, whose token is in PILOTHOUSE_HOST_TOKEN; "
        "ssh:HOST, podman:IMAGE, docker:IMAGE (with this directory as /work) and pod:NAME run Claude Code there",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=parse_assignment,
        metavar="NAME=VALUE",
        help="any other option, as `pilothouse options` lists them; lists as A,B, mappings as JSON"
        if show_all
        else argparse.SUPPRESS,
    )
    usual = None if show_all else parser.add_argument_group("usual options of a query (all of them: --help-all)")
    for title, options in groupby(TABLE.values(), key=lambda option: option.group):
        group = usual or parser.add_argument_group(title)
        for option in options:
            if (flag := get_flag(option)) is not None:
                text = describe_option(option).replace("%", "%%")
                if not show_all:
                    is_rare = any(option.name in names for each, names in _RARE_FOR.items() if issubclass(kind, each))
                    text = argparse.SUPPRESS if is_rare else USUAL_OPTIONS.get(option.name, argparse.SUPPRESS)
                _add_option(group, option, flag, text)


_RARE_FOR: Mapping[type[Any], Collection[str]] = {
    flags.AcpRequest: ("continue_conversation", "json_schema", "resume", "timeout"),
    flags.ChatRequest: ("json_schema",),
    flags.FleetRequest: ("continue_conversation", "max_budget_usd", "resume"),
}
"""Usual options that are rare for a command."""


def _add_option(group: Any, option: Option, flag: str, text: str) -> None:
    common: dict[str, Any] = {"dest": _OPTION_DEST + option.name, "default": argparse.SUPPRESS}
    if option.value_type in (value_types.BOOL, value_types.INHERIT):  # the help shows the one that changes something
        for name, value in ((flag, True), (f"--no-{flag[2:]}", False)):
            shown = text if value is not bool(option.default) else argparse.SUPPRESS
            group.add_argument(name, action="store_const", const=value, help=shown, **common)
    else:
        action = "extend" if option.value_type is value_types.PATHS else "store"
        metavar = option.value_type.metavar
        group.add_argument(flag, action=action, type=_make_reader(option), metavar=metavar, help=text, **common)


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
        request: the class of its request, with its flags; its docstring is the help.
        run: its function, as "module.function" of this package: a command imports nothing of the others.
        group: the title under which the list of commands has it.
        has_answer: whether standard output is for its answer alone.
    """

    request: type[Any]
    run: str
    group: str
    has_answer: bool = True

    @property
    def summary(self) -> str:
        """One line for the list of commands."""
        return cleandoc(self.request.__doc__ or "").partition("\n")[0].rstrip(".")


_START, _TALK, _MANY, _SERVE, _LOOK = "start", "talk", "run many", "serve", "look up"

COMMANDS: dict[str, Command] = {
    "demo": Command(flags.DemoRequest, "demo.demo", _START, has_answer=False),
    "doctor": Command(flags.DoctorRequest, "doctor.doctor", _START, has_answer=False),
    "install-cli": Command(flags.InstallRequest, "install.install", _START, has_answer=False),
    "completion": Command(flags.CompletionRequest, "arguments.show_completion", _START),
    "compat": Command(flags.CompatRequest, "compat.run_compat", _START),
    "ask": Command(flags.AskRequest, "ask.ask", _TALK),
    "chat": Command(flags.ChatRequest, "chat.chat", _TALK),
    "batch": Command(flags.BatchRequest, "batch.batch", _MANY),
    "worker": Command(flags.WorkerRequest, "batch.worker", _MANY),
    "console": Command(flags.ConsoleRequest, "console.console", _SERVE),
    "serve": Command(flags.ServeRequest, "serve.serve", _SERVE),
    "acp": Command(flags.AcpRequest, "acp.acp", _SERVE),
    "sessions": Command(flags.SessionsRequest, "sessions.sessions", _LOOK),
    "usage": Command(flags.BreakdownRequest, "usage.usage", _LOOK),
    "options": Command(flags.OptionsRequest, "options.show_options", _LOOK, has_answer=False),
    "policy": Command(flags.PolicyRequest, "policy.suggest", _LOOK),
    "replay": Command(flags.ReplayRequest, "replay.replay", _LOOK),
}


def find_command(request: object) -> Command:
    """Return the command of a request."""
    return next(command for command in COMMANDS.values() if command.request is type(request))


async def show_completion(request: flags.CompletionRequest, screen: Screen) -> int:
    """Print the script that completes the command in a shell."""
    parser, below = _build_parsers(show_all=True)
    for each in below.values():
        for action in each._actions:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            word = str(action.metavar).partition("|")[0]
            if word in ("FILE", "PATH", "DIR"):
                action.complete = shtab.DIRECTORY if word == "DIR" else shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    screen.text(shtab.complete(parser, request.shell))
    return 0
