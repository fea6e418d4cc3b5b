"""What a valid value is: each kind of value in words, as a test, as text, and how it is stored.

Owns validation of plain values. Values with an inner structure are read by `forms`, which is loaded when there is one.
Knows no option by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from pilothouse.messages.jsonline import plain_scalar
from pilothouse.options import texts
from pilothouse.options.faults import Fault, display, nearest


def _unanchored(value: Any, directory: str) -> Any:
    return value


class Kind(Struct, frozen=True):
    """What a valid value is.

    Args:
        expected: in words, after "expected".
        read: the form in which a value is stored, a copy of its own; raises `Fault`.
        parse: a value from text, for the command line and the environment; raises ValueError. None: it has no text.
        metavar: what stands for the text in a help.
        anchor: makes relative paths in a valid value absolute against a directory.
        show: the value as text, without what may be a key.
    """

    expected: str
    read: Callable[[Any], Any]
    parse: Callable[[str], Any] | None = texts.as_text
    metavar: str = "TEXT"
    anchor: Callable[[Any, str], Any] = _unanchored
    show: Callable[[Any], str] = display

    def clean(self, value: Any) -> Any:
        """The stored form of `value`.

        Raises:
            Fault: it is not valid.
        """
        try:
            return _without_derived(self.read(value))
        except RecursionError:
            raise Fault(type(value), self.expected, instead="it is nested too deeply") from None
        except Fault:
            raise
        except Exception:  # noqa: BLE001 - a value with odd magic methods is a wrong value, not a crash
            raise Fault(value, self.expected) from None

    def accepts(self, value: Any) -> bool:
        """Whether `value` is valid."""
        try:
            self.clean(value)
        except Fault:
            return False
        return True


_LEAVES = frozenset((type(None), str, bool, int, float))


def _without_derived(value: Any) -> Any:
    """The value with plain texts and numbers in place of those whose class derives from str, int or float."""
    kind = cast("type[Any]", type(value))
    if kind in _LEAVES:
        return value
    if kind is list:
        return [_without_derived(item) for item in cast("list[Any]", value)]
    if kind is dict:
        items = cast("dict[Any, Any]", value).items()
        return {_without_derived(key): _without_derived(item) for key, item in items}
    return plain_scalar(value) if isinstance(value, str | int | float) else value


def _plain(expected: str, test: Callable[[Any], bool], store: Callable[[Any], Any] | None = None) -> Any:
    """A reader of values that are right or wrong as a whole."""

    def read(value: Any) -> Any:
        if not test(value):
            raise Fault(value, expected)
        return value if store is None else store(value)

    return read


def is_text(value: object) -> bool:
    """Whether `value` can be an argument or a JSON string: text without NUL and lone surrogates."""
    return isinstance(value, str) and "\0" not in value and not _has_surrogate(value)


def _has_surrogate(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)


def _is_name(value: Any) -> bool:
    return is_text(value) and bool(value.strip())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN is no number


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value > 0


def _read_timeout(value: Any) -> Any:
    if not _is_amount(value):
        raise Fault(value, TIMEOUT.expected)
    if LONGEST_TIMEOUT <= value < float("inf"):
        days = value / 86_400
        raise Fault(value, "", instead=f"{value:,} seconds are {days:.1f} days; it is in seconds, and None is no limit")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_list_of_text(value: object) -> bool:
    """Whether `value` is a list, tuple or set of text; a text is none."""
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence | set | frozenset) and all(is_text(item) for item in cast("Sequence[Any]", value))


def _stored_list(value: Any) -> list[Any]:
    # A set has no order of its own; the same options should give the same command line.
    items = cast("list[Any]", value)
    return sorted(items) if isinstance(value, set | frozenset) else list(items)


def is_path(value: object) -> bool:
    """Whether `value` is a path that can be an argument."""
    if not isinstance(value, str | os.PathLike):
        return False
    path = os.fspath(cast("str | os.PathLike[str]", value))
    return is_text(path) and bool(path)


def _is_paths(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence) and all(is_path(item) for item in cast("Sequence[Any]", value))


def _stored_paths(value: Any) -> list[str]:
    return [os.fspath(item) for item in value]


def anchored(value: Any, directory: str) -> str:
    """`value` as an absolute path, against `directory` if it is relative; a leading `~` stays."""
    path = cast("str", os.fspath(value))
    return path if path.startswith("~") else os.path.normpath(os.path.join(directory, path))  # noqa: PTH118


def _anchored_paths(value: Any, directory: str) -> list[str]:
    return [anchored(item, directory) for item in value]


def _anchored_cli(value: Any, directory: str) -> Any:
    return value if value in CLI_NAMES else anchored(value, directory)


def _anchored_config(value: Any, directory: str) -> Any:
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        return cast("Any", value)
    return anchored(value, directory)


def _read_env(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Fault(value, ENV.expected)
    for key, item in cast("Mapping[Any, Any]", value).items():
        if not is_text(key) or not key or "=" in key:
            raise Fault(value, "", instead=f"{key!a:.80} cannot be the name of a variable: names are text without '='")
        if item is not None and not is_text(item):
            what = (
                "text without NUL"
                if isinstance(item, str)
                else f"text, or None to remove it, not {type(item).__name__}"
            )
            raise Fault(value, "", instead=f"the value of {key!a:.80} has to be {what}")
    return dict(cast("Mapping[str, Any]", value))


def _is_flag_name(value: Any) -> bool:
    return is_text(value) and bool(value) and not value.startswith("-") and not any(c in "= \t\n" for c in value)


def _read_extra_args(value: Any) -> dict[str, str | None]:
    if not isinstance(value, Mapping) or not all(
        _is_flag_name(key) and (item is None or is_text(item)) for key, item in cast("Mapping[Any, Any]", value).items()
    ):
        raise Fault(value, EXTRA.expected)
    flags = dict(cast("Mapping[str, str | None]", value))
    for flag in sorted(OWN_FLAGS & flags.keys()):
        raise Fault(value, EXTRA.expected, flag, instead="pilothouse sets this flag itself; its value is not free")
    return flags


def _is_uuid(value: object) -> bool:
    parts = value.split("-") if isinstance(value, str) else []
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        char in "0123456789abcdefABCDEF" for part in parts for char in part
    )


def _as_list(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]


def _stored_ones(value: Any) -> list[Any]:
    return list(_as_list(value))


def _is_user(value: Any) -> bool:
    return _is_name(value) or (_is_int(value) and value >= 0)


def _is_wait(value: Any) -> bool:
    return isinstance(value, bool) or _is_amount(value)


def _is_debug(value: Any) -> bool:
    return isinstance(value, bool) or _is_name(value)


def _choice(*names: str, metavar: str = "NAME") -> Kind:
    expected = "one of " + ", ".join(repr(n) for n in names)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            raise Fault(value, expected, hint=nearest(value, names))
        return value

    return Kind(expected, read, metavar=metavar)


def _kind(expected: str, test: Callable[[Any], bool], **more: Any) -> Kind:
    return Kind(expected, _plain(expected, test, more.pop("store", None)), **more)


def permits_more(mode: str, highest: str) -> bool:
    """Whether a permission mode permits more than another one; one that is not known here does, unless all do."""
    mode, highest = ("default" if one == "manual" else one for one in (mode, highest))
    if highest == MODES[-1]:
        return False
    return mode not in MODES or MODES.index(mode) > MODES.index(highest)


def _form(name: str) -> Callable[[Any], Any]:
    """A reader of `forms`: values with an inner structure are rare, so their module is loaded on demand."""

    def read(value: Any) -> Any:
        from pilothouse.options import forms

        return getattr(forms, name)(value)

    return read


def _anchored_form(name: str) -> Callable[[Any, str], Any]:
    def anchor(value: Any, directory: str) -> Any:
        from pilothouse.options import forms

        return getattr(forms, name)(value, directory)

    return anchor


CLI_NAMES = frozenset({"auto", "bundled", "global"})
OWN_FLAGS = frozenset({"input-format", "output-format", "print"})
"""Flags that decide which protocol the child speaks."""

LONGEST_TIMEOUT = 100_000
"""Seconds, more than a day: who writes more has thought of milliseconds."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto", "manual")
MODES = ("plan", "dontAsk", "default", "acceptEdits", "auto", "bypassPermissions")
"""Permission modes, from the one that permits least; "manual" is another name for "default"."""
PROVIDERS = ("anthropic", "bedrock", "vertex", "foundry")
SOURCES = ("user", "project", "local")

