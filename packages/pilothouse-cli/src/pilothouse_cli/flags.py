"""The requests of the commands. Each flag is declared at the field that it fills; its type is that of the field.

The docstring of a request is the help of its command. Imports nothing heavy: every command loads it. `arguments` has
the flags that come from the table of options.
"""

# ruff: noqa: D101 - `AskRequest` has the parsed arguments of `pilothouse ask`, and so on

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

from pilothouse.errors import UsageError
from pilothouse.options import TABLE

RequestT = TypeVar("RequestT")
Constants = Mapping[str, tuple[Any, str]]
"""Flags without a value: what each sets, and its help."""


def flag(text: str = "", metavar: str | None = None, default: Any = None, group: str = "", **settings: Any) -> Any:
    """Declare the flag of a field: `max_turns` has `--max-turns`.

    Args:
        text: its help; without one the field has no flag of its own.
        metavar: the word for its value.
        default: the value of the field without the flag.
        group: the title under which the help lists it.
        **settings: `names` instead of that of the field, none for a positional argument; `exclusive`: flags with the
            same word here cannot be combined; `constants`: further flags for this field; `rare`: only `--help-all`
            shows it; the rest goes to `add_argument`.
    """
    return field(default=default, metadata={"help": text, "metavar": metavar, "group": group, **settings})


def argument(text: str, metavar: str | None = None, default: Any = "", **settings: Any) -> Any:
    """Declare a positional argument; with `nargs="?"` it may be missing."""
    return flag(text, metavar, default, names=(), **settings)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def request(kind: type[RequestT]) -> type[RequestT]:
    """Make a class of requests."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def add_flags(parser: argparse.ArgumentParser, kind: type[Any], *, show_all: bool) -> None:
    """Add the flags of a request, those of its own before those that it inherits.

    Args:
        parser: where to.
        kind: the class of the request.
        show_all: whether the help has the rare ones of a command with `--help-all`.
    """
    places: dict[str, Any] = {"": parser}
    known = {one.name: one for one in fields(kind) if one.metadata}
    positional = [one.name for one in known.values() if one.metadata.get("names") == ()]
    for name in [*positional, *(name for each in kind.__mro__ for name in vars(each).get("__annotations__", ()))]:
        if (one := known.pop(name, None)) is None:
            continue
        settings: dict[str, Any] = {
            "default": argparse.SUPPRESS,
            **_KINDS.get(str(one.type).split(" ")[0], {}),
            **one.metadata,
        }
        group, exclusive = settings.pop("group"), settings.pop("exclusive", "")
        if settings.pop("rare", group == _PLACE) and not show_all:
            settings["help"] = argparse.SUPPRESS
        constants: Constants = settings.pop("constants", {})
        if group not in places:
            places[group] = parser.add_argument_group(group)
        if exclusive and exclusive not in places:
            places[exclusive] = places[group].add_mutually_exclusive_group()
        place = places[exclusive or group]
        if settings["help"]:
            _add_argument(place, name, settings)
        for spelling, (value, text) in constants.items():
            place.add_argument(
                spelling, dest=name, action="store_const", const=value, default=argparse.SUPPRESS, help=text
            )


def has_rare_flags(kind: type[Any]) -> bool:
    """Return whether a command has flags that only `--help-all` shows."""
    return "settings" in kind.__dataclass_fields__ or any(one.metadata.get("rare") for one in fields(kind))


def make_usage(kind: type[Any]) -> str:
    """Return the first line of the help of a command: its positional arguments, and [options] for the rest."""
    if kind in (SessionsRequest, PolicyRequest):
        return "%(prog)s [ACTION] [options]"
    forms = {"?": "[{}]", "*": "[{} ...]"}
    words = [
        forms.get(one.metadata.get("nargs", ""), "{}").format(one.metadata["metavar"] or one.name)
        for one in fields(kind)
        if one.metadata.get("names") == ()
    ]
    return " ".join(["%(prog)s", "[options]", *words])


def _add_argument(place: Any, name: str, settings: dict[str, Any]) -> None:
    names = settings.pop("names", ("--" + name.replace("_", "-"),))
    if settings.get("action") == "store_true":
        del settings["metavar"]
    if names:
        place.add_argument(*names, dest=name, **settings)
    else:
        place.add_argument(name, **settings)


def make_request(kind: type[RequestT], asked: argparse.Namespace, **own: Any) -> RequestT:
    """Make a request from the parsed flags; `own` are fields without a flag."""
    names: list[str] = [one.name for one in fields(kind)]  # pyright: ignore[reportArgumentType]
    given = {name: getattr(asked, name) for name in names if hasattr(asked, name)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}, **own)  # pyright: ignore[reportUnknownArgumentType]


def parse_count(text: str) -> int:
    """Parse a number of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!a}")
    return int(text)


