"""Callbacks of `claude_agent_sdk`, permissions and hooks, as callbacks of pilothouse."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping
from typing import Any, Final, cast

from pilothouse.hooks import HOOK_EVENTS, HookMatcher, HookOutput
from pilothouse.permissions import Allow, Decision, Deny, PermissionRequest, UnknownUpdate

from .types import (
    CanUseToolShadowedWarning,
    ClaudeAgentOptions,
    PermissionResultAllow,
    PermissionResultDeny,
    PermissionUpdate,
    ToolPermissionContext,
)

log = logging.getLogger("pilothouse.compat")

_SPECIFIC: Final = "hookSpecificOutput"
_RENAMED: Final = {"async_": "async", "continue_": "continue"}
_OUTPUT_KEYS: Final = frozenset({*HookOutput.__struct_encode_fields__, "hookEventName", "decision", _SPECIFIC})
_CONTEXT: Final = ("tool_use_id", "agent_id", "blocked_path", "title", "display_name", "description")


def check_can_use_tool(options: ClaudeAgentOptions) -> None:
    """Check `can_use_tool`, which excludes a `permission_prompt_tool_name`; warn about tools that never ask it."""
    if options.can_use_tool is None:
        return
    if options.permission_prompt_tool_name:
        raise ValueError("can_use_tool callback cannot be used with permission_prompt_tool_name. Remove one of them.")
    text = _describe_shadow(options)
    if text is not None:
        warnings.warn(text, CanUseToolShadowedWarning, stacklevel=3)


def _describe_shadow(options: ClaudeAgentOptions) -> str | None:
    advice = "Decide in a PreToolUse hook, which sees every call"
    if options.permission_mode == "bypassPermissions":
        return f"can_use_tool will not be invoked: permission_mode 'bypassPermissions' allows every call. {advice}."
    entries = [*options.allowed_tools, *(["Skill"] if options.skills == "all" else [])]
    tools = dict.fromkeys(filter(None, map(_find_unrestricted_tool, entries)))
    if not tools:
        return None
    return (
        f"can_use_tool will not be invoked for: {', '.join(tools)}. An entry of allowed_tools without a pattern allows "
        f"every call of the tool. {advice}, or narrow the entry."
    )


def _find_unrestricted_tool(entry: str) -> str | None:
    """Return the tool whose every call the entry allows."""
    name, opening, rest = entry.partition("(")
    if not opening:
        return entry if entry.strip() else None
    return name if name and rest in (")", "*)") else None


def make_can_use_tool(function: Any) -> Any:
    """Return a permission callback of pilothouse that calls `function(name, input, context)`."""

    async def can_use_tool(request: PermissionRequest) -> Decision:
        given: list[dict[str, Any]] = request.raw.get("permission_suggestions") or []
        context = ToolPermissionContext(
            suggestions=[PermissionUpdate.from_dict(each) for each in given],
            decision_reason=request.reason,
            **{name: getattr(request, name) or None for name in _CONTEXT},
        )
        answer: Any = function(request.tool_name, request.tool_input, context)
        return _read_decision(await answer if inspect.isawaitable(answer) else answer)

    return can_use_tool


def _read_decision(answer: Any) -> Decision:
    if isinstance(answer, PermissionResultDeny):
        return Deny(answer.message, interrupt=answer.interrupt)
    if not isinstance(answer, PermissionResultAllow):
        raise TypeError(
            "Tool permission callback must return PermissionResult (PermissionResultAllow or PermissionResultDeny), "
            f"got {type(answer)}"
        )
    updates: list[UnknownUpdate] | None = None
    try:
        if answer.updated_permissions is not None:
            updates = [UnknownUpdate(each.type, each.to_dict()) for each in answer.updated_permissions]
    except ValueError as error:
        log.warning("no permission update is sent: %s", error)
    return Allow(answer.updated_input, updates)


def make_hooks(hooks: Mapping[Any, Any]) -> dict[str, list[HookMatcher]]:
    made: dict[str, list[HookMatcher]] = {}
    for event, matchers in hooks.items():
        for matcher in matchers:
            if not hasattr(matcher, "hooks"):  # such as a dictionary, whose hooks would never be called
                raise TypeError(f"hooks[{event!r}]: expected a list of HookMatcher, got {type(matcher).__name__}")
            if matcher.hooks:
                made.setdefault(event, []).append(
                    HookMatcher(
                        matcher.matcher,
                        [_make_hook(function, event) for function in matcher.hooks],
                        timeout=matcher.timeout,
                        on_failure=matcher.on_failure,
                        is_unlisted=event not in HOOK_EVENTS,
                    )
                )
    return made


def _make_hook(function: Any, event_name: str) -> Any:
    async def hook(event: Any) -> Any:
        data = dict(event.raw)
        answer: Any = function(data, data.get("tool_use_id"), {"signal": None})
        if inspect.isawaitable(answer):
            answer = await answer
        return _clean_output(cast("dict[str, Any]", answer), event_name) if isinstance(answer, dict) else answer

    hook.__qualname__ = getattr(function, "__qualname__", type(function).__name__)
    return hook


def _clean_output(output: Mapping[str, Any], event_name: str) -> dict[str, Any]:
    """Return the output in the names of the wire, without keys that the CLI ignores."""
    kept = {_RENAMED.get(key, key): value for key, value in output.items()}
    specific = kept.get(_SPECIFIC)
    if isinstance(specific, Mapping):
        kept[_SPECIFIC] = _drop_unknown(cast("Mapping[str, Any]", specific), event_name)
    return _drop_unknown(kept, event_name)


def _drop_unknown(given: Mapping[str, Any], event_name: str) -> dict[str, Any]:
    if unknown := sorted(str(key) for key in given if key not in _OUTPUT_KEYS):
        log.warning("the output of a %s hook has unknown keys, which are not sent: %s", event_name, ", ".join(unknown))
    return {key: value for key, value in given.items() if key in _OUTPUT_KEYS}
