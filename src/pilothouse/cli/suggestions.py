"""What a wrong command line probably meant: texts for a command, a flag or a word that does not belong there. Pure."""

from __future__ import annotations

import difflib
import shlex
from argparse import Action
from collections.abc import Collection, Iterator, Mapping, Sequence

CLOSE = 0.6
"""How alike two names are at least, from 0 to 1, so that one is suggested for the other."""


def closest(name: str, known: Collection[str]) -> str | None:
    """The known name that is most like `name`; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=CLOSE)), None)


def wrong_command(word: str, commands: Collection[str]) -> str:
    """What to say about a first word that is not a command: it may be a question, or a slip."""
    if word.startswith("-"):
        return f"{word.partition('=')[0]} stands behind a command, as in `pilothouse ask {word.partition('=')[0]} …`"
    if " " in word.strip() or word.endswith("?"):
        return f"to ask a question: pilothouse ask {shlex.quote(word)}"
    near = closest(word.lower(), commands)
    hint = f"did you mean `pilothouse {near}`?" if near else f"the commands are {', '.join(commands)}"
    return f"there is no command {word!r}; {hint}"


def wrong_arguments(rest: Sequence[str], flags: Collection[str]) -> str:
    """What to say about arguments that a command does not take.

    Args:
        rest: the arguments; not empty.
        flags: the flags that the command takes.
    """
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is None:
        return f"unrecognized arguments: {' '.join(rest)}; put a text of several words in quotes"
    near = closest(unknown, flags)
    return f"unrecognized arguments: {unknown}" + (f"; did you mean {near}?" if near else "")


def repeated_flags(words: Sequence[str], flags: Mapping[str, Action], without: Collection[str]) -> Iterator[str]:
    """The flags of a command line with their values, to be given again; not its other arguments.

    Args:
        words: what stood behind the command.
        flags: the flags that the command takes; each has one value or none.
        without: the destinations of flags that are left out.
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
