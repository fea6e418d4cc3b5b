"""What every hook event has: the fields they share, the input as it came, and how an input becomes an event.

Owns reading: a value of an unexpected type, or an unknown field, is never fatal and never lost. Knows no concrete
event.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from pilothouse.messages.base import brief_value

# What the wire calls the name of an event.
EVENT_KEY = "hook_event_name"
# The wire name of the field that holds the input; no peer sends it.
_RAW_KEY = "<raw input>"

E = TypeVar("E", bound="HookEvent")


class Effort(Struct, frozen=True):
    """How hard the model thinks; `level` is "low", "medium", "high", "xhigh", "max" or a newer one."""

    level: str = ""


class McpServerOrigin(Struct, frozen=True):
    """The MCP server a tool belongs to, and where it was defined: "sdk", "plugin", "user", "project" and others."""

    name: str = ""
    source: str = ""


class HookEvent(Struct, frozen=True, kw_only=True, tag_field=EVENT_KEY, tag=""):
    """Base of the events that hooks are called with. (R14)

    A field that the peer left out has its default. One whose value is of another type than declared here holds that
    value as it came, so that a check that trips over it fails instead of passing.

    Attributes:
        raw: the input as it came, unknown fields included; {} if built by hand.
        session_id: the conversation.
        transcript_path: the file of its transcript.
        cwd: working directory.
        prompt_id: the prompt that this follows from; None before the first one.
        permission_mode: "default", "acceptEdits", "plan", "dontAsk", "auto" or "bypassPermissions", where it matters.
        agent_id: the subagent in which it happened; None in the main thread.
        agent_type: the type of that subagent, or of the agent that is the main thread.
        effort: how hard the model thinks, in events of a turn.
    """

    raw: dict[str, Any] = field(default_factory=dict[str, Any], name=_RAW_KEY)
    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    prompt_id: str | None = None
    permission_mode: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    effort: Effort | None = None

    @property
    def event_name(self) -> str:
        """Name of the event on the wire, such as "PreToolUse"."""
        return str(self.__struct_config__.tag)

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "raw")
        shown = (f"{name}={brief_value(value)}" for name, value in values if value not in (None, "", [], {}))
        return f"{type(self).__name__}({', '.join(shown)})"


class UnknownHookEvent(HookEvent, frozen=True, kw_only=True, tag="<unknown>"):
    """An event that this version does not know. Its own fields are in `raw`."""

    @property
    def event_name(self) -> str:
        """Name of the event on the wire; "" if it has none."""
        name = self.raw.get(EVENT_KEY)
        return name if isinstance(name, str) else ""


def read_event(cls: type[E], data: Mapping[str, Any]) -> E:
    """Make the input of a hook an event.

    Args:
        cls: the class of the event.
        data: the input object, as it came.
    """
    raw = dict(data)
    try:
        event = msgspec.convert(raw, cls)
    except (ValueError, TypeError, RecursionError):
        event = _read_field_by_field(cls, raw)
    msgspec.structs.force_setattr(event, "raw", raw)
    return event


def _read_field_by_field(cls: type[E], raw: Mapping[str, Any]) -> E:
    known = {name: raw[wire] for name, wire in _wire_names(cls).items() if wire in raw}
    return cls(**{name: _read_value(kind, known[name]) for name, kind in _kinds(cls).items() if name in known})


@functools.cache
def _wire_names(cls: type[HookEvent]) -> dict[str, str]:
    names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    del names["raw"]
    return names


@functools.cache
def _kinds(cls: type[HookEvent]) -> dict[str, Any]:
    return {info.name: info.type for info in msgspec.structs.fields(cls)}


def _read_value(kind: Any, value: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (ValueError, TypeError, RecursionError):
        return value