TEXT = _kind("text without NUL or lone surrogates", is_text)
NAME = _kind("non-empty text", _is_name, metavar="NAME")
URL = _kind("an address such as 'https://…'", lambda v: _is_name(v) and "://" in v, metavar="URL")
BOOL = _kind("True or False", lambda v: isinstance(v, bool), parse=texts.as_bool, metavar="true|false")
WHOLE = _kind("a whole number of at least 0", lambda v: _is_int(v) and v >= 0, parse=texts.as_whole, metavar="N")
COUNT = _kind("a whole number of at least 1", lambda v: _is_int(v) and v >= 1, parse=texts.as_count, metavar="N")
NUMBER = _kind("a number greater than 0", _is_amount, parse=texts.as_number, metavar="NUMBER")
TIMEOUT = Kind("a number of seconds greater than 0", _read_timeout, texts.as_number, "SECONDS")
SECONDS = _kind("a number of seconds greater than 0", _is_amount, parse=texts.as_number, metavar="SECONDS")
NAMES = _kind("a list of text", is_list_of_text, store=_stored_list, parse=texts.as_list, metavar="A,B")
PATH = _kind("a path", is_path, store=os.fspath, metavar="PATH", anchor=anchored)
CLI = _kind("a path, 'auto', 'bundled' or 'global'", is_path, store=os.fspath, metavar="PATH", anchor=_anchored_cli)
PATHS = _kind(
    "a list of paths", _is_paths, store=_stored_paths, parse=texts.as_list, metavar="PATH", anchor=_anchored_paths
)
ENV = Kind("a mapping of variable names to text (None removes one)", _read_env, texts.as_mapping, "JSON|@FILE")
EXTRA = Kind(
    "a mapping of flag names without dashes to text, or None for a bare flag",
    _read_extra_args,
    texts.as_mapping,
    "JSON|@FILE",
)
RESTART = _choice("resume", "never")
ON_LIMIT = _choice("raise", "wait")
UNTIL = _choice("result", "idle")
ISOLATION = _choice("strict")
HOOKS = _kind("a mapping of event names to hooks", lambda v: isinstance(v, Mapping), parse=None, metavar="")
FUNCTIONS = _kind(
    "a list of functions, or of what @tool made of them",
    lambda v: isinstance(v, list | tuple),
    store=_stored_list,
    parse=None,
    metavar="",
)
CALLABLE = _kind("a callable", callable, parse=None, metavar="")
INSTRUMENTATION = _kind(
    "an Instrumentation, or a list of them",
    lambda v: all(callable(getattr(one, "query_started", None)) for one in _as_list(v)),
    store=_stored_ones,
    parse=None,
    metavar="",
)
TRANSPORT = _kind(
    "a Transport, or a callable that makes one",
    lambda v: callable(v) or hasattr(v, "receive"),
    parse=None,
    metavar="",
)
STORE = _kind(
    "a session store, with `append` and `load`",
    lambda v: not isinstance(v, type) and all(callable(getattr(v, name, None)) for name in ("append", "load")),
    parse=None,
    metavar="",
)
STORE_FLUSH = _choice("batched", "eager")
UUID = _kind("a UUID", _is_uuid, metavar="UUID")
USER = _kind("the name of a user, or a number", _is_user, parse=texts.as_user, metavar="NAME")
WAIT = _kind(
    "True, False, or a number of seconds greater than 0", _is_wait, parse=texts.as_wait, metavar="true|SECONDS"
)
DEBUG = _kind("True, False, or the categories to log", _is_debug, parse=texts.as_debug, metavar="true|A,B")
SOURCE_LIST = _kind(
    "a list of " + ", ".join(repr(name) for name in SOURCES),
    lambda v: is_list_of_text(v) and all(item in SOURCES for item in v),
    store=_stored_list,
    parse=texts.as_list,
    metavar="A,B",
)
EFFORT = _choice(*EFFORTS)
PERMISSION_MODE = _choice(*PERMISSION_MODES)
PROVIDER = _choice(*PROVIDERS)
ANSWERS = _choice("host", "none")
PROMPT_VIA = _choice("stdin", "argv")
TOOL_BRIDGE = _choice("mcp", "xml", "deferred")

