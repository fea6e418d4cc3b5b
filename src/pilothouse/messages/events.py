"""Streaming events: what a `stream_event` message wraps (Messages API streaming, CLI 2.1.330).

Owns the events and deltas and their closed unions. Knows no message that carries them.
"""

# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty default

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilothouse.messages.base import Part, Unknown
from pilothouse.messages.blocks import ContentBlock
from pilothouse.messages.bodies import AssistantBody
from pilothouse.messages.usage import Usage


class Delta(Part, frozen=True, gc=False):
    """Base of the known deltas: what a `content_block_delta` adds to its block."""


class UnknownDelta(Unknown):
    """A delta of an unknown type, or without the field that its type requires."""

    __slots__ = ()


class TextDelta(Delta, frozen=True, gc=False, tag="text_delta"):
    """Wire type `text_delta`."""

    text: str


class ThinkingDelta(Delta, frozen=True, gc=False, tag="thinking_delta", omit_defaults=True):
    """Wire type `thinking_delta`."""

    thinking: str
    estimated_tokens: int | None = None


class InputJsonDelta(Delta, frozen=True, gc=False, tag="input_json_delta"):
    """Wire type `input_json_delta`: a piece of the JSON text of a tool call's input."""

    partial_json: str


class SignatureDelta(Delta, frozen=True, gc=False, tag="signature_delta"):
    """Wire type `signature_delta`: the signature of a thinking block."""

    signature: str


class CitationsDelta(Delta, frozen=True, gc=False, tag="citations_delta"):
    """Wire type `citations_delta`: one more citation of a text block."""

    citation: dict[str, Any]


class CompactionDelta(Delta, frozen=True, gc=False, tag="compaction_delta", omit_defaults=True):
    """Wire type `compaction_delta`: the content of a compaction block."""

    content: str | None = None
    encrypted_content: str | None = None


KnownDelta = TextDelta | ThinkingDelta | InputJsonDelta | SignatureDelta | CitationsDelta | CompactionDelta

# The decoder's unions are closed; unknown deltas and events enter through the lenient path only.
if TYPE_CHECKING:
    AnyDelta = KnownDelta | UnknownDelta
else:
    AnyDelta = KnownDelta


class Event(Part, frozen=True, gc=False):
    """Base of the known stream events."""


class UnknownEvent(Unknown):
    """An event of an unknown type, or without a field that its type requires."""

    __slots__ = ()


class MessageStart(Event, frozen=True, gc=False, tag="message_start"):
    """Wire type `message_start`: an API message begins, its content still empty."""

    message: AssistantBody


class ContentBlockStart(Event, frozen=True, gc=False, tag="content_block_start"):
    """Wire type `content_block_start`: block number `index` begins, usually empty."""

    content_block: ContentBlock
    index: int = 0


class ContentBlockDelta(Event, frozen=True, gc=False, tag="content_block_delta"):
    """Wire type `content_block_delta`: more of block number `index`."""

    delta: AnyDelta
    index: int = 0


class ContentBlockStop(Event, frozen=True, gc=False, tag="content_block_stop"):
    """Wire type `content_block_stop`: block number `index` is complete."""

    index: int = 0


class MessageEnding(Struct, frozen=True, gc=False):
    """The `delta` of a `message_delta`: why the message stopped."""

    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None


class MessageDelta(Event, frozen=True, gc=False, tag="message_delta"):
    """Wire type `message_delta`: the stop reason and the final usage."""

    delta: MessageEnding = MessageEnding()
    usage: Usage | None = None
    context_management: Any = None


class MessageStop(Event, frozen=True, gc=False, tag="message_stop"):
    """Wire type `message_stop`: the API message is complete."""


class Ping(Event, frozen=True, gc=False, tag="ping"):
    """Wire type `ping`: the connection is alive."""


class ErrorEvent(Event, frozen=True, gc=False, tag="error"):
    """Wire type `error`: the API failed in the middle of a stream."""

    error: dict[str, Any] = {}


KnownEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | ErrorEvent
)

if TYPE_CHECKING:
    AnyEvent = KnownEvent | UnknownEvent
else:
    AnyEvent = KnownEvent
