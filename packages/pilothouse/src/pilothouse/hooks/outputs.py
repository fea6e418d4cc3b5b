"""What a hook returns: its fields, the equivalent dicts, and the wire form.

Owns the check that an output fits its event, and the encoding. Must not know callbacks or failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, field

from pilothouse.errors import UsageError
from pilothouse.hints import ExplainedStructMeta, find_similar_name
from pilothouse.hooks.events import HOOK_EVENTS, HookEventSpec, RefusalFormat, find_refusal_format, is_gate
from pilothouse.protocol import encode_line


class HookOutput(Struct, metaclass=ExplainedStructMeta, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The output of a hook. Fields that are None are not sent; an output without any field means no opinion.

    The fields from `permission_decision` on belong to single events, and are an error in others.

    Attributes:
        continue_: False ends the turn.
        stop_reason: why, for the user; with `continue_=False`.
        suppress_output: keep the output of the hook out of the transcript.
        system_message: a message to the user.
        terminal_sequence: an escape sequence for the terminal; titles and notifications only.
        decision: "block" refuses, in the form of the event; on Stop, SubagentStop, TaskCompleted and TeammateIdle it
            makes the work go on. "approve" is the older form of `permission_decision="allow"`.
        reason: why; after a block, the model reads it.
        async_: True: the CLI does not wait for this hook and assumes no opinion. Cannot be combined with other
            fields.
        async_timeout: milliseconds, with `async_`. The CLI ignores it for hooks of a program.
        permission_decision: "allow", "deny", "ask" or "defer" the tool call; PreToolUse, PreSkillShellCommand (all but
            "allow" deny), PermissionRequest (allow, deny) and PreModelSwitch (allow, deny, ask). Deferring ends the
            turn, and leaves the call to your program.
        permission_decision_reason: why.
        updated_input: the tool runs with this input instead; PreToolUse, PermissionRequest. In PreSkillShellCommand it
            denies.
        updated_permissions: rules to add with the permission; PermissionRequest.
        interrupt: a denial also ends the turn; PermissionRequest.
        additional_context: text for the model.
        classifier_context: text for the classifier of permission mode "auto"; PostToolUse.
        updated_tool_output: the model sees this instead of the result, in the form of that tool; PostToolUse.
        updated_mcp_tool_output: the same, for tools of MCP servers only.
        session_title: a title for the session; UserPromptSubmit, SessionStart.
        suppress_original_prompt: a block does not show the prompt; UserPromptSubmit, UserPromptExpansion.
        initial_user_message: a first prompt; SessionStart.
        watch_paths: absolute paths to send FileChanged for; SessionStart, CwdChanged, FileChanged.
        reload_skills: look for skills again; SessionStart.
        retry: tell the model that it may try again; PermissionDenied.
        action: "accept", "decline" or "cancel"; Elicitation, ElicitationResult.
        content: the user's input to the form; Elicitation, ElicitationResult.
        worktree_path: absolute path of the created worktree; WorktreeCreate.
        display_content: shown instead of the text; MessageDisplay.
    """

    continue_: bool | None = field(default=None, name="continue")
    stop_reason: str | None = None
    suppress_output: bool | None = None
    system_message: str | None = None
    terminal_sequence: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    async_: bool | None = field(default=None, name="async")
    async_timeout: int | float | None = None
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    updated_permissions: list[Any] | None = None
    interrupt: bool | None = None
    additional_context: str | None = None
    classifier_context: str | None = None
    updated_tool_output: Any = None
    updated_mcp_tool_output: Any = field(default=None, name="updatedMCPToolOutput")
    session_title: str | None = None
    suppress_original_prompt: bool | None = None
    initial_user_message: str | None = None
    watch_paths: list[str] | None = None
    reload_skills: bool | None = None
    retry: bool | None = None
    action: Literal["accept", "decline", "cancel"] | None = None
    content: dict[str, Any] | None = None
    worktree_path: str | None = None
    display_content: str | None = None

    @classmethod
    def allow(cls, updated_input: dict[str, Any] | None = None, *, reason: str | None = None) -> HookOutput:
        """Allow the tool call, with another input if one is given; PreToolUse, PermissionRequest, PreModelSwitch."""
        return cls(permission_decision="allow", permission_decision_reason=reason, updated_input=updated_input)

    @classmethod
    def deny(cls, reason: str) -> HookOutput:
        """Refuse the tool call; the model reads why. Other events that can be refused are refused too."""
        return cls(permission_decision="deny", permission_decision_reason=reason)

    @classmethod
    def block(cls, reason: str) -> HookOutput:
        """Refuse, in the form of the event; on Stop and SubagentStop, make the model go on."""
        return cls(decision="block", reason=reason)

    @classmethod
    def context(cls, text: str) -> HookOutput:
        """Give the model text to read."""
        return cls(additional_context=text)