def _make_parser(convert: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!a}") from None

    return parse


def parse_port(text: str) -> int:
    """Parse the number of a port."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"expected a port, a number from 0 to {MAX_PORT}, got {text!a}")
    return int(text)


def _to_speed(text: str) -> float:
    speed = float(text)
    if not 0 < speed < float("inf"):
        raise ValueError
    return speed


TOKEN_VARIABLE = "PILOTHOUSE_HOST_TOKEN"  # noqa: S105 - a name
"""The environment variable with the host's token for `--transport ws://…`."""


def parse_transport(text: str) -> Callable[[], Any]:
    """Parse the value of `--transport`."""
    try:
        return _make_transport(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _make_transport(text: str) -> Callable[[], Any]:
    # Imported where they are used, so that commands without a transport start fast.
    kind, _, place = text.partition(":")
    if text == "native":
        from pilothouse_native import NativeTransport

        return NativeTransport
    if text.startswith(("ws://", "wss://", "http://", "https://")):
        from pilothouse_remote import on_host

        # Not on the command line, which every process of the machine can read.
        return on_host(text, token=os.environ.get(TOKEN_VARIABLE) or None)
    if kind not in ("record", "replay", "ssh", "podman", "docker", "pod") or not place:
        raise UsageError(
            f"expected native, record:FILE, replay:FILE, ws://HOST:PORT, wss://HOST:PORT, ssh:USER@HOST, podman:IMAGE, "
            f"docker:IMAGE or pod:NAMESPACE/NAME, got {text!a}"
        )
    from pilothouse_remote import in_container, in_pod, over_ssh
    from pilothouse_testing import Player, Recorder

    match kind:
        case "record" | "replay":  # the process may run in another directory: a path is relative to this one
            return (Recorder if kind == "record" else Player)(Path(place).absolute())
        case "ssh":
            return over_ssh(place)
        case "pod":
            namespace, _, pod = place.rpartition("/")
            return in_pod(pod, namespace=namespace or None)
        case _:
            return in_container(place, engine=kind, mounts={".": "/work"})


# By the first word of the type of a field.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "bool": {"action": "store_true"},
    "date": {"type": _make_parser(date.fromisoformat, "a day such as 2026-11-01")},
    "float": {"type": _make_parser(float, "a number")},
    "int": {"type": _make_parser(int, "a whole number")},
    "tuple[str,": {"action": "append"},
}

OutputFormat = Literal["text", "json", "stream-json"]
InstallAction = Literal["install", "check", "uninstall"]
InstallFormat = Literal["text", "path", "json"]
_CONFIG_HELP = "a configuration file (default: ~/.config/pilothouse/config.toml)"
_PLACE, _TOGETHER = "a directory for each run", "limits for all runs together"
_CLI_HELP = TABLE["cli"].doc.replace("%", "%%")


@request
class ConfiguredRequest:
    """A command with options of queries; its configuration file is read before it runs."""

    config: str | None = flag(_CONFIG_HELP, "FILE", rare=True)


