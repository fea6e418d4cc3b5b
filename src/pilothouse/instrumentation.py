"""What watches queries from outside: the seam for tracing, metrics and logs of one's own. Pure.

Owns what a watcher is told and when, and that a watcher which fails touches nothing. Knows no backend, no event loop,
and not how queries run: those who run them call `Observers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, cast, runtime_checkable

from msgspec import Struct

from pilothouse.messages import ApiRetryMessage, Message

log = logging.getLogger("pilothouse.instrumentation")

TOOL_USE_ID = "claudecode/toolUseId"
"""Where the CLI (2.1.330) says which tool call it is that a tool of this process is to answer."""

CallKind = Literal["hook", "permission", "tool", "dialog"]


class QueryStart(Struct, frozen=True, kw_only=True):
    """What is known when a query starts.

    Args:
        prompt: as it was given; it may hold anything, so nobody should write it down unasked.
        model: the one that was asked for, None for the default one.
        agent: the name of the agent that answers (option `agent`), None for the usual one.
        session_id: of the conversation, where it is known before anything was said.
        provider: whose API it is (option `provider`).
        base_url: address of the API, if it is not the usual one.
        settings: all that was set, as text; values that may be keys are masked.
        in_session: whether it is one of the queries of a `Session`.
        redact: takes the keys of the child out of a text; for whoever writes down what was said.
    """

    prompt: Any
    model: str | None = None
    agent: str | None = None
    session_id: str | None = None
    provider: str | None = None
    base_url: str | None = None
    settings: Mapping[str, str] = {}
    in_session: bool = False
    redact: Callable[[str], str] = str


class Call(Struct, frozen=True, kw_only=True):
    """Something in this process that the CLI has asked for: a hook, a permission, a tool of one's own, a dialog.

    Args:
        kind: what it is.
        name: of the hook event, or of the tool, as the model sees it.
        tool_use_id: the tool call that it is about, if it is about one.
        input: what it is asked with; may hold anything, as `QueryStart.prompt`.
    """

    kind: CallKind
    name: str
    tool_use_id: str | None = None
    input: Any = None


class CallEnd(Struct, frozen=True, kw_only=True):
    """How a call ended.

    Args:
        outcome: "allow" or "deny" of a permission or of a hook that decides; "ok" or "error" of a tool; "ok" of
            anything else; "failed" when it raised; "cancelled" when nobody waits for it any more.
        error: what it raised.
    """

    outcome: str
    error: BaseException | None = None


class QueryEnd(Struct, frozen=True, kw_only=True):
    """How a query ended.

    Args:
        result: a `QueryResult`, whose `messages` are not kept; None: the CLI gave no result.
        error: why there is no answer: what `await query` raises, or the error of the result; None on success.
        interrupted: whether it was stopped on request.
    """

    result: Any
    error: BaseException | None
    interrupted: bool


class Observer:
    """Watches one query. Inherit, and override what you want to be told; every method does nothing by itself.

    All of them are called where things happen, before the reader of the query sees anything of it: times are true
    however slow that reader is, and a method that takes long holds up the query. What they raise is logged once.
    """

    def environ(self) -> Mapping[str, str | None]:
        """Environment variables for the child of this query, which is about to start; None removes one."""
        return {}

    def run_context(self) -> AbstractContextManager[object]:
        """Context variables set in this block hold for all that runs for the query; it is left at once."""
        return nullcontext()

    def on_message(self, message: Message) -> None:
        """A message of the query has arrived; calls of tools that run in this process look like all others."""

    def on_retry(self, message: ApiRetryMessage) -> None:
        """The API failed, and the CLI tries again; `on_message` gets it too."""

    def on_call_start(self, call: Call) -> None:
        """The CLI asks for something in this process. Context variables set here hold until `on_call_end`."""

    def on_call_end(self, call: Call, end: CallEnd) -> None:
        """It was answered; in the same task as `on_call_start`."""

    def on_restart(self, reason: BaseException | None) -> None:
        """The child of the session had died, and another one has taken over for this query."""

    def on_end(self, end: QueryEnd) -> None:
        """The query is over, and its child is gone or free for the next one. Nothing is told after this."""


@runtime_checkable
class Instrumentation(Protocol):
    """Watches queries. Give it as option `instrumentation`, alone or in a list, in any layer."""

    def query_started(self, start: QueryStart) -> Observer | None:
        """A query starts, in the context of whoever asked. None: this one is not watched."""
        ...

    def session_environ(self) -> Mapping[str, str | None]:
        """Environment variables for the child of a session, in the context of whoever made it; None removes one."""
        ...


class Observers:
    """All that watch one query. Never raises.

    Args:
        observers: those that the instrumentations gave.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = list(observers)
        self._over = False

    @classmethod
    def of(cls, given: Iterable[Instrumentation], start: QueryStart) -> Observers | None:
        """Start watching; None when nobody wants to."""
        found = [guarded(one, lambda one=one: one.query_started(start)) for one in given]
        there = [observer for observer in found if observer is not None]
        return cls(there) if there else None

    def environ(self) -> dict[str, str | None]:
        """The variables of all of them; later ones win."""
        found: dict[str, str | None] = {}
        for one in self._all:
            found |= guarded(one, one.environ) or {}
        return found

    @contextmanager
    def running(self) -> Generator[None]:
        """The block in which what runs for the query is started."""
        blocks = [(one, guarded(one, one.run_context)) for one in self._all]
        entered = [(one, block) for one, block in blocks if block is not None and _did(one, block.__enter__)]
        try:
            yield
        finally:
            for one, block in reversed(entered):
                guarded(one, lambda block=block: block.__exit__(None, None, None))

    def messages(self, batch: Iterable[Message]) -> None:
        """Messages have arrived."""
        if self._over:
            return
        for one in self._all:
            for message in batch:
                guarded(one, lambda one=one, message=message: one.on_message(message))
                if isinstance(message, ApiRetryMessage):
                    guarded(one, lambda one=one, message=message: one.on_retry(message))

    def call_started(self, call: Call) -> None:
        """Something in this process begins."""
        for one in self._all:
            guarded(one, lambda one=one: one.on_call_start(call))

    def call_ended(self, call: Call, end: CallEnd) -> None:
        """The same has ended; in reverse order, as context variables want it."""
        for one in reversed(self._all):
            guarded(one, lambda one=one: one.on_call_end(call, end))

    def restarted(self, reason: BaseException | None) -> None:
        """Another child has taken over."""
        for one in self._all:
            guarded(one, lambda one=one: one.on_restart(reason))

    def ended(self, end: QueryEnd) -> None:
        """The query is over. The first call counts."""
        if self._over:
            return
        self._over = True
        for one in reversed(self._all):
            guarded(one, lambda one=one: one.on_end(end))


