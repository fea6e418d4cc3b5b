"""AG-UI 1.0: the events of a turn as events of the protocol, and a route for `HttpAgent` and CopilotKit.

`AguiWriter` is a table without I/O. A run that needs a decision ends with an interrupt, and the turn waits; the next
run of the thread answers and reads on.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pilothouse.client import Agent, TextReader
from pilothouse.errors import Interrupted, PilothouseError
from pilothouse.events import (
    ApiRetry,
    BudgetReached,
    Finished,
    LineSkipped,
    OutputRejected,
    PermissionSettled,
    QueryEvent,
    RetryScheduled,
    Stalled,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    WaitingForLimit,
)
from pilothouse.messages import ResultMessage
from pilothouse.permissions import Ask, ElicitationRequest
from pilothouse_access.guard import AccessRules, GetOwner, find_application_access
from pilothouse_doors.ui.history import CONTEXT_END, CONTEXT_START, LOST_PROMPT, PastTurn
from pilothouse_doors.ui.http import STEERING_PATH, get_text, make_json, make_route, open_stream, read_body, steer
from pilothouse_doors.ui.threads import CLIENT_TOOL_PREFIX, FrontEndError, Thread, Threads, Turn, settle

PROTOCOL_VERSION = "1.0"
AGENT_TOOLS = frozenset({"Task", "Agent"})
TODO_TOOL = "TodoWrite"
Event = dict[str, Any]

_REASONS = {"permission": "tool_call", "question": "input_required", "plan": "confirmation"}
_APPROVAL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
        "always": {"type": "boolean"},
    },
    "required": ["approved"],
}
_ANSWER_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"answers": {"type": "object", "additionalProperties": {"type": "string"}}},
    "required": ["answers"],
}
_NOTES = (ApiRetry, RetryScheduled, WaitingForLimit, Stalled, LineSkipped, BudgetReached, OutputRejected)


class AguiWriter:
    """Turns the events of one run into events of AG-UI. Pure.

    Args:
        thread_id: of the run.
        run_id: of the run.
        state: of the front end; todos are added to it.
        known_results: ids of calls whose results the front end has, since it has run them itself.
    """

    def __init__(self, thread_id: str, run_id: str, state: Any = None, known_results: Collection[str] = ()) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._known_results = known_results
        self._state = dict(cast("Mapping[str, Any]", state)) if isinstance(state, Mapping) else {}
        self._text = TextReader()
        self._open: dict[str | None, tuple[str, str]] = {}  # what each agent writes: the kind and id of the message
        self._agents: dict[str, str | None] = {}  # sub-agents that run, and who started each
        self.is_finished = False

    def start(self, messages: Sequence[Mapping[str, Any]] | None = None) -> Iterator[Event]:
        """Yield the first events; with `messages` the conversation so far."""
        yield _make("RUN_STARTED", **self._ids, protocolVersion=PROTOCOL_VERSION)
        if messages is not None:
            yield _make("MESSAGES_SNAPSHOT", messages=list(messages))

    def write(self, event: QueryEvent) -> Iterator[Event]:
        """Yield what one event becomes."""
        match event:
            case TextDelta(agent=agent):
                yield from self._write_delta("TEXT_MESSAGE", agent, self._read_text(event))
            case ThinkingDelta(text=text, agent=agent):
                yield from self._write_delta("REASONING_MESSAGE", agent, text)
            case TextRetracted(agent=agent):
                self._text.read_event(event)
                yield _make("CUSTOM", name="pilothouse.text_retracted", value={"text": event.text}, **_tag(agent))
            case ToolCallStarted():
                yield from self._write_call(event)
            case ToolCallFinished():
                yield from self._write_result(event)
            case PermissionSettled(id=""):
                value = {"toolCallId": event.tool_use_id, "by": event.by}
                yield _make("CUSTOM", name="pilothouse.permission_denied", value=value)
            case Finished():
                yield from self.finish(event.message, event.error)
            case _ if isinstance(event, _NOTES):
                value = to_builtins(event, enc_hook=str)
                yield _make("CUSTOM", name=f"pilothouse.{event.type.replace('-', '_')}", value=value)
            case _:
                return

    def _read_text(self, event: TextDelta) -> str:
        return self._text.read_event(event) if event.agent is None else event.text

    def _write_delta(self, kind: str, agent: str | None, text: str) -> Iterator[Event]:
        if not text:
            return
        if self._open.get(agent, ("", ""))[0] != kind:
            yield from self._close(agent)
            self._open[agent] = kind, str(uuid.uuid4())
            message_id = self._open[agent][1]
            if kind == "REASONING_MESSAGE":
                yield _make("REASONING_START", messageId=message_id, **_tag(agent))
            role = "reasoning" if kind == "REASONING_MESSAGE" else "assistant"
            yield _make(f"{kind}_START", messageId=message_id, role=role, **_tag(agent))
        yield _make(f"{kind}_CONTENT", messageId=self._open[agent][1], delta=text, **_tag(agent))

    def _close(self, agent: str | None) -> Iterator[Event]:
        kind, message_id = self._open.pop(agent, ("", ""))
        if kind:
            yield _make(f"{kind}_END", messageId=message_id, **_tag(agent))
        if kind == "REASONING_MESSAGE":
            yield _make("REASONING_END", messageId=message_id, **_tag(agent))

    def _write_call(self, event: ToolCallStarted) -> Iterator[Event]:
        kind, message_id = self._open.get(event.agent, ("", ""))
        parent = {"parentMessageId": message_id} if kind == "TEXT_MESSAGE" else {}
        yield from self._close(event.agent)
        call, tag, name = event.id, _tag(event.agent), event.name.removeprefix(CLIENT_TOOL_PREFIX)
        yield _make("TOOL_CALL_START", toolCallId=call, toolCallName=name, **parent, **tag)
        yield _make("TOOL_CALL_ARGS", toolCallId=call, delta=json.dumps(event.tool_use.input), **tag)
        yield _make("TOOL_CALL_END", toolCallId=call, **tag)
        given = event.tool_use.input
        if event.name in AGENT_TOOLS:
            self._agents[call] = event.agent
            description = given.get("description")
            yield _make(
                "SUBAGENT_STARTED",
                subagentRunId=call,
                name=str(given.get("subagent_type") or "agent"),
                parentToolCallId=call,
                **({"description": description} if isinstance(description, str) else {}),
                **({} if event.agent is None else {"parentSubagentRunId": event.agent}),
            )
        elif event.name == TODO_TOOL and isinstance(given.get("todos"), list):
            self._state = {**self._state, "todos": given["todos"]}
            yield _make("STATE_SNAPSHOT", snapshot=self._state)

    def _write_result(self, event: ToolCallFinished) -> Iterator[Event]:
        yield from self._close(event.agent)
        if event.id in self._agents:
            yield from self._close(event.id)
            del self._agents[event.id]
            if event.is_error:
                yield _make("SUBAGENT_ERROR", subagentRunId=event.id, message=event.result.text)
            else:
                yield _make("SUBAGENT_FINISHED", subagentRunId=event.id)
        if event.id in self._known_results:
            return
        content, tag = event.result.text, _tag(event.agent)
        message_id = str(uuid.uuid4())
        yield _make("TOOL_CALL_RESULT", messageId=message_id, toolCallId=event.id, content=content, role="tool", **tag)

    def _close_all(self, *, is_suspended: bool = False) -> Iterator[Event]:
        for agent in list(self._open):
            yield from self._close(agent)
        outcome = {"outcome": {"type": "suspended"}} if is_suspended else {}
        for agent in reversed(list(self._agents)):
            yield _make("SUBAGENT_FINISHED", subagentRunId=agent, **outcome)
        self._agents.clear()

    def finish(self, message: ResultMessage | None, error: PilothouseError | None) -> Iterator[Event]:
        """Yield the end of a run whose turn has ended."""
        self.is_finished = True
        yield from self._close_all()
        usage = {} if message is None else {"usage": _list_usage(message)}
        if isinstance(error, Interrupted):
            yield _make("RUN_FINISHED", **self._ids, outcome={"type": "cancelled"}, **usage)
        elif error is not None:
            yield _make("RUN_ERROR", message=str(error), code=type(error).__name__, **usage)
        else:
            result: Any = None if message is None else message.structured_output
            given = {} if result is None else {"result": result}
            yield _make("RUN_FINISHED", **self._ids, outcome={"type": "success"}, **given, **usage)

    def pause(self, asks: Iterable[Ask], client_calls: Sequence[str]) -> Iterator[Event]:
        """Yield the end of a run whose turn waits for decisions, or for results of tools of the front end."""
        self.is_finished = True
        interrupts = [make_interrupt(ask) for ask in asks]
        yield from self._close_all(is_suspended=True)
        if interrupts:
            outcome: Event = {"type": "interrupt", "interrupts": interrupts}
        else:
            outcome = {"type": "success", "pendingToolCallIds": list(client_calls)}
        yield _make("RUN_FINISHED", **self._ids, outcome=outcome)


def make_interrupt(ask: Ask) -> Event:
    """Return the interrupt for an ask; its id is that of the ask."""
    described = ask.describe(details=True)
    made: Event = {
        "id": ask.id,
        "reason": _REASONS.get(ask.kind, "input_required"),
        "message": ask.title,
        "responseSchema": _ANSWER_SCHEMA if ask.kind == "question" else _APPROVAL_SCHEMA,
        "metadata": {"pilothouse": {"kind": ask.kind, "request": described.get("request")}},
    }
    if isinstance(ask.request, ElicitationRequest):
        made["responseSchema"] = {"type": "object", "properties": {"content": dict(ask.request.schema or {})}}
    elif call := described.get("request", {}).get("tool_use_id"):
        made["toolCallId"] = call
    if ask.expires_at is not None:
        made["expiresAt"] = datetime.fromtimestamp(ask.expires_at, UTC).isoformat()
    return made


def list_messages(turns: Iterable[PastTurn]) -> list[Event]:
    """Return turns as the messages that a front end has after their runs."""
    found: list[Event] = []
    for turn in turns:
        found.append({"id": turn.id, "role": "user", "content": _write_content(turn.content)})
        writer = AguiWriter("", "")
        found.extend(_build_messages(turn.id, (item for event in turn.events for item in writer.write(event))))
    return found


def _build_messages(turn_id: str, events: Iterable[Event]) -> list[Event]:
    """Return the messages that a front end makes of the events of a run, with ids that stay the same."""
    made: dict[str, Event] = {}
    calls: dict[str, Event] = {}

    def add(key: str, **message: Any) -> Event:
        made[key] = {"id": f"{turn_id}:{len(made)}", **message}
        return made[key]

    for event in events:
        if "subagentRunId" in event:
            continue
        match event:
            case {"type": "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START", "messageId": key, "role": role}:
                add(key, role=role, content="")
            case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT", "messageId": key, "delta": text}:
                made[key]["content"] += text
            case {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name}:
                parent = made.get(event.get("parentMessageId", "")) or add(call, role="assistant")
                calls[call] = {"id": call, "type": "function", "function": {"name": name, "arguments": ""}}
                parent.setdefault("toolCalls", []).append(calls[call])
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": text}:
                calls[call]["function"]["arguments"] += text
            case {"type": "TOOL_CALL_RESULT", "messageId": key, "toolCallId": call, "content": content}:
                add(key, role="tool", toolCallId=call, content=content)
            case _:
                continue
    return list(made.values())


def agui_route(
    path: str,
    agent: Agent | Threads,
    *,
    get_owner: GetOwner | None = None,
    names: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> Route:
    """Return a route that serves an agent to AG-UI clients, for Starlette and FastAPI.

    ::

        app = Starlette(routes=[agui_route("/agui", ph.Agent(cwd="/srv/project"))])

    Whoever reaches the route may use the agent, its tools and its account: put your authentication before it, and
    give `get_owner` if it has several users. The route refuses requests (403) under a host name that it does not know,
    and those of pages of other origins.

    `GET path/THREAD` returns the thread so far, for a page that was reloaded: its `messages`, and the `interrupts` and
    `pendingToolCallIds` that it waits for. `POST path/THREAD/steer` with a `text` gives words to the run that works.

    Args:
        path: of the route.
        agent: the agent; or `Threads`, for limits, or to share conversations between routes.
        get_owner: `f(request)` returns the name of the user who asks, sync or async; an owner sees only their own
            threads, and has no more than three quarters of the children. It may raise `HTTPException`. Default: nobody
            tells owners apart.
        names: host names of the server, besides "localhost"; addresses are always accepted.
        origins: origins of pages on other servers that may use the route, such as "https://app.example.com".

    Raises:
        UsageError: a name or an origin has a form that no browser sends.
    """
    threads = agent if isinstance(agent, Threads) else Threads(agent)

    async def endpoint(request: Request) -> Response:
        access = await find_application_access(get_owner, request)
        thread_id = request.path_params["rest"]
        if request.method == "POST" and thread_id.endswith(STEERING_PATH):
            return await steer(threads.open(thread_id.removesuffix(STEERING_PATH), access.owner), request)
        if request.method != "POST" and thread_id:
            return make_json(await _describe_thread(threads.open(thread_id, access.owner)))
        if request.method != "POST" or thread_id:
            return Response(status_code=405 if not thread_id else 404)
        body = await read_body(request)
        thread = threads.open(get_text(body, "threadId"), access.owner)
        async with thread.lock:
            turn = await _begin(thread, body)
            return await open_stream(_stream(thread, turn, body))

    return make_route(path, endpoint, ["POST", "GET"], AccessRules(names=names, origins=origins))


async def _describe_thread(thread: Thread) -> Event:
    turn = thread.turn
    found: Event = {"messages": list_messages(await thread.read_history()), "interrupts": []}
    if turn is not None and turn.is_waiting:
        found["interrupts"] = [make_interrupt(ask) for ask in turn.asks]
        found["pendingToolCallIds"] = list(thread.client_calls)
    return found


async def _begin(thread: Thread, body: Mapping[str, Any]) -> Turn:
    """Answer what the thread waits for, or send the new messages; return the turn to read."""
    get_text(body, "runId")
    messages, resume = _list_objects(body, "messages"), _list_objects(body, "resume")
    await thread.load()
    turn = thread.turn if thread.is_busy else None
    results = {str(each.get("toolCallId")): each for each in messages if each.get("role") == "tool"}
    known = {str(call.get("id")) for each in messages for call in _list_objects(each, "toolCalls")}
    for call in results.keys() - known - thread.client_calls.keys():
        raise FrontEndError(f"messages: no call {call!r:.80} comes before its result")
    prompt = _make_prompt(thread, messages, body)
    message_ids = [str(each.get("id") or uuid.uuid4()) for each in messages if each.get("role") == "user"]
    if turn is not None and (resume or results.keys() & thread.client_calls.keys()):
        _answer(turn, resume)
        for call in results.keys() & thread.client_calls.keys():
            thread.client_calls[call].finish(str(results[call].get("content", "")))
        return turn
    if resume:  # the process that waited has ended: nothing is approved, the model has to ask again
        prompt = [*prompt, {"type": "text", "text": LOST_PROMPT}]
        message_ids = [*message_ids, *(message_ids[-1:] or [""])]  # a part of the last turn, which is not taken back
    if not prompt:
        raise FrontEndError("messages: expected a message of the user at the end, or `resume`")
    has_history = any(each.get("role") == "assistant" for each in messages)
    return await thread.start_turn(prompt, message_ids, _list_objects(body, "tools"), has_history=has_history)


def _answer(turn: Turn, resume: Sequence[Mapping[str, Any]]) -> None:
    waiting = {ask.id: ask for ask in turn.asks}
    for entry in resume:
        ask = waiting.get(str(entry.get("interruptId")))
        if ask is not None:
            settle(ask, entry.get("payload") if entry.get("status") == "resolved" else None, by="AG-UI")


async def _stream(thread: Thread, turn: Turn, body: Mapping[str, Any]) -> AsyncGenerator[Event]:
    messages = _list_objects(body, "messages")
    known_results = {str(each.get("toolCallId")) for each in messages if each.get("role") == "tool"}
    writer = AguiWriter(thread.id, str(body["runId"]), body.get("state"), known_results)
    position = turn.shown
    turn.readers += 1
    try:
        # Results may follow of calls that an earlier run has shown.
        for item in writer.start(messages if turn.shown else None):
            yield item
        while not writer.is_finished:
            event = await turn.read(position)
            if event is not None:
                position += 1
                turn.shown = max(turn.shown, position)
                items = writer.write(event)
            elif turn.is_waiting:
                items = writer.pause(turn.asks, list(thread.client_calls))
            elif turn.is_finished:
                items = writer.finish(None, turn.failure or Interrupted("the turn was stopped"))
            else:
                continue
            for item in items:
                yield item
    finally:
        turn.readers -= 1
        if not writer.is_finished and not turn.readers:  # the last client left
            await turn.stop()
        await thread.leave()


def _make_prompt(thread: Thread, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> list[Any]:
    """Return the content of the user's messages at the end, after what the front end says about itself.

    Only the last one may have been sent before: then it is sent again.
    """
    new: list[Mapping[str, Any]] = []
    for message in reversed(messages):
        if message.get("role") != "user" or (new and thread.has_prompt(str(message.get("id")))):
            break
        new.insert(0, message)
    blocks = [block for message in new for block in _read_content(message.get("content"))]
    context = [f"{each.get('description')}: {each.get('value')}" for each in _list_objects(body, "context")]
    about = {"type": "text", "text": CONTEXT_START + "\n".join(context) + CONTEXT_END}
    return [*([about] if context and blocks else []), *blocks]


def _read_content(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        if content.strip():
            yield {"type": "text", "text": content}
        return
    for part in cast("list[Any]", content) if isinstance(content, list) else []:
        match part:
            case {"type": "text", "text": str(text)}:
                yield {"type": "text", "text": text}
            case {"type": "image" | "document" as kind, "source": {"type": "data", "value": str(data), **more}}:
                yield {"type": kind, "source": {"type": "base64", "media_type": more.get("mimeType"), "data": data}}
            case {"type": "image" | "document" as kind, "source": {"type": "url", "value": str(url)}}:
                yield {"type": kind, "source": {"type": "url", "url": url}}
            case _:
                raise FrontEndError(f"messages: a part cannot be sent to the model: {json.dumps(part)[:80]}")


def _write_content(blocks: Sequence[Mapping[str, Any]]) -> str | list[Event]:
    """Return the content of a message of the user, as the front end has sent it."""
    parts: list[Event] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "image" | "document" as kind, "source": {"type": "base64", "data": str(data), **more}}:
                source = {"type": "data", "value": data, "mimeType": more.get("media_type")}
                parts.append({"type": kind, "source": source})
            case {"type": "image" | "document" as kind, "source": {"type": "url", "url": str(url)}}:
                parts.append({"type": kind, "source": {"type": "url", "value": url}})
            case _:
                continue
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _list_objects(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value: Any = data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in cast("list[Any]", value)):
        raise FrontEndError(f"{key}: expected a list of objects")
    return cast("list[dict[str, Any]]", value)


def _list_usage(message: ResultMessage) -> list[Event]:
    found = message.model_usage_since_last_result or message.model_usage
    return [
        {
            "provider": "anthropic",
            "model": model,
            "inputTokens": (total := use.input_tokens + use.cache_read_input_tokens + use.cache_creation_input_tokens),
            "outputTokens": use.output_tokens,
            "totalTokens": total + use.output_tokens,
            "cachedInputTokens": use.cache_read_input_tokens,
            "cacheWriteInputTokens": use.cache_creation_input_tokens,
        }
        for model, use in found.items()
    ]


def _tag(agent: str | None) -> dict[str, str]:
    return {} if agent is None else {"subagentRunId": agent}


def _make(kind: str, **fields: Any) -> Event:
    return {"type": kind, "timestamp": int(time.time() * 1000), **fields}
