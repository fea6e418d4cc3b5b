"""Observing queries from outside: the interface for tracing, metrics and custom logs. Pure.

Owns what an observer gets and when, and that a failing observer affects nothing else. Knows no backend, no event
loop, and not how queries run: the code that runs them calls `Observers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutine
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from pilothouse.messages import ApiRetryMessage, Message
from pilothouse.messages.json_lines import as_mapping

log = logging.getLogger("pilothouse.instrumentation")

T = TypeVar("T")
W = TypeVar("W")

TOOL_USE_ID = "claudecode/toolUseId"
"""Key under which the CLI names the tool call that a tool of this process runs for."""

CallKind = Literal["hook", "permission", "tool", "dialog"]


class QueryStart(Struct, frozen=True, kw_only=True):
    """What is known when a query starts.

    Args:
        prompt: as it was given; it may contain anything, so it should not be recorded by default.
        model: as requested, None for the default.
        agent: the name of the agent (option `agent`), None for the default.
        session_id: of the conversation, if known before the start.
        provider: the provider of the API (option `provider`).
        base_url: address of the API, None for the default.
        settings: all that was set, as text; values that may be keys are masked.
        in_session: whether it is one of the queries of a `Session`.
        self_started: whether it is not a query, but a turn that the CLI began by itself between the queries of a
            session, because a background task had ended. It has no prompt; the rest is that of the session.
        redact: removes the keys of the child from a text; for observers that record content.
    """

    prompt: Any
    model: str | None = None
    agent: str | None = None
    session_id: str | None = None
    provider: str | None = None
    base_url: str | None = None
    settings: Mapping[str, str] = {}
    in_session: bool = False
    self_started: bool = False
    redact: Callable[[str], str] = str


class CallStart(Struct, frozen=True, kw_only=True):
    """A request of the CLI to this process: a hook, a permission, a custom tool, a dialog.

    Args:
        kind: of the request.
        name: of the hook event, or of the tool, as the model sees it.
        tool_use_id: the tool call that the request is about, if any.
        input: of the request; may contain anything, as `QueryStart.prompt`.
    """

    kind: CallKind
    name: str
    tool_use_id: str | None = None
    input: Any = None


class CallEnd(Struct, frozen=True, kw_only=True):
    """How a call ended.

    Args:
        outcome: "allow" or "deny" of a permission or of a hook that decides; "ok" or "error" of a tool; "ok" of
            anything else; "failed" if it raised; "cancelled" if the CLI withdrew the request.
        error: what it raised.
    """

    outcome: str
    error: BaseException | None = None


class ScheduledRetry(Struct, frozen=True, kw_only=True):
    """A retry of pilothouse's own (options `retry` and `on_usage_limit`), before its wait.

    Args:
        action: "resend" the prompt; "resume" what the model had begun; "hold" the prompt back, before it was ever sent,
            because another query of the agent has met a limit.
        reason: "rate_limit", "overloaded", "server" or "network", as in `RetryPolicy.on`; or "usage_limit".
        delay: seconds until then.
        attempt: number of the retry, from 1; None for a wait for a limit.
        error: what has failed; None for "hold".
    """

    action: Literal["resend", "resume", "hold"]
    reason: str
    delay: float
    attempt: int | None = None
    error: BaseException | None = None


class QueryEnd(Struct, frozen=True, kw_only=True):
    """How a query ended.

    Args:
        result: a `QueryResult`, whose `messages` are not kept; None: the CLI sent no result.
        error: why there is no answer: what `await query` raises, or the error of the result; None on success.
        interrupted: whether the query was stopped on request.
    """

    result: Any
    error: BaseException | None
    interrupted: bool


class Observer:
    """Observes one query. Inherit, and override the methods you need; by default every method does nothing.

    All methods are called when things happen, before the reader of the query sees them: times are accurate even for a
    slow reader, and a slow method holds up the query. What they raise is logged once.
    """

    def environ(self) -> Mapping[str, str | None]:
        """Environment variables for the child of this query, which is about to start; None removes one."""
        return {}

    def run_context(self) -> AbstractContextManager[object]:
        """Context variables set in this block apply to everything that runs for the query; it is left at once."""
        return nullcontext()

    def on_message(self, message: Message) -> None:
        """A message of the query has arrived; calls of tools that run in this process look like all others."""

    def on_retry(self, message: ApiRetryMessage) -> None:
        """The API failed, and the CLI retries; `on_message` gets the message too."""

    def on_retry_scheduled(self, retry: ScheduledRetry) -> None:
        """The CLI has given up, or a limit holds, and pilothouse waits before it retries."""

    def on_call_start(self, call: CallStart) -> None:
        """The CLI sent a request to this process. Context variables set here apply until `on_call_end`."""

    def on_call_end(self, call: CallStart, end: CallEnd) -> None:
        """The call has ended; in the same task as `on_call_start`."""

    def on_restart(self, reason: BaseException | None) -> None:
        """The child of the session died, and another one has taken over for this query."""

    def on_end(self, end: QueryEnd) -> None:
        """The query is over, and its child is gone or free for the next one.

        After this only the ends of calls that had begun are reported.
        """


@runtime_checkable
class Instrumentation(Protocol):
    """Observes queries. Pass it as option `instrumentation`, alone or in a list, in any layer."""

    def query_started(self, start: QueryStart) -> Observer | None:
        """A query starts; called in the context of its caller. None: this query is not observed.

        For a turn that the CLI starts by itself, this is called in the context in which the session was made.
        """
        ...

    def session_environ(self) -> Mapping[str, str | None]:
        """Environment variables for the child of a session, in the context in which it was made; None removes one."""
        ...


class Observers:
    """All observers of one query. Never raises.

    Args:
        observers: those that the instrumentations returned.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = list(observers)
        self._has_ended = False

    @classmethod
    def start(cls, given: Iterable[Instrumentation], start: QueryStart) -> Observers | None:
        """Start to observe; None if no instrumentation wants to."""
        there = collect_observers(given, lambda one: one.query_started(start))
        return cls(there) if there else None

    def environ(self) -> dict[str, str | None]:
        """Merge the variables of all observers; later ones win."""
        return _merge_environs(self._all, lambda one: one.environ())

    def run_context(self) -> AbstractContextManager[None]:
        """The block in which the work of the query is started."""
        return enter_contexts(self._all)

    def messages(self, batch: Iterable[Message]) -> None:
        """Report messages that have arrived."""
        if self._has_ended:
            return
        for one in self._all:
            for message in batch:
                call_safely(one, lambda one=one, message=message: one.on_message(message))
                if isinstance(message, ApiRetryMessage):
                    call_safely(one, lambda one=one, message=message: one.on_retry(message))

    def retry_scheduled(self, retry: ScheduledRetry) -> None:
        """Report a retry of our own, before its wait."""
        if not self._has_ended:
            self._notify(lambda one: one.on_retry_scheduled(retry))

    def call_started(self, call: CallStart) -> bool:
        """Report the start of a call; returns whether to report its end."""
        if self._has_ended:
            return False
        self._notify(lambda one: one.on_call_start(call))
        return True

    def call_ended(self, call: CallStart, end: CallEnd) -> None:
        """Report the end of a call, in reverse order, which context variables need."""
        self._notify(lambda one: one.on_call_end(call, end), reverse=True)

    def restarted(self, reason: BaseException | None) -> None:
        """Report that another child has taken over."""
        if not self._has_ended:
            self._notify(lambda one: one.on_restart(reason))

    def ended(self, end: QueryEnd) -> None:
        """Report the end of the query. The first call counts."""
        if not self._has_ended:
            self._has_ended = True
            self._notify(lambda one: one.on_end(end), reverse=True)

    def _notify(self, call: Callable[[Observer], object], *, reverse: bool = False) -> None:
        notify_all(self._all, call, reverse=reverse)


