"""The types of option values: what is valid, how text is parsed, which copy is stored, how the value is shown.

Pure. `struct_validation`, loaded on demand, reads values with an inner structure; `value_checks` has what both need.
This module must not know option names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from pilothouse.messages.json_lines import to_plain_scalar
from pilothouse.options.value_checks import (
    InvalidValueError,
    copy_list,
    is_name,
    is_path,
    is_text,
    is_text_list,
    redacted_repr,
    resolve_path,
    suggest_name,
)

TRUE_WORDS = frozenset({"1", "on", "true", "yes"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
_MAX_SHOWN_CHARS = 60  # of a text that an error repeats


def make_parse_error(expected: str, text: str) -> ValueError:
    """Make the error for a text that cannot be parsed."""
    shown = text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
    return ValueError(f"expected {expected}, got {shown!a}")


def parse_text(text: str) -> str:
    """Return the text unchanged."""
    return text


def parse_bool(text: str) -> bool:
    """Parse true, yes, on, 1, or their opposites, in any case."""
    word = text.strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise make_parse_error("true or false", text)
    return word in TRUE_WORDS


def parse_whole_number(text: str) -> int:
    """Parse a whole number, 0 included."""
    return _parse_int(text, "a whole number of at least 0")


def parse_count(text: str) -> int:
    """Parse a whole number that counts something."""
    return _parse_int(text, "a whole number of at least 1")


def _parse_int(text: str, expected: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise make_parse_error(expected, text) from None


def parse_number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise make_parse_error("a number greater than 0", text) from None


def parse_user(text: str) -> str | int:
    """Parse a user name, or a number."""
    return int(text) if text.isdecimal() and text.isascii() else text


def parse_debug(text: str) -> bool | str:
    """Parse true or false, or the categories to log."""
    return parse_bool(text) if text.strip().lower() in TRUE_WORDS | FALSE_WORDS else text


def parse_wait(text: str) -> bool | float:
    """Parse true or false, or a number of seconds."""
    return parse_bool(text) if text.strip().lower() in TRUE_WORDS | FALSE_WORDS else parse_number(text)


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


def parse_tools(text: str) -> list[str] | str:
    """Parse a list, or the word for all tools."""
    return text if text == "default" else parse_list(text)


def parse_skills(text: str) -> list[str] | str:
    """Parse a list, or the word for all skills."""
    return text if text == "all" else parse_list(text)


def parse_mapping(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    return cast("dict[str, Any]", _parse_json(text, dict, "a JSON object"))


def parse_text_or_mapping(text: str) -> dict[str, Any] | str:
    """Parse a JSON object, or a word."""
    return parse_mapping(text) if text.lstrip().startswith("{") else text


def parse_retry(text: str) -> dict[str, Any] | int:
    """Parse a JSON object, or a whole number."""
    return parse_mapping(text) if text.lstrip().startswith("{") else parse_whole_number(text)


def parse_config(text: str) -> dict[str, Any] | str:
    """Parse a JSON object, or a path."""
    return parse_text_or_mapping(text)


def _parse_json(text: str, kind: type, expected: str) -> Any:
    try:
        value = msgspec.json.decode(text.encode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected {expected}: {_describe_json_error(text) or error}") from None
    if not isinstance(value, kind):
        raise make_parse_error(expected, text)
    return value


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


def _describe_json_error(text: str) -> str | None:
    """Describe the fault of a JSON text without repeating any of it, because the text may hold a key."""
    import json  # only needed for an error

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{_JSON_ERRORS.get(error.msg, error.msg)}, at character {error.pos + 1}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def _keep_value(value: Any, directory: str) -> Any:
    return value


class ValueType(Struct, frozen=True):
    """What a valid value is.

    Args:
        expected: a description, after "expected".
        read: returns the stored form of a value, a copy; raises `InvalidValueError`.
        parse: returns a value from text, for the command line and the environment; raises ValueError. None: the value
            has no text form.
        metavar: the placeholder in the help.
        resolve_paths: makes relative paths in a valid value absolute against a directory.
        format_value: returns the value as text, with possible keys masked.
    """

    expected: str
    read: Callable[[Any], Any]
    parse: Callable[[str], Any] | None = parse_text
    metavar: str = "TEXT"
    resolve_paths: Callable[[Any, str], Any] = _keep_value
    format_value: Callable[[Any], str] = redacted_repr

    def clean(self, value: Any) -> Any:
        """Return the stored form of `value`.

        Raises:
            InvalidValueError: `value` is not valid.
        """
        try:
            return _to_plain_types(self.read(value))
        except RecursionError:
            raise InvalidValueError(type(value), self.expected, message="it is nested too deeply") from None
        except InvalidValueError as fault:
            fault.expected = fault.expected or self.expected
            raise
        except Exception:  # noqa: BLE001 - a value with odd magic methods is a wrong value, not a crash
            raise InvalidValueError(value, self.expected) from None

    def accepts(self, value: Any) -> bool:
        """Whether `value` is valid."""
        try:
            self.clean(value)
        except InvalidValueError:
            return False
        return True


_PLAIN_TYPES = frozenset((type(None), str, bool, int, float))


def _to_plain_types(value: Any) -> Any:
    """Replace texts and numbers of a class derived from str, int or float by plain ones."""
    kind = cast("type[Any]", type(value))
    if kind in _PLAIN_TYPES:
        return value
    if kind is list:
        return [_to_plain_types(item) for item in cast("list[Any]", value)]
    if kind is dict:
        items = cast("dict[Any, Any]", value).items()
        return {_to_plain_types(key): _to_plain_types(item) for key, item in items}
    return to_plain_scalar(value) if isinstance(value, str | int | float) else value


def _make_reader(expected: str, test: Callable[[Any], bool], store: Callable[[Any], Any] | None = None) -> Any:
    """Make a reader of values that are valid or not as a whole."""

    def read(value: Any) -> Any:
        if not test(value):
            raise InvalidValueError(value, expected)
        return value if store is None else store(value)

    return read


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN is not a number


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value > 0


def _read_timeout(value: Any) -> Any:
    if not _is_amount(value):
        raise InvalidValueError(value, TIMEOUT.expected)
    if LONGEST_TIMEOUT <= value < float("inf"):
        days = value / 86_400
        raise InvalidValueError(
            value, "", message=f"{value:,} seconds are {days:.1f} days; the unit is seconds, and None means no limit"
        )
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_paths(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence) and all(is_path(item) for item in cast("Sequence[Any]", value))


def _copy_paths(value: Any) -> list[str]:
    return [os.fspath(item) for item in value]


def _resolve_paths(value: Any, directory: str) -> list[str]:
    return [resolve_path(item, directory) for item in value]


def _resolve_cli(value: Any, directory: str) -> Any:
    return value if value in CLI_NAMES else resolve_path(value, directory)


def _resolve_config(value: Any, directory: str) -> Any:
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        return cast("Any", value)
    return resolve_path(value, directory)


def _read_env(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(value, ENV.expected)
    for key, item in cast("Mapping[Any, Any]", value).items():
        if not is_text(key) or not key or "=" in key:
            raise InvalidValueError(
                value, "", message=f"{key!a:.80} cannot be the name of a variable: names are text without '='"
            )
        if item is not None and not is_text(item):
            what = (
                "text without NUL"
                if isinstance(item, str)
                else f"text, or None to remove it, not {type(item).__name__}"
            )
            raise InvalidValueError(value, "", message=f"the value of {key!a:.80} must be {what}")
    return dict(cast("Mapping[str, Any]", value))


def _is_flag_name(value: Any) -> bool:
    return is_text(value) and bool(value) and not value.startswith("-") and not any(c in "= \t\n" for c in value)


def _read_extra_args(value: Any) -> dict[str, str | None]:
    if not isinstance(value, Mapping) or not all(
        _is_flag_name(key) and (item is None or is_text(item)) for key, item in cast("Mapping[Any, Any]", value).items()
    ):
        raise InvalidValueError(value, EXTRA_ARGS.expected)
    flags = dict(cast("Mapping[str, str | None]", value))
    for flag in sorted(RESERVED_FLAGS & flags.keys()):
        raise InvalidValueError(
            value, EXTRA_ARGS.expected, flag, message="pilothouse sets this flag itself; its value is not free"
        )
    return flags


def _is_uuid(value: object) -> bool:
    parts = value.split("-") if isinstance(value, str) else []
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        char in "0123456789abcdefABCDEF" for part in parts for char in part
    )


def _as_list(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]


def _copy_instances(value: Any) -> list[Any]:
    return list(_as_list(value))


def _is_user(value: Any) -> bool:
    return is_name(value) or (_is_int(value) and value >= 0)


def _is_wait(value: Any) -> bool:
    return isinstance(value, bool) or _is_amount(value)


def _is_debug(value: Any) -> bool:
    return isinstance(value, bool) or is_name(value)


def _make_choice(*names: str, metavar: str = "NAME") -> ValueType:
    expected = "one of " + ", ".join(repr(n) for n in names)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            raise InvalidValueError(value, expected, hint=suggest_name(value, names))
        return value

    return ValueType(expected, read, metavar=metavar)


def _make_type(expected: str, test: Callable[[Any], bool], **more: Any) -> ValueType:
    return ValueType(expected, _make_reader(expected, test, more.pop("store", None)), **more)


def permits_more(mode: str, highest: str) -> bool:
    """Whether `mode` permits more than `highest`; an unknown mode does, unless `highest` permits everything."""
    mode, highest = ("default" if one == "manual" else one for one in (mode, highest))
    if highest == MODES_BY_PERMISSIVENESS[-1]:
        return False
    return mode not in MODES_BY_PERMISSIVENESS or MODES_BY_PERMISSIVENESS.index(mode) > MODES_BY_PERMISSIVENESS.index(
        highest
    )


def _make_lazy_reader(name: str) -> Callable[[Any], Any]:
    """Make a reader of `struct_validation`, loaded late because values with an inner structure are rare."""

    def read(value: Any) -> Any:
        from pilothouse.options import struct_validation

        return getattr(struct_validation, "read_" + name)(value)

    return read


def _make_lazy_resolver(name: str) -> Callable[[Any, str], Any]:
    def resolve(value: Any, directory: str) -> Any:
        from pilothouse.options import struct_validation

        return getattr(struct_validation, name)(value, directory)

    return resolve


CLI_NAMES = frozenset({"auto", "bundled", "global"})
RESERVED_FLAGS = frozenset({"input-format", "output-format", "print"})
"""Flags that decide which protocol the child uses."""

LONGEST_TIMEOUT = 100_000
"""Seconds, more than a day: a larger number was probably meant in milliseconds."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual")
MODES_BY_PERMISSIVENESS = ("plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions")
"""Permission modes, from the least to the most permissive; "manual" is another name for "default"."""
PROVIDERS = ("anthropic", "bedrock", "vertex", "foundry")
SETTING_SOURCE_NAMES = ("user", "project", "local")

