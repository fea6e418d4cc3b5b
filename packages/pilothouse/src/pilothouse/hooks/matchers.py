"""The hooks of a user, checked when they are given: a mistake would be a gate that never closes. And their calls.

Owns `HookMatcher`, the forms in which hooks may be given, and `HookDispatcher`: it finds the hook of a `hook_callback`
request, calls it within its time limit, and refuses if it fails. Does not know the engine.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, cast

import anyio
from msgspec import Struct, structs

from pilothouse.callbacks import UserCallback, accepts_arguments
from pilothouse.errors import ControlError, UsageError
from pilothouse.hints import ExplainedStructMeta, find_similar_name
from pilothouse.hooks.events import (
    EVENT_NAME_KEY,
    HOOK_EVENTS,
    RefusalFormat,
    UnknownHookEvent,
    is_gate,
    read_event,
)
from pilothouse.hooks.outputs import HookOutput, encode_output, make_refusal
from pilothouse.messages.json_lines import as_mapping
from pilothouse.protocol.control_frames import merge_hook_outputs
from pilothouse.tracebacks import make_exc_info
from pilothouse.transports.discovery import parse_version

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pilothouse.hooks import events

    E = TypeVar("E", contravariant=True, default=Any)
else:
    from typing import TypeVar  # only type checkers need the default

    E = TypeVar("E", contravariant=True)

log = logging.getLogger("pilothouse.hooks")

HookResult = HookOutput | Mapping[str, Any] | None
"""What a hook returns; None says that it has no opinion."""

HookCallback = Callable[[E], HookResult | Awaitable[HookResult]]
"""A hook: takes the event, sync or async. `HookCallback[PreToolUseEvent]` takes events of this class."""

OnFailure = Literal["block", "continue"]

# Seconds. The CLI counts milliseconds in 31 bits; a longer timeout would expire at once.
_MAX_TIMEOUT: Final = 2_147_483

# The three arguments of `claude_agent_sdk` hooks; here a hook takes one event.
_SDK_ARGUMENTS: Final = ("input_data", "tool_use_id", "context")

# The CLI reads a matcher of these characters as a list of names, anything else as a JavaScript regular expression.
_NAME_LIST: Final = re.compile(r"[A-Za-z0-9_|, -]+")
# Only Python has these; JavaScript rejects them, or reads them as plain letters.
_PYTHON_ONLY: Final = re.compile(r"(?<!\\)(?:\\\\)*(?P<construct>\(\?(?:P|#|>|\(|[aiLmsux]+\))|\\[AZ])")
# The empty set and its complement, which only JavaScript has.
_JS_SETS: Final = re.compile(r"(?<![\\\[])\[\^?\]")
# Errors that a regular expression has in both languages, as Python reports them.
_SHARED_REGEX_ERRORS: Final = (
    "bad character range",
    "min repeat greater than max repeat",
    "missing ), unterminated subpattern",
    "multiple repeat",
    "nothing to repeat",
    "unbalanced parenthesis",
    "unterminated character set",
)


class HookMatcher(Struct, Generic[E], metaclass=ExplainedStructMeta, frozen=True):
    """Hooks for some of the events of one name.

    Args:
        matcher: which events: a name or several ("Edit|Write"), or else a JavaScript regular expression that
            matches any part ("mcp__.*"). The CLI compares it with the name of the tool; in other events with another
            field or with none (see `HOOK_EVENTS`). None, "" and "*" match all.
        hooks: one function, or several, which then run at the same time. Each takes the event and returns None, a
            `HookOutput` or a dict; sync ones run in worker threads.
        timeout: seconds for each hook; a hook that takes longer has failed. None for 600, the CLI's own limit.
        on_failure: what happens when a hook raises, takes too long or returns an invalid value. "block" refuses what
            the event is about, "continue" goes on as if the hook had no opinion. None for "block" in gates: every
            event whose name begins with "Pre", known or not, and PermissionRequest, UserPromptSubmit,
            UserPromptExpansion, TaskCreated, ConfigChange, Elicitation, ElicitationResult. Elsewhere it is "continue".
            After a tool has run (PostToolUse), a block only sends the model a reason.
        is_unlisted: this version does not know the event; it arrives as `UnknownHookEvent`.

    Raises:
        UsageError: a value is impossible, or a function does not take one argument.
    """

    matcher: str | None = None
    hooks: HookCallback[E] | Sequence[HookCallback[E]] = ()
    timeout: float | None = None
    on_failure: OnFailure | None = None
    is_unlisted: bool = False

    def __post_init__(self) -> None:
        given: Any = self.hooks
        hooks = tuple(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else (given,)
        structs.force_setattr(self, "hooks", hooks)
        if not hooks:
            raise UsageError("HookMatcher: hooks is empty")
        for hook in hooks:
            make_hook_callback(hook, "hook")
        _check_pattern(self.matcher)
        _check_timeout(self.timeout)
        if self.on_failure not in (None, "block", "continue"):
            raise UsageError(f"HookMatcher: on_failure is 'block' or 'continue', not {self.on_failure!r}")

    @property
    def functions(self) -> tuple[HookCallback[E], ...]:
        """The hooks, as a tuple."""
        return cast("tuple[HookCallback[E], ...]", self.hooks)


if TYPE_CHECKING:
    Hook = HookCallback[E] | HookMatcher[E] | Sequence[HookCallback[E] | HookMatcher[E]]

    class Hooks(TypedDict, total=False):
        """Hooks by the name of the event: matchers, or bare functions for all events of that name."""

        PreToolUse: Hook[events.PreToolUseEvent]
        PreSkillShellCommand: Hook[events.PreSkillShellCommandEvent]
        PostToolUse: Hook[events.PostToolUseEvent]
        PostToolUseFailure: Hook[events.PostToolUseFailureEvent]
        PostToolBatch: Hook[events.PostToolBatchEvent]
        Notification: Hook[events.NotificationEvent]
        UserPromptSubmit: Hook[events.UserPromptSubmitEvent]
        UserPromptExpansion: Hook[events.UserPromptExpansionEvent]
        SessionStart: Hook[events.SessionStartEvent]
        SessionEnd: Hook[events.SessionEndEvent]
        Stop: Hook[events.StopEvent]
        StopFailure: Hook[events.StopFailureEvent]
        SubagentStart: Hook[events.SubagentStartEvent]
        SubagentStop: Hook[events.SubagentStopEvent]
        PreCompact: Hook[events.PreCompactEvent]
        PostCompact: Hook[events.PostCompactEvent]
        PreModelSwitch: Hook[events.PreModelSwitchEvent]
        PostModelSwitch: Hook[events.PostModelSwitchEvent]
        PermissionRequest: Hook[events.PermissionRequestEvent]
        PermissionDenied: Hook[events.PermissionDeniedEvent]
        Setup: Hook[events.SetupEvent]
        TeammateIdle: Hook[events.TeammateIdleEvent]
        TaskCreated: Hook[events.TaskCreatedEvent]
        TaskCompleted: Hook[events.TaskCompletedEvent]
        Elicitation: Hook[events.ElicitationEvent]
        ElicitationResult: Hook[events.ElicitationResultEvent]
        ConfigChange: Hook[events.ConfigChangeEvent]
        WorktreeCreate: Hook[events.WorktreeCreateEvent]
        WorktreeRemove: Hook[events.WorktreeRemoveEvent]
        InstructionsLoaded: Hook[events.InstructionsLoadedEvent]
        CwdChanged: Hook[events.CwdChangedEvent]
        FileChanged: Hook[events.FileChangedEvent]
        DirectoryAdded: Hook[events.DirectoryAddedEvent]
        MessageDisplay: Hook[events.MessageDisplayEvent]

else:
    Hooks = Mapping  # only type checkers need the names and classes of events


def parse_hooks(hooks: Hooks | Mapping[str, Any]) -> dict[str, list[HookMatcher]]:
    """Check hooks and convert them to one form.

    Raises:
        UsageError: an event does not exist, or hooks cannot work with it.
    """
    given: Any = hooks
    if not isinstance(given, Mapping):
        raise UsageError(f"hooks: expected a dict from event to hooks, got {type(given).__name__}")
    read: dict[str, list[HookMatcher]] = {}
    for name, value in cast("Mapping[Any, Any]", given).items():
        entries: Sequence[Any] = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
        matchers = [_make_matcher(entry, name) for entry in entries]
        _check_event(name, matchers)
        if matchers:
            read[name] = matchers
    return read


def blocks_on_failure(matcher: HookMatcher, event_name: str) -> bool:
    """Whether a failure of these hooks refuses what the event is about."""
    return is_gate(event_name) if matcher.on_failure is None else matcher.on_failure == "block"


def calls_hooks_for(event_name: str, version: str) -> bool:
    """Whether a CLI calls hooks for an event, by its version; one that does not report its version is an old one."""
    spec = HOOK_EVENTS.get(event_name)
    needed = parse_version(spec.min_cli_version) if spec is not None else None
    return needed is None or (parse_version(version) or ()) >= needed


def make_hook_callback(function: Any, name: str, event_name: str = "") -> UserCallback:
    """Wrap a hook as a callback; `event_name` is what it is for.

    Raises:
        UsageError: `function` is not callable, or does not take the event as its one argument.
    """
    try:
        return UserCallback(function, name, "event", kind="hook", wrapped_as=event_name)
    except UsageError as error:
        if not isinstance(function, type) and accepts_arguments(function, len(_SDK_ARGUMENTS)):
            hint = "a hook takes one argument, the event: instead of (input, tool_use_id, context) use event.raw"
            raise UsageError(f"{error}; {hint}, or its fields such as event.tool_name and event.tool_use_id") from None
        raise


def matches(matcher: str | None, value: str) -> bool:
    """Whether a matcher matches a value. The CLI does this itself; this function is for engines that do not."""
    if matcher in (None, "", "*"):
        return True
    if _NAME_LIST.fullmatch(matcher):
        return value in {name.strip() for name in re.split(r"[|,]", matcher)}
    try:
        return re.search(matcher, value) is not None
    except re.error:
        return True  # one hook too many is better than a gate that stays open


def _make_matcher(entry: Any, name: Any) -> HookMatcher:
    if isinstance(entry, HookMatcher):
        return cast("HookMatcher", entry)
    if callable(entry):
        return HookMatcher(hooks=cast("HookCallback", entry))
    raise UsageError(f"hooks[{name!r}]: expected HookMatcher or a function, got {type(entry).__name__}")


def _check_event(name: Any, matchers: list[HookMatcher]) -> None:
    rule = HOOK_EVENTS.get(name) if isinstance(name, str) else None
    if rule is None:
        if not isinstance(name, str) or not matchers or not all(matcher.is_unlisted for matcher in matchers):
            near = find_similar_name(str(name), HOOK_EVENTS, 0.5)
            hint = f"; did you mean {near!r}?" if near else ""
            raise UsageError(f"hooks: unknown event {name!r}{hint} (HookMatcher(is_unlisted=True) takes any)")
        return
    for matcher in matchers:
        if not rule.match_field and matcher.matcher not in (None, "", "*"):
            raise UsageError(f"hooks[{name!r}]: the CLI ignores matchers here; omit {matcher.matcher!r}")
        if matcher.on_failure == "block" and rule.refusal_format is RefusalFormat.NONE:
            raise UsageError(f"hooks[{name!r}]: on_failure='block' has no meaning, {name} cannot be refused")


def _check_pattern(matcher: Any) -> None:
    if matcher is None or matcher == "*":
        return
    if not isinstance(matcher, str):
        raise UsageError(f"HookMatcher: matcher is a string or None, not {type(matcher).__name__}")
    if matcher and not matcher.strip(" |,"):
        raise UsageError(f"HookMatcher: {matcher!r} matches nothing")
    python_only = _PYTHON_ONLY.search(matcher)
    if python_only is not None:
        construct = python_only["construct"]
        raise UsageError(f"HookMatcher: the CLI reads {matcher!r} as JavaScript, which has no {construct!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(_JS_SETS.sub(".", matcher))
    except re.error as error:
        # A pattern that only Python rejects may be valid in JavaScript.
        if error.msg.startswith(_SHARED_REGEX_ERRORS):
            raise UsageError(f"HookMatcher: {matcher!r} is not a valid regular expression: {error}") from None


def _check_timeout(timeout: Any) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise UsageError(f"HookMatcher: timeout is a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= _MAX_TIMEOUT:
        raise UsageError(f"HookMatcher: timeout is more than 0 and at most {_MAX_TIMEOUT} seconds, not {timeout}")


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

    async def handle(self, body: Mapping[str, Any]) -> dict[str, Any]:
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
            return await _call_hook(hook, body.get("input"))
        data = body.get("input")
        given: Mapping[str, Any] = cast("Mapping[str, Any]", data) if isinstance(data, _MAPPING_TYPES) else {}
        if not key and isinstance(given.get(EVENT_NAME_KEY), str):
            return await self._call_matching(given)
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
        version = str(info.get("claude_code_version") or "")
        uncalled = [hook.event_name for hook in gates if not calls_hooks_for(hook.event_name, version)]
        if uncalled:
            needed = HOOK_EVENTS[uncalled[0]].min_cli_version
            raise ControlError(
                f"Claude Code {version or '(an old version)'} calls no hooks for {uncalled[0]}, which would not be "
                f"guarded; update it to {needed}, or use on_failure='continue' to go on without them",
                subtype="initialize",
            )
        # Where an event has a refusal, we send it ourselves; that works on any CLI.
        helpless = [hook for hook in gates if make_refusal(hook.event_name, "") is None]
        if helpless and info.get("hook_on_failure_supported") is not True:
            name = helpless[0].event_name
            raise ControlError(
                f"this CLI does not know on_failure='block' ({name}); update it, or use on_failure='continue'",
                subtype="initialize",
            )

    def _register(self, name: str, matcher: HookMatcher) -> dict[str, Any]:
        blocks = blocks_on_failure(matcher, name)
        timeout = CLI_TIMEOUT if matcher.timeout is None else matcher.timeout
        limit = timeout - min(_MAX_TIMEOUT_MARGIN, timeout * _TIMEOUT_MARGIN_RATIO)
        ids: list[str] = []
        for function in matcher.functions:
            callback = make_hook_callback(function, f"hooks[{name!r}]", name)
            shown = getattr(function, "__qualname__", type(function).__name__)
            key = f"hook_{self.next_number}"
            self.next_number += 1
            self._hooks[key] = _RegisteredHook(name, callback, shown, matcher, limit, blocks)
            ids.append(key)
        entry: dict[str, Any] = {"matcher": matcher.matcher, "hookCallbackIds": ids}
        if matcher.timeout is not None:
            entry["timeout"] = matcher.timeout
        if matcher.on_failure is not None or blocks:
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


async def _call_hook(hook: _RegisteredHook, data: Any) -> dict[str, Any]:
    """Call a hook within its time limit; a hook that takes too long has failed."""
    given: Any = data if isinstance(data, _MAPPING_TYPES) else None
    name: Any = None if given is None else given.get(EVENT_NAME_KEY)
    if name != hook.event_name and (not isinstance(name, str) or name not in HOOK_EVENTS):
        name = hook.event_name
    with anyio.move_on_after(hook.timeout):
        return await _run_hook(hook, name, given)
    return _handle_failure(hook, name, _TIMED_OUT, None)


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
    behavior = as_mapping(own.get("decision")).get("behavior")
    return response.get("decision") == "block" or own.get("permissionDecision") == "deny" or behavior == "deny"
