"""What a scripted model can answer: the parts of a reply, whole replies, and ways to fail.

Owns plain immutable data and the one place where shorthand ("text", a part, a list of parts) becomes a reply. Knows
nothing of HTTP, of the wire format or of which request gets which reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pilothouse.testing.gate import Gate

if TYPE_CHECKING:
    from pilothouse.testing.requests import RecordedRequest

BrokenKind = Literal["bad_json", "no_stop", "no_message_stop", "empty", "cut", "html", "no_response"]
BROKEN_KINDS: tuple[str, ...] = get_args(BrokenKind)

# What the Messages API says for each status: error type and a message.
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
class Block:
    """Any other content block, sent whole, such as `{"type": "redacted_thinking", "data": "…"}`."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """The stream stands still here: for a number of seconds, or until a `Gate` is opened."""

    until: float | Gate


Part: TypeAlias = Text | Thinking | ToolUse | Block | Pause
Parts: TypeAlias = str | Part | Sequence[str | Part]


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply, for when parts alone do not say enough.

    Args:
        parts: a text, a part, or a list of them.
        stop_reason: None: "tool_use" if a tool is called, else "end_turn".
        usage: entries that replace those of the computed usage.
        model: the model that claims to have answered; None: the one that was asked for.
        delay: seconds before the first byte.
        chunk_delay: seconds before every delta that has no delay of its own.
        stop_sequence: what the API reports next to `stop_reason="stop_sequence"`.
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
    """A stream that starts well and then carries an SSE `error` event. A request without streaming gets it all.

    Args:
        parts: the answer that would have come.
        after: how many deltas go out before the error; None: half of them, at least one.
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
        kind: "bad_json": half of the deltas, then an event whose data is no JSON;
            "no_stop": half of the deltas, then a clean end; "no_message_stop": all blocks, then a clean end without
            `message_delta` and `message_stop` (CLI 2.1.330 keeps the blocks and asks three times to go on);
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
    """Sends `parts`, if there are any, and then nothing more until the client or the server goes away.

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
    """Answers that one rule gives one after the other, each conversation from the first.

    The results of the tools that one step calls come back to the next step of the same rule, whatever other rules say.
    After the last step the rule does not match that conversation any more.

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
            case Text() | Thinking() | ToolUse() | Block() | Pause():
                resolved.append(part)
            case _:
                raise TypeError(
                    f"a reply is made of strings, Text, Thinking, ToolUse, Block and Pause; got {part!r}. "
                    "For answers one after the other, use Steps(…)"
                )
    return tuple(resolved)


def as_answer(value: Answer | Parts) -> Answer:
    """Resolve shorthand to an answer; raises `TypeError` for anything that is none."""
    if isinstance(value, Answer):
        as_parts(getattr(value, "parts", ()))
        return value
    return Reply(as_parts(value))
