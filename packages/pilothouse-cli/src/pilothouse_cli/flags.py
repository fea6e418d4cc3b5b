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
            same word here exclude each other; `constants`: further flags for this field; the rest goes to
            `add_argument`.
    """
    return field(default=default, metadata={"help": text, "metavar": metavar, "group": group, **settings})


def argument(text: str, metavar: str | None = None, default: Any = "", **settings: Any) -> Any:
    """Declare a positional argument; with `nargs="?"` it may be missing."""
    return flag(text, metavar, default, names=(), **settings)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def request(kind: type[RequestT]) -> type[RequestT]:
    """Make a class of requests."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def add_flags(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Add the flags of a request, those of its own before those that it inherits."""
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


def make_usage(kind: type[Any]) -> str:
    """Return the first line of the help of a command: its positional arguments, and [options] for the rest."""
    words = [
        f"[{one.metadata['metavar'] or one.name}]" if one.metadata.get("nargs") else one.metadata["metavar"] or one.name
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
_CONFIG_HELP = "the configuration file (default: PILOTHOUSE_CONFIG, else your own ~/.config/pilothouse/config.toml)"
_CLI_HELP = TABLE["cli"].doc.replace("%", "%%")


@request
class ConfiguredRequest:
    """A command with options of queries; its configuration file is read before it runs."""

    config: str | None = flag(_CONFIG_HELP, "FILE")


@request
class RunRequest(ConfiguredRequest):
    """What `ask` and `chat` share. `settings` are options of a query."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    local: bool = flag("a small open model on this machine; no key", default=False)
    thinking: bool = flag("show what the model thinks", default=False)
    verbose: bool = flag("show what Claude Code writes to its standard error", default=False)


@request
class AskRequest(RunRequest):
    """Ask one question and stream the answer.

    The answer goes to standard output and nothing else does: tool runs, retries and the closing line go to standard
    error. Keys are read from the environment alone (ANTHROPIC_API_KEY and the like).

    Examples:
      pilothouse ask "Explain this repository"
      git diff | pilothouse ask "Review this change"
      pilothouse ask --allowed-tools "Read,Bash(git log:*)" --max-turns 10 "What changed last week?"
      pilothouse ask --json --json-schema @invoice.schema.json "Read invoice.txt" | jq .structured
      pilothouse ask --resume 1f0c… "And now in French"
    """

    prompt: str | None = argument(
        "the question; '-' or none reads standard input, piped text is added to a question", None, None, nargs="?"
    )
    form: OutputFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--json": ("json", "print one JSON object at the end"),
            "--stream-json": ("stream-json", "print every message of Claude Code as a line of JSON, as it came"),
        },
    )


@request
class ChatRequest(RunRequest):
    r"""Talk with Claude Code in the terminal.

    One conversation, many prompts. In the conversation, /help lists the commands; those of Claude Code work too. A
    tool that needs permission is asked about: once, for the session, or deny. Ctrl-C stops the answer, a second one
    leaves.

    When standard input is not a terminal, each of its lines is a prompt, answers go to standard output, and no
    question is asked: give --allowed-tools or --permission-mode.

    Examples:
      pilothouse chat
      pilothouse chat --model opus "Explain this repository"
      pilothouse chat --continue
      printf '%s\n' "My name is Alice." "What is my name?" | pilothouse chat
    """

    prompt: str | None = argument("the first thing to say", None, None, nargs="?")
    quiet: bool = flag("no line with cost and tokens after each answer", default=False)
    remote: str | None = flag(
        "talk in a session of a host, which the console shows too: of this address, with the token in "
        "PILOTHOUSE_HOST_TOKEN; without one, of the console that runs here. --resume names a session of it",
        "URL", nargs="?", const="",
    )  # fmt: skip
    history: str | None = flag("keep what was typed in this file; without it nothing of it is kept", "FILE")
    flags: tuple[str, ...] = field(default=(), compare=False)
    """The flags as typed, for the hint how to resume; without those that select the session."""


@request
class AcpRequest(ConfiguredRequest):
    """Be the agent of an editor: Zed, JetBrains, Neovim.

    Speaks the Agent Client Protocol on standard input and output; an editor starts this. Options given here apply to
    all its sessions.

    Standard output is for the protocol alone. With --remote, --cwd is the directory on the host.

    Examples (what the editor runs):
      pilothouse acp
      pilothouse acp --model opus --permission-mode plan
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse acp --remote wss://host.example --cwd /srv/project
    """

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remote: str | None = flag(
        "sessions of a host, which go on when the editor leaves: of this address, with the token in "
        "PILOTHOUSE_HOST_TOKEN; without one, of the console that runs here",
        "URL", nargs="?", const="",
    )  # fmt: skip


@request
class CompletionRequest:
    """Complete commands in your shell.

    Prints the script with which a shell completes commands, flags, choices and files.

    Examples:
      pilothouse completion bash > ~/.local/share/bash-completion/completions/pilothouse
      pilothouse completion zsh > "${fpath[1]}/_pilothouse"
      pilothouse completion fish > ~/.config/fish/completions/pilothouse.fish
    """

    shell: Literal["bash", "zsh", "fish"] = argument("the shell", None, "bash", choices=("bash", "zsh", "fish"))


@request
class CompatRequest:
    """Run a program for claude-agent-sdk, unchanged.

    Its imports get pilothouse, also below packages that depend on claude-agent-sdk.

    Examples:
      pilothouse compat run app.py --its-own-flag
      pilothouse compat run -m my_package
      PYTHONPATH="$(pilothouse compat path)" pytest
    """

    action: Literal["run", "path"] = argument(
        "run a program, or print the directory for PYTHONPATH", None, "run", choices=("run", "path")
    )
    arguments: tuple[str, ...] = argument(
        "what `python` would get: a file, or -m module", "program", (), action="store", nargs=argparse.REMAINDER
    )


@request
class DemoRequest:
    """Show what it does; needs no key.

    Part 1 asks one question: the embedded open model answers, or the real one if a key is set in the environment.
    Part 2 runs the Python program that it shows: the real Claude Code calls a function of it, a hook denies a
    command, and a permission is asked, in a temporary directory; what the model says there is scripted.
    """

    prompt: str = flag("the question of part 1", default="What is the capital of France?")
    local: bool = flag("part 1 with the embedded model even if a key is set", default=False, exclusive="force")
    scripted: bool = flag("only part 2, the scripted one", default=False, exclusive="force")
    cli: str = flag(_CLI_HELP, "PATH", "auto")


@request
class DoctorRequest:
    """Check that everything is there.

    Looks at Claude Code, the key or login, the configuration and the limits of this system, and asks Claude Code one
    question with a scripted model. Ends with 0 if nothing failed, else with 1.
    """

    config: str | None = flag(_CONFIG_HELP, "FILE")
    cli: str | None = flag(_CLI_HELP, "PATH")
    transport: Callable[[], Any] | None = flag(
        "look at that other side instead", "ssh:HOST|podman:IMAGE|docker:IMAGE|pod:NAMESPACE/NAME", type=parse_transport
    )
    quick: bool = flag("do not ask Claude Code anything", default=False)
    json: bool = flag("print one JSON object", default=False)


@request
class InstallRequest:
    """Install the tested Claude Code, for pilothouse alone.

    Installs the version that this pilothouse is tested with, into its cache, with your own npm or pip. If it is
    there already, nothing is fetched.

    Claude Code is Anthropic's own software under its own terms. The download is checked against a pinned digest.
    Copies of other versions that were not used for a week are removed. PILOTHOUSE_CACHE names another cache.

    Examples:
      pilothouse install-cli
      pilothouse install-cli --check || echo "not the tested version"
      "$(pilothouse install-cli --path)" --version
    """

    force: bool = flag("fetch it even if it is there", default=False, exclusive="action")
    action: InstallAction = flag(
        default="install",
        exclusive="action",
        constants={
            "--check": ("check", "only look: exit code 1 if it is missing or not the tested version; no network"),
            "--uninstall": ("uninstall", "remove every version from the cache"),
        },
    )
    form: InstallFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--path": ("path", "print the path and nothing else"),
            "--json": ("json", "print one JSON object"),
        },
    )


@request
class OptionsRequest(ConfiguredRequest):
    """List the options of a query, explain one, or show what is set here."""

    name: str | None = argument("one option, in full", None, None, nargs="?")
    explain: bool = flag("only what is set here, and where each value comes from", default=False)
    policy: bool = flag("what runs unasked here, what asks, and what is denied", default=False)
    json: bool = flag("print a JSON array", default=False)


@request
class ReplayRequest:
    """Show a recorded run.

    As the command would have shown it: answers on standard output, prompts, tools and the
    closing line on standard error. Nothing is started. Ends as the run did.
    """

    file: str = argument("a cassette, made by --transport record:FILE or in a program", "FILE")
    form: OutputFormat = flag(
        default="text",
        exclusive="form",
        constants={
            "--json": ("json", "one JSON object for each turn"),
            "--stream-json": ("stream-json", "every message as a line of JSON, as it came"),
        },
    )
    speed: float | None = flag(
        "1 as fast as it was, 2 twice as fast; without it, all at once",
        "N",
        type=_make_parser(_to_speed, "a number greater than 0"),
    )
    thinking: bool = flag("show what the model thought", default=False)
    verbose: bool = flag("show what was written to standard error", default=False)


# sessions: a request for each action


@request
class SessionRequest:
    """An action on one session."""

    session: str = argument("its id, or the first characters of it")


@request
class SessionListRequest:
    """An action on many sessions."""

    directory: str | None = flag(
        "the sessions of this directory (default: here)",
        "DIR",
        ".",
        exclusive="where",
        constants={"--all": (None, "the sessions of all directories")},
    )
    json: bool = flag("print JSON", default=False)


@request
class ListRequest(SessionListRequest):
    limit: int | None = flag("at most so many (default: 30)", "N", 30, type=parse_count)


@request
class SearchRequest(SessionListRequest):
    text: str = argument("what to look for")
    regex: bool = flag("it is a regular expression", default=False)
    case: bool = flag("capitals matter", default=False)
    limit: int | None = flag("at most so many (default: 100)", "N", 100, type=parse_count)
    json: bool = flag("print each hit as a line of JSON, as it is found", default=False)


@request
class UsageRequest(SessionListRequest):
    session: str | None = argument("only this session", None, None, nargs="?")
    by: str = flag("(default: day)", default="day", choices=("day", "session", "model"))
    since: date | None = flag("the first day, such as 2026-11-01", "DAY")
    until: date | None = flag("the last day", "DAY")


@request
class ShowRequest(SessionRequest):
    agent: str | None = flag("the messages of this sub-agent", "ID")
    thinking: bool = flag("also what the model thought", default=False)
    whole: bool = flag("also what compactions have replaced by summaries", default=False)
    limit: int | None = flag("at most so many (default: all)", "N", type=parse_count)
    json: bool = flag("print JSON", default=False)


@request
class ForkRequest(SessionRequest):
    up_to: str | None = flag("the last message to take over (default: all)", "UUID")
    title: str | None = flag("the title of the fork", "TITLE")
    json: bool = flag("print JSON", default=False)


@request
class RenameRequest(SessionRequest):
    title: str = argument("the new title")


@request
class TagRequest(SessionRequest):
    tag: str | None = argument("the tag; none takes it away", None, None, nargs="?")


@request
class DeleteRequest(SessionRequest):
    yes: bool = flag("do not ask", default=False)


@request
class ExportRequest(SessionRequest):
    format: Literal["markdown", "html", "json"] = flag(
        "(default: markdown)", default="markdown", choices=("markdown", "html", "json")
    )
    output: str | None = flag("write to this file, which must not exist yet", "FILE")
    thinking: bool = flag("also what the model thought", default=False)
    whole: bool = flag("also what compactions have replaced by summaries", default=False)


@request
class SessionsRequest:
    """List, show, search, change and count sessions.

    What Claude Code keeps of its sessions on this machine. No Claude Code is started.

    A session is named by its id, or by the first characters of it.

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
    "archive": ("mark a session as archived, until a prompt is sent in it", SessionRequest),
    "delete": ("delete a session for good", DeleteRequest),
    "export": ("write a session as Markdown, HTML or JSON", ExportRequest),
    "fork": ("make a second session that begins as a copy of this one", ForkRequest),
    "list": ("list sessions, newest first", ListRequest),
    "rename": ("give a session a title", RenameRequest),
    "search": ("look for text in sessions", SearchRequest),
    "show": ("show the messages of a session", ShowRequest),
    "tag": ("give a session a tag", TagRequest),
    "unarchive": ("take the mark of an archived session away", SessionRequest),
    "usage": ("tokens and cost by day, session or model", UsageRequest),
}


