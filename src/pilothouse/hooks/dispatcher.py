"""Handles the CLI's `hook_callback` requests.

Finds the hook, calls it within its time limit, and refuses if it fails. Requests and responses are mappings; this
module does not know the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from pilothouse.callbacks import TimeLimited, UserCallback
from pilothouse.errors import ControlError, UsageError
from pilothouse.hooks.events import EVENT_NAME_KEY, HOOK_EVENTS, UnknownHookEvent, read_event
from pilothouse.hooks.matchers import HookMatcher, Hooks, blocks_on_failure, make_hook_callback, matches, parse_hooks
from pilothouse.hooks.outputs import encode_output, make_refusal
from pilothouse.protocol.control_frames import merge_hook_outputs
from pilothouse.tracebacks import make_exc_info

log = logging.getLogger("pilothouse.hooks")

SUBTYPE: Final = "hook_callback"
# The CLI's own time limit, in seconds, for a hook without a timeout.
CLI_TIMEOUT: Final = 600.0
# Our limit ends this part of the timeout, and at most this many seconds, before the CLI's own limit, so that the
# refusal of a slow hook still arrives in time.
_TIMEOUT_MARGIN_RATIO: Final = 0.1
_MAX_TIMEOUT_MARGIN: Final = 1.0
_MAPPING_TYPES: Final[Any] = (dict, Mapping)  # nearly all mappings are dicts, which are found at once
_TIMED_OUT: Final = "exceeded its timeout"


class _RegisteredHook(Struct, frozen=True):
    event_name: str
    callback: UserCallback
    function_name: str
    matcher: HookMatcher
    timeout: float
    blocks: bool


class HookDispatcher:
    """Calls the hooks of a query or session.

    Args:
        hooks: matchers and functions, by event.
        first_number: number of the first hook; a dispatcher that replaces another begins with its `next_number`.

    Attributes:
        config: the value of `hooks` in the initialize request.

    Raises:
        UsageError: an event does not exist, or a hook cannot work.
    """

    def __init__(self, hooks: Hooks | Mapping[str, Any], *, first_number: int = 0) -> None:
        self.next_number = first_number
        self._hooks: dict[str, _RegisteredHook] = {}
        self.config: dict[str, list[dict[str, Any]]] = {}
        for name, matchers in parse_hooks(hooks).items():
            self.config[name] = [self._register(name, matcher) for matcher in matchers]

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def handle(self, body: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Handle one request of the CLI: call the hook that the request names.

        A hook that fails refuses, or has no opinion; see `HookMatcher.on_failure`. Its error is logged.

        Args:
            body: the request, with `callback_id` and `input`. Without a `callback_id`, all hooks are called that
                match the event that `input` names.

        Returns:
            The payload of the response.

        Raises:
            ControlError: no hook has this id, or a hook failed and its event has no refusal.
        """
        key = body.get("callback_id")
        hook = self._hooks.get(key) if isinstance(key, str) else None
        if hook is not None:
            return _call_hook(hook, body.get("input"))
        data = body.get("input")
        given: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, _MAPPING_TYPES) else {}
        if not key and isinstance(given.get(EVENT_NAME_KEY), str):
            return self._call_matching(given)
        raise ControlError(f"there is no hook {key!r:.60}", subtype=SUBTYPE, code="unknown_hook")

    def check_initialize_response(self, info: Mapping[str, Any]) -> None:
        """Check what the CLI reports about hooks in its response to initialize.

        Raises:
            ControlError: the CLI would not call a hook that must be able to refuse, or would ignore its failure.
        """
        gates = [hook for hook in self._hooks.values() if hook.blocks]
        if self._hooks and info.get("hooks_applied") is False:
            text = "the CLI was already running and did not register the hooks"
            if gates:
                raise ControlError(f"{text}; {gates[0].event_name} would not be guarded", subtype="initialize")
            log.warning("%s", text)
        # Where an event has a refusal, we send it ourselves; that works on any CLI.
        helpless = [hook for hook in gates if make_refusal(hook.event_name, "") is None]
        if helpless and info.get("hook_on_failure_supported") is not True:
            name = helpless[0].event_name
            raise ControlError(
                f"this CLI does not know on_failure='block' ({name}); update it, or use on_failure='continue'",
                subtype="initialize",
            )

    def _register(self, name: str, matcher: HookMatcher) -> dict[str, Any]:
        rule = HOOK_EVENTS.get(name)
        timeout = CLI_TIMEOUT if matcher.timeout is None else matcher.timeout
        limit = timeout - min(_MAX_TIMEOUT_MARGIN, timeout * _TIMEOUT_MARGIN_RATIO)
        ids: list[str] = []
        for function in matcher.functions:
            callback = make_hook_callback(function, f"hooks[{name!r}]")
            shown = getattr(function, "__qualname__", type(function).__name__)
            key = f"hook_{self.next_number}"
            self.next_number += 1
            self._hooks[key] = _RegisteredHook(name, callback, shown, matcher, limit, blocks_on_failure(matcher, rule))
            ids.append(key)
        entry: dict[str, Any] = {"matcher": matcher.matcher, "hookCallbackIds": ids}
        if matcher.timeout is not None:
            entry["timeout"] = matcher.timeout
        if matcher.on_failure is not None or blocks_on_failure(matcher, rule):
            entry["onFailure"] = matcher.on_failure or "block"
        return entry

    async def _call_matching(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Call every hook that matches, in order; return the first refusal, else the merged outputs."""
        answers: list[dict[str, Any]] = []
        for hook in self._find_matching(data[EVENT_NAME_KEY], data):
            answer = await _call_hook(hook, dict(data))
            if _is_refusal(answer):
                return answer
            answers.append(answer)
        return merge_hook_outputs(answers)

    def _find_matching(self, name: str, data: Mapping[str, Any]) -> Iterator[_RegisteredHook]:
        rule = HOOK_EVENTS.get(name)
        value = data.get(rule.match_field) if rule is not None and rule.match_field else None
        for hook in self._hooks.values():
            if hook.event_name == name and (not isinstance(value, str) or matches(hook.matcher.matcher, value)):
                yield hook


def make_hook_dispatcher(hooks: Hooks | Mapping[str, Any] | None, *, first_number: int = 0) -> HookDispatcher:
    """Check hooks and make their dispatcher, an empty one for None.

    Raises:
        UsageError: an event does not exist, or a hook cannot work.
    """
    return HookDispatcher({} if hooks is None else hooks, first_number=first_number)


def _call_hook(hook: _RegisteredHook, data: Any) -> TimeLimited[dict[str, Any]]:
    """Call a hook within its time limit; a hook that takes too long has failed."""
    given: Any = data if isinstance(data, _MAPPING_TYPES) else None
    name: Any = None if given is None else given.get(EVENT_NAME_KEY)
    if name != hook.event_name and (not isinstance(name, str) or name not in HOOK_EVENTS):
        name = hook.event_name
    return TimeLimited(
        _run_hook(hook, name, given), hook.timeout, partial(_handle_failure, hook, name, _TIMED_OUT, None)
    )


async def _run_hook(hook: _RegisteredHook, name: str, data: Any) -> dict[str, Any]:
    """Call a hook and handle its failure."""
    if data is None:
        return _handle_failure(hook, name, "was called without input", None)
    rule = HOOK_EVENTS.get(name)
    event = read_event(UnknownHookEvent if rule is None else rule.event_class, data)
    try:
        answer = await hook.callback(event)
    except Exception as error:  # noqa: BLE001 - an error of the user's hook must end here
        return _handle_failure(hook, name, "failed", error)
    try:
        return encode_output(answer, name)
    except UsageError as error:
        return _handle_failure(hook, name, f"returned no valid output ({error})", None)


def _handle_failure(hook: _RegisteredHook, name: str, failure: str, error: Exception | None) -> dict[str, Any]:
    consequence = "so its event is refused" if hook.blocks else "which counts as no decision"
    log.error(
        "the %s hook %s %s, %s",
        name,
        hook.function_name,
        failure,
        consequence,
        exc_info=None if error is None else make_exc_info(error),
    )
    if not hook.blocks:
        return {}
    reason = f"Blocked: a hook for {name} {_TIMED_OUT if failure is _TIMED_OUT else 'failed'}."
    answer = make_refusal(name, reason)
    if answer is None:  # only the CLI knows this event; it already has the setting for failures
        raise ControlError(reason, subtype=SUBTYPE, code="hook_failed")
    return answer


def _is_refusal(response: Mapping[str, Any]) -> bool:
    own: dict[str, Any] = response.get("hookSpecificOutput", {})
    request = own.get("decision")
    behavior = cast("dict[str, Any]", request).get("behavior") if isinstance(request, dict) else None
    return response.get("decision") == "block" or own.get("permissionDecision") == "deny" or behavior == "deny"
