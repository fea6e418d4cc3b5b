"""What all types of option values share: checks of text and paths, copies, and the error for an invalid value.

The error says where in the value, what was expected there, and what was found. Pure. Error texts never show secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from pilothouse.options.secrets import SECRET_FIELDS, is_secret_name, mask

MAX_SHOWN_CHARS = 80  # of a value that is echoed


class InvalidValueError(ValueError):
    """A value is not valid.

    Args:
        value: the value.
        expected: what was expected, in words; "": what the type of the option expects.
        path: where, inside the value of the option.
        message: the fault, in words, if `expected` and the value do not show it.
        hint: what to do, at the end.
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
        return InvalidValueError(
            self.value, self.expected, f"{step}{joint}{self.path}", message=self.message, hint=self.hint
        )

    def describe(self, *, secret: bool = False) -> str:
        """Return the error in one line; a secret value appears only as its type."""
        where = f"{self.path}: " if self.path else ""
        if self.message:
            return where + self.message
        steps = [step.partition("[")[0] for step in self.path.split(".")]
        hidden = secret or any(step in SECRET_FIELDS or is_secret_name(step) for step in steps)
        return f"{where}expected {self.expected}, got {format_value(self.value, is_secret=hidden)}{self.hint}"


def suggest_name(value: Any, names: Iterable[str]) -> str:
    """Return the end of an error, which suggests one of the names; empty if none is similar."""
    import difflib  # only needed for an error

    if not isinstance(value, str):
        return ""
    plain = {name.lower().replace("_", "").replace("-", ""): name for name in names}
    given = value.lower().replace("_", "").replace("-", "").replace(" ", "")
    close = [given] if given in plain else difflib.get_close_matches(given, plain, n=1, cutoff=0.75)
    return f"; did you mean {plain[close[0]]!r}?" if close else ""


def format_value(value: Any, *, is_secret: bool = False) -> str:
    """Return a value as text for an error: one line, short, ASCII, with its type."""
    kind = type(value).__name__
    if is_secret:
        return f"a value of type {kind}"
    text = ascii(mask(value))
    return f"{text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + '…'} ({kind})"


def redacted_repr(value: Any) -> str:
    """Return the repr of a value with possible keys masked."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return f"<JSON text of {len(value):,} characters>"
    return repr(mask(value))


def is_text(value: object) -> bool:
    """Whether `value` can be an argument or a JSON string: text without NUL and lone surrogates."""
    return isinstance(value, str) and "\0" not in value and not _has_surrogate(value)


def _has_surrogate(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)


def is_name(value: Any) -> bool:
    """Whether `value` is text with more than blanks."""
    return is_text(value) and bool(value.strip())


def is_text_list(value: object) -> bool:
    """Whether `value` is a list, tuple or set of text; text itself is not."""
    if isinstance(value, str | bytes | Mapping):
        return False
    return isinstance(value, Sequence | set | frozenset) and all(is_text(item) for item in cast("Sequence[Any]", value))


def copy_list(value: Any) -> list[Any]:
    """Return the items as a list; those of a set in their order."""
    # A set has no order; the same options should give the same command line.
    items = cast("list[Any]", value)
    return sorted(items) if isinstance(value, set | frozenset) else list(items)


def is_path(value: object) -> bool:
    """Whether `value` is a path that can be an argument."""
    if not isinstance(value, str | os.PathLike):
        return False
    path = os.fspath(cast("str | os.PathLike[str]", value))
    return is_text(path) and bool(path)


def resolve_path(value: Any, directory: str) -> str:
    """Return `value` as an absolute path, against `directory` if it is relative; a leading `~` stays."""
    path = cast("str", os.fspath(value))
    return path if path.startswith("~") else os.path.normpath(os.path.join(directory, path))  # noqa: PTH118


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
