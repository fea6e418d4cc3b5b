"""Types of option values: what is valid, how text is parsed, which copy is stored, and the error for an invalid value.

Pure. `value_structs` has the values with fields. This module must not know option names. Error texts
never show secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction, unwrap
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from msgspec import Struct

from pilothouse.hints import suggest_name
from pilothouse.messages.json_lines import to_plain_scalar
from pilothouse.options.secrets import MASK, SECRET_FIELDS, is_secret_name, mask

MAX_SHOWN_CHARS = 80  # of a value that an error repeats
_MAX_PARSED_CHARS = 60  # of a text that an error repeats


class InvalidValueError(ValueError):
    """A value is not valid; `expected` "" stands for what the type of the option expects.

    The `message` is the fault, in words, if `expected` and the value do not show it; the `hint` comes at the end.
    """

    def __init__(self, value: Any, expected: str = "", path: str = "", *, message: str = "", hint: str = "") -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.path = path
        self.message = message
        self.hint = hint

    def with_prefix(self, step: str) -> InvalidValueError:
        """Return the same error for the enclosing value; `step` is a key or `[n]`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        path = f"{step}{joint}{self.path}"
        return InvalidValueError(self.value, self.expected, path, message=self.message, hint=self.hint)

    def describe(self, *, secret: bool = False) -> str:
        """Return the error in one line; a secret value appears only as its type."""
        where = f"{self.path}: " if self.path else ""
        if self.message:
            return where + self.message
        steps = [step.partition("[")[0] for step in self.path.split(".")]
        hidden = secret or any(step in SECRET_FIELDS or is_secret_name(step) for step in steps)
        hidden = hidden or ("args" in steps and not isinstance(self.value, int))  # maybe "--token x" in place of a list
        kind = type(self.value).__name__
        text = "" if hidden else re.sub(r":[^\s/@:]+@", f":{MASK}@", ascii(mask(self.value)))  # also without ://
        text = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
        found = "an empty text" if self.value == "" else f"a value of type {kind}" if hidden else f"{text} ({kind})"
        return f"{where}expected {self.expected}, got {found}{self.hint}"


def redacted_repr(value: Any) -> str:
    """Return the repr of a value with possible keys masked."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return f"<JSON text of {len(value):,} characters>"
    return repr(mask(value))


_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})


def copy_value(value: Any) -> Any:
    """Copy the containers of `value`, at any depth; other objects stay the same."""
    kind = cast("type[Any]", type(value))
    if kind in _SCALAR_TYPES:
        return value
    if isinstance(value, Mapping):
        return {key: copy_value(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [copy_value(item) for item in cast("list[Any]", value)]
    if isinstance(value, Struct) and getattr(kind, "is_option_struct", False):  # others may be transports, for example
        return kind(**{name: copy_value(getattr(value, name)) for name in value.__struct_fields__})
    return value


# Tests of values


def is_text(value: object) -> bool:
    """Whether `value` can be an argument or a JSON string: text without NUL and lone surrogates."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def is_name(value: Any) -> bool:
    """Whether `value` is text with more than blanks."""
    return is_text(value) and bool(value.strip())


def is_path(value: object) -> bool:
    """Whether `value` is a path that can be an argument."""
    if not isinstance(value, str | os.PathLike):
        return False
    path = os.fspath(cast("str | os.PathLike[str]", value))
    return is_text(path) and bool(path)


