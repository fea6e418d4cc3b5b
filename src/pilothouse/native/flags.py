"""The flags of the CLI that the engine takes, as a table, and how a command line is read with it. Pure.

Owns what exists and how a value is bound to its flag. What the values mean is in `launch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from msgspec import Struct, field


class Form(Enum):
    """How a flag takes its value."""

    SWITCH = auto()
    VALUE = auto()
    LIST = auto()
    """Any number of values: several words, several flags, or one word with commas."""
    OPTIONAL = auto()
    """A value only when the next word is none of the flags."""


_SWITCHES: Final = (
    "allow-dangerously-skip-permissions bare continue dangerously-skip-permissions disable-slash-commands "
    "exclude-dynamic-system-prompt-sections fork-session forward-subagent-text include-hook-events "
    "include-partial-messages no-session-persistence print prompt-suggestions replay-user-messages session-mirror "
    "strict-mcp-config verbose version help await-initialize"
)
_VALUES: Final = (
    "agent agents append-subagent-system-prompt append-subagent-system-prompt-file append-system-prompt "
    "append-system-prompt-file debug-file effort input-format json-schema max-budget-usd max-thinking-tokens "
    "max-turns model name output-format permission-mode permission-prompt-tool permission-prompts "
    "plan-mode-instructions project-config-root resume-drops-turn resume-session-at session-id setting-sources "
    "settings system-prompt system-prompt-file system-prompt-snapshot task-budget thinking thinking-display"
)
_LISTS: Final = (
    "add-dir allowedTools betas disallowedTools fallback-model mcp-config plugin-dir plugin-dir-no-mcp tools"
)

FLAGS: Final[Mapping[str, Form]] = {
    **dict.fromkeys(_SWITCHES.split(), Form.SWITCH),
    **dict.fromkeys(_VALUES.split(), Form.VALUE),
    **dict.fromkeys(_LISTS.split(), Form.LIST),
    **dict.fromkeys(("debug", "resume"), Form.OPTIONAL),
}
"""Every flag the engine takes; any other is refused, as the CLI does."""

SHORT: Final[Mapping[str, str]] = {"c": "continue", "d": "debug", "h": "help", "p": "print", "r": "resume"} | {
    "v": "version"
}
SPELLINGS: Final[Mapping[str, str]] = {"allowed-tools": "allowedTools", "disallowed-tools": "disallowedTools"}

_UNUSED: Final = (
    "agent agents append-subagent-system-prompt append-subagent-system-prompt-file debug debug-file "
    "forward-subagent-text include-hook-events plan-mode-instructions plugin-dir plugin-dir-no-mcp "
    "project-config-root prompt-suggestions resume-drops-turn task-budget"
)
WITHOUT_EFFECT: Final = frozenset(_UNUSED.split())
"""Taken, so that programs written for the CLI start, and told on standard error: the engine has nothing like it."""


class FlagError(Exception):
    """The command line is wrong; the message is what the program says before it ends with exit code 1."""


class CommandLine(Struct):
    """What stood on a command line.

    Attributes:
        values: by flag, in their order; a switch has an empty list.
        words: what belongs to no flag: the prompt.
    """

    values: dict[str, list[str | bytes]] = field(default_factory=dict[str, list[str | bytes]])
    words: list[str] = field(default_factory=list[str])

    def has(self, flag: str) -> bool:
        """Whether the flag was there."""
        return flag in self.values

    def last(self, flag: str) -> str | bytes | None:
        """Its last value."""
        values = self.values.get(flag)
        return values[-1] if values else None

    def text(self, flag: str) -> str | None:
        """Its last value as text."""
        value = self.last(flag)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def names(self, flag: str) -> tuple[str, ...] | None:
        """The names in a list, commas between brackets left alone; None when the flag was not there."""
        if flag not in self.values:
            return None
        return tuple(name for value in self.values[flag] for name in _split(_as_text(value)))


def read(argv: Sequence[str], files: Mapping[str, bytes] | None = None) -> CommandLine:
    """Read a command line.

    Args:
        argv: the arguments after the program.
        files: values that travel beside it, by flag, as the content of a file.

    Raises:
        FlagError: a flag is unknown or has no value.
    """
    line = CommandLine()
    words = iter(_Ahead(argv))
    for word in words:
        if word == "--":
            line.words += words.rest()
        elif word.startswith("-") and len(word) > 1:
            _flag(word, words, line)
        else:
            line.words.append(word)
    for flag, content in (files or {}).items():
        line.values.setdefault(flag, []).append(content)
    return line


def _flag(word: str, words: _Ahead, line: CommandLine) -> None:
    given, bound, value = word.lstrip("-").partition("=")
    name = SHORT.get(given, given) if not word.startswith("--") else SPELLINGS.get(given, given)
    form = FLAGS.get(name)
    if form is None:
        raise FlagError(f"error: unknown option '{word.partition('=')[0]}'")
    values = line.values.setdefault(name, [])
    if bound:
        values.append(value)
    elif form is Form.VALUE or form is Form.LIST:
        if words.is_empty:
            raise FlagError(f"error: option '--{name} <value>' argument missing")
        values.append(next(words))
        while form is Form.LIST and words.gives_value():
            values.append(next(words))
    elif form is Form.OPTIONAL and words.gives_value():
        values.append(next(words))


class _Ahead(Iterator[str]):
    """Words, and a look at the next one."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)[::-1]

    @property
    def is_empty(self) -> bool:
        return not self._words

    def gives_value(self) -> bool:
        """Whether a word follows that is no flag."""
        return bool(self._words) and not self._words[-1].startswith("-")

    def rest(self) -> list[str]:
        rest, self._words = self._words[::-1], []
        return rest

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> str:
        if not self._words:
            raise StopIteration
        return self._words.pop()


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _split(text: str) -> Iterator[str]:
    """The names in a text: commas and blanks part them, but not within round brackets."""
    depth, name = 0, ""
    for char in text:
        if char in ", \n" and depth == 0:
            if name:
                yield name
            name = ""
            continue
        depth += (char == "(") - (char == ")" and depth > 0)
        name += char
    if name:
        yield name
