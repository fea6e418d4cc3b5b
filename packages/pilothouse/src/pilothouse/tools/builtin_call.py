"""A call of a tool of Claude Code, by its name, its input and its output."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

NameT = TypeVar("NameT", bound=str)
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


class Call(NamedTuple, Generic[NameT, InputT, OutputT]):
    """A call of a tool of Claude Code.

    Args:
        name: of the tool.
        input: its input. It is not checked: a model may send anything.
        output: what it returned, as hooks get it; None before it has run.
    """

    name: NameT
    input: InputT
    output: OutputT | None = None
