"""What a reply in the text protocol is made of, in order of appearance. Pure.

Owns the vocabulary of the streaming parser. A call is announced once, spelled out in pieces, and then either given
whole or refused; nothing runs before it is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field


class TextDelta(Struct, frozen=True):
    """More text of the answer. (S14)"""

    text: str
    type: ClassVar[str] = "text-delta"


class ThinkingDelta(Struct, frozen=True):
    """More of what the model thinks, written between `<thinking>` tags. (S29)"""

    text: str
    type: ClassVar[str] = "reasoning-delta"


class ToolCallStarted(Struct, frozen=True):
    """A call begins, and the name of its tool is known. (S10)"""

    id: str
    name: str
    type: ClassVar[str] = "tool-call-start"


class ToolCallDelta(Struct, frozen=True):
    """More of the arguments of a call, as the model writes them."""

    id: str
    text: str
    type: ClassVar[str] = "tool-call-delta"


class ToolCall(Struct, frozen=True):
    """A whole call. (S18, S19)

    Attributes:
        id: minted here, unless the model gave one that is new; results name it.
        name: the tool.
        arguments: what it is called with, in the types of its schema as far as the text allows.
        raw: the call as the model wrote it, tags included.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw: str = ""
    type: ClassVar[str] = "tool-call"


class ToolCallError(Struct, frozen=True):
    """Something that was meant to be a call and cannot be run. (S17, S24, S25)

    Attributes:
        id: as of a call; the answer to the model names it.
        name: the tool, if it was said.
        code: what kind of fault: `missing_name`, `unknown_tool`, `invalid_call`, `invalid_json`, `unclosed` (a tag in
            the call, or the call when another began), `truncated`, `too_large`, `missing_suffix` (no nonce in the outer
            tag), or `invented_result` (a result that the model made up; no call of its own).
        message: what is wrong, for the model.
        raw: what the model wrote, tags included; only the beginning of what is too large.
    """

    id: str
    name: str | None
    code: str
    message: str
    raw: str = ""
    type: ClassVar[str] = "error"


class Finished(Struct, frozen=True):
    """The reply is over; comes once, and last. (S15)"""

    reason: Literal["stop", "tool-calls"]
    type: ClassVar[str] = "finish"


ParserEvent = TextDelta | ThinkingDelta | ToolCallStarted | ToolCallDelta | ToolCall | ToolCallError | Finished
