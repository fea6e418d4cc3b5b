"""The UI message stream of Vercel's AI SDK (`ai` 6 and 7): the events of a turn as chunks, and a route for `useChat`.

`VercelWriter` is a table without I/O. A stream that needs a decision ends with approval requests, and the turn waits;
the next request of the chat answers and reads on in the same message.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pilothouse.client import Agent, TextReader
from pilothouse.errors import Interrupted, PilothouseError
from pilothouse.events import (
    Finished,
    QueryEvent,
    TextDelta,
    TextRetracted,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from pilothouse.messages import ResultMessage
from pilothouse.permissions import Ask
from pilothouse_access.guard import AccessRules, GetOwner, find_application_access
from pilothouse_doors.ui.history import PastTurn
from pilothouse_doors.ui.http import STEERING_PATH, get_text, make_json, make_route, open_stream, read_body, steer
from pilothouse_doors.ui.threads import FrontEndError, Thread, Threads, Turn, settle

STREAM_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
TODO_TOOL = "TodoWrite"
Chunk = dict[str, Any]


class VercelWriter:
    """Turns the events of one stream into chunks, which build the message with this id. Pure."""

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self._text = TextReader()
        self._open: tuple[str, str] | None = None  # the kind and id of the part that is being written
        self._agent_texts: dict[str, str] = {}
        self.is_finished = False

    def start(self) -> Iterator[Chunk]:
        """Yield the first chunks."""
        yield {"type": "start", "messageId": self._message_id}
        yield {"type": "start-step"}

    def write(self, event: QueryEvent) -> Iterator[Chunk]:
        """Yield what one event becomes."""
        match event:
            case TextDelta(agent=None):
                yield from self._write_delta("text", self._text.read_event(event))
            case ThinkingDelta(agent=None, text=text):
                yield from self._write_delta("reasoning", text)
            case TextDelta(agent=str(agent), text=text):
                self._agent_texts[agent] = self._agent_texts.get(agent, "") + text
                yield {"type": "data-subagent", "id": agent, "data": {"text": self._agent_texts[agent]}}
            case TextRetracted():
                self._text.read_event(event)
            case ToolCallStarted():
                yield from self._write_call(event)
            case ToolCallFinished():
                yield from self._write_result(event)
            case Finished():
                yield from self.finish(event.message, event.error)
            case _:
                return

    def _write_delta(self, kind: str, text: str) -> Iterator[Chunk]:
        if not text:
            return
        if self._open is None or self._open[0] != kind:
            yield from self._close()
            self._open = kind, str(uuid.uuid4())
            yield {"type": f"{kind}-start", "id": self._open[1]}
        yield {"type": f"{kind}-delta", "id": self._open[1], "delta": text}

    def _close(self) -> Iterator[Chunk]:
        if self._open is not None:
            kind, part_id = self._open
            self._open = None
            yield {"type": f"{kind}-end", "id": part_id}

    def _write_call(self, event: ToolCallStarted) -> Iterator[Chunk]:
        yield from self._close()
        given = event.tool_use.input
        chunk = {"type": "tool-input-available", "toolCallId": event.id, "toolName": event.name, "input": given}
        about = {} if event.agent is None else {"providerMetadata": {"pilothouse": {"agent": event.agent}}}
        yield {**chunk, "dynamic": True, **about}
        if event.name == TODO_TOOL and "todos" in given:
            yield {"type": "data-todos", "id": "todos", "data": given["todos"]}

    def _write_result(self, event: ToolCallFinished) -> Iterator[Chunk]:
        yield from self._close()
        if event.is_error:
            text = event.result.text
            yield {"type": "tool-output-error", "toolCallId": event.id, "errorText": text, "dynamic": True}
        else:
            content = event.result.content
            output = content if isinstance(content, str) else to_builtins(content)
            yield {"type": "tool-output-available", "toolCallId": event.id, "output": output, "dynamic": True}

    def finish(self, message: ResultMessage | None, error: PilothouseError | None) -> Iterator[Chunk]:
        """Yield the end of a stream whose turn has ended."""
        self.is_finished = True
        yield from self._close()
        if isinstance(error, Interrupted):
            yield {"type": "abort"}
            return
        if error is not None:
            yield {"type": "error", "errorText": str(error)}
        usage = None if message is None else to_builtins(message.usage)
        facts: Chunk = {} if message is None else {"costUsd": message.total_cost_usd, "usage": usage}
        yield {"type": "finish-step"}
        yield {"type": "finish", "messageMetadata": {"pilothouse": facts}}

    def pause(self, asks: Sequence[Ask]) -> Iterator[Chunk]:
        """Yield the end of a stream whose turn waits for decisions."""
        self.is_finished = True
        yield from self._close()
        for ask in asks:
            described = ask.describe(details=True)
            call = described.get("request", {}).get("tool_use_id")
            yield {"type": "data-ask", "id": ask.id, "data": described}
            if ask.kind in ("permission", "plan") and call:
                yield {"type": "tool-approval-request", "approvalId": ask.id, "toolCallId": call}
        yield {"type": "finish-step"}
        yield {"type": "finish"}


def list_messages(turns: Iterable[PastTurn], asks: Sequence[Ask] = (), last_id: str | None = None) -> list[Chunk]:
    """Return turns as the messages that `useChat` has after them.

    Args:
        turns: the turns.
        asks: what the last one waits for.
        last_id: id of the last answer, if a stream continues it.
    """
    turns = list(turns)
    found: list[Chunk] = []
    for turn in turns:
        found.append({"id": turn.id, "role": "user", "parts": list(_write_parts(turn.content))})
        if not turn.events:
            continue
        writer = VercelWriter(last_id if last_id is not None and turn is turns[-1] else f"{turn.id}:answer")
        chunks = [*writer.start(), *(item for event in turn.events for item in writer.write(event))]
        chunks += writer.pause(asks) if turn is turns[-1] and asks else ()
        found.append(_build_message(chunks))
    return found


def _build_message(chunks: Iterable[Chunk]) -> Chunk:
    """Return the message that the AI SDK builds from the chunks of a stream."""
    message: Chunk = {"role": "assistant", "parts": []}
    parts: list[Chunk] = message["parts"]
    found: dict[str, Chunk] = {}  # the parts that may change, by their ids

    def add(key: str, **part: Any) -> None:
        if key not in found:
            found[key] = {}
            parts.append(found[key])
        found[key].update(part)

    for chunk in chunks:
        match chunk:
            case {"type": "start", "messageId": message_id}:
                message["id"] = message_id
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "text-start" | "reasoning-start" as kind, "id": key}:
                add(key, type=kind.removesuffix("-start"), text="", state="done")
            case {"type": "text-delta" | "reasoning-delta", "id": key, "delta": text}:
                found[key]["text"] += text
            case {"type": "tool-input-available" | "tool-output-available" | "tool-output-error" as kind, **facts}:
                facts.pop("dynamic")
                add(facts["toolCallId"], type="dynamic-tool", state=kind.removeprefix("tool-"), **facts)
            case {"type": "tool-approval-request", "approvalId": ask_id, "toolCallId": call}:
                add(call, state="approval-requested", approval={"id": ask_id})
            case {"type": str(kind), "id": key, "data": data} if kind.startswith("data-"):
                add(f"{kind} {key}", type=kind, id=key, data=data)
            case _:
                continue
    return message


def vercel_route(
    path: str,
    agent: Agent | Threads,
    *,
    get_owner: GetOwner | None = None,
    resumable: bool = False,
    names: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> Route:
    """Return a route that serves an agent to `useChat` of the AI SDK, for Starlette and FastAPI.

    ::

        app = Starlette(routes=[vercel_route("/chat", ph.Agent(cwd="/srv/project"))])

    Whoever reaches the route may use the agent, its tools and its account: put your authentication before it, and
    give `get_owner` if it has several users. The route refuses requests (403) under a host name that it does not know,
    and those of pages of other origins.

    `GET path/ID` returns the messages of a chat so far, for the `messages` of `useChat` after a reload, without an
    answer that `GET path/ID/stream` gives. `POST path/ID/steer` with a `text` gives words to the answer that is being
    written.

    Args:
        path: of the route.
        agent: the agent; or `Threads`, for limits, or to share conversations between routes.
        get_owner: `f(request)` returns the name of the user who asks, sync or async; an owner sees only their own
            chats, and has no more than three quarters of the children. It may raise `HTTPException`. Default: nobody
            tells owners apart.
        resumable: whether an answer goes on without its client, on asyncio. `GET path/ID/stream` gives the stream
            again from its start (`useChat({resume: true})`), and `DELETE path/ID/stream` stops the answer, for a stop
            button. Default: a client that leaves, or calls `stop()`, stops the answer.
        names: host names of the server, besides "localhost"; addresses are always accepted.
        origins: origins of pages on other servers that may use the route, such as "https://app.example.com".

    Raises:
        UsageError: a name or an origin has a form that no browser sends.
    """
    threads = agent if isinstance(agent, Threads) else Threads(agent)
    streams: WeakKeyDictionary[Turn, _Stream] = WeakKeyDictionary()

    rules = AccessRules(names=names, origins=origins)

    async def send(request: Request) -> Response:
        access = await find_application_access(get_owner, request)
        body = await read_body(request)
        thread = threads.open(get_text(body, "id"), access.owner)
        async with thread.lock:
            turn, message_id = await _begin(thread, body)
            stream = streams[turn] = _Stream(thread, message_id, turn.shown, resumable)
            return await open_stream(stream.read(turn), STREAM_HEADERS)

    async def list_past(thread: Thread) -> Response:
        turn = thread.turn
        past = await thread.read_history()
        if turn is not None and (stream := find_stream(turn)) is not None:
            past[-1].events = turn.log[: stream.start]  # the stream gives the rest
            return make_json(list_messages(past, last_id=stream.message_id))
        return make_json(list_messages(past, turn.asks if turn is not None and turn.is_waiting else ()))

    def find_stream(turn: Turn) -> _Stream | None:
        """Return the stream that can be read again."""
        is_over = turn.is_finished and turn.shown == len(turn.log)
        return streams.get(turn) if resumable and not is_over else None

    async def endpoint(request: Request) -> Response:
        rest = request.path_params["rest"]
        if request.method == "POST":
            if rest.endswith(STEERING_PATH):
                access = await find_application_access(get_owner, request)
                return await steer(threads.open(rest.removesuffix(STEERING_PATH), access.owner), request)
            return await send(request) if not rest else Response(status_code=404)
        if not rest:
            return Response(status_code=405)
        access = await find_application_access(get_owner, request)
        chat_id, _, last = rest.rpartition("/")
        if last != "stream" or not chat_id:
            return (
                Response(status_code=405)
                if request.method == "DELETE"
                else await list_past(threads.open(rest, access.owner))
            )
        turn = threads.open(chat_id, access.owner).turn
        if turn is None or (stream := find_stream(turn)) is None:
            return Response(status_code=204)
        if request.method == "DELETE":
            await turn.stop()
            return Response(status_code=204)
        return await open_stream(stream.read(turn), STREAM_HEADERS)

    return make_route(path, endpoint, ["POST", "GET", *(["DELETE"] if resumable else [])], rules)


async def _begin(thread: Thread, body: Mapping[str, Any]) -> tuple[Turn, str]:
    """Answer what the chat waits for, or send the last message; return the turn and the id of its message."""
    messages: Any = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise FrontEndError("messages: expected a list of messages")
    last = cast("dict[str, Any]", messages[-1])
    if last.get("role") == "assistant":
        turn = thread.turn if thread.is_busy else None
        if turn is None:
            raise FrontEndError("nothing waits for this answer any more; send a message", code="busy")
        answers = _read_answers(last, body)
        for ask in turn.asks:
            if ask.id in answers:
                settle(ask, answers[ask.id], by="AI SDK")
        return turn, str(last.get("id") or uuid.uuid4())
    known = [cast("dict[str, Any]", each) for each in cast("list[Any]", messages) if isinstance(each, dict)]
    has_history = any(each.get("role") == "assistant" for each in known)
    message_ids = [str(each.get("id") or uuid.uuid4()) for each in known if each.get("role") == "user"]
    if last.get("role") != "user":
        raise FrontEndError("messages: expected a message of the user at the end")
    turn = await thread.start_turn(_read_parts(last), message_ids, has_history=has_history)
    return turn, str(uuid.uuid4())


def _read_answers(message: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was decided, by ask: approvals of the message, and `answers` of the body."""
    found: dict[str, Any] = {}
    for part in _list_parts(message):
        match part:
            case {"state": "approval-responded", "approval": {"id": str(ask_id), **approval}}:
                found[ask_id] = {"approved": approval.get("approved"), "reason": approval.get("reason")}
            case _:
                continue
    answers = body.get("answers")
    return {**found, **cast("dict[str, Any]", answers if isinstance(answers, dict) else {})}


