"""The commands of a conversation: `/name` and what follows, as one table.

Owns their names, their words, and what each does with the conversation. What starts with a slash and stands in no
table belongs to Claude Code, if it lists it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from pilothouse.cli.chat_preview import visible
from pilothouse.cli.suggestions import closest
from pilothouse.cli.telling import shorten
from pilothouse.client.replies import ModelInfo, typed_list
from pilothouse.errors import UsageError
from pilothouse.options.settings import PermissionMode

if TYPE_CHECKING:
    from pilothouse.cli.chat import Chat
    from pilothouse.client import Session

# A path such as /etc/hosts is no command.
_COMMAND = re.compile(r"/([\w:.-]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One command.

    Args:
        usage: what may follow its name.
        help: what it does, in one line.
        run: does it; gets what follows the name.
        values: what may follow, for completion.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    values: Callable[[Session], Iterable[str]] = lambda _: ()


def split(line: str) -> tuple[str, str] | None:
    """The name of a command and what follows it; None for anything else."""
    match = _COMMAND.fullmatch(line.strip())
    return None if match is None else (match[1].lower(), (match[2] or "").strip())


async def dispatch(chat: Chat, line: str) -> str | None:
    """Do what a line asks for.

    Returns:
        The prompt to send, if the line is one, or a command of Claude Code; else None.

    Raises:
        UsageError: there is no such command.
        PilothouseError: it failed.
    """
    asked = split(line)
    if asked is None:
        return line
    name, rest = asked
    if (command := COMMANDS.get(name)) is not None:
        await command.run(chat, rest)
        return None
    theirs = [*_theirs(chat.session)]
    if name in (known.lower() for known, _ in theirs):
        return line.strip()
    close = difflib.get_close_matches(name, [*COMMANDS, *(known for known, _ in theirs)], n=1, cutoff=0.5)
    hint = f"; did you mean /{close[0]}?" if close else ""
    raise UsageError(visible(f"there is no command /{name}{hint} (/help lists them)"))


def suggestions(session: Session, before: str) -> Iterator[tuple[str, str]]:
    """What the last word of `before` may become, and what each means."""
    if not before.startswith("/"):
        return
    name, space, rest = before[1:].partition(" ")
    if not space:
        rows = [(known, command.help) for known, command in COMMANDS.items()]
        yield from (
            (f"/{known}", shorten(about)) for known, about in [*rows, *_theirs(session)] if known.startswith(name)
        )
    elif " " not in rest and name in COMMANDS:
        yield from ((value, "") for value in COMMANDS[name].values(session) if value.startswith(rest))


def _theirs(session: Session) -> Iterator[tuple[str, str]]:
    """The commands of Claude Code that are not ours, each with what it does."""
    for command in session.info.commands():
        for name in (command.name, *command.aliases):
            if name and name not in COMMANDS:
                yield name, command.description


async def _help(chat: Chat, rest: str) -> None:
    rows = [(f"/{name} {command.usage}".rstrip(), command.help) for name, command in COMMANDS.items() if command.help]
    width = max(len(row[0]) for row in rows)
    for what, about in rows:
        chat.say(f"  {what:<{width}}  {about}")
    if theirs := sorted({f"/{name}" for name, _ in _theirs(chat.session)}):
        chat.say(f"of Claude Code: {' '.join(theirs)}", "quiet")
    chat.say("Alt-Enter or a backslash at the end starts a new line; Ctrl-C stops the answer, Ctrl-D leaves", "quiet")


async def _model(chat: Chat, rest: str) -> None:
    if rest:
        if (near := _meant_model(rest, [model.value for model in _models(chat.session)])) is not None:
            raise UsageError(visible(f"there is no model {rest!r}; did you mean {near}? (/model lists them)"))
        name = await chat.session.set_model(rest)
        chat.model = name or rest
        chat.say(f"model {chat.model} from now on")
        return
    chat.say(f"model {chat.model_name()}; /model NAME takes another:")
    for model in _models(chat.session):
        chat.say(shorten(f"  {model.value:<12} {model.description or model.display_name}"), "quiet")


def _meant_model(name: str, known: Collection[str]) -> str | None:
    """The model that a slip of the pen stands for; None for a known name, a full id, and what is like no name."""
    aliases = {"default", "haiku", "opus", "opusplan", "sonnet", *known}
    return None if name in aliases or "-" in name or "[" in name else closest(name, aliases)


async def _mode(chat: Chat, rest: str) -> None:
    if not rest:
        chat.say(f"permission mode {chat.mode_name()}; /mode NAME takes another: {', '.join(get_args(PermissionMode))}")
        return
    chat.mode = await chat.session.set_permission_mode(rest) or rest
    chat.say(f"permission mode {chat.mode} from now on")


async def _cost(chat: Chat, rest: str) -> None:
    for line in chat.spent.lines():
        chat.say(line)


async def _fork(chat: Chat, rest: str) -> None:
    before = chat.session.id
    await chat.move_to(chat.session.fork())
    chat.say(f"a copy goes on as {chat.session.id}; the original stays as it is: {before}")


async def _clear(chat: Chat, rest: str) -> None:
    before = chat.session.id
    now = await chat.session.clear()
    chat.say(f"a fresh conversation: {now} (before: {before})")


async def _resume(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("which one? /resume ID")
    await chat.move_to(chat.make_session(resume=rest))
    chat.say(f"going on with {chat.session.id}")


async def _status(chat: Chat, rest: str) -> None:
    session, health = chat.session, chat.session.health()
    reason = f" ({health.reason})" if health.reason else ""
    rows = {
        "session": session.id or "not known yet",
        "model": chat.model_name(),
        "mode": chat.mode_name(),
        "directory": chat.directory(),
        "child": f"{health.state}{reason}, process {session.pid}, started again {session.restarts} times",
    }
    for name, value in rows.items():
        chat.say(f"  {name:<9}  {value}")


async def _exit(chat: Chat, rest: str) -> None:
    chat.leave()


def _models(session: Session) -> list[ModelInfo]:
    return typed_list(ModelInfo, session.server_info.get("models"))


def _modes(session: Session) -> Iterable[str]:
    return get_args(PermissionMode)


COMMANDS: dict[str, ChatCommand] = {
    "help": ChatCommand("", "list the commands", _help),
    "model": ChatCommand("[NAME]", "show or change the model", _model, lambda s: [m.value for m in _models(s)]),
    "mode": ChatCommand("[MODE]", "show or change the permission mode", _mode, _modes),
    "cost": ChatCommand("", "what every answer has cost, and all together", _cost),
    "status": ChatCommand("", "session, model, mode, directory, health", _status),
    "fork": ChatCommand("", "go on in a copy of this conversation", _fork),
    "clear": ChatCommand("", "forget what was said", _clear),
    "resume": ChatCommand("ID", "go on with another conversation", _resume),
    "exit": ChatCommand("", "leave; so does Ctrl-D", _exit),
    "quit": ChatCommand("", "", _exit),
}
