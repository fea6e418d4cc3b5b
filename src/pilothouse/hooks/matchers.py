"""The hooks of a user, checked when they are given: a mistake would be a gate that never closes.

Owns `HookMatcher` and the forms in which hooks may be given. Must not know requests and responses.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, cast

from msgspec import Struct, structs

from pilothouse.callbacks import UserCallback, accepts_arguments
from pilothouse.errors import UsageError
from pilothouse.hooks.events import HOOK_EVENTS, HookEventSpec, RefusalFormat
from pilothouse.hooks.outputs import HookOutput
from pilothouse.tracebacks import user_function

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pilothouse.hooks import events

    E = TypeVar("E", contravariant=True, default=Any)
else:
    from typing import TypeVar  # only type checkers need the default

    E = TypeVar("E", contravariant=True)

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


class HookMatcher(Struct, Generic[E], frozen=True):
    """Hooks for some of the events of one name.

    Args:
        matcher: which events: a name or several ("Edit|Write"), or else a JavaScript regular expression that
            matches any part ("mcp__.*"). The CLI compares it with the name of the tool; in other events with another
            field or with none (see `HOOK_EVENTS`). None, "" and "*" match all.
        hooks: one function, or several, which then run at the same time. Each takes the event and returns None, a
            `HookOutput` or a dict; sync ones run in worker threads.
        timeout: seconds for each hook; a hook that takes longer has failed. None for 600, the CLI's own limit.
        on_failure: what happens when a hook raises, takes too long or returns an invalid value. "block" refuses what
            the event is about, "continue" goes on as if the hook had no opinion. None for "block" in gates
            (PreToolUse, PermissionRequest, PreModelSwitch, UserPromptSubmit, UserPromptExpansion, ConfigChange,
            Elicitation, ElicitationResult) and "continue" elsewhere. After a tool has run (PostToolUse), a block only
            sends the model a reason.
        is_unlisted: this version does not know the event; it arrives as `UnknownHookEvent`.

    Raises:
        UsageError: a value is impossible, or a function does not take one argument.
    """

    matcher: str | None = None
    hooks: HookCallback[E] | Sequence[HookCallback[E]] = ()
    timeout: float | None = None
    on_failure: OnFailure | None = None
    is_unlisted: bool = False

    @user_function
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


def blocks_on_failure(matcher: HookMatcher, rule: HookEventSpec | None) -> bool:
    """Whether a failure of these hooks refuses what the event is about."""
    if matcher.on_failure is None:
        return rule is not None and rule.is_gate
    return matcher.on_failure == "block"


def make_hook_callback(function: Any, name: str) -> UserCallback:
    """Wrap a hook as a callback.

    Raises:
        UsageError: `function` is not callable, or does not take the event as its one argument.
    """
    try:
        return UserCallback(function, name, "event")
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
            import difflib  # only on the way to an error

            close = difflib.get_close_matches(str(name), HOOK_EVENTS, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
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
