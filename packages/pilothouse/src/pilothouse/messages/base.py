"""What every message has: its raw line, its ids, equality by meaning, a short repr, and conversion to JSON.

Owns the base classes of messages and of unknown parts. Must not know concrete messages, or how lines are decoded.
"""

from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
from msgspec import Struct, field

from pilothouse.messages.json_lines import decode_line, to_plain_scalar

# The wire name of the field that holds the raw line. The decoder overwrites any value that the CLI sends under it.
RAW_KEY = "<raw line>"
_SHOWN_TEXT = 60
_SHOWN_ITEMS = 3

Number = int | float

if TYPE_CHECKING:
    RawLine = bytes
else:
    # `Any`, because a line with this key must not fail the strict decoder, whatever its value.
    RawLine = Any


class Message(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base of all messages that the CLI sends outside the control protocol.

    Messages are immutable. `==` compares class and known fields, never the raw line. They pickle and copy.

    Attributes:
        raw_line: the line as it came, with its line end if it had one, so that fields unknown to this version are not
            lost; b"" if built by hand.
        session_id: the session of the message.
        uuid: the id of the message.
    """

    # Fields that are written even with their default value, because readers expect the key.
    always_sent: ClassVar[tuple[str, ...]] = ()
    # Fields in the repr; () means every field that differs from its default.
    repr_fields: ClassVar[tuple[str, ...]] = ()

    raw_line: RawLine = field(default=b"", name=RAW_KEY)
    session_id: str | None = None
    uuid: str | None = None

    @property
    def type(self) -> str:
        """The wire type, such as "assistant"."""
        return str(self.__struct_config__.tag)

    @property
    def raw(self) -> dict[str, Any]:
        """The whole message as a dict, unknown fields included; decoded from the line on each access."""
        return decode_line(self.raw_line) if self.raw_line else fields_to_dict(self)

    def replace(self, **changes: Any) -> "Message":
        """Return a copy with other field values and without the raw line, which would no longer match."""
        return msgspec.structs.replace(self, **{"raw_line": b"", **changes})

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Message) or self.__class__ is not other.__class__:
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in self._compared_fields())

    # Otherwise msgspec's own `__ne__` would compare the raw lines.
    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __repr__(self) -> str:
        return short_repr(
            self, self.repr_fields or tuple(name for name in self._compared_fields() if self._is_set(name))
        )

    @classmethod
    def _compared_fields(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.__struct_fields__ if name != "raw_line")

    def _is_set(self, name: str) -> bool:
        return name not in _ALWAYS_HIDDEN and getattr(self, name) not in _EMPTY


_ALWAYS_HIDDEN = frozenset({"raw_line", "uuid"})
_EMPTY: tuple[Any, ...] = (None, "", [], {}, (), False)


def _same(left: Any, right: Any) -> bool:
    return left is right or left == right


class UnknownPart:
    """A part of a message with an unknown type, or without a field that its type requires. Nothing is dropped.

    Attributes:
        type: its wire type; "" if it has none.
        data: the JSON value as it came.
    """

    __slots__ = ("data", "type")
    __match_args__ = ("type", "data")

    def __init__(self, type: str, data: Any) -> None:  # noqa: A002 - the wire calls it so
        self.type = type
        self.data = data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnknownPart) or self.__class__ is not other.__class__:
            return NotImplemented
        return self.type == other.type and _same(self.data, other.data)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - its data is mutable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type!r}, {short_value(self.data)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type, self.data)


class MessagePart(Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of the structs inside messages that carry a wire `type` of their own: blocks, events, deltas."""

    @property
    def type(self) -> str:
        """The wire type, such as "text" or "content_block_delta"."""
        return str(self.__struct_config__.tag)

    def __repr__(self) -> str:
        return short_repr(self, tuple(n for n in self.__struct_fields__ if getattr(self, n) is not None))


def fields_to_dict(message: Message) -> dict[str, Any]:
    """Build the wire form of a message from its fields only, without the unknown fields of its raw line."""
    data = cast("dict[str, Any]", to_json_values(message))
    data.pop(RAW_KEY, None)
    data["type"] = message.type
    wire_names = dict(zip(message.__struct_fields__, message.__struct_encode_fields__, strict=True))
    for name in message.always_sent:
        data.setdefault(wire_names[name], to_json_values(getattr(message, name)))
    return data


def to_json_values(value: Any) -> Any:
    """Convert structs and unknown parts to plain dicts and lists, and text of a derived class to plain text."""
    return msgspec.to_builtins(value, enc_hook=_unknown_to_json)


def _unknown_to_json(value: Any) -> Any:
    if isinstance(value, UnknownPart):
        return value.data
    return to_plain_scalar(value)


def short_repr(value: Any, names: tuple[str, ...]) -> str:
    """Return a repr in one readable line, whatever the size of the value."""
    inside = ", ".join(f"{name}={short_value(getattr(value, name))}" for name in names)
    return f"{type(value).__name__}({inside})"


def short_value(value: Any) -> str:
    """Return the repr of a field value, cut to a readable length."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN_TEXT:
        return f"{value[:_SHOWN_TEXT]!r}…"
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        shown = [short_value(item) for item in items[:_SHOWN_ITEMS]]
        return f"[{', '.join(shown + [f'… {len(items)} in all'] * (len(items) > _SHOWN_ITEMS))}]"
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        if len(fields) > _SHOWN_ITEMS:
            return f"{{… {len(fields)} keys}}"
        return "{" + ", ".join(f"{key!r}: {short_value(item)}" for key, item in fields.items()) + "}"
    return repr(value)
