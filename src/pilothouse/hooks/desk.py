"""Where the CLI's `hook_callback` questions are answered: finds the hook, calls it in time, and refuses if it fails.

Owns the fail-closed rule. Knows no driver: a question comes as a mapping, an answer goes back as one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from pilothouse.callbacks import Callback, Limited
from pilothouse.errors import ControlError, UsageError
from pilothouse.hooks.base import EVENT_KEY, UnknownHookEvent, read_event
from pilothouse.hooks.catalogue import HOOK_EVENTS
from pilothouse.hooks.matchers import HookMatcher, Hooks, as_callback, blocks, matches, read_hooks
from pilothouse.hooks.outputs import refusal, wire_output
from pilothouse.protocol.hook_answers import merged_answers
from pilothouse.tracebacks import log_info

log = logging.getLogger("pilothouse.hooks")

SUBTYPE: Final = "hook_callback"
# Seconds that the CLI gives a hook for which no timeout was set.
CLI_TIMEOUT: Final = 600.0
# Our limit is this part of the timeout, and at most this many seconds, earlier than the CLI's own: a hook that takes
# too long is refused here, and the refusal still arrives.
_HEAD_START: Final = 0.1
_MAX_HEAD_START: Final = 1.0
_MAPPINGS: Final = (dict, Mapping)  # of what has to be one, nearly everything is a dict, which is found at once
_LATE: Final = "did not answer in time"


class _Hook(Struct, frozen=True):
    event_name: str
    callback: Callback
    function_name: str
    matcher: HookMatcher
    limit: float
    blocks: bool


class HookDesk:
    """The hooks of a query or session, ready to be asked. (R12, G28)

    Args:
        hooks: matchers and functions, by event.
        first: number of the first hook; a desk that takes the place of another begins with its `next`.

    Attributes:
        config: the value of `hooks` in the initialize request.

    Raises:
        UsageError: an event that does not exist, or a hook that cannot work.
    """

    def __init__(self, hooks: Hooks | Mapping[str, Any], *, first: int = 0) -> None:
        self.next = first
        self._hooks: dict[str, _Hook] = {}
        self.config: dict[str, list[dict[str, Any]]] = {}
        for name, matchers in read_hooks(hooks).items():
            self.config[name] = [self._register(name, matcher) for matcher in matchers]

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def answer(self, body: Mapping[str, Any]) -> Awaitable[dict[str, Any]]:
        """Answer one question of the CLI: call the hook that it names.

        A hook that fails refuses, or has no opinion; see `HookMatcher.on_failure`. Its error goes to the log.

        Args:
            body: the request, with `callback_id` and `input`. Without a `callback_id`, all hooks are asked that match
                the event that `input` names.

        Returns:
            The payload of the answer.

        Raises:
            ControlError: no hook has this id.
        """
        key = body.get("callback_id")
        hook = self._hooks.get(key) if isinstance(key, str) else None
        if hook is not None:
            return _asked(hook, body.get("input"))
        data = body.get("input")
        given: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, _MAPPINGS) else {}
        if not key and isinstance(given.get(EVENT_KEY), str):
            return self._ask_matching(given)
        raise ControlError(f"there is no hook {key!r:.60}", subtype=SUBTYPE, code="unknown_hook")

    def check_server(self, info: Mapping[str, Any]) -> None:
        """Compare with what the CLI said about hooks in its answer to initialize.

        Raises:
            ControlError: a hook that has to be able to refuse would not be asked, or its failure would not refuse.
        """
        gates = [hook for hook in self._hooks.values() if hook.blocks]
        if self._hooks and info.get("hooks_applied") is False:
            text = "the CLI was already running and did not register the hooks"
            if gates:
                raise ControlError(f"{text}; {gates[0].event_name} would not be guarded", subtype="initialize")
            log.warning("%s", text)
        # Where we know how to refuse, we do so ourselves, on any CLI.
        helpless = [hook for hook in gates if refusal(hook.event_name, "") is None]
        if helpless and info.get("hook_on_failure_supported") is not True:
            name = helpless[0].event_name
            raise ControlError(
                f"this CLI does not know on_failure='block' ({name}); update it, or use on_failure='continue'",
                subtype="initialize",
            )

    def _register(self, name: str, matcher: HookMatcher) -> dict[str, Any]:
        rule = HOOK_EVENTS.get(name)
        timeout = CLI_TIMEOUT if matcher.timeout is None else matcher.timeout
        limit = timeout - min(_MAX_HEAD_START, timeout * _HEAD_START)
        ids: list[str] = []
        for function in matcher.functions:
            callback = as_callback(function, f"hooks[{name!r}]")
            shown = getattr(function, "__qualname__", type(function).__name__)
            key = f"hook_{self.next}"
            self.next += 1
            self._hooks[key] = _Hook(name, callback, shown, matcher, limit, blocks(matcher, rule))
            ids.append(key)
        entry: dict[str, Any] = {"matcher": matcher.matcher, "hookCallbackIds": ids}
        if matcher.timeout is not None:
            entry["timeout"] = matcher.timeout
        if matcher.on_failure is not None or blocks(matcher, rule):
            entry["onFailure"] = matcher.on_failure or "block"
        return entry

    async def _ask_matching(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Ask every hook that matches, in order; the first refusal is the answer, else what they say together."""
        answers: list[dict[str, Any]] = []
        for hook in self._matching(data[EVENT_KEY], data):
            answer = await _asked(hook, data)
            if _refuses(answer):
                return answer
            answers.append(answer)
        return merged_answers(answers)

    def _matching(self, name: str, data: Mapping[str, Any]) -> Iterator[_Hook]:
        rule = HOOK_EVENTS.get(name)
        value = data.get(rule.matched) if rule is not None and rule.matched else None
        for hook in self._hooks.values():
            if hook.event_name == name and (not isinstance(value, str) or matches(hook.matcher.matcher, value)):
                yield hook