_reported: set[type] = set()


def call_safely(owner: object, call: Callable[[], Any]) -> Any:
    """Return what `call` returns; None if it raises, or is async, which is logged the first time for each class.

    Cancellation errors of asyncio and trio are caught as well: nothing waits in there, so they are a mistake of the
    callee.
    """
    try:
        answer = call()
        if answer is not None and iscoroutine(answer):
            answer.close()
            raise TypeError("the method is called, not awaited: write `def` in place of `async def`")
        return answer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        kind = type(owner)
        if kind not in _reported:
            _reported.add(kind)
            log.exception("%s failed; queries go on, and its further failures are not logged", kind.__qualname__)
        return None


def collect_observers(given: Iterable[T], ask: Callable[[T], W | None]) -> list[W]:
    """Collect the observers; without those that are None or failed."""
    found = [call_safely(one, lambda one=one: _require_instance(ask(one))) for one in given]
    return [watcher for watcher in found if watcher is not None]


def _require_instance(watcher: W) -> W:
    if isinstance(watcher, type):
        raise TypeError(f"the class {watcher.__name__} is no observer: return an instance")
    return watcher


def notify_all(observers: Sequence[T], call: Callable[[T], object], *, reverse: bool = False) -> None:
    """Call all observers, in reverse order for ends, which context variables need."""
    for one in reversed(observers) if reverse else observers:
        call_safely(one, lambda one=one: call(one))