def _list_parts(message: Mapping[str, Any]) -> list[Any]:
    parts: Any = message.get("parts") or []
    if not isinstance(parts, list):
        raise FrontEndError("messages: expected a list of parts in the last message")
    return cast("list[Any]", parts)


def _read_parts(message: Mapping[str, Any]) -> list[Any]:
    blocks: list[Any] = []
    for part in _list_parts(message):
        match part:
            case {"type": "text", "text": str(text)} if text.strip():
                blocks.append({"type": "text", "text": text})
            case {"type": "file", "mediaType": str(kind), "url": str(url)}:
                blocks.append(_read_file(kind, url))
            case _:
                continue
    if not blocks:
        raise FrontEndError("messages: expected a text or a file in the last message")
    return blocks


def _write_parts(blocks: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Yield the parts of a message of the user, as the chat has sent them."""
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield {"type": "text", "text": text}
            case {"type": "image" | "document", "source": {"type": "base64", "data": str(data), "media_type": kind}}:
                yield {"type": "file", "mediaType": kind, "url": f"data:{kind};base64,{data}"}
            case {"type": "image" | "document" as kind, "source": {"type": "url", "url": str(url)}}:
                yield {"type": "file", "mediaType": "image/*" if kind == "image" else "application/pdf", "url": url}
            case _:
                continue


def _read_file(media_type: str, url: str) -> dict[str, Any]:
    kind = "image" if media_type.startswith("image/") else "document"
    head, comma, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}
    return {"type": kind, "source": {"type": "url", "url": url}}


class _Stream:
    """What one request has begun to send, for it and for those that read it again."""

    def __init__(self, thread: Thread, message_id: str, start: int, resumable: bool) -> None:
        self._thread = thread
        self.message_id = message_id
        self.start = start
        self._resumable = resumable

    async def read(self, turn: Turn) -> AsyncGenerator[Any]:
        writer = VercelWriter(self.message_id)
        position = self.start
        turn.readers += 1
        try:
            for item in writer.start():
                yield item
            while not writer.is_finished:
                event = await turn.read(position)
                if event is not None:
                    position += 1
                    turn.shown = max(turn.shown, position)
                    items = writer.write(event)
                elif turn.is_waiting:
                    items = writer.pause(turn.asks)
                elif turn.is_finished:
                    items = writer.finish(None, turn.failure or Interrupted("the turn was stopped"))
                else:
                    continue
                for item in items:
                    yield item
            yield "[DONE]"
        finally:
            turn.readers -= 1
            if not writer.is_finished and not turn.readers and not (self._resumable and turn.read_on()):
                await turn.stop()  # the last client left
            await self._thread.leave()