@request
class RunRequest(ConfiguredRequest):
    """What `ask` and `chat` share. `settings` are options of a query."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    local: bool = flag("use a small open model here; needs no key", default=False)
    thinking: bool = flag("show the model's thinking", default=False)
    verbose: bool = flag("show the standard error of Claude Code", default=False)


@request
class AskRequest(RunRequest):
    """Ask one question and stream the answer.

    Only the answer goes to standard output. Tool calls, retries and the summary line go to standard error. API keys
    are read only from the environment, such as ANTHROPIC_API_KEY.

    Examples:
      pilothouse ask "Explain this repository"
      git diff | pilothouse ask "Review this change"
      pilothouse ask --allowed-tools "Read,Bash(git log:*)" --max-turns 10 "What changed last week?"
      pilothouse ask --json --json-schema @invoice.schema.json "Read invoice.txt" | jq .structured
      pilothouse ask --resume 1f0c… "And now in French"
    """

    prompt: str | None = argument(
        "the question; '-' or nothing: standard input. Piped text is added to it", None, None, nargs="?"
    )
    form: OutputFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--json": ("json", "print one JSON object at the end"),
            "--stream-json": ("stream-json", "print each message from Claude Code as a line of JSON"),
        },
    )


@request
class ChatRequest(RunRequest):
    r"""Talk with Claude Code in the terminal.

    You are asked before a tool that needs permission runs: allow once, allow for the session, or deny. Type /help for
    the commands; those of Claude Code work too. Ctrl-C stops the answer; a second Ctrl-C quits.

    If standard input is not a terminal, each line is a prompt, answers go to standard output, and nobody is asked for
    permission: use --allowed-tools or --permission-mode.

    With --remote, the session runs on a host, its console shows it too, and --resume selects one of its sessions. The
    token is in PILOTHOUSE_HOST_TOKEN.

    Examples:
      pilothouse chat
      pilothouse chat --model opus "Explain this repository"
      pilothouse chat --continue
      printf '%s\n' "My name is Alice." "What is my name?" | pilothouse chat
    """

    prompt: str | None = argument("the first prompt", None, None, nargs="?")
    quiet: bool = flag("do not show the cost and tokens after each answer", default=False)
    remote: str | None = flag(
        "chat in a session on a host (default: the console on this machine)",
        "URL", nargs="?", const="",
    )  # fmt: skip
    history: str | None = flag("save what you type here (default: nowhere)", "FILE")
    flags: tuple[str, ...] = field(default=(), compare=False)
    """The flags as typed, for the hint how to resume; without those that select the session."""


@request
class AcpRequest(ConfiguredRequest):
    """Act as the agent in an editor: Zed, JetBrains, Neovim.

    Your editor starts this command and speaks the Agent Client Protocol with it over standard input and output.
    Options given here apply to all sessions of the editor. With --remote, --cwd is a directory on the host.

    Examples, as the editor runs them:
      pilothouse acp
      pilothouse acp --model opus --permission-mode plan
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse acp --remote wss://host.example --cwd /srv/project
    """

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remote: str | None = flag(
        "run sessions on the host at URL, where they continue after the editor quits; the token is in "
        "PILOTHOUSE_HOST_TOKEN. Without URL: the console running on this machine",
        "URL", nargs="?", const="",
    )  # fmt: skip


@request
class CompletionRequest:
    """Print a completion script for your shell.

    The script completes commands, flags, choices and file names.

    Examples:
      pilothouse completion bash > ~/.local/share/bash-completion/completions/pilothouse
      pilothouse completion zsh > "${fpath[1]}/_pilothouse"
      pilothouse completion fish > ~/.config/fish/completions/pilothouse.fish
    """

    shell: Literal["bash", "zsh", "fish"] = argument("the shell", None, "bash", choices=("bash", "zsh", "fish"))


@request
class CompatRequest:
    """Run a program written for claude-agent-sdk, unchanged.

    When it, or a package that it uses, imports claude_agent_sdk, it gets pilothouse.

    Examples:
      pilothouse compat run app.py --its-own-flag
      pilothouse compat run -m my_package
      PYTHONPATH="$(pilothouse compat path)" pytest
    """

    action: Literal["run", "path"] = argument(
        "run a program, or print the directory to put on PYTHONPATH", None, "run", choices=("run", "path")
    )
    arguments: tuple[str, ...] = argument(
        "what you would pass to `python`: a file, or -m MODULE", "program", (), action="store", nargs=argparse.REMAINDER
    )


@request
class DemoRequest:
    """Show what pilothouse does; needs no key.

    Part 1 asks a question. If the environment has an API key, Claude answers; if not, a small open model on this
    machine does. Part 2 shows a Python program and runs it in a temporary directory: the real Claude Code calls a
    function of the program, a hook blocks a command, and the program grants a permission. A script plays the model.
    """

    prompt: str = flag("the question to ask in part 1", default="What is the capital of France?")
    local: bool = flag("use the local model in part 1 even if a key is set", default=False, exclusive="force")
    scripted: bool = flag("run only part 2", default=False, exclusive="force")
    cli: str = flag(_CLI_HELP, "PATH", "auto")


@request
class DoctorRequest:
    """Check that everything is set up.

    Checks Claude Code, your key or login, the configuration and system limits, then asks Claude Code a question that
    a scripted model answers. Exits with 1 if a check failed.
    """

    config: str | None = flag(_CONFIG_HELP, "FILE")
    cli: str | None = flag(_CLI_HELP, "PATH")
    transport: Callable[[], Any] | None = flag(
        "check that other machine or container instead",
        "ssh:HOST|podman:IMAGE|docker:IMAGE|pod:NAMESPACE/NAME",
        type=parse_transport,
    )
    quick: bool = flag("do not start a query", default=False)
    json: bool = flag("print one JSON object", default=False)


@request
class InstallRequest:
    """Install the tested version of Claude Code.

    Downloads the version that this pilothouse was tested with into its cache, using your npm or pip, unless it is
    already there. Other installations of Claude Code are not touched.

    Claude Code is Anthropic's software under Anthropic's terms. The download is checked against a pinned digest.
    Versions that have not been used for a week are removed. To use another cache, set PILOTHOUSE_CACHE.

    Examples:
      pilothouse install-cli
      pilothouse install-cli --check || echo "not the tested version"
      "$(pilothouse install-cli --path)" --version
    """

    force: bool = flag("download it even if it is installed", default=False, exclusive="action")
    action: InstallAction = flag(
        default="install",
        exclusive="action",
        constants={
            "--check": ("check", "only check, without network: exit with 1 if it is missing or not the tested version"),
            "--uninstall": ("uninstall", "remove all versions from the cache"),
        },
    )
    form: InstallFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--path": ("path", "print only the path"),
            "--json": ("json", "print one JSON object"),
        },
    )


@request
class OptionsRequest(ConfiguredRequest):
    """List the options of a query, explain one, or show those in effect."""

    config: str | None = flag(_CONFIG_HELP, "FILE")
    name: str | None = argument("explain this option", None, None, nargs="?")
    explain: bool = flag("show only options that are set here, and where each value comes from", default=False)
    policy: bool = flag("show which tools run without asking, which need approval, and which are denied", default=False)
    json: bool = flag("print a JSON array", default=False)


@request
class SuggestRequest:
    """Propose the narrowest permissions that recorded sessions needed."""

    sessions: tuple[str, ...] = argument(
        "ids of sessions, or transcript files (default: all sessions of the project)",
        "SESSION|FILE",
        (),
        nargs="*",
        action="store",
    )
    project: str = flag("the project (default: the current directory)", "DIR", ".")
    tried: tuple[str, ...] = flag(
        "show what would become of the calls of this session or file; repeatable", "SESSION|FILE", (), names=("--try",)
    )
    write: str | None = flag("write the proposal as a settings file; an existing file is not changed", "FILE")
    force: bool = flag("let --write replace an existing file", default=False)
    json: bool = flag("print one JSON object", default=False)


@request
class PolicyRequest:
    """Suggest permissions that fit the work of recorded sessions.

    Reads the transcripts of earlier sessions, and proposes the narrowest rules under which their work would run without
    a request, each with the calls it is based on. Calls that were denied never get a rule. Starts nothing, and
    changes nothing without --write. Without `suggest`: the same as `pilothouse options --policy`.

    Examples:
      pilothouse policy suggest
      pilothouse policy suggest 1f0c --try 2a7b
      pilothouse policy suggest --write suggestion.json
    """

    action: str
    request: Any


@request
class ReplayRequest:
    """Show a recorded run.

    Prints the run as it appeared: answers on standard output; prompts, tool calls and the summary line on standard
    error. Starts nothing. The exit code is that of the run.
    """

    file: str = argument("a recording, made with --transport record:FILE or by a program", "FILE")
    form: OutputFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--json": ("json", "print one JSON object per turn"),
            "--stream-json": ("stream-json", "print each message as a line of JSON"),
        },
    )
    speed: float | None = flag(
        "1: original speed; 2: twice as fast (default: all at once)",
        "N",
        type=_make_parser(_to_speed, "a number greater than 0"),
    )
    thinking: bool = flag("show the model's thinking", default=False)
    verbose: bool = flag("show the standard error of Claude Code", default=False)


@request
class BreakdownRequest:
    """Show what a session cost, and why.

    Prints tokens, time and cost of a session on this machine, with its sub-agents: by agent, tool, MCP server, turn or
    model. Costs are estimates of Claude Code. For many sessions: `pilothouse sessions usage`.

    Examples:
      pilothouse usage
      pilothouse usage --by tool
      pilothouse usage 1f0c --by turn --json
    """

    session: str | None = argument(
        "its id, or the first characters of the id (default: the newest of this directory)", None, None, nargs="?"
    )
    by: str = flag(
        "group by this (default: agent)", default="agent", choices=("agent", "tool", "server", "turn", "model")
    )
    json: bool = flag("print all groups as JSON", default=False)


# sessions: a request for each action


@request
class SessionRequest:
    """An action on one session."""

    session: str = argument("its id, or the first characters of the id")


@request
class SessionListRequest:
    """An action on many sessions."""

    directory: str | None = flag(
        "only sessions of this directory (default: the current one)",
        "DIR",
        ".",
        exclusive="where",
        constants={"--all": (None, "sessions of all directories")},
    )
    json: bool = flag("print JSON", default=False)


@request
class ListRequest(SessionListRequest):
    limit: int | None = flag("show at most N (default: 30)", "N", 30, type=parse_count)


@request
class SearchRequest(SessionListRequest):
    text: str = argument("the text to look for")
    regex: bool = flag("treat the text as a regular expression", default=False)
    case: bool = flag("match upper and lower case exactly", default=False)
    limit: int | None = flag("show at most N (default: 100)", "N", 100, type=parse_count)
    json: bool = flag("print each match as a line of JSON, as soon as it is found", default=False)


@request
class UsageRequest(SessionListRequest):
    session: str | None = argument("only this session", None, None, nargs="?")
    by: str = flag("group by this (default: day)", default="day", choices=("day", "session", "model"))
    since: date | None = flag("first day, such as 2026-11-01", "DAY")
    until: date | None = flag("last day", "DAY")


@request
class ShowRequest(SessionRequest):
    agent: str | None = flag("show the messages of this sub-agent", "ID")
    thinking: bool = flag("include the model's thinking", default=False)
    whole: bool = flag("include messages that compaction replaced with summaries", default=False)
    limit: int | None = flag("show at most N messages (default: all)", "N", type=parse_count)
    json: bool = flag("print JSON", default=False)


@request
class ForkRequest(SessionRequest):
    up_to: str | None = flag("copy messages up to this one (default: all)", "UUID")
    title: str | None = flag("title of the copy", "TITLE")
    json: bool = flag("print JSON", default=False)


@request
class RenameRequest(SessionRequest):
    title: str = argument("the new title")


@request
class TagRequest(SessionRequest):
    tag: str | None = argument("the new tag; without one, the tag is removed", None, None, nargs="?")


@request
class DeleteRequest(SessionRequest):
    yes: bool = flag("do not ask for confirmation", default=False)


@request
class ExportRequest(SessionRequest):
    format: Literal["markdown", "html", "json"] = flag(
        "output format (default: markdown)", default="markdown", choices=("markdown", "html", "json")
    )
    output: str | None = flag("write to this file; it must not exist yet", "FILE")
    thinking: bool = flag("include the model's thinking", default=False)
    whole: bool = flag("include messages that compaction replaced with summaries", default=False)


@request
class SessionsRequest:
    """List, show, search, change and count sessions.

    These are the sessions that Claude Code has saved on this machine. To select one, give its id or the first
    characters of the id.

    Examples:
      pilothouse sessions
      pilothouse sessions search --all "connection reset"
      pilothouse sessions show 1f0c
      pilothouse sessions export 1f0c --format html --output session.html
      pilothouse sessions usage --all --since 2026-11-01 --json
    """

    action: str
    request: Any


SESSION_ACTIONS: dict[str, tuple[str, type[Any]]] = {
    "archive": ("archive a session; its next prompt unarchives it", SessionRequest),
    "delete": ("delete a session permanently", DeleteRequest),
    "export": ("export a session as Markdown, HTML or JSON", ExportRequest),
    "fork": ("copy a session into a new one", ForkRequest),
    "list": ("list sessions, newest first", ListRequest),
    "rename": ("give a session a title", RenameRequest),
    "search": ("search sessions for text", SearchRequest),
    "show": ("show the messages of a session", ShowRequest),
    "tag": ("give a session a tag", TagRequest),
    "unarchive": ("unarchive a session", SessionRequest),
    "usage": ("show tokens and cost by day, session or model", UsageRequest),
}
ACTIONS: dict[type[Any], dict[str, tuple[str, type[Any]]]] = {
    PolicyRequest: {"suggest": ("propose the narrowest permissions that recorded sessions needed", SuggestRequest)},
    SessionsRequest: SESSION_ACTIONS,
}
"""The actions of the commands that have some, each with its help and its request."""


DEFAULT_PORT = 8750
MAX_PORT = 65_535
_WHERE, _SESSIONS, _LIMITS = "where", "sessions", "limits of clients"
_ENDPOINTS = "OpenAI- and Anthropic-compatible endpoints"
_MODES = "the most permissive mode clients may use: plan, dontAsk, default, acceptEdits, auto, bypassPermissions"


@request
class ServeRequest(ConfiguredRequest):
    """Run a server that hosts sessions for remote clients.

    Clients connect over WebSocket and REST. Sessions keep running while no client is connected, and their messages
    are saved.

    The token comes from --token-file or PILOTHOUSE_HOST_TOKEN; otherwise a new one is made and shown once. SIGTERM or
    Ctrl-C waits up to --drain seconds for running turns; a second one stops at once.

    Examples:
      pilothouse serve
      pilothouse serve --root ~/work --max-sessions 8
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse serve --port 8750 --name pilot.example.com
      pilothouse serve --openai --map gpt-4o=sonnet   # base URL http://127.0.0.1:8750/v1, API key: the token
    """

    host: str = flag("address to listen on (default: 127.0.0.1)", "ADDRESS", "127.0.0.1", _WHERE)
    port: int = flag(
        f"port to listen on; 0: any (default: {DEFAULT_PORT})", None, DEFAULT_PORT, _WHERE, type=parse_port
    )
    public: bool = flag("allow --host to be reachable from other machines", None, False, _WHERE)
    names: tuple[str, ...] = flag("also accept requests for this host name", "NAME", (), _WHERE, names=("--name",))
    origins: tuple[str, ...] = flag(
        "allow web pages from this origin", "ORIGIN", (), _WHERE, names=("--origin",), rare=True
    )
    token_file: str | None = flag("a file with the token that only you may read", "FILE", None, _WHERE)
    clients: tuple[str, ...] = flag(
        "an extra token, read from FILE; its clients see only their own sessions",
        "NAME=FILE",
        (),
        _WHERE,
        names=("--client",),
        rare=True,
    )
    roots: tuple[str, ...] = flag(
        "sessions work below it (default: this directory)", "DIR", (), _SESSIONS, names=("--root",)
    )
    cli: str = flag("the Claude Code that all sessions run", "PATH", "auto", _SESSIONS)
    env: tuple[str, ...] = flag(
        "let clients set this variable, if they bring their own key", "NAME", (), _SESSIONS, rare=True
    )
    max_permission_mode: str = flag(_MODES, "MODE", "bypassPermissions", _LIMITS)
    no_client_programs: bool = flag("refuse hooks, helpers and plugins from clients", None, False, _LIMITS, rare=True)
    no_client_mcp: bool = flag("refuse MCP servers from clients", None, False, _LIMITS, rare=True)
    no_client_settings: bool = flag("refuse settings from clients", None, False, _LIMITS, rare=True)
    managed_settings: str | None = flag("a JSON file with settings for every session", "FILE", None, _LIMITS, rare=True)
    verbatim_prompts: bool = flag("do not expand @path and /command in prompts", None, False, _LIMITS, rare=True)
    client_commands: bool = flag("expand @path and /command in prompts from clients", None, False, _LIMITS, rare=True)
    setting_sources: str | None = flag(
        "settings files that client sessions load: user, project, local (default: user)",
        "LIST",
        None,
        _LIMITS,
        rare=True,
    )
    allow_flags: tuple[str, ...] = flag(
        "let clients pass this flag to Claude Code", "NAME", (), _LIMITS, names=("--allow-flag",), rare=True
    )
    max_sessions: int = flag("sessions that may run at once (default: 32)", "N", 32, _SESSIONS)
    idle: float = flag(
        "stop an unused Claude Code after this long (default: 3600)", "SECONDS", 3600.0, _SESSIONS, rare=True
    )
    ask_timeout: float = flag(
        "deny an approval that nobody answers after this long (default: 3600)", "SECONDS", 3600.0, _SESSIONS, rare=True
    )
    drain: float = flag(
        "on shutdown, wait this long for running turns (default: 30)", "SECONDS", 30.0, _SESSIONS, rare=True
    )
    journal: str | None = flag("save the messages of sessions in this file", "FILE", None, _SESSIONS)
    fleets: tuple[str, ...] = flag(
        "let clients read this journal of a fleet", "FILE", (), _SESSIONS, names=("--fleet",), rare=True
    )
    keep_days: float = flag("keep ended sessions for N days (default: 7)", "N", 7.0, _SESSIONS)
    openai: bool = flag("serve /v1/chat/completions and /v1/responses", None, False, _ENDPOINTS)
    anthropic: bool = flag("serve /v1/messages", None, False, _ENDPOINTS)
    maps: tuple[str, ...] = flag(
        "serve MODEL under NAME too, such as gpt-4o=sonnet", "NAME=MODEL", (), _ENDPOINTS, names=("--map",), rare=True
    )
    max_requests: int = flag("answer N requests at once (default: 8)", "N", 8, _ENDPOINTS, rare=True)


@request
class ConsoleRequest(ServeRequest):
    """Watch and control all sessions in the browser.

    Prints a link to the console, which shows all sessions, what needs your approval, and what they cost. Starts a
    host that runs until Ctrl-C, or joins the one that is already running.

    The link contains the token: anyone who has it can run commands as you. The token comes from --token-file or
    PILOTHOUSE_HOST_TOKEN; otherwise a new one is made. If port 8750 is in use, any free port is used.

    Examples:
      pilothouse console
      pilothouse console --root ~/work --open
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse console --join http://127.0.0.1:8750
    """

    open: bool = flag("open the link in a browser", None, False, _WHERE)
    join: str | None = flag("join the host at this address, with its token", "URL", None, _WHERE)


STOP_AFTER = 3  # as in `Fleet`, which is slow to import
KEEP_CHOICES = ("always", "failed", "never")
BATCH_ACTIONS = ("status", "results", "resume", "retry-failed")
SOURCES = "|".join(("FILE", *BATCH_ACTIONS))
_JOURNAL = "FILE"
_DEFAULT_JOURNAL = "(default: PILOTHOUSE_JOURNAL)"


@request
class WorkspaceRequest(ConfiguredRequest):
    """The flags for working directories and artifacts of runs."""

    worktree: str | None = flag("give each run a clone of this git repository", "REPO", None, _PLACE)
    ref: str | None = flag("check out this commit (default: HEAD)", "REF", None, _PLACE)
    copy_from: str | None = flag("give each run a copy of this directory or archive", "PATH", None, _PLACE)
    subdirectory: str | None = flag("run in this subdirectory", "PATH", None, _PLACE)
    workspaces: str | None = flag("create the directories here (default: in the cache)", "DIR", None, _PLACE)
    keep_workspaces: str | None = flag(
        "which directories to keep (default: failed)", None, None, _PLACE, choices=KEEP_CHOICES
    )
    artifacts: str | None = flag("save files of the runs here (s3://…, gs://…, …)", "URL|DIR", None, _PLACE)
    artifact: tuple[str, ...] = flag("save files that match; may be repeated", "GLOB", (), _PLACE)
    patch: bool = flag("save the changes of each run as changes.patch", None, False, _PLACE)


@request
class FleetRequest(WorkspaceRequest):
    """The flags of a fleet. `settings` are options of all its queries."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    journal: str | None = None
    local: bool = flag("use a small open model here; needs no key", default=False)
    concurrency: int = flag("runs at once; 0: a worker runs them (default: 8)", "N", 8, _TOGETHER)
    budget_usd: float | None = flag("start no more runs once this much is spent", "USD", None, _TOGETHER)
    run_budget_usd: float | None = flag("stop a run that costs more than this", "USD", None, _TOGETHER)
    requests_per_minute: float | None = flag("limit requests to the model", "N", None, _TOGETHER, rare=True)
    tokens_per_minute: float | None = flag(
        "limit output tokens and uncached input tokens", "N", None, _TOGETHER, rare=True
    )
    stop_after: int = flag(
        f"stop when N consecutive runs fail for the same reason; 0: never (default: {STOP_AFTER})",
        "N",
        STOP_AFTER,
        _TOGETHER,
        rare=True,
    )
    retry: int = flag("retries after temporary failures (default: 3)", "N", 3, _TOGETHER, names=("--attempts",))
    on_interrupted: str = flag(
        "what to do with an interrupted run (default: resume)",
        None,
        "resume",
        _TOGETHER,
        choices=("resume", "restart", "fail"),
        rare=True,
    )


