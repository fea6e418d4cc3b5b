"""The error for an invalid value: where in the value, what was expected there, what was found.

Pure. Error texts never show secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pilothouse.options.secrets import SECRET_FIELDS, is_secret_name, mask

MAX_SHOWN_CHARS = 80  # of a value that is echoed


class InvalidValueError(ValueError):
    """A value is not valid.

    Args:
        value: the value.
        expected: what was expected, in words.
        path: where, inside the value of the option.
        message: the fault, in words, if `expected` and the value do not show it.
        hint: what to do, at the end.
    """

    def __init__(self, value: Any, expected: str, path: str = "", *, message: str = "", hint: str = "") -> None:
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