TEXT = _make_type("text without NUL or lone surrogates", is_text)
NAME = _make_type("non-empty text", is_name, metavar="NAME")
URL = _make_type("an address such as 'https://…'", lambda v: is_name(v) and "://" in v, metavar="URL")
BOOL = _make_type("True or False", lambda v: isinstance(v, bool), parse=parse_bool, metavar="true|false")
WHOLE_NUMBER = _make_type(
    "a whole number of at least 0", lambda v: _is_int(v) and v >= 0, parse=parse_whole_number, metavar="N"
)
COUNT = _make_type("a whole number of at least 1", lambda v: _is_int(v) and v >= 1, parse=parse_count, metavar="N")
NUMBER = _make_type("a number greater than 0", _is_amount, parse=parse_number, metavar="NUMBER")
TIMEOUT = ValueType("a number of seconds greater than 0", _read_timeout, parse_number, "SECONDS")
SECONDS = _make_type("a number of seconds greater than 0", _is_amount, parse=parse_number, metavar="SECONDS")
NAMES = _make_type("a list of text", is_text_list, store=copy_list, parse=parse_list, metavar="A,B")
PATH = _make_type("a path", is_path, store=os.fspath, metavar="PATH", resolve_paths=resolve_path)
CLI = _make_type(
    "a path, 'auto', 'bundled' or 'global'", is_path, store=os.fspath, metavar="PATH", resolve_paths=_resolve_cli
)
PATHS = _make_type(
    "a list of paths", _is_paths, store=_copy_paths, parse=parse_list, metavar="PATH", resolve_paths=_resolve_paths
)
ENV = ValueType("a mapping of variable names to text (None removes one)", _read_env, parse_mapping, "JSON|@FILE")
EXTRA_ARGS = ValueType(
    "a mapping of flag names without dashes to text, or None for a bare flag",
    _read_extra_args,
    parse_mapping,
    "JSON|@FILE",
)
RESTART = _make_choice("resume", "never")
ON_USAGE_LIMIT = _make_choice("raise", "wait")
UNTIL = _make_choice("result", "idle")
ISOLATION = _make_choice("strict")
HOOKS = _make_type("a mapping of event names to hooks", lambda v: isinstance(v, Mapping), parse=None, metavar="")
FUNCTIONS = _make_type(
    "a list of functions, or of what @tool made of them",
    lambda v: isinstance(v, list | tuple),
    store=copy_list,
    parse=None,
    metavar="",
)
CALLABLE = _make_type("a callable", callable, parse=None, metavar="")
INSTRUMENTATION = _make_type(
    "an Instrumentation, or a list of them",
    lambda v: all(callable(getattr(one, "query_started", None)) for one in _as_list(v)),
    store=_copy_instances,
    parse=None,
    metavar="",
)
TRANSPORT = _make_type(
    "a Transport, or a callable that makes one",
    lambda v: callable(v) or hasattr(v, "receive"),
    parse=None,
    metavar="",
)
SESSION_STORE = _make_type(
    "a session store, with `append` and `load`",
    lambda v: not isinstance(v, type) and all(callable(getattr(v, name, None)) for name in ("append", "load")),
    parse=None,
    metavar="",
)
SESSION_STORE_FLUSH = _make_choice("batched", "eager")
UUID = _make_type("a UUID", _is_uuid, metavar="UUID")
USER = _make_type("the name of a user, or a number", _is_user, parse=parse_user, metavar="NAME")
WAIT_FOR_MCP = _make_type(
    "True, False, or a number of seconds greater than 0", _is_wait, parse=parse_wait, metavar="true|SECONDS"
)
DEBUG = _make_type("True, False, or the categories to log", _is_debug, parse=parse_debug, metavar="true|A,B")
SETTING_SOURCES = _make_type(
    "a list of " + ", ".join(repr(name) for name in SETTING_SOURCE_NAMES),
    lambda v: is_text_list(v) and all(item in SETTING_SOURCE_NAMES for item in v),
    store=copy_list,
    parse=parse_list,
    metavar="A,B",
)
EFFORT = _make_choice(*EFFORTS)
PERMISSION_MODE = _make_choice(*PERMISSION_MODES)
PROVIDER = _make_choice(*PROVIDERS)
PERMISSION_PROMPTS = _make_choice("host", "none")
PROMPT_VIA = _make_choice("stdin", "argv")
TOOL_BRIDGE = _make_choice("mcp", "xml", "deferred")