class _HasContext(Protocol):
    def run_context(self) -> AbstractContextManager[object]: ...


@contextmanager
def enter_contexts(observers: Iterable[_HasContext]) -> Generator[None]:
    """The block inside the `run_context` of all observers; those that fail are left out."""
    blocks = [(one, block) for one in observers if (block := _enter_context(one)) is not None]
    try:
        yield
    finally:
        for one, block in reversed(blocks):
            call_safely(one, lambda block=block: block.__exit__(None, None, None))


def _enter_context(one: _HasContext) -> AbstractContextManager[object] | None:
    """Enter the `run_context` of an observer; None if that failed."""

    def enter() -> AbstractContextManager[object]:
        block = one.run_context()
        block.__enter__()
        return block

    return call_safely(one, enter)


def collect_environ(given: Iterable[Instrumentation]) -> dict[str, str | None]:
    """Merge the variables for the child of a session from all instrumentations; later ones win."""
    return _merge_environs(given, lambda one: one.session_environ())


def _merge_environs(given: Iterable[T], ask: Callable[[T], Mapping[str, str | None]]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for one in given:
        found |= call_safely(one, lambda one=one: _check_variables(ask(one))) or {}
    return found


def _check_variables(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Copy the variables; rejects what no environment can hold, so that the child does not fail to start.

    Raises:
        TypeError: names or values that are not text.
        ValueError: text that no variable can have.
    """
    for name, value in given.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"environment variables are text, not {name!r} and a {type(value).__name__}")
        both = name + (value or "")
        both.encode("utf-8", "surrogateescape")  # raises UnicodeEncodeError, a ValueError, too
        if not name or "=" in name or "\0" in both:
            raise ValueError(f"no variable can have the name {name!r}, or its value")
    return dict(given)


# Requests of the CLI as calls.


def make_call_start(subtype: str, body: Mapping[str, Any]) -> CallStart | None:
    """Describe a control request of the CLI; None if it only concerns the protocol."""
    read = _CALL_READERS.get(subtype)
    return None if read is None else read(body)


def _permission_call(body: Mapping[str, Any]) -> CallStart:
    return CallStart(
        kind="permission",
        name=str(body.get("tool_name", "")),
        tool_use_id=body.get("tool_use_id"),
        input=body.get("input"),
    )


def _hook_call(body: Mapping[str, Any]) -> CallStart:
    given = body.get("input")
    event = as_mapping(given).get("hook_event_name", "")
    return CallStart(kind="hook", name=str(event), tool_use_id=body.get("tool_use_id"), input=given)


def _tool_call(body: Mapping[str, Any]) -> CallStart | None:
    message = as_mapping(body.get("message"))
    if message.get("method") != "tools/call":
        return None
    params = as_mapping(message.get("params"))
    return CallStart(
        kind="tool",
        name=f"mcp__{body.get('server_name', '')}__{params.get('name', '')}",
        tool_use_id=as_mapping(params.get("_meta")).get(TOOL_USE_ID),
        input=params.get("arguments"),
    )


def _dialog_call(body: Mapping[str, Any]) -> CallStart:
    name = body.get("dialog_kind") or body.get("mcp_server_name") or ""
    return CallStart(kind="dialog", name=str(name), tool_use_id=body.get("tool_use_id"), input=body)


_CALL_READERS: dict[str, Callable[[Mapping[str, Any]], CallStart | None]] = {
    "can_use_tool": _permission_call,
    "elicitation": _dialog_call,
    "hook": _hook_call,
    "hook_callback": _hook_call,
    "mcp_message": _tool_call,
    "request_user_dialog": _dialog_call,
}


def find_outcome(call: CallStart, answer: Mapping[str, Any]) -> str:
    """The outcome that the response to a call states."""
    if call.kind == "permission":
        return str(answer.get("behavior", "ok"))
    if call.kind == "tool":
        response = as_mapping(answer.get("mcp_response"))
        return "error" if "error" in response or as_mapping(response.get("result")).get("isError") else "ok"
    if call.kind == "hook":
        decided = as_mapping(answer.get("hookSpecificOutput")).get("permissionDecision", "ok")
        blocks = answer.get("decision") == "block" or answer.get("continue") is False
        return "deny" if blocks else str(decided)
    return "ok"
