"""Makes messages of `claude_agent_sdk` from the dictionaries of the wire, by a table of their classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, cast

from .. import types
from .._errors import MessageParseError
from ..types import Message

logger = logging.getLogger("pilothouse.compat")

_BLOCKS: Final[dict[str, type]] = {
    "text": types.TextBlock,
    "thinking": types.ThinkingBlock,
    "tool_use": types.ToolUseBlock,
    "tool_result": types.ToolResultBlock,
    "server_tool_use": types.ServerToolUseBlock,
    "advisor_tool_result": types.ServerToolResultBlock,
}
_USER_BLOCKS: Final = {kind: _BLOCKS[kind] for kind in ("text", "tool_use", "tool_result")}
_SYSTEM: Final[dict[str, type]] = {
    "task_started": types.TaskStartedMessage,
    "task_progress": types.TaskProgressMessage,
    "task_notification": types.TaskNotificationMessage,
    "task_updated": types.TaskUpdatedMessage,
    "mirror_error": types.MirrorErrorMessage,
    "hook_started": types.HookEventMessage,
    "hook_response": types.HookEventMessage,
}
_PLAIN: Final[dict[str, type]] = {
    "result": types.ResultMessage,
    "stream_event": types.StreamEvent,
    "conversation_reset": types.ConversationResetMessage,
}
_REQUIRED: Final[dict[type, dict[str, bool]]] = {}
"""The fields of each class, and whether a message must have them."""
_EMPTY: Final[dict[str, Any]] = {"int": 0, "bool": False, "dict[str, Any]": {}}
"""What stands for a missing field, by its type; "" for texts."""


def parse_message(data: dict[str, Any]) -> Message | None:
    """Make a message; None for a type that this version does not know.

    Raises MessageParseError if a field is missing, or has another form.
    """
    return _parse(data, is_strict=True)


_parse_message: Final = parse_message


def is_replaced(parser: Any) -> bool:
    """Whether the program has put a function of its own in the place of `parse_message`."""
    return parser is not _parse_message


def read_message(data: dict[str, Any]) -> Message | None:
    """Make a message like `parse_message`, but never fail: a missing field is empty, and the rest is kept.

    A function that the program has put in the place of `parse_message` is called instead.
    """
    if is_replaced(parse_message):
        return parse_message(data)
    try:
        return _parse(data, is_strict=False)
    except (MessageParseError, TypeError, AttributeError) as error:
        logger.warning("a message of the CLI has an unexpected form: %s", error)
        return types.SystemMessage(subtype=f"unreadable_{data.get('type')}", data=data)


def _parse(data: Any, *, is_strict: bool) -> Message | None:
    if not isinstance(data, dict):
        raise MessageParseError(f"Invalid message data type (expected dict, got {type(data).__name__})", data)
    given = cast("dict[str, Any]", data)
    kind = given.get("type")
    if not kind:
        raise MessageParseError("Message missing 'type' field", given)
    try:
        return _read(kind, given, is_strict)
    except KeyError as error:
        raise MessageParseError(f"Missing required field in {kind} message: {error}", given) from error


def _read(kind: str, data: dict[str, Any], is_strict: bool) -> Message | None:
    if kind == "system":
        return _read_system(data, is_strict)
    if kind in ("user", "assistant"):
        return _read_spoken(kind, data, is_strict)
    if kind == "rate_limit_event":
        info = _get_body(data, "rate_limit_info", is_strict)
        limit = _make(types.RateLimitInfo, {_to_snake(key): value for key, value in info.items()}, is_strict, raw=info)
        return _make(types.RateLimitEvent, data, is_strict, rate_limit_info=limit)
    if kind not in _PLAIN:
        logger.debug("a message of the unknown type %s is skipped", kind)
        return None
    own: dict[str, Any] = {}
    if kind == "result":
        deferred = data.get("deferred_tool_use")
        own = {"model_usage": data.get("modelUsage"), "origin": _read_origin(data)}
        own["deferred_tool_use"] = _make(types.DeferredToolUse, deferred, is_strict) if deferred else None
    return _make(_PLAIN[kind], data, is_strict, **own)


def _read_system(data: dict[str, Any], is_strict: bool) -> Message:
    subtype = data["subtype"] if is_strict else str(data.get("subtype") or "")
    found = _SYSTEM.get(subtype, types.SystemMessage)
    own: dict[str, Any] = {"data": data, "subtype": subtype}
    if found is types.HookEventMessage:
        names = (data.get(key) for key in ("hook_event", "hook_name", "hook_event_name"))
        own["hook_event_name"] = next(filter(None, names), "")
    elif found is types.TaskUpdatedMessage:
        patch: Any = data.get("patch")
        own["patch"] = cast("dict[str, Any]", patch) if isinstance(patch, dict) else {}
        own |= {"status": own["patch"].get("status"), "task_id": data.get("task_id", "")}
    return _make(found, data, is_strict, **own)


def _read_spoken(kind: str, data: dict[str, Any], is_strict: bool) -> Message:
    body = _get_body(data, "message", is_strict)
    content: Any = body["content"] if is_strict else body.get("content", [])
    if kind == "assistant":
        if not isinstance(content, list):
            raise MessageParseError(f"Invalid assistant content (expected list, got {type(content).__name__})", data)
        blocks = _read_blocks(content, _BLOCKS, data, is_strict)
        model = body["model"] if is_strict else body.get("model", "")
        own = {"usage": body.get("usage"), "message_id": body.get("id"), "stop_reason": body.get("stop_reason")}
        return _make(types.AssistantMessage, data, is_strict, content=blocks, model=model, **own)
    blocks = _read_blocks(content, _USER_BLOCKS, data, is_strict) if isinstance(content, list) else content
    return _make(types.UserMessage, data, is_strict, content=blocks, origin=_read_origin(data))


def _get_body(data: dict[str, Any], name: str, is_strict: bool) -> dict[str, Any]:
    return data[name] if is_strict else data.get(name) or {}


def _read_blocks(content: Any, known: Mapping[str, type], data: dict[str, Any], is_strict: bool) -> list[Any]:
    for block in content:
        if not isinstance(block, dict):
            raise MessageParseError(f"Invalid content block (expected dict, got {type(block).__name__})", data)
    kinds = [(known.get(block["type"] if is_strict else block.get("type")), block) for block in content]
    return [_make(found, block, is_strict) for found, block in kinds if found is not None]


def _read_origin(data: Mapping[str, Any]) -> Any:
    origin: Any = data.get("origin")
    named = isinstance(origin, dict) and isinstance(cast("dict[str, Any]", origin).get("kind"), str)
    return cast("Any", origin) if named else None


def _make(found: type, data: Mapping[str, Any], is_strict: bool, /, **own: Any) -> Any:
    """Make an instance: `own` values first, then those of `data`; a missing one has its default, or is empty."""
    required = _REQUIRED.get(found) or _list_fields(found)
    values = own
    for name, is_needed in required.items():
        if name in own:
            continue
        if name in data:
            values[name] = data[name]
        elif is_needed:
            if is_strict:
                raise KeyError(name)
            values[name] = _EMPTY.get(str(found.__dataclass_fields__[name].type), "")  # type: ignore[attr-defined]
    return found(**values)


def _list_fields(found: type) -> dict[str, bool]:
    listed = {each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(found)}
    _REQUIRED[found] = listed
    return listed


def _to_snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