DEFAULT_PORT = 8750
MAX_PORT = 65_535
_WHERE, _SESSIONS, _LIMITS = "where", "sessions", "limits of clients"
_ENDPOINTS = "endpoints for clients of OpenAI and Anthropic"
_MODES = "of plan, dontAsk, default, acceptEdits, auto, bypassPermissions: this one and those before it"


@request
class ServeRequest(ConfiguredRequest):
    """Run a server that hosts sessions for remote clients.

    Clients connect over WebSocket and REST. Sessions continue while no client is attached, and their messages are
    kept.

    The token is read from --token-file, otherwise from PILOTHOUSE_HOST_TOKEN; otherwise one is made and shown once.
    After SIGTERM or Ctrl-C, running turns have --drain seconds to end; a second signal ends at once.

    Examples:
      pilothouse serve
      pilothouse serve --root ~/work --max-sessions 8
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse serve --port 8750 --name pilot.example.com
      pilothouse serve --openai --map gpt-4o=sonnet   # base URL http://127.0.0.1:8750/v1, API key: the token
    """

    host: str = flag("address to listen on (127.0.0.1)", "ADDRESS", "127.0.0.1", _WHERE)
    port: int = flag(f"the port; 0 uses a free one ({DEFAULT_PORT})", None, DEFAULT_PORT, _WHERE, type=parse_port)
    public: bool = flag("allow an address that other machines can reach", None, False, _WHERE)
    names: tuple[str, ...] = flag("a host name that clients use for this host", "NAME", (), _WHERE, names=("--name",))
    origins: tuple[str, ...] = flag(
        "an origin of web pages that may use this host", "ORIGIN", (), _WHERE, names=("--origin",)
    )
    token_file: str | None = flag("a file with the token, readable only by you", "FILE", None, _WHERE)
    clients: tuple[str, ...] = flag(
        "a file with an additional token; its clients see only their own sessions",
        "NAME=FILE",
        (),
        _WHERE,
        names=("--client",),
    )
    roots: tuple[str, ...] = flag(
        "a directory that sessions may work below (.)", "DIR", (), _SESSIONS, names=("--root",)
    )
    cli: str = flag("the Claude Code to run; clients do not choose it", "PATH", "auto", _SESSIONS)
    env: tuple[str, ...] = flag(
        "a variable that clients may also set; those that do must bring their own key", "NAME", (), _SESSIONS
    )
    max_permission_mode: str = flag(_MODES, "MODE", "bypassPermissions", _LIMITS)
    no_client_programs: bool = flag("refuse hooks, helpers and plugins from clients", None, False, _LIMITS)
    no_client_mcp: bool = flag("refuse MCP servers from clients", None, False, _LIMITS)
    no_client_settings: bool = flag("refuse settings from clients", None, False, _LIMITS)
    managed_settings: str | None = flag("settings, as JSON, that apply to every session", "FILE", None, _LIMITS)
    verbatim_prompts: bool = flag("send all prompts unchanged: no @path, no /command", None, False, _LIMITS)
    client_commands: bool = flag("let @path and /command work in prompts from clients", None, False, _LIMITS)
    setting_sources: str | None = flag(
        "settings files that client sessions load: user, project, local (user)", "LIST", None, _LIMITS
    )
    allow_flags: tuple[str, ...] = flag(
        "an additional CLI flag that clients may use", "NAME", (), _LIMITS, names=("--allow-flag",)
    )
    max_sessions: int = flag("Claude Code processes at a time (32)", "N", 32, _SESSIONS)
    idle: float = flag("how long an idle process is kept", "SECONDS", 3600.0, _SESSIONS)
    ask_timeout: float = flag("how long a request waits for approval before it is denied", "SECONDS", 3600.0, _SESSIONS)
    drain: float = flag("how long running turns may take at shutdown", "SECONDS", 30.0, _SESSIONS)
    journal: str | None = flag("the file that stores the messages of sessions", "FILE", None, _SESSIONS)
    fleets: tuple[str, ...] = flag("a fleet journal that clients may read", "FILE", (), _SESSIONS, names=("--fleet",))
    keep_days: float = flag("how long ended sessions are kept (7)", "N", 7.0, _SESSIONS)
    openai: bool = flag("/v1/chat/completions and /v1/responses", None, False, _ENDPOINTS)
    anthropic: bool = flag("/v1/messages", None, False, _ENDPOINTS)
    maps: tuple[str, ...] = flag(
        "an additional model name, such as gpt-4o=sonnet", "NAME=MODEL", (), _ENDPOINTS, names=("--map",)
    )
    max_requests: int = flag("requests answered at the same time (8)", "N", 8, _ENDPOINTS)