_WIRE_NAMES: Final = dict(zip(HookOutput.__struct_fields__, HookOutput.__struct_encode_fields__, strict=True))
_FIELD_NAMES: Final = {**{wire: name for name, wire in _WIRE_NAMES.items()}, **{name: name for name in _WIRE_NAMES}}
_SPECIFIC_KEYS: Final = ("hookSpecificOutput", "hook_specific_output")
_DECISION_KEYS: Final = ("permissionDecision", "permissionDecisionReason")
_NAME_KEYS: Final = ("hookEventName", "hook_event_name")
# The fields of every event; the other fields are sent inside `hookSpecificOutput`.
_COMMON_FIELDS: Final = HookOutput.__struct_fields__[: HookOutput.__struct_fields__.index("permission_decision")]
# `hookSpecificOutput.decision` of PermissionRequest: its keys, by the fields of `HookOutput`.
_REQUEST_FIELDS: Final = {
    "behavior": "permission_decision",
    "message": "permission_decision_reason",
    "updatedInput": "updated_input",
    "updated_input": "updated_input",
    "updatedPermissions": "updated_permissions",
    "updated_permissions": "updated_permissions",
    "interrupt": "interrupt",
}
_PERMISSION_DECISIONS: Final = {
    "PreToolUse": ("allow", "deny", "ask", "defer"),
    "PreSkillShellCommand": ("allow", "deny", "ask", "defer"),
    "PreModelSwitch": ("allow", "deny", "ask"),
    "PermissionRequest": ("allow", "deny"),
}
_DECISION_SYNONYMS: Final[dict[Any, str]] = {"block": "deny", "approve": "allow"}
_ALLOW_FIELDS: Final = ("updated_input", "updated_permissions")


def encode_output(output: Any, event_name: str) -> dict[str, Any]:
    """Encode what a hook returned as the payload of a response.

    Args:
        output: None, a `HookOutput`, or a mapping with the same fields, in snake_case or as on the wire.
        event_name: the event that the hook was called with.

    Raises:
        UsageError: the output is of another type, does not fit the event, or is not JSON.
    """
    if output is None or (isinstance(output, dict) and not output):
        return {}
    rule = HOOK_EVENTS.get(event_name)
    extra: dict[str, Any] = {}
    if isinstance(output, HookOutput):
        values = {name: value for name, value in msgspec.structs.asdict(output).items() if value is not None}
    elif isinstance(output, Mapping):
        values = _read_mapping(cast("Mapping[Any, Any]", output), event_name, extra)
    else:
        raise UsageError(f"a hook returns None, a dict or a HookOutput, not {type(output).__name__}")
    if not values and not extra:
        return {}
    _check_types(values)
    payload = _encode_async(values) if values.get("async_") else _encode_sync(values, event_name, rule, extra)
    encode_line(payload)  # an output that cannot be encoded is a failure of the hook, not of the connection
    return payload


def make_refusal(event_name: str, reason: str) -> dict[str, Any] | None:
    """Return the payload that refuses an event, or None if the event has no refusal."""
    refusal_format = find_refusal_format(event_name)
    if refusal_format is RefusalFormat.NONE:
        return None
    hides = {"suppress_original_prompt": True} if refusal_format is RefusalFormat.PROMPT else {}
    refusal = {"decision": "block", "reason": reason, **hides}
    return _encode_sync(refusal, event_name, HOOK_EVENTS.get(event_name), {})


# reading