MODELS = Kind("a model, or a list of models in the order to try", _form("models"), texts.as_text, "NAME")
TOOLS = Kind("a list of tool names, or 'default'", _form("tools"), texts.as_tools, "A,B")
SKILLS = Kind("a list of skill names, or 'all'", _form("skills"), texts.as_skills, "A,B")
ALIASES = Kind("a mapping of tool names to tool names", _form("aliases"), texts.as_mapping, "JSON|@FILE")
MAPPING = Kind("a mapping with text keys", _form("mapping"), texts.as_mapping, "JSON|@FILE")
CONFIG = Kind("a mapping, or a path or JSON text", _form("config"), texts.as_config, "PATH|JSON", _anchored_config)
SERVERS = Kind(
    "a mapping of names to servers, or a path or JSON text",
    _form("servers"),
    texts.as_config,
    "PATH|JSON",
    _anchored_config,
)
AGENTS = Kind("a mapping of names to agents", _form("agents"), texts.as_mapping, "JSON|@FILE")
SANDBOX = Kind("a Sandbox, or a mapping", _form("sandbox"), texts.as_mapping, "JSON|@FILE")
TOOL_CONFIG = Kind("a ToolConfig, or a mapping", _form("tool_config"), texts.as_mapping, "JSON|@FILE")
RETRY = Kind("a whole number of at least 0, or a RetryPolicy", _form("retry"), texts.as_retry, "N|JSON")
BUDGET = Kind("a whole number of tokens of at least 1", _form("task_budget"), texts.as_count, "N")
THINKING = Kind(
    "'adaptive', 'disabled', or an AdaptiveThinking, EnabledThinking or DisabledThinking",
    _form("thinking"),
    texts.as_text_or_mapping,
    "NAME|JSON",
)
SYSTEM_PROMPT = Kind(
    "text, or a SystemPromptPreset, SystemPromptFile or CustomSystemPrompt",
    _form("system_prompt"),
    texts.as_text,
    "TEXT",
    _anchored_form("anchored_system_prompt"),
)
PLUGINS = Kind(
    "a list of paths or Plugins", _form("plugins"), texts.as_list, "PATH", _anchored_form("anchored_plugins")
)