def is_list(value: object) -> bool:
    """Whether `value` is a list, tuple or other sequence; text is not."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def read_texts(value: Any) -> list[str]:
    """Copy a list, tuple or set of text; raises TypeError, and InvalidValueError for a single text."""
    if isinstance(value, str):
        raise InvalidValueError(value, hint="; put a single text into a list")
    items = cast("list[Any]", value)
    is_set = isinstance(value, set | frozenset)
    if not (is_set or is_list(value)) or not all(map(is_text, items)):
        raise TypeError
    # A set has no order; the same options should give the same command line.
    return sorted(items) if is_set else list(items)


def resolve_path(value: Any, directory: str) -> str:
    """Return `value` as an absolute path, against `directory` if it is relative; a leading `~` stays."""
    path = cast("str", os.fspath(value))
    return path if path.startswith("~") else os.path.normpath(os.path.join(directory, path))  # noqa: PTH118


# Text from the command line and the environment

TRUE_WORDS = frozenset({"1", "on", "true", "yes"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
_WORDS = dict.fromkeys(TRUE_WORDS, True) | dict.fromkeys(FALSE_WORDS, False)
T = TypeVar("T")


def make_parse_error(expected: str, text: str) -> ValueError:
    """Make the error for a text that cannot be parsed."""
    shown = text if len(text) <= _MAX_PARSED_CHARS else text[: _MAX_PARSED_CHARS - 1] + "…"
    return ValueError(f"expected {expected}, got {shown!a}")


def _make_parser(expected: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    def parse_or_explain(text: str) -> T:
        try:
            return parse(text)
        except (KeyError, ValueError):
            raise make_parse_error(expected, text) from None

    return parse_or_explain


def word_or(word: Callable[[str], Any], parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a parser of texts for which `word` returns a value, and of others, which `parse` reads."""
    return lambda text: parse(text) if (found := word(text)) is None else found


def _find_bool(text: str) -> bool | None:
    return _WORDS.get(text.strip().lower())


parse_bool = _make_parser("true or false", lambda text: _WORDS[text.strip().lower()])
parse_count = _make_parser("a whole number of at least 1", int)
parse_whole_number = _make_parser("a whole number of at least 0", int)
parse_number = _make_parser("a number greater than 0", float)


def parse_list(text: str) -> list[str]:
    """Parse items between commas; a comma in parentheses belongs to its item: `Bash(git log:*,git diff:*)`."""
    if text.lstrip().startswith("["):
        return cast("list[str]", _parse_json(text, list, "a JSON list"))
    items = [""]
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")" and depth > 0)
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    return [item.strip() for item in items if item.strip()]