def _read_mapping(output: Mapping[Any, Any], event_name: str, extra: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in output.items():
        if key in _SPECIFIC_KEYS:
            _read_specific(value, event_name, values, extra)
        else:
            _set_field(values, _find_field(key, _FIELD_NAMES), value)
    return values


def _read_specific(part: Any, event_name: str, values: dict[str, Any], extra: dict[str, Any]) -> None:
    if part is None:
        return
    for key, value in _items(part, "hookSpecificOutput"):
        if key in _NAME_KEYS:
            if value != event_name:
                raise UsageError(f"the output names the event {value!r}, and is to {event_name}")
        elif key == "decision" and event_name == "PermissionRequest":
            for name, item in _items(value, "decision"):
                _set_field(values, _find_field(name, _REQUEST_FIELDS), item)
        elif event_name not in HOOK_EVENTS and not (is_gate(event_name) and key in _DECISION_KEYS):
            extra[key] = value  # the fields of an unknown event cannot be checked
        else:
            _set_field(values, _find_field(key, _FIELD_NAMES), value)


def _items(part: Any, name: str) -> list[tuple[Any, Any]]:
    if not isinstance(part, Mapping):
        raise UsageError(f"{name} is an object, not {type(part).__name__}")
    return list(cast("Mapping[Any, Any]", part).items())


def _find_field(key: Any, known: Mapping[str, str]) -> str:
    found = known.get(key) if isinstance(key, str) else None
    if found is not None:
        return found
    near = find_similar_name(str(key), known)
    raise UsageError(f"unknown key {key!r:.60} in the output" + (f"; did you mean {near!r}?" if near else ""))


def _set_field(values: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        return
    if name in values:
        raise UsageError(f"the output contains {name} twice")
    values[name] = value


def _check_types(values: Mapping[str, Any]) -> None:
    try:
        msgspec.convert({_WIRE_NAMES[name]: value for name, value in values.items()}, HookOutput)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the output does not fit: {error}") from None


# writing


def _encode_async(values: Mapping[str, Any]) -> dict[str, Any]:
    others = sorted(set(values) - {"async_", "async_timeout"})
    if others:
        raise UsageError(f"async_ stands alone: nobody waits for {', '.join(others)}")
    return {_WIRE_NAMES[name]: value for name, value in values.items()}


def _encode_sync(
    values: Mapping[str, Any], event_name: str, rule: HookEventSpec | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    refusal_format = find_refusal_format(event_name)
    given = _normalize_decision(
        refusal_format, {name: value for name, value in values.items() if name not in ("async_", "async_timeout")}
    )
    own = {name: value for name, value in given.items() if name not in _COMMON_FIELDS}
    if rule is not None:
        _check_fields(own, rule)
    payload = {_WIRE_NAMES[name]: value for name, value in given.items() if name in _COMMON_FIELDS}
    specific = {_WIRE_NAMES[name]: value for name, value in own.items()} | dict(extra)
    if refusal_format is RefusalFormat.REQUEST:
        specific = _encode_request_decision(own)
    if specific:
        payload["hookSpecificOutput"] = {"hookEventName": event_name, **specific}
    return payload


def _normalize_decision(refusal_format: RefusalFormat, values: dict[str, Any]) -> dict[str, Any]:
    """Convert a decision to the form of the event: `decision` and `permission_decision` mean the same."""
    if refusal_format is RefusalFormat.NONE:
        return values
    if refusal_format in (RefusalFormat.PERMISSION, RefusalFormat.REQUEST):
        decision = _DECISION_SYNONYMS.get(values.get("decision"))
        if decision is None:
            return values
        if values.get("permission_decision", decision) != decision:
            raise UsageError(f"decision={values['decision']!r} contradicts permission_decision")
        rest = {name: value for name, value in values.items() if name not in ("decision", "reason")}
        reason = {"permission_decision_reason": values["reason"]} if "reason" in values else {}
        return {"permission_decision": decision, **reason, **rest}
    if values.get("permission_decision") == "deny":
        reason = values.get("permission_decision_reason")
        rest = {name: value for name, value in values.items() if not name.startswith("permission_decision")}
        values = {"decision": "block", **({} if reason is None else {"reason": reason}), **rest}
    if refusal_format is RefusalFormat.ELICITATION and (
        values.get("action") == "decline" or values.get("decision") == "block"
    ):
        # The CLI reads one or the other, depending on the path of the request.
        values = {"decision": "block", "action": "decline", **values}
    return values


def _check_fields(own: Mapping[str, Any], rule: HookEventSpec) -> None:
    foreign = sorted(set(own) - rule.output_fields)
    if foreign:
        raise UsageError(f"{rule.name} takes no {', '.join(foreign)}")
    decision = own.get("permission_decision")
    if decision is not None and decision not in _PERMISSION_DECISIONS[rule.name]:
        allowed = ", ".join(_PERMISSION_DECISIONS[rule.name])
        raise UsageError(f"permission_decision of {rule.name} is one of {allowed}, not {decision}")


def _encode_request_decision(own: Mapping[str, Any]) -> dict[str, Any]:
    if not own:
        return {}
    decision = own.get("permission_decision")
    if decision is None:
        raise UsageError(f"PermissionRequest takes {', '.join(sorted(own))} with permission_decision only")
    stray = [name for name in (_ALLOW_FIELDS if decision == "deny" else ("interrupt",)) if name in own]
    if stray:
        raise UsageError(f"{', '.join(stray)} does not go with permission_decision={decision!r}")
    answer = {
        "behavior": decision,
        **{_WIRE_NAMES[name]: own[name] for name in (*_ALLOW_FIELDS, "interrupt") if name in own},
    }
    if decision == "deny" and "permission_decision_reason" in own:
        answer["message"] = own["permission_decision_reason"]
    return {"decision": answer}
