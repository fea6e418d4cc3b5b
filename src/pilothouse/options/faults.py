"""What is wrong with a value: where in it, what was expected there, what was found. Pure.

Owns how wrong values are told, and that secrets are not.
"""

from __future__ import annotations

from typing import Any, cast

SHOWN_CHARS = 80  # of a value that is echoed
SECRET_FIELDS = frozenset({"env", "headers"})
"""Fields of nested values that hold keys more often than not."""
MASK = "[secret]"


class Fault(ValueError):  # noqa: N818 - a finding, which becomes an OptionsError
    """A value does not fit.

    Args:
        value: what was found.
        expected: what was expected, in words.
        path: where, inside the value of the option.
        instead: tells what is wrong, where `expected` and the value would not.
    """

    def __init__(self, value: Any, expected: str, path: str = "", *, instead: str = "") -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.path = path
        self.instead = instead

    def under(self, step: str) -> Fault:
        """The same, seen from one step further out; `step` is a key or `[n]`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return Fault(self.value, self.expected, f"{step}{joint}{self.path}", instead=self.instead)

    def told(self, *, secret: bool = False) -> str:
        """The whole in one line; a secret is named by its type."""
        where = f"{self.path}: " if self.path else ""
        if self.instead:
            return where + self.instead
        hidden = secret or any(step.partition("[")[0] in SECRET_FIELDS for step in self.path.split("."))
        return f"{where}expected {self.expected}, got {shown(self.value, hidden=hidden)}"


def shown(value: Any, *, hidden: bool = False) -> str:
    """A value as it stands in an error: one line, short, ASCII, with its type."""
    kind = type(value).__name__
    if hidden:
        return f"a value of type {kind}"
    text = ascii(masked(value))
    return f"{text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + '…'} ({kind})"


def masked(value: Any) -> Any:
    """A copy in which what `env` and `headers` hold is masked, at any depth."""
    if isinstance(value, dict):
        found = cast("dict[Any, Any]", value)
        return {k: _hidden(v) if k in SECRET_FIELDS else masked(v) for k, v in found.items()}
    if isinstance(value, list):
        return [masked(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(masked(item) for item in cast("tuple[Any, ...]", value))
    return value


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return dict.fromkeys(cast("dict[Any, Any]", value), MASK)
    return MASK


def display(value: Any) -> str:
    """A value as `repr` shows it, without what may be a key."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return f"<JSON text of {len(value):,} characters>"
    return repr(masked(value))
