"""Converts lines to messages and back; the only module that knows every message class.

Owns the strict single-pass decoder, the table of types, and the fallback to the lenient path. Must not know I/O or
the control protocol: the caller passes in its envelopes, which the same union decodes in the same pass.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import repeat
from typing import Any, Union, cast

import msgspec

from pilothouse.errors import LineDecodeError, MessageParseError
from pilothouse.messages import core
from pilothouse.messages.base import Message, fields_to_dict
from pilothouse.messages.coercion import NORMALIZERS, CoercionFailure, coerce_struct
from pilothouse.messages.core import AssistantMessage, ResultMessage, StreamEvent, UserMessage
from pilothouse.messages.json_lines import ERROR_HEAD_BYTES, decode_line, encode_json
from pilothouse.messages.system import COMMON_SUBTYPES, SystemMessage

_CLASSES: tuple[type[Message], ...] = (
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    UserMessage,
    core.ActiveGoalMessage,
    core.AuthStatusMessage,
    core.CommandLifecycleMessage,
    core.ConversationResetMessage,
    core.DoneMessage,
    core.KeepAliveMessage,
    core.PromptSuggestionMessage,
    core.RateLimitEvent,
    core.ToolProgressMessage,
    core.ToolUseSummaryMessage,
    core.TranscriptMirrorMessage,
)

# type -> class; other types decode as UnknownMessage.
MESSAGE_TYPES: dict[str, type[Message]] = {str(cls.__struct_config__.tag): cls for cls in _CLASSES}

# Exceptions of the strict decoder after which the lenient path may still read the line. All errors of msgspec and of
# invalid UTF-8 are ValueErrors.
_STRICT_FAILURES = (ValueError, RecursionError)
_set_field = msgspec.structs.force_setattr


class FrameDecoder:
    """Decodes lines of the wire into messages, and into the envelopes handed in.

    Args:
        extra: structs tagged by `type` that arrive among the messages, such as control requests. A struct with the
            type of a message replaces that message.
    """

    def __init__(self, extra: Iterable[type[msgspec.Struct]] = ()) -> None:
        extras = {str(cls.__struct_config__.tag): cls for cls in extra}
        self._types: dict[str, type[msgspec.Struct]] = {**MESSAGE_TYPES, **extras}
        self._strict = _strict_decoder(tuple(self._types.values()))
        self._second: dict[type, Callable[[Any, bytes], Any]] = {
            SystemMessage: self._decode_system,
            ResultMessage: self._decode_by_content,
        }

    def decode(self, line: bytes) -> Any:
        """Decode one line.

        Args:
            line: one JSON object; a final newline is allowed.

        Returns:
            A `Message`, or one of the extra structs.

        Raises:
            LineDecodeError: the line is not JSON, or is nested too deeply.
            MessageParseError: the line is JSON, but not an object with a string `type`.
        """
        try:
            message = self._strict(line)
        except _STRICT_FAILURES:
            return self._decode_leniently(line)
        try:
            _set_field(message, "raw_line", line)
        except AttributeError:
            return message
        second = self._second.get(message.__class__)
        return message if second is None else second(message, line)

    def decode_lines(self, lines: list[bytes]) -> tuple[list[Any], set[type]]:
        """Decode many lines at once.

        Returns:
            One item for each line, in order: the result of `decode`, or the error that `decode` would raise. And the
                set of their classes, where `SystemMessage` may stand for a subclass.
        """
        if len(lines) == 1:  # usual for control frames; for one line, the loops below would double the cost
            only = self._decoded_or_error(self.decode, lines[0])
            return [only], {type(only)}
        decoded: list[Any] = []
        remaining = iter(lines)
        while len(decoded) < len(lines):
            # These loops run in C for plain messages; a line that needs the lenient path interrupts them.
            try:
                decoded.extend(map(self._strict, remaining))
            except _STRICT_FAILURES:
                decoded.append(self._decoded_or_error(self._decode_leniently, lines[len(decoded)]))
        attaching = map(_set_field, decoded, repeat("raw_line"), lines)
        while True:
            try:
                deque(attaching, maxlen=0)
                break
            except (AttributeError, TypeError):
                continue  # an envelope or an error, which has no raw line; the loop continues after it
        kinds = set(map(type, decoded))
        if not self._second.keys().isdisjoint(kinds):
            for place, message in enumerate(decoded):
                second = self._second.get(message.__class__)
                if second is not None:
                    decoded[place] = second(message, lines[place])
        return decoded, kinds

    def _decoded_or_error(self, decode: Callable[[bytes], Any], line: bytes) -> Any:
        try:
            return decode(line)
        except (LineDecodeError, MessageParseError) as error:
            # The error is a value here; its frames would keep a whole chunk of lines alive.
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)

    def _decode_system(self, message: SystemMessage, line: bytes) -> Any:
        cls = _find_system_class(message.subtype)
        if cls is None:
            return message
        try:
            precise = _subtype_decoder(cls)(line)
        except _STRICT_FAILURES:
            return self._decode_leniently(line)
        _set_field(precise, "raw_line", line)
        return precise

    def _decode_by_content(self, message: ResultMessage, line: bytes) -> Any:
        # A cheap test first: few real results contain these texts, and the lenient path checks properly.
        if b'"output"' in line and b'"tool_use_id"' in line:
            return self._decode_leniently(line)
        return message

    def _decode_leniently(self, line: bytes) -> Any:
        data = decode_line(line)
        if not isinstance(data, dict):
            raise MessageParseError("a line of output is JSON but not an object", data=data)
        fields = cast("dict[str, Any]", data)
        kind = fields.get("type")
        if not isinstance(kind, str):
            raise MessageParseError("a line of output has no string `type`", data=fields)
        try:
            message = self._coerce_message(kind, fields)
        except (CoercionFailure, RecursionError) as error:
            raise MessageParseError(
                f"a line of type {kind[:ERROR_HEAD_BYTES]!r} cannot be read", data=fields
            ) from error
        with suppress(AttributeError):
            _set_field(message, "raw_line", line)
        return message

    def _coerce_message(self, kind: str, fields: dict[str, Any]) -> Any:
        form = NORMALIZERS.get(kind)
        if form is not None:
            fields = form(fields)
        cls = self._types.get(fields["type"])
        if cls is None:
            return core.UnknownMessage(kind=kind, session_id=_text(fields, "session_id"), uuid=_text(fields, "uuid"))
        if cls is SystemMessage:
            cls = _find_system_class(_text(fields, "subtype") or "") or SystemMessage
        return coerce_struct(cls, fields)


def _find_system_class(subtype: str) -> type[SystemMessage] | None:
    usual = COMMON_SUBTYPES.get(subtype)
    if usual is not None:
        return usual
    try:
        # Thirty more classes, which most runs do not need.
        from pilothouse.messages.system_subtypes import SYSTEM_SUBTYPES
    except OSError:  # out of file descriptors: the stream must go on, and the next call tries again
        return None
    return SYSTEM_SUBTYPES.get(subtype)


def _text(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


@cache
def _strict_decoder(classes: tuple[type[msgspec.Struct], ...]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(Union[classes]).decode  # noqa: UP007


@cache
def _subtype_decoder(cls: type[SystemMessage]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(cls).decode


@cache
def _default_decoder() -> FrameDecoder:
    return FrameDecoder()


def decode(line: bytes) -> Message:
    """Decode one line into a message. Control envelopes become `UnknownMessage`; see `FrameDecoder`.

    Raises:
        LineDecodeError: the line is not JSON.
        MessageParseError: the line is JSON, but not a message.
    """
    return _default_decoder().decode(line)


def from_dict(data: dict[str, Any]) -> Message:
    """Convert a wire object to a message; the result is the same as from decoding its line.

    Raises:
        MessageParseError: the object cannot be written as JSON, or is not a message.
    """
    return decode(encode_json(data))


def encode(message: Message) -> bytes:
    """Encode a message as one JSON line, without the newline.

    Returns the raw line if there is one, so that fields unknown to this version survive; else writes the fields.
    """
    raw = message.raw_line
    if not raw:
        return encode_json(fields_to_dict(message))
    return encode_json(decode_line(raw)) if b"\n" in (line := raw.strip()) else line


def to_dict(message: Message) -> dict[str, Any]:
    """Return the wire form of a message as a new dict: of its raw line if there is one, else of its fields."""
    return message.raw


def is_terminal(message: object) -> bool:
    """Whether a message ends a turn: a result, or the `done` of a mock stream."""
    return isinstance(message, ResultMessage | core.DoneMessage)