MODELS = ValueType("a model, or a list of models in the order to try", _make_lazy_reader("models"), parse_text, "NAME")
TOOLS = ValueType("a list of tool names, or 'default'", _make_lazy_reader("tools"), parse_tools, "A,B")
SKILLS = ValueType("a list of skill names, or 'all'", _make_lazy_reader("skills"), parse_skills, "A,B")
ALIASES = ValueType("a mapping of tool names to tool names", _make_lazy_reader("aliases"), parse_mapping, "JSON|@FILE")
MAPPING = ValueType("a mapping with text keys", _make_lazy_reader("mapping"), parse_mapping, "JSON|@FILE")
CONFIG = ValueType(
    "a mapping, or a path or JSON text",
    _make_lazy_reader("config"),
    parse_config,
    "PATH|JSON",
    _resolve_config,
)
MCP_SERVERS = ValueType(
    "a mapping of names to servers, or a path or JSON text",
    _make_lazy_reader("servers"),
    parse_config,
    "PATH|JSON",
    _resolve_config,
)
AGENTS = ValueType("a mapping of names to agents", _make_lazy_reader("agents"), parse_mapping, "JSON|@FILE")
SANDBOX = ValueType("a Sandbox, or a mapping", _make_lazy_reader("sandbox"), parse_mapping, "JSON|@FILE")
TOOL_CONFIG = ValueType("a ToolConfig, or a mapping", _make_lazy_reader("tool_config"), parse_mapping, "JSON|@FILE")
RETRY = ValueType("a whole number of at least 0, or a RetryPolicy", _make_lazy_reader("retry"), parse_retry, "N|JSON")
TASK_BUDGET = ValueType("a whole number of tokens of at least 1", _make_lazy_reader("task_budget"), parse_count, "N")
THINKING = ValueType(
    "'adaptive', 'disabled', or an AdaptiveThinking, EnabledThinking or DisabledThinking",
    _make_lazy_reader("thinking"),
    parse_text_or_mapping,
    "NAME|JSON",
)
SYSTEM_PROMPT = ValueType(
    "text, or a SystemPromptPreset, SystemPromptFile or CustomSystemPrompt",
    _make_lazy_reader("system_prompt"),
    parse_text,
    "TEXT",
    _make_lazy_resolver("resolve_system_prompt"),
)
PLUGINS = ValueType(
    "a list of paths or Plugins",
    _make_lazy_reader("plugins"),
    parse_list,
    "PATH",
    _make_lazy_resolver("resolve_plugins"),
)
