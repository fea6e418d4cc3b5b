"""Gives mkdocstrings the examples in docstrings as fenced code: what is indented below `::`, and what follows `>>>`."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SESSION = re.compile(r"(?m)^( *)>>> (?:.*\n)(?:\1\S.*\n)*")
_EXAMPLE = re.compile(r"(?m)^(?P<text>.*?) ?::\n\n(?P<code>(?:    .*\n?|\n)+)")


def fence_examples(text: str) -> str:
    """Return a docstring whose examples are fenced."""

    def fence(match: re.Match[str]) -> str:
        code = "\n".join(line.removeprefix("    ") for line in match["code"].rstrip().split("\n"))
        return f"{match['text']}\n\n```python\n{code}\n```\n\n"

    fenced = _EXAMPLE.sub(fence, text + "\n")
    return _SESSION.sub(lambda match: f"\n{match[1]}```pycon\n{match[0]}{match[1]}```\n", fenced).strip()


class FencedExamples(griffe.Extension):
    """Fences the examples of each docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)
