"""The script of a `ScriptedModel`: recorded requests, replies, and the rules that choose a reply for a request.

Plain data and decisions; knows nothing of HTTP or of the wire format.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast, get_args

from pilothouse.support import MASK


class Gate:
    """Stops a scripted stream at a known place until the test opens the gate, so that no test has to sleep.

    Put it into a reply with `Pause(gate)`. Thread-safe; once open it stays open.

        >>> gate = Gate()
        >>> gate.is_open
        False
        >>> gate.open()
        >>> gate.is_open
        True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._reached = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether the gate lets streams pass."""
        return self._open

    def open(self) -> None:
        """Let all waiting and later streams pass."""
        with self._lock:
            self._open = True
            for loop, event in self._waiters:
                loop.call_soon_threadsafe(event.set)
            self._waiters.clear()

    def wait_reached(self, timeout: float = 10.0) -> None:
        """Block until a stream has reached the gate; `TimeoutError` after `timeout` seconds."""
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no scripted stream reached the gate within {timeout} s")

    async def wait_open(self) -> None:
        """Wait in the server until the gate is open."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if not self._open:
                self._waiters.add(entry)
            else:
                event.set()
        self._reached.set()
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiters.discard(entry)


SECRET_HEADERS = frozenset({"x-api-key", "authorization", "proxy-authorization", "cookie"})
REMINDER_TAG = "<system-reminder>"
# A side question is itself a reminder, so it is recognised before reminders are dropped.
SIDE_QUESTION = "<system-reminder>This is a side question"


