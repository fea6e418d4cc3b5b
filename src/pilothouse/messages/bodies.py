"""The `message` inside assistant and user messages: what the Messages API itself sends and takes.

Owns the two bodies. Knows nothing of the envelope that the CLI puts around them.
"""

from typing import Any, Literal

from msgspec import Struct

from pilothouse.messages.blocks import ContentBlock
from pilothouse.messages.usage import Usage


class AssistantBody(Struct, frozen=True, gc=False, kw_only=True):
    """An API message. In `assistant` lines of CLI 2.1.330 it holds one block, and `stop_reason` is null."""

    id: str | None = None
    type: Literal["message"] = "message"  # as a literal, it is no new string in each message
    role: Literal["assistant"] = "assistant"
    model: str | None = None
    content: list[ContentBlock] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage | None = None
    stop_details: Any = None
    context_management: Any = None
    diagnostics: Any = None
    container: Any = None


class UserBody(Struct, frozen=True, gc=False, kw_only=True):
    """What the user, or a tool, says: a string or a list of blocks."""

    role: Literal["user"] = "user"
    content: str | list[ContentBlock] = []