@request
class ConsoleRequest(ServeRequest):
    """See and steer all sessions in the browser.

    Prints a link to the console, which shows all sessions, what needs your approval, and what they cost. Starts a
    host that runs until Ctrl-C, or joins the one that is already running.

    The link contains the token: anyone who has it can run commands as you. The token is read from --token-file,
    otherwise from PILOTHOUSE_HOST_TOKEN; otherwise a new one is made. If port 8750 is in use, a free port is used.

    Examples:
      pilothouse console
      pilothouse console --root ~/work --open
      PILOTHOUSE_HOST_TOKEN=$(cat token) pilothouse console --join http://127.0.0.1:8750
    """

    open: bool = flag("open the link in the browser", None, False, _WHERE)
    join: str | None = flag("print the link to a running host whose token you have", "URL", None, _WHERE)


STOP_AFTER = 3  # as in `Fleet`, which is slow to import
KEEP_CHOICES = ("always", "failed", "never")
BATCH_ACTIONS = ("status", "results", "resume", "retry-failed")
SOURCES = "|".join(("FILE", *BATCH_ACTIONS))
_JOURNAL = "FILE"
_DEFAULT_JOURNAL = "(default: PILOTHOUSE_JOURNAL, if it is set)"
_PLACE, _TOGETHER = "a directory for each run", "limits of all runs together"