@dataclass(frozen=True, slots=True)
class RecordedToolResult:
    """The result of one tool call, as the model receives it."""

    tool_use_id: str
    content: Any
    is_error: bool = False

    @property
    def text(self) -> str:
        """All text of the result."""
        return "\n".join(get_block_texts(self.content))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One HTTP request that reached the scripted model.

    Args:
        method: the HTTP method.
        path: the path without the query.
        headers: names in lower case; the values of keys are replaced by "[redacted]".
        body: the JSON body, or an empty dict.
        side: None for a request of the conversation; else its purpose: "title", "compact", "quota",
            "count_tokens", "probe", "other", … (`SIDE_KINDS` has those of the Messages endpoint).
        number: 1 for the first request that arrived, and so on.
        received: `time.monotonic()` of its arrival, in seconds.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)
    side: str | None = None
    number: int = 0
    received: float = 0.0

    @property
    def is_side(self) -> bool:
        """Whether the request is not part of the conversation."""
        return self.side is not None

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        """Whether the request wants a stream."""
        return bool(self.body.get("stream"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body."""
        return [cast("dict[str, Any]", m) for m in self.body.get("messages", ()) if isinstance(m, dict)]

    @property
    def system_text(self) -> str:
        """The system prompt as one text, including what the CLI puts into messages of the role "system"."""
        texts = get_block_texts(self.body.get("system", ""))
        for message in self.messages:
            if message.get("role") == "system":
                texts.extend(get_block_texts(message.get("content", "")))
        return "\n".join(texts)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the offered tools."""
        return tuple(str(tool.get("name", "")) for tool in self.body.get("tools") or ())

    @property
    def session_id(self) -> str:
        """The CLI's session id, or ""."""
        return self.headers.get("x-claude-code-session-id", "")

    @property
    def last_user_text(self) -> str:
        """The newest text of the user, without the reminders that the CLI adds."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                texts = get_user_texts(message.get("content", ""))
                if texts:
                    return "\n".join(texts)
        return ""

    @property
    def tool_results(self) -> tuple[RecordedToolResult, ...]:
        """The tool results since the last assistant message, in order; empty if the user wrote."""
        return tuple(result for message in get_newest_messages(self.messages) for result in get_tool_results(message))

    @property
    def last_tool_result(self) -> RecordedToolResult | None:
        """The last of `tool_results`, or None."""
        results = self.tool_results
        return results[-1] if results else None

    @property
    def tool_text(self) -> str:
        """The texts of `tool_results`, one after the other, or ""."""
        return "\n".join(result.text for result in self.tool_results)

    @property
    def newest_text(self) -> str:
        """The user's text and the texts of tool results since the last assistant message."""
        texts: list[str] = []
        for message in get_newest_messages(self.messages):
            texts.extend(get_user_texts(message.get("content", "")))
            texts.extend(result.text for result in get_tool_results(message))
        return "\n".join(texts)


def get_block_texts(content: Any) -> list[str]:
    """Return all texts in a content that is a string or a list of blocks."""
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, Sequence):
        return []
    return [str(block["text"]) for block in to_blocks(cast("Sequence[Any]", content)) if "text" in block]


def to_blocks(content: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the blocks of a list content; strings among them become text blocks."""
    return [
        {"type": "text", "text": block} if isinstance(block, str) else cast("dict[str, Any]", block)
        for block in content
        if isinstance(block, (str, dict))
    ]


def get_user_texts(content: Any) -> list[str]:
    """Return the texts that the user wrote, without the CLI's reminders."""
    return [text for text in get_block_texts(content) if not text.lstrip().startswith(REMINDER_TAG)]


def get_newest_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the user messages after the last assistant message."""
    newest: list[dict[str, Any]] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            newest.insert(0, message)
    return newest


def get_tool_results(message: Mapping[str, Any]) -> list[RecordedToolResult]:
    """Return the tool results of one message."""
    content = message.get("content", "")
    if isinstance(content, str):
        return []
    return [
        RecordedToolResult(str(block.get("tool_use_id", "")), block.get("content", ""), bool(block.get("is_error")))
        for block in to_blocks(content)
        if block.get("type") == "tool_result"
    ]


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers in lower case, without the values of keys."""
    return {name.lower(): MASK if name.lower() in SECRET_HEADERS else value for name, value in headers.items()}


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body, or an empty dict."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _match_system(words: str) -> Callable[[RecordedRequest], bool]:
    return lambda request: words in request.system_text


def _match_user_start(words: str) -> Callable[[RecordedRequest], bool]:
    def starts(request: RecordedRequest) -> bool:
        newest = get_newest_messages(request.messages)
        return bool(newest) and any(t.startswith(words) for t in get_block_texts(newest[-1].get("content", "")))

    return starts


@dataclass(frozen=True, slots=True)
class SideKind:
    """A kind of side request: how to recognise it, and the default answer."""

    name: str
    matches: Callable[[RecordedRequest], bool]
    text: str


# Recognised by texts of the CLI.
SIDE_KINDS: tuple[SideKind, ...] = (
    SideKind("quota", lambda asked: asked.body.get("max_tokens") == 1 and asked.last_user_text == "quota", "ok"),
    SideKind("title", _match_system("You are naming a coding session"), '{"title": "Scripted session"}'),
    SideKind(
        "compact",
        _match_user_start("CRITICAL: Respond with TEXT ONLY"),
        "<analysis>Scripted.</analysis>\n<summary>A scripted summary of the conversation.</summary>",
    ),
    SideKind("side_question", _match_user_start(SIDE_QUESTION), "A scripted answer to a side question."),
    SideKind("suggestion", _match_user_start("[SUGGESTION MODE"), "go on"),
    SideKind("tool_summary", _match_system("Write a short summary label describing what"), "Ran scripted tools"),
    SideKind("hook", _match_system("You are evaluating a hook in Claude Code"), '{"ok": true}'),
)


def find_side_kind(request: RecordedRequest) -> SideKind | None:
    """Return the kind of a side request among Messages requests; None if it belongs to the conversation."""
    return next((kind for kind in SIDE_KINDS if kind.matches(request)), None)


BrokenKind = Literal["bad_json", "no_stop", "no_message_stop", "empty", "cut", "html", "no_response"]
BROKEN_KINDS: tuple[str, ...] = get_args(BrokenKind)

# The error type and message of the Messages API for each status.
HTTP_ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "The request is not valid."),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your credit balance is too low to access the API."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    413: ("request_too_large", "Request exceeds the maximum size."),
    429: ("rate_limit_error", "This request would exceed your rate limit."),
    500: ("api_error", "Internal server error"),
    504: ("timeout_error", "The request timed out."),
    529: ("overloaded_error", "Overloaded"),
}