def hook_desk(hooks: Hooks | Mapping[str, Any] | None, *, first: int = 0) -> HookDesk:
    """Check hooks and make the desk that answers for them; None for no hooks.

    Raises:
        UsageError: an event that does not exist, or a hook that cannot work.
    """
    return HookDesk({} if hooks is None else hooks, first=first)


def _asked(hook: _Hook, data: Any) -> Limited[dict[str, Any]]:
    """What a hook says to an event; one that takes too long has failed."""
    given = cast("Mapping[str, Any]", data) if isinstance(data, _MAPPINGS) else None
    said = None if given is None else given.get(EVENT_KEY)
    name = said if isinstance(said, str) and said in HOOK_EVENTS else hook.event_name
    return Limited(_ask(hook, name, given), hook.limit, partial(_failed, hook, name, _LATE, None))


async def _ask(hook: _Hook, name: str, data: Mapping[str, Any] | None) -> dict[str, Any]:
    """Call a hook, and do what its failure means if it fails."""
    if data is None:
        return _failed(hook, name, "was asked without input", None)
    rule = HOOK_EVENTS.get(name)
    event = read_event(UnknownHookEvent if rule is None else rule.cls, data)
    try:
        answer = await hook.callback(event)
    except Exception as error:  # noqa: BLE001 - it is the user's, and has to end here
        return _failed(hook, name, "failed", error)
    try:
        return wire_output(answer, name)
    except UsageError as error:
        return _failed(hook, name, f"gave no valid answer ({error})", None)


def _failed(hook: _Hook, name: str, what: str, error: Exception | None) -> dict[str, Any]:
    consequence = "so its event is refused" if hook.blocks else "which counts as no opinion"
    log.error(
        "the %s hook %s %s, %s",
        name,
        hook.function_name,
        what,
        consequence,
        exc_info=None if error is None else log_info(error),
    )
    if not hook.blocks:
        return {}
    reason = f"Blocked: a hook for {name} {_LATE if what is _LATE else 'failed'}."
    answer = refusal(name, reason)
    if answer is None:  # the CLI, which knows this event, was told what an error means
        raise ControlError(reason, subtype=SUBTYPE, code="hook_failed")
    return answer


def _refuses(answer: Mapping[str, Any]) -> bool:
    own: dict[str, Any] = answer.get("hookSpecificOutput", {})
    request = own.get("decision")
    behavior = cast("dict[str, Any]", request).get("behavior") if isinstance(request, dict) else None
    return answer.get("decision") == "block" or own.get("permissionDecision") == "deny" or behavior == "deny"
