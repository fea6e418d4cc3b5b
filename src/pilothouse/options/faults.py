"""What is wrong with a value: where in it, what was expected there, what was found. Pure.

Owns how wrong values are told, and that secrets are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pilothouse.options.secrets import SECRET_FIELDS, is_secret_name, mask

SHOWN_CHARS = 80  # of a value that is echoed


class Fault(ValueError):  # noqa: N818 - a finding, which becomes an OptionsError
    """A value does not fit.

    Args:
        value: what was found.
        expected: what was expected, in words.
        path: where, inside the value of the option.
        instead: tells what is wrong, where `expected` and the value would not.
        hint: what to do, at the end.
    """

    def __init__(self, value: Any, expected: str, path: str = "", *, instead: str = "", hint: str = "") -> None:
        super().__init__(expected)
        self.value = value
        self.expected = expected
        self.path = path
        self.instead = instead
        self.hint = hint

    def under(self, step: str) -> Fault:
        """The same, seen from one step further out; `step` is a key or `[n]`."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return Fault(self.value, self.expected, f"{step}{joint}{self.path}", instead=self.instead, hint=self.hint)

    def told(self, *, secret: bool = False) -> str:
        """The whole in one line; a secret is named by its type."""
        where = f"{self.path}: " if self.path else ""
        if self.instead:
            return where + self.instead
        steps = [step.partition("[")[0] for step in self.path.split(".")]
        hidden = secret or any(step in SECRET_FIELDS or is_secret_name(step) for step in steps)
        return f"{where}expected {self.expected}, got {shown(self.value, hidden=hidden)}{self.hint}"


def nearest(value: Any, names: Iterable[str]) -> str:
    """The end of an error, which asks whether one of the names was meant; empty if none is near."""
    import difflib  # only on the way to an error

    if not isinstance(value, str):
        return ""
    plain = {name.lower().replace("_", "").replace("-", ""): name for name in names}
    given = value.lower().replace("_", "").replace("-", "").replace(" ", "")
    close = [given] if given in plain else difflib.get_close_matches(given, plain, n=1, cutoff=0.75)
    return f"; did you mean {plain[close[0]]!r}?" if close else ""


def shown(value: Any, *, hidden: bool = False) -> str:
    """A value as it stands in an error: one line, short, ASCII, with its type."""
    kind = type(value).__name__
    if hidden:
        return f"a value of type {kind}"
    text = ascii(mask(value))
    return f"{text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + '…'} ({kind})"


def display(value: Any) -> str:
    """A value as `repr` shows it, without what may be a key."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return f"<JSON text of {len(value):,} characters>"
    return repr(mask(value))
