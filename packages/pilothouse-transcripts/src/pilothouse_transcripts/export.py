"""Writes a session as Markdown, HTML or JSON."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from pilothouse.errors import SessionNotFoundError, UsageError
from pilothouse.messages import (
    AssistantMessage,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from pilothouse.support import encode_json, to_json_values
from pilothouse_transcripts.conversation import get_session_messages
from pilothouse_transcripts.paths import StrPath, require_file
from pilothouse_transcripts.rows import OnProblem, ignore_problem
from pilothouse_transcripts.search import get_document_text
from pilothouse_transcripts.session_info import SessionInfo, read_session_info

ExportFormat: TypeAlias = Literal["markdown", "html", "json"]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)

ExportPart: TypeAlias = tuple[Literal["prompt", "text", "thinking", "tool", "result", "error", "other"], str, str]
"""The kind of a part, its label, and its text."""

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}"
    "section,details{border-left:.25rem solid #bbb;padding:.25rem 1rem;margin:1rem 0}"
    ".prompt{border-color:#2a6}.text{border-color:#26a}.error{border-color:#a22}"
    "h1{font-size:1.4rem}h2{font-size:.8rem;margin:0;color:#666}"
    "summary,.meta{font-size:.8rem;color:#666}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}}"
)
_PART_TITLES = {
    "prompt": "Prompt",
    "text": "Answer",
    "thinking": "Thinking",
    "tool": "Tool",
    "result": "Result",
    "error": "Error",
    "other": "Content",
}


def export_session(
    session_id: str,
    directory: StrPath | None = None,
    *,
    format: ExportFormat = "markdown",  # noqa: A002 - the usual name
    thinking: bool = True,
    tools: bool = True,
    include_compacted: bool = True,
    config_dir: StrPath | None = None,
    on_problem: OnProblem = ignore_problem,
) -> str:
    """Export a session as a document.

    Args:
        session_id: the id of the session.
        directory: the working directory of the session; None: any.
        format: "markdown", "html" (one page, without scripts) or "json" (one object: `session` and `messages`, each
            message as its row in the file).
        thinking: whether to include thinking; "json" has everything.
        tools: whether to include tool calls and results; "json" has everything.
        include_compacted: whether to include what compactions have replaced.
        config_dir: another configuration directory of the CLI than that of this process.
        on_problem: called with each line that cannot be read.

    Raises:
        UsageError: there is no such format, or the id is not valid.
        SessionNotFoundError: there is no such session.
    """
    if format not in EXPORT_FORMATS:
        raise UsageError(f"there is no format {format!r}: {', '.join(EXPORT_FORMATS)}")
    path = require_file(session_id, directory, config_dir)
    info = read_session_info(path, on_problem)
    if info is None:
        raise SessionNotFoundError(f"session {session_id} has no messages")
    messages = get_session_messages(
        session_id,
        directory,
        include_system=True,
        include_compacted=include_compacted,
        config_dir=config_dir,
        on_problem=on_problem,
    )
    hidden = set[str]() if thinking else {"thinking"}
    hidden |= set[str]() if tools else {"tool", "result", "error"}
    return "".join(_WRITERS[format](info, messages, hidden))


def split_message(message: Message) -> Iterator[ExportPart]:
    """Yield the parts of a message."""
    if not isinstance(message, AssistantMessage | UserMessage):
        yield "other", f"{message.type} {getattr(message, 'subtype', '')}".rstrip(), ""
        return
    for block in message.content:
        if isinstance(block, TextBlock):
            yield ("prompt" if isinstance(message, UserMessage) else "text"), message.timestamp or "", block.text
        elif isinstance(block, ThinkingBlock):
            yield "thinking", "", block.thinking
        elif isinstance(block, ToolUseBlock):
            yield "tool", block.name, _format_json(block.input)
        elif isinstance(block, ToolResultBlock):
            yield ("error" if block.is_error else "result"), "", block.text
        elif isinstance(block, DocumentBlock):
            yield "other", f"document: {block.title}" if block.title else "document", get_document_text(block)
        else:
            yield "other", "picture" if isinstance(block, ImageBlock) else str(block.type), ""


def _format_json(value: Mapping[str, Any]) -> str:
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return "\n".join(
        f"{key}: {item if isinstance(item, str) else encode_json(item).decode()}" for key, item in value.items()
    )


def _iterate_parts(messages: Sequence[Message], hidden: set[str]) -> Iterator[ExportPart]:
    for message in messages:
        for part in split_message(message):
            if part[0] not in hidden and (part[2].strip() or part[0] == "other"):
                yield part


def _describe_session(info: SessionInfo) -> list[tuple[str, str]]:
    named = (("session", info.session_id), ("directory", info.cwd), ("branch", info.git_branch), ("tag", info.tag))
    return [(name, value) for name, value in named if value]


def _write_markdown(info: SessionInfo, messages: Sequence[Message], hidden: set[str]) -> Iterator[str]:
    yield f"# {_escape_markdown(info.summary)}\n\n"
    for name, value in _describe_session(info):
        yield f"- {name}: {_format_code(value)}\n"
    for kind, word, text in _iterate_parts(messages, hidden):
        yield f"\n## {_PART_TITLES[kind]}{f': {_escape_markdown(word)}' if word else ''}\n"
        if not text:
            continue
        if kind == "text":
            yield f"\n{text.strip()}\n"  # already Markdown
        elif kind in ("prompt", "thinking"):
            yield "\n" + "".join(f"> {line}\n" for line in text.strip().splitlines())
        else:
            fence = _make_fence(text)
            yield f"\n{fence}\n{text.rstrip()}\n{fence}\n"


def _make_fence(text: str) -> str:
    """Return a code fence with one backtick more than the longest run in the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))


def _format_code(text: str) -> str:
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}{text}{ticks}"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _write_html(info: SessionInfo, messages: Sequence[Message], hidden: set[str]) -> Iterator[str]:
    title = html.escape(info.summary)
    yield f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>\n'
    yield f"<body><h1>{title}</h1>\n"
    for name, value in _describe_session(info):
        yield f'<p class="meta">{name}: {html.escape(value)}</p>\n'
    for kind, word, text in _iterate_parts(messages, hidden):
        heading = html.escape(f"{_PART_TITLES[kind]}: {word}" if word else _PART_TITLES[kind])
        body = f"<pre>{html.escape(text)}</pre>" if text else ""
        if kind in ("prompt", "text", "other"):
            yield f'<section class="{kind}"><h2>{heading}</h2>{body}</section>\n'
        else:
            yield f'<details class="{kind}"><summary>{heading}</summary>{body}</details>\n'
    yield "</body></html>\n"


def _write_json(info: SessionInfo, messages: Sequence[Message], hidden: set[str]) -> Iterator[str]:
    yield '{"session":' + encode_json(to_json_values(info)).decode() + ',"messages":['
    for index, message in enumerate(messages):
        yield ("," if index else "") + encode_json(message.raw).decode()
    yield "]}\n"


_WRITERS: dict[str, Callable[[SessionInfo, Sequence[Message], set[str]], Iterator[str]]] = {
    "html": _write_html,
    "json": _write_json,
    "markdown": _write_markdown,
}