@request
class BatchRequest(FleetRequest):
    """Run many prompts from a file, and survive crashes.

    The file has one prompt per line: text, or in a .jsonl file a JSON string or an object with "prompt" and optionally
    "key" and "options". '-' reads JSON lines from standard input.

    With --journal, finished runs are never repeated and interrupted ones continue. Instead of a file, give:
      status         show how many runs are in each state
      results        write the finished runs in the journal
      resume         continue the unfinished runs in the journal
      retry-failed   run the failed ones again

    Ctrl-C stops the runs and keeps them in the journal; a second Ctrl-C quits at once. Exits with 0 if every run
    succeeded.

    Examples:
      pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
      pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
      pilothouse batch resume --journal runs.db -o out.jsonl
    """

    source: str = argument("a file of prompts, or an action", SOURCES, rare=True)
    output: str | None = flag("results, .jsonl or .csv (default: standard output)", "FILE", names=("-o", "--output"))
    enqueue: bool = flag("only add the prompts to the journal, for `pilothouse worker`", default=False, rare=True)
    json: bool = flag("with status: print one JSON object", default=False, rare=True)
    journal: str | None = flag(f"record all runs in this file and continue from it {_DEFAULT_JOURNAL}", _JOURNAL)

    @property
    def action(self) -> str:
        """The action: one of `BATCH_ACTIONS`, or "run"."""
        return self.source if self.source in BATCH_ACTIONS else "run"


@request
class WorkerRequest(FleetRequest):
    """Execute the runs in a journal, including those added later.

    `pilothouse batch FILE --enqueue` adds runs. Options of a query given here apply to runs that do not set them. A
    journal has one worker at a time. Anyone who can write the journal decides what runs. Prints a line per run to
    standard error.

    Ctrl-C or SIGTERM stops the runs, and the next worker continues them; a second one quits at once. Exits with 1 if
    the journal is lost, the budget is spent, or no run can succeed.

    Examples:
      pilothouse worker --journal runs.db
      pilothouse worker --journal runs.db --until-empty --concurrency 4 --model haiku
    """

    journal: str | None = flag(f"the journal {_DEFAULT_JOURNAL}", _JOURNAL)
    until_empty: bool = flag("exit when no runs are left", default=False)
