"""What the CLI asked of the scripted model: one recorded HTTP request, and which kind it is.

Owns reading a Messages request and telling side requests (a title, a summary, a quota check) from the conversation.
Does no I/O and knows nothing of what will be answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pilothouse.options.secrets import MASK

SECRET_HEADERS = frozenset({"x-api-key", "authorization", "proxy-authorization", "cookie"})
REDACTED = MASK
REMINDER = "<system-reminder>"
# A side question is itself a reminder, so it is recognised before reminders are dropped.
SIDE_QUESTION = "<system-reminder>This is a side question"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call, as the model gets it."""

    tool_use_id: str
    content: Any
    is_error: bool = False

    @property
    def text(self) -> str:
        """All text of the result."""
        return "\n".join(block_texts(self.content))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One HTTP request that reached the scripted model.

    Args:
        method: the HTTP method.
        path: the path without the query.
        headers: names in lower case; the values of keys are replaced by "[redacted]".
        body: the JSON body, or an empty dict.
        side: None for a request of the conversation; else what it is for: "title", "compact", "quota",
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
        """Whether it is not part of the conversation."""
        return self.side is not None

    @property
    def model(self) -> str:
        """The model that is asked."""
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        """Whether the answer is wanted as a stream."""
        return bool(self.body.get("stream"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body."""
        return [cast("dict[str, Any]", m) for m in self.body.get("messages", ()) if isinstance(m, dict)]

    @property
    def system_text(self) -> str:
        """The system prompt as one text, including what the CLI puts into messages of the role "system"."""
        texts = block_texts(self.body.get("system", ""))
        for message in self.messages:
            if message.get("role") == "system":
                texts.extend(block_texts(message.get("content", "")))
        return "\n".join(texts)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools on offer."""
        return tuple(str(tool.get("name", "")) for tool in self.body.get("tools") or ())

    @property
    def session_id(self) -> str:
        """The CLI's session id, or ""."""
        return self.headers.get("x-claude-code-session-id", "")

    @property
    def last_user_text(self) -> str:
        """The newest text of the user; reminders that the CLI adds by itself are left out."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                texts = spoken_texts(message.get("content", ""))
                if texts:
                    return "\n".join(texts)
        return ""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results that came since the model last spoke, in order; empty when a user speaks."""
        return tuple(result for message in newest_messages(self.messages) for result in results_in(message))

    @property
    def last_tool_result(self) -> ToolResult | None:
        """The last of `tool_results`, or None."""
        results = self.tool_results
        return results[-1] if results else None

    @property
    def tool_text(self) -> str:
        """The texts of `tool_results`, one after the other, or ""."""
        return "\n".join(result.text for result in self.tool_results)

    @property
    def newest_text(self) -> str:
        """What came since the model last spoke: the user's text and the texts of tool results."""
        texts: list[str] = []
        for message in newest_messages(self.messages):
            texts.extend(spoken_texts(message.get("content", "")))
            texts.extend(result.text for result in results_in(message))
        return "\n".join(texts)


def block_texts(content: Any) -> list[str]:
    """All texts in a content that is a string or a list of blocks."""
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, Sequence):
        return []
    return [str(block["text"]) for block in blocks_in(cast("Sequence[Any]", content)) if "text" in block]


def blocks_in(content: Sequence[Any]) -> list[dict[str, Any]]:
    """The blocks of a list content; strings among them become text blocks."""
    return [
        {"type": "text", "text": block} if isinstance(block, str) else cast("dict[str, Any]", block)
        for block in content
        if isinstance(block, (str, dict))
    ]


def spoken_texts(content: Any) -> list[str]:
    """Texts that a user wrote: without the reminders of the CLI."""
    return [text for text in block_texts(content) if not text.lstrip().startswith(REMINDER)]


def newest_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The user messages after the last assistant message."""
    newest: list[dict[str, Any]] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            newest.insert(0, message)
    return newest


def results_in(message: Mapping[str, Any]) -> list[ToolResult]:
    """The tool results of one message."""
    content = message.get("content", "")
    if isinstance(content, str):
        return []
    return [
        ToolResult(str(block.get("tool_use_id", "")), block.get("content", ""), bool(block.get("is_error")))
        for block in blocks_in(content)
        if block.get("type") == "tool_result"
    ]


def redacted(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers in lower case, without the values of keys."""
    return {name.lower(): REDACTED if name.lower() in SECRET_HEADERS else value for name, value in headers.items()}


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, or an empty dict."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _system_has(words: str) -> Callable[[RecordedRequest], bool]:
    return lambda request: words in request.system_text


def _user_starts(words: str) -> Callable[[RecordedRequest], bool]:
    def starts(request: RecordedRequest) -> bool:
        newest = newest_messages(request.messages)
        return bool(newest) and any(t.startswith(words) for t in block_texts(newest[-1].get("content", "")))

    return starts


def _is_quota_probe(request: RecordedRequest) -> bool:
    return request.body.get("max_tokens") == 1 and request.last_user_text == "quota"


@dataclass(frozen=True, slots=True)
class SideKind:
    """A kind of side request: how it is recognised and what it is answered unless a rule says otherwise."""

    name: str
    recognised: Callable[[RecordedRequest], bool]
    text: str


# Recognised by what CLI 2.1.330 writes into them.
SIDE_KINDS: tuple[SideKind, ...] = (
    SideKind("quota", _is_quota_probe, "ok"),
    SideKind("title", _system_has("You are naming a coding session"), '{"title": "Scripted session"}'),
    SideKind(
        "compact",
        _user_starts("CRITICAL: Respond with TEXT ONLY"),
        "<analysis>Scripted.</analysis>\n<summary>A scripted summary of the conversation.</summary>",
    ),
    SideKind("side_question", _user_starts(SIDE_QUESTION), "A scripted answer to a side question."),
    SideKind("suggestion", _user_starts("[SUGGESTION MODE"), "go on"),
    SideKind("tool_summary", _system_has("Write a short summary label describing what"), "Ran scripted tools"),
    SideKind("hook", _system_has("You are evaluating a hook in Claude Code"), '{"ok": true}'),
)


def side_kind(request: RecordedRequest) -> SideKind | None:
    """Which kind of side request a Messages request is; None: it belongs to the conversation."""
    return next((kind for kind in SIDE_KINDS if kind.recognised(request)), None)