def parse_mapping(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    return cast("dict[str, Any]", _parse_json(text, dict, "a JSON object"))


def find_mapping(text: str) -> dict[str, Any] | None:
    """Parse a text that begins as a JSON object; None for any other."""
    return parse_mapping(text) if text.lstrip().startswith("{") else None


_JSON_ERRORS = {
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Expecting value": "a value is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Unterminated string starting at": "a text has no closing quote",
    "Extra data": "there is something after the end of the JSON",
    "Illegal trailing comma before end of object": "there is a comma after the last entry",
    "Illegal trailing comma before end of array": "there is a comma after the last item",
}


def _parse_json(text: str, kind: type, expected: str) -> Any:
    """Parse JSON. An error repeats nothing of invalid JSON, because the text may hold a key."""
    import json  # few options are JSON text

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{_JSON_ERRORS.get(error.msg, error.msg)}, at character {error.pos + 1}"
        raise ValueError(f"expected {expected}: {reason}") from None
    except RecursionError:
        raise ValueError(f"expected {expected}: it is nested too deeply") from None
    if not isinstance(value, kind):
        raise make_parse_error(expected, text)
    return value


# Types


class ValueType(Struct, frozen=True):
    """What a valid value is: `expected`, in words.

    `read` returns the stored form of a value, a copy. It raises `InvalidValueError`, or any error if `expected` says
    all about the fault. `parse` returns a value from text, for the command line and the environment; None: there is no
    text form. `metavar` is the placeholder in the help; `takes` and `gives` are the static types of both values.
    """

    expected: str
    read: Callable[[Any], Any]
    parse: Callable[[str], Any] | None = str
    metavar: str = "TEXT"
    takes: str = "str"
    gives: str = ""
    resolve_paths: Callable[[Any, str], Any] = lambda value, directory: value

    def clean(self, value: Any) -> Any:
        """Return the stored form of `value`; raises InvalidValueError."""
        try:
            return _to_plain_types(self.read(value))
        except RecursionError:
            raise InvalidValueError(type(value), self.expected, message="it is nested too deeply") from None
        except InvalidValueError as fault:
            fault.expected = fault.expected or self.expected
            raise
        except Exception:  # noqa: BLE001 - a value with odd magic methods is a wrong value, not a crash
            raise InvalidValueError(value, self.expected) from None


def _to_plain_types(value: Any) -> Any:
    """Replace texts and numbers of a class derived from str, int or float by plain ones."""
    kind = cast("type[Any]", type(value))
    if kind in _SCALAR_TYPES:
        return value
    if kind is list:
        return [_to_plain_types(item) for item in cast("list[Any]", value)]
    if kind is dict:
        items = cast("dict[Any, Any]", value).items()
        return {_to_plain_types(key): _to_plain_types(item) for key, item in items}
    return to_plain_scalar(value) if isinstance(value, str | int | float) else value


def _read_if(test: Callable[[Any], bool], store: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """Make a reader of values that are valid or not as a whole."""

    def read(value: Any) -> Any:
        if not test(value):
            raise TypeError
        return value if store is None else store(value)

    return read


def _make_choice(takes: str, names: Sequence[str], gives: str = "") -> ValueType:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            raise InvalidValueError(value, hint=suggest_name(value, names))
        return value

    expected = "one of " + ", ".join(map(repr, names))
    return ValueType(expected, read, metavar="NAME", takes=takes, gives=gives)


def choice(*names: str) -> ValueType:
    """Make the type of a text that is one of `names`."""
    return _make_choice(f"Literal[{', '.join(map(repr, names))}]", names, gives="str")


def python_object(expected: str, takes: str, read: Callable[[Any], Any], gives: str = "") -> ValueType:
    """Make the type of an object that has no text form."""
    return ValueType(expected, read, None, "", takes, gives)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _read_timeout(value: Any) -> Any:
    if hasattr(value, "total_seconds"):
        raise InvalidValueError(value, hint="; write .total_seconds() behind it")
    if not _is_amount(value):
        raise TypeError
    if LONGEST_TIMEOUT <= value < float("inf"):
        days = value / 86_400
        raise InvalidValueError(
            value, message=f"{value:,} seconds are {days:.1f} days; the unit is seconds, and None means no limit"
        )
    return value


def _read_env(value: Any) -> dict[str, Any]:
    for key, item in value.items():
        if not is_text(key) or not key or "=" in key:
            shown = f"{key.partition('=')[0]}=…" if isinstance(key, str) and "=" in key else key
            raise InvalidValueError(
                value, message=f"{shown!r:.80} cannot be the name of a variable: names are text without '='"
            )
        if item is not None and not is_text(item):
            is_str = isinstance(item, str)
            what = "text without NUL" if is_str else f"text, or None to remove it, not {type(item).__name__}"
            raise InvalidValueError(value, message=f"the value of {key!a:.80} must be {what}")
    return dict(value)


def _is_instrumentation(value: object) -> bool:
    return callable(getattr(value, "query_started", None)) and not isinstance(value, type)


def _is_flag_name(value: Any) -> bool:
    return is_text(value) and re.fullmatch(r"[^-= \t\n][^= \t\n]*", value) is not None


def _read_extra_args(value: Any) -> dict[str, str | None]:
    flags = dict(value.items())
    for flag, item in flags.items():
        if not _is_flag_name(flag):
            raise InvalidValueError(flag.partition("=")[0])  # what follows may be a key
        if item is not None and not is_text(item):
            raise TypeError
    for flag in sorted(RESERVED_FLAGS & flags.keys()):
        raise InvalidValueError(value, path=flag, message="pilothouse sets this flag itself; its value is not free")
    return flags


def _read_setting_sources(value: Any) -> list[str]:
    if not set(names := read_texts(value)) <= {"user", "project", "local"}:
        raise ValueError
    return names


def _read_name(value: Any) -> Any:
    if not is_name(value):
        raise InvalidValueError(value, hint="; pass its session_id" if hasattr(value, "session_id") else "")
    return value


def _is_uuid(value: Any) -> bool:
    return re.fullmatch(r"[\da-fA-F]{8}(-[\da-fA-F]{4}){3}-[\da-fA-F]{12}", value, re.ASCII) is not None


def _is_session_store(value: Any) -> bool:
    has = callable(getattr(value, "append", None)) and callable(getattr(value, "load", None))
    return (
        has and not isinstance(value, type) and not any(_is_plain(getattr(value, name, None)) for name in _STORE_CALLS)
    )


_STORE_CALLS = ("append", "load", "delete", "list_sessions", "list_session_summaries", "list_subkeys")


def _is_plain(function: Any) -> bool:
    """Whether it is a Python function that is not async, and wraps none that is."""
    return isinstance(function, FunctionType | MethodType) and not any(
        map(iscoroutinefunction, (function, unwrap(function)))
    )


def as_list(value: Any) -> list[Any]:
    """Return a list or tuple as a new list; any other value as its only item."""
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def read_mapping(value: Any) -> Any:
    """Return a mapping; raises TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError
    return cast("Any", value)


def resolve_config(value: Any, directory: str) -> Any:
    """Make a path absolute; a mapping and JSON text stay."""
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        return cast("Any", value)
    return resolve_path(value, directory)


CLI_NAMES = frozenset({"auto", "bundled", "global"})
RESERVED_FLAGS = frozenset({"input-format", "output-format", "print"})
"""Flags that decide which protocol the child uses."""
LONGEST_TIMEOUT = 100_000
"""Seconds, more than a day: a larger number was probably meant in milliseconds."""
PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual")

# Each: what is expected, reader, parser of text, placeholder in the help, static types, paths.
# fmt: off
TEXT = ValueType("text without NUL or lone surrogates", _read_if(is_text))
NAME = ValueType("non-empty text", _read_name, metavar="NAME")
ID = ValueType("non-empty text", _read_name, metavar="ID")
URL = ValueType("an address such as 'https://…'", _read_if(lambda v: is_name(v) and "://" in v), metavar="URL")
UUID = ValueType("a UUID", _read_if(_is_uuid), metavar="UUID")
BOOL = ValueType("True or False", _read_if(lambda v: isinstance(v, bool)), parse_bool, "true|false", "bool")
WHOLE_NUMBER = ValueType("a whole number of at least 0", _read_if(lambda v: _is_int(v) and v >= 0),
    parse_whole_number, "N", "int")
COUNT = ValueType("a whole number of at least 1", _read_if(lambda v: _is_int(v) and v >= 1), parse_count, "N", "int")
NUMBER = ValueType("a number greater than 0", _read_if(_is_amount), parse_number, "NUMBER", "float")
SECONDS = ValueType("a number of seconds greater than 0", _read_if(_is_amount), parse_number, "SECONDS", "float")
TIMEOUT = ValueType("a number of seconds greater than 0", _read_timeout, parse_number, "SECONDS", "float")
WAIT = ValueType("True, False, or a number of seconds greater than 0",
    _read_if(lambda v: isinstance(v, bool) or _is_amount(v)), word_or(_find_bool, parse_number), "true|SECONDS",
    "bool | float")
DEBUG = ValueType("True, False, or the categories to log", _read_if(lambda v: isinstance(v, bool) or is_name(v)),
    word_or(_find_bool, str), "true|A,B", "bool | str")
SWITCH_OR_NAME = ValueType("True, False, or a name", DEBUG.read, word_or(_find_bool, str), "true|NAME", "bool | str")
WINDOW = ValueType("'auto', or a number of tokens of at least 100000",
    _read_if(lambda v: v == "auto" or (_is_int(v) and v >= 100_000)),
    lambda text: text if text == "auto" else parse_count(text), "auto|N", "Literal['auto'] | int")
INHERIT = ValueType("True, False, or a list of names and prefixes such as 'AWS_*'",
    lambda v: v if isinstance(v, bool) else read_texts(v), word_or(_find_bool, parse_list), "true|A,B",
    "bool | list[str] | tuple[str, ...]", "bool | list[str]")
USER = ValueType("the name of a user, or a number", _read_if(lambda v: is_name(v) or (_is_int(v) and v >= 0)),
    lambda text: int(text) if text.isdecimal() and text.isascii() else text, "NAME", "str | int")
NAMES = ValueType("a list of text", read_texts, parse_list, "A,B", "list[str] | tuple[str, ...]", "list[str]")
SETTING_SOURCES = ValueType("a list of 'user', 'project', 'local'", _read_setting_sources, parse_list, "A,B",
    "Sequence[SettingSource]", "list[SettingSource]")
PATH = ValueType("a path", _read_if(is_path, os.fspath), str, "PATH", "StrPath", "str", resolve_path)
PATHS = ValueType("a list of paths",
    _read_if(lambda v: is_list(v) and all(map(is_path, v)), lambda v: list(map(os.fspath, v))), parse_list, "PATH",
    "Sequence[StrPath]", "list[str]", lambda value, directory: [resolve_path(item, directory) for item in value])
CLI = ValueType("a path, 'auto', 'bundled' or 'global'", PATH.read, str, "PATH", "StrPath", "str",
    lambda value, directory: value if value in CLI_NAMES else resolve_path(value, directory))
ENV = ValueType("a mapping of variable names to text (None removes one)", _read_env, parse_mapping, "JSON|@FILE",
    "Mapping[str, str | None]", "dict[str, str | None]")
EXTRA_ARGS = ValueType("a mapping of flag names without dashes to text, or None for a bare flag", _read_extra_args,
    parse_mapping, "JSON|@FILE", "Mapping[str, str | None]", "dict[str, str | None]")
EFFORT = _make_choice("Effort", ("low", "medium", "high", "xhigh", "max"))
PERMISSION_MODE = _make_choice("PermissionMode", PERMISSION_MODES)
PROVIDER = _make_choice("Provider", ("anthropic", "bedrock", "vertex", "foundry"))

CALLABLE = python_object("a callable", "Callable[..., Any]", _read_if(callable))
SYNC_CALLABLE = python_object("a callable that is not async", "Callable[..., Any]",
    _read_if(lambda v: callable(v) and not iscoroutinefunction(v)))
HOOKS = python_object("a mapping of event names to hooks", "Hooks", read_mapping, "dict[str, Any]")
FUNCTIONS = python_object("a list of functions, or of what @tool made of them", "Sequence[Callable[..., Any]]",
    _read_if(lambda v: isinstance(v, list | tuple), list), "list[Callable[..., Any]]")
INSTRUMENTATION = python_object("an Instrumentation, or a list of them",
    "Instrumentation | Sequence[Instrumentation]",
    _read_if(lambda v: all(map(_is_instrumentation, as_list(v))), as_list),
    "list[Instrumentation]")
MIDDLEWARE = python_object("a list of Middleware classes, or of functions that make one", "Sequence[Callable[[], Any]]",
    _read_if(lambda v: isinstance(v, list | tuple) and all(map(callable, cast("list[Any]", v))), list),
    "list[Callable[[], Any]]")
ASKS = python_object("an Asks", "Asks", _read_if(lambda v: hasattr(v, "park") and not isinstance(v, type)))
TRANSPORT = python_object("a Transport, or a callable that makes one", "Any",
    _read_if(lambda v: callable(v) or hasattr(v, "receive")))
SESSION_STORE = python_object("a session store, with async `append` and `load`", "Any", _read_if(_is_session_store))
# fmt: on