@dataclass(frozen=True, slots=True)
class Text:
    """A text block.

    Args:
        text: the whole text.
        chunks: how many deltas it is cut into, or the deltas themselves; None: pieces of about 16 characters.
        delay: seconds to wait before each delta.
    """

    text: str
    chunks: int | Sequence[str] | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Thinking:
    """A thinking block: deltas of the text, then its signature. `chunks` and `delay` as in `Text`."""

    thinking: str
    signature: str = "scripted-signature"
    chunks: int | Sequence[str] | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call. Several in one reply are parallel calls.

    Args:
        name: the tool, such as "Bash" or "mcp__weather__forecast".
        input: its arguments; a string is sent as it is, so that broken JSON can be scripted.
        id: the call's id; None: a new one.
        chunks: as in `Text`, for the JSON of the arguments.
        delay: seconds to wait before each delta.
    """

    name: str
    input: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None
    chunks: int | Sequence[str] | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Any other content block, sent whole, such as `{"type": "redacted_thinking", "data": "…"}`."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Pauses the stream: for a number of seconds, or until a `Gate` is opened."""

    until: float | Gate


Part: TypeAlias = Text | Thinking | ToolUse | RawBlock | Pause
Parts: TypeAlias = str | Part | Sequence[str | Part]


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply, for settings that parts alone cannot express.

    Args:
        parts: a text, a part, or a list of them.
        stop_reason: None: "tool_use" if a tool is called, else "end_turn".
        usage: entries that replace those of the computed usage.
        model: the model named in the reply; None: the requested one.
        delay: seconds before the first byte.
        chunk_delay: seconds before every delta that has no delay of its own.
        stop_sequence: the stop sequence that the API reports with `stop_reason="stop_sequence"`.
        headers: extra HTTP headers, such as the anthropic-ratelimit ones.
    """

    parts: Parts = ()
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    delay: float = 0.0
    chunk_delay: float = 0.0
    stop_sequence: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts, shorthand resolved."""
        return as_parts(self.parts)


@dataclass(frozen=True, slots=True)
class HttpError:
    """The request fails with an HTTP status and an error in the API's form.

    Args:
        status: such as 400, 401, 403, 404, 413, 429, 500 or 529.
        type: the API's error type; None: the one that belongs to the status.
        message: None: the usual one for the status.
        headers: such as `{"retry-after": "1"}` or `{"anthropic-ratelimit-unified-status": "rejected"}`.
        delay: seconds before the first byte.
    """

    status: int
    type: str | None = None
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamError:
    """A stream that starts well and then carries an SSE `error` event. Without streaming, the whole answer is sent.

    Args:
        parts: the answer that would have come.
        after: number of deltas before the error; None: half of them, at least one.
        type: the API's error type.
        message: the API's error message.
    """

    parts: Parts = "This answer is cut short."
    after: int | None = None
    type: str = "overloaded_error"
    message: str = "Overloaded"