@request
class WorkspaceRequest(ConfiguredRequest):
    """The flags for working directories and artifacts of runs."""

    worktree: str | None = flag("a clone of this git repository", "REPO", None, _PLACE)
    ref: str | None = flag("the commit at which it begins (default: HEAD)", "REF", None, _PLACE)
    copy_from: str | None = flag("a copy of this directory or archive", "PATH", None, _PLACE)
    subdirectory: str | None = flag("where in its directory a run works", "PATH", None, _PLACE)
    workspaces: str | None = flag("the directory of these directories (default: in the cache)", "DIR", None, _PLACE)
    keep_workspaces: str | None = flag(
        "which of them are kept (default: failed)", None, None, _PLACE, choices=KEEP_CHOICES
    )
    artifacts: str | None = flag("where files of the runs are saved (s3://…, gs://…, …)", "URL|DIR", None, _PLACE)
    artifact: tuple[str, ...] = flag("save these files; may be given many times", "GLOB", (), _PLACE)
    patch: bool = flag("save all changes of a run as changes.patch", None, False, _PLACE)


@request
class FleetRequest(WorkspaceRequest):
    """The flags of a fleet. `settings` are options of all its queries."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    journal: str | None = None
    local: bool = flag("a small open model on this machine; no key", default=False)
    concurrency: int = flag("how many run at once (default: 8)", "N", 8, _TOGETHER)
    budget_usd: float | None = flag("start nothing once this much is spent", "USD", None, _TOGETHER)
    run_budget_usd: float | None = flag("what one run may cost", "USD", None, _TOGETHER)
    requests_per_minute: float | None = flag("requests to the model", "N", None, _TOGETHER)
    tokens_per_minute: float | None = flag("tokens of fresh input and of output", "N", None, _TOGETHER)
    stop_after: int = flag(
        f"stop after this many runs in a row fail for a common reason (default: {STOP_AFTER}); 0: never",
        "N",
        STOP_AFTER,
        _TOGETHER,
    )
    retry: int = flag(
        "further attempts after a temporary failure (default: 3)", "N", 3, _TOGETHER, names=("--attempts",)
    )
    on_interrupted: str = flag(
        "what happens to an interrupted run (default: resume)",
        None,
        "resume",
        _TOGETHER,
        choices=("resume", "restart", "fail"),
    )


@request
class BatchRequest(FleetRequest):
    """Run many prompts, a few at a time, and survive crashes.

    With a journal a run that has ended is never repeated, and others go on where they were.

    A prompts file has a prompt a line: with the suffix .jsonl a JSON string, or an object with "prompt" and, if
    need be, "key" and "options"; else plain text. '-' is standard input, as JSON lines. Results go to the file of
    --output, a line of JSON each (CSV with the suffix .csv); without it to standard output. In place of a file:

      status         show how many runs are in each state; changes nothing
      results        write the ended runs of the journal; changes nothing
      resume         continue the unfinished runs of the journal
      retry-failed   repeat the failed runs

    With --enqueue the prompts are put into the journal, and `pilothouse worker` executes them, now or later. With
    --concurrency 0 the worker executes them too, and this command waits for the results.

    Ctrl-C once: nothing more is started, running ones are stopped and kept in the journal; twice: at once. The exit
    code is 0 if every run succeeded.

    Examples:
      pilothouse batch prompts.jsonl --concurrency 8 --journal runs.db -o out.jsonl
      pilothouse batch prompts.jsonl --model haiku --budget-usd 5 --run-budget-usd 0.10 -o out.csv
      pilothouse batch prompts.jsonl --enqueue --journal runs.db
      pilothouse batch resume --journal runs.db -o out.jsonl
    """

    source: str = argument("the prompts, or what to do", SOURCES)
    output: str | None = flag("where the results go (.jsonl or .csv)", "FILE", names=("-o", "--output"))
    enqueue: bool = flag("put the prompts into the journal, and exit", default=False)
    json: bool = flag("status: print one JSON object", default=False)
    journal: str | None = flag(f"keep all runs there, and continue with them {_DEFAULT_JOURNAL}", _JOURNAL)

    @property
    def action(self) -> str:
        """The action: one of `BATCH_ACTIONS`, or "run"."""
        return self.source if self.source in BATCH_ACTIONS else "run"


@request
class WorkerRequest(FleetRequest):
    """Execute the runs of a journal.

    Also those that other processes add later, a few at a time: `pilothouse batch FILE --enqueue` adds runs. Options
    of a query given here apply to runs that do not set them. A journal has one worker; whoever may write its file
    decides what is executed. A line for each run goes to standard error.

    SIGTERM, or Ctrl-C once: nothing more is started, running ones are stopped gracefully, and the next worker
    continues them; twice: at once. It ends with 1 if the journal was lost, the budget is spent, or no run can
    succeed.

    Examples:
      pilothouse worker --journal runs.db
      pilothouse worker --journal runs.db --until-empty --concurrency 4 --model haiku
    """

    journal: str | None = flag(f"the journal with the runs {_DEFAULT_JOURNAL}", _JOURNAL)
    until_empty: bool = flag("end when nothing is left", default=False)
