"""The parts of a reply in the text protocol, in order of appearance. Pure.

Owns the events of the streaming parser. A call is announced once, its arguments follow in pieces, and at last the
whole call is either accepted or refused; no call runs before it is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field


class TextDelta(Struct, frozen=True):
    """More text of the answer."""

    text: str
    type: ClassVar[str] = "text-delta"


class ThinkingDelta(Struct, frozen=True):
    """More of the model's thinking, written between `<thinking>` tags."""

    text: str
    type: ClassVar[str] = "reasoning-delta"


class ToolCallStarted(Struct, frozen=True):
    """A call begins, and the name of its tool is known."""

    id: str
    name: str
    type: ClassVar[str] = "tool-call-start"


class ToolCallDelta(Struct, frozen=True):
    """More of the arguments of a call, as the model writes them."""

    id: str
    text: str
    type: ClassVar[str] = "tool-call-delta"


class ToolCall(Struct, frozen=True):
    """A whole call.

    Attributes:
        id: made here, unless the model gave a new one; results name it.
        name: the tool.
        arguments: the arguments, in the types of the schema as far as the text allows.
        raw: the call as the model wrote it, including tags.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw: str = ""
    type: ClassVar[str] = "tool-call"


class ToolCallError(Struct, frozen=True):
    """Text that was meant as a call and cannot be run.

    Attributes:
        id: like the id of a call; the response to the model names it.
        name: the tool, if the model named it.
        code: kind of the error: `missing_name`, `unknown_tool`, `invalid_call`, `invalid_json`, `unclosed` (a tag in
            the call, or the call when another began), `truncated`, `too_large`, `missing_suffix` (no nonce in the
            outer tag), or `invented_result` (the model made up a result; there is no call).
        message: what is wrong, for the model.
        raw: what the model wrote, including tags; only the beginning if it is too large.
    """

    id: str
    name: str | None
    code: str
    message: str
    raw: str = ""
    type: ClassVar[str] = "error"


class Finished(Struct, frozen=True):
    """The end of the reply; comes once, as the last event."""

    reason: Literal["stop", "tool-calls"]
    type: ClassVar[str] = "finish"


ParserEvent = TextDelta | ThinkingDelta | ToolCallStarted | ToolCallDelta | ToolCall | ToolCallError | Finished