@dataclass(frozen=True, slots=True)
class BrokenSse:
    """A stream that breaks the rules. A request without streaming gets the parts, except for "html", "no_response".

    Args:
        kind: "bad_json": half of the deltas, then an event whose data is not valid JSON;
            "no_stop": half of the deltas, then a clean end; "no_message_stop": all blocks, then a clean end without
            `message_delta` and `message_stop` (the CLI keeps the blocks and asks three times to go on);
            "empty": status 200 and not one event; "cut": half of the deltas, then the socket is closed;
            "html": an HTML page with status 200; "no_response": the socket is closed before any byte.
        parts: the answer that would have come.
    """

    kind: BrokenKind
    parts: Parts = "This answer is cut short."

    def __post_init__(self) -> None:
        if self.kind not in BROKEN_KINDS:
            raise ValueError(f"BrokenSse kind must be one of {', '.join(BROKEN_KINDS)}; got {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Hang:
    """Sends `parts`, if any, and then nothing more until the client or the server disconnects.

    Without parts not even the HTTP status arrives.
    """

    parts: Parts = ()


Answer: TypeAlias = Reply | HttpError | StreamError | BrokenSse | Hang
AnswerLike: TypeAlias = "Answer | Parts | Callable[[RecordedRequest], Answer | Parts]"


@dataclass(frozen=True, slots=True)
class Times:
    """The same answer `count` times, as a step of `Steps`: `Steps(Times(2, HttpError(529)), "Hello")`."""

    count: int
    answer: AnswerLike


class Steps:
    """Answers that one rule gives in order, from the first one in each conversation.

    The results of the tools that one step calls go to the next step of the same rule, before other rules are tried.
    After the last step the rule no longer matches that conversation.

        >>> Steps([ToolUse("Bash", {"command": "date"})], "Done.").answers[1]
        'Done.'
    """

    __slots__ = ("answers",)

    def __init__(self, *steps: AnswerLike | Times) -> None:
        if not steps:
            raise ValueError("Steps needs at least one answer")
        answers: list[AnswerLike] = []
        for step in steps:
            if isinstance(step, Times):
                answers.extend([step.answer] * step.count)
            else:
                answers.append(step)
        self.answers: tuple[AnswerLike, ...] = tuple(answers)


def as_parts(parts: Parts) -> tuple[Part, ...]:
    """Resolve shorthand to parts: a string is a `Text`."""
    if isinstance(parts, str):
        return (Text(parts),)
    if isinstance(parts, Part):
        return (parts,)
    resolved: list[Part] = []
    for part in parts:
        match part:
            case str():
                resolved.append(Text(part))
            case Text() | Thinking() | ToolUse() | RawBlock() | Pause():
                resolved.append(part)
            case _:
                raise TypeError(
                    f"a reply is made of strings, Text, Thinking, ToolUse, Block and Pause; got {part!r}. "
                    "For answers one after the other, use Steps(…)"
                )
    return tuple(resolved)


def as_answer(value: Answer | Parts) -> Answer:
    """Resolve shorthand to an answer; raises `TypeError` for other values."""
    if isinstance(value, Answer):
        as_parts(getattr(value, "parts", ()))
        return value
    return Reply(as_parts(value))


# After these the CLI repeats the request, with fewer features or without streaming. The real API would
# refuse that, too; so does the script, without using up the answer for the next request.
REPEATED_STATUSES = frozenset({400, 404})

Match: TypeAlias = "str | re.Pattern[str] | Callable[[RecordedRequest], object] | None"


@dataclass(slots=True, eq=False)
class ScriptRule:
    """One rule of a script, as `ScriptedModel.on` returns it. `.used` counts the requests that it answered."""

    match: Match
    answers: tuple[AnswerLike, ...]
    is_sequence: bool = False
    times: int | None = None
    side: str | None = None
    name: str = ""
    used: int = 0
    positions: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def label(self) -> str:
        """The name of the rule in messages."""
        if self.name:
            return self.name
        if isinstance(self.match, re.Pattern):
            return f"on(/{self.match.pattern}/)"
        if self.match is None:
            return f"on(side={self.side!r})" if self.side else "on()"
        return f"on({self.match!r})" if isinstance(self.match, str) else f"on({_describe_function(self.match)})"

    def matches(self, request: RecordedRequest) -> bool:
        """Whether the rule has an answer for this request."""
        if self.side != request.side or (self.times is not None and self.used >= self.times):
            return False
        if self.is_sequence and self.positions.get(request.session_id, 0) >= len(self.answers):
            return False
        match self.match:
            case None:
                return True
            case str():
                return self.match in request.newest_text
            case re.Pattern():
                return self.match.search(request.newest_text) is not None
            case _:
                return bool(self.match(request))

    def next_answer(self, request: RecordedRequest, position: int | None = None) -> tuple[AnswerLike, int]:
        """Use the rule; returns the answer, and the position of the next one."""
        self.used += 1
        if not self.is_sequence:
            return self.answers[0], 0
        at = self.positions.get(request.session_id, 0) if position is None else position
        self.positions[request.session_id] = at + 1
        return self.answers[at], at + 1


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The answer to a request, its source, and the rule that gets the results of its tools."""

    answer: Answer
    source: str
    rule: ScriptRule | None = None
    next_position: int = 0


@dataclass(slots=True)
class Script:
    """Chooses answers: rules first, in order of addition; then the queue; then the default; else an error."""

    rules: list[ScriptRule] = field(default_factory=list[ScriptRule])
    queue: deque[AnswerLike] = field(default_factory=deque["AnswerLike"])
    default: AnswerLike | None = None
    errors: list[str] = field(default_factory=list[str])
    continuations: dict[str, tuple[ScriptRule, int]] = field(default_factory=dict[str, "tuple[ScriptRule, int]"])
    refused: dict[tuple[str, int, str], ScriptedAnswer] = field(
        default_factory=dict[tuple[str, int, str], "ScriptedAnswer"]
    )

    def choose(self, request: RecordedRequest, side: SideKind | None) -> ScriptedAnswer:
        """Choose the answer to a request. Never raises: a failure becomes an answer and an entry in `errors`."""
        key = (request.session_id, len(request.messages), request.newest_text)
        if key in self.refused:
            return self.refused[key]
        try:
            choice = self._choose(request, side)
        except Exception as error:  # noqa: BLE001 - the script is the user's code; its failure must reach the test
            choice = self._refuse(f"the script failed on this request: {type(error).__name__}: {error}")
        if request.session_id and isinstance(choice.answer, HttpError) and choice.answer.status in REPEATED_STATUSES:
            self.refused[key] = choice
        return choice

    def expect_results(self, tool_ids: tuple[str, ...], choice: ScriptedAnswer) -> None:
        """Record that the results of these calls belong to the next step of the rule that made them."""
        if choice.rule is not None and choice.next_position < len(choice.rule.answers):
            self.continuations.update(dict.fromkeys(tool_ids, (choice.rule, choice.next_position)))

    def _choose(self, request: RecordedRequest, side: SideKind | None) -> ScriptedAnswer:
        for result in request.tool_results:
            if result.tool_use_id in self.continuations:
                rule, position = self.continuations[result.tool_use_id]
                # A retry of the same request must get the step after the failed one.
                position = max(position, rule.positions.get(request.session_id, 0))
                if position < len(rule.answers):
                    return self._use(rule, request, position)
        for rule in self.rules:
            if rule.matches(request):
                return self._use(rule, request, None)
        if side is not None:
            return ScriptedAnswer(as_answer(side.text), f"side {side.name}")
        if self.queue:
            return ScriptedAnswer(_resolve_answer(self.queue.popleft(), request), "queue")
        if self.default is not None:
            return ScriptedAnswer(_resolve_answer(self.default, request), "default")
        return self._refuse(
            f"the scripted model has no reply left for this request; newest text: {request.newest_text[:200]!r}"
        )

    def _use(self, rule: ScriptRule, request: RecordedRequest, position: int | None) -> ScriptedAnswer:
        value, following = rule.next_answer(request, position)
        return ScriptedAnswer(
            _resolve_answer(value, request), rule.label, rule if rule.is_sequence else None, following
        )

    def _refuse(self, message: str) -> ScriptedAnswer:
        self.errors.append(message)
        return ScriptedAnswer(
            HttpError(400, "invalid_request_error", f"pilothouse ScriptedModel: {message}"), "nothing"
        )


def _describe_function(function: Callable[..., object]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} at line {code.co_firstlineno}" if code is not None else name


def _resolve_answer(value: AnswerLike, request: RecordedRequest) -> Answer:
    return as_answer(value(request) if callable(value) else value)