_reported: set[type] = set()


def guarded(owner: object, call: Callable[[], Any]) -> Any:
    """What `call` gives; None if it raises, which is logged for the first time of each class."""
    try:
        return call()
    except Exception:
        kind = type(owner)
        if kind not in _reported:
            _reported.add(kind)
            log.exception("%s failed; queries go on, and its further failures are not told", kind.__qualname__)
        return None


def _did(owner: object, call: Callable[[], Any]) -> bool:
    return guarded(owner, lambda: (call(),)) is not None


def environ_of(given: Iterable[Instrumentation]) -> dict[str, str | None]:
    """What the child of a session gets from all of them; later ones win."""
    found: dict[str, str | None] = {}
    for one in given:
        found |= guarded(one, one.session_environ) or {}
    return found


# Which question of the CLI is what.


def call_of(subtype: str, body: Mapping[str, Any]) -> Call | None:
    """What the CLI asks for with a control request; None if it is a matter of the protocol only."""
    read = _CALLS.get(subtype)
    return None if read is None else read(body)


def _permission(body: Mapping[str, Any]) -> Call:
    return Call(
        kind="permission",
        name=str(body.get("tool_name", "")),
        tool_use_id=body.get("tool_use_id"),
        input=body.get("input"),
    )


def _hook(body: Mapping[str, Any]) -> Call:
    given = body.get("input")
    event = _inside(given).get("hook_event_name", "")
    return Call(kind="hook", name=str(event), tool_use_id=body.get("tool_use_id"), input=given)


def _tool(body: Mapping[str, Any]) -> Call | None:
    message = _inside(body.get("message"))
    if message.get("method") != "tools/call":
        return None
    params = _inside(message.get("params"))
    return Call(
        kind="tool",
        name=f"mcp__{body.get('server_name', '')}__{params.get('name', '')}",
        tool_use_id=_inside(params.get("_meta")).get(TOOL_USE_ID),
        input=params.get("arguments"),
    )


def _dialog(body: Mapping[str, Any]) -> Call:
    name = body.get("dialog_kind") or body.get("mcp_server_name") or ""
    return Call(kind="dialog", name=str(name), tool_use_id=body.get("tool_use_id"), input=body)


def _inside(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


_CALLS: dict[str, Callable[[Mapping[str, Any]], Call | None]] = {
    "can_use_tool": _permission,
    "elicitation": _dialog,
    "hook": _hook,
    "hook_callback": _hook,
    "mcp_message": _tool,
    "request_user_dialog": _dialog,
}


def outcome_of(call: Call, answer: Mapping[str, Any]) -> str:
    """What the answer to a call says."""
    if call.kind == "permission":
        return str(answer.get("behavior", "ok"))
    if call.kind == "tool":
        response = _inside(answer.get("mcp_response"))
        return "error" if "error" in response or _inside(response.get("result")).get("isError") else "ok"
    if call.kind == "hook":
        decided = _inside(answer.get("hookSpecificOutput")).get("permissionDecision", "ok")
        blocks = answer.get("decision") == "block" or answer.get("continue") is False
        return "deny" if blocks else str(decided)
    return "ok"
