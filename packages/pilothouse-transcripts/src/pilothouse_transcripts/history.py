"""Writes messages of your own as a session on disk, which the CLI then resumes as if it had had that conversation.

A history that the CLI would change, or the API refuse, is refused here, before anything is written: the CLI
joins two prompts in a row, drops empty texts, results without calls and answers of thinking alone, moves calls behind
all texts, invents results for calls without one, and answers a prompt at the end by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypedDict, cast
from uuid import uuid4

from pilothouse.errors import UsageError
from pilothouse.support import encode_json, to_json_values
from pilothouse_transcripts.edits import format_timestamp, write_new_file
from pilothouse_transcripts.paths import (
    SUFFIX,
    StrPath,
    get_new_session_directory,
    is_session_id,
    make_private_directory,
    resolve_directory,
)
from pilothouse_transcripts.pictures import fit_picture_block


class HistoryMessage(TypedDict):
    """A message of a conversation, as in the Messages API.

    `content` is a text or a list of blocks: mappings as in the API, or `TextBlock`, `ph.image(…)` and the like.
    """

    role: Literal["user", "assistant"]
    content: str | Sequence[Any]


# The blocks that each role may have, with their required fields.
_BLOCKS: Final[Mapping[str, Mapping[str, Mapping[str, type]]]] = {
    "user": {
        "text": {"text": str},
        "image": {"source": dict},
        "document": {"source": dict},
        "tool_result": {"tool_use_id": str},
    },
    "assistant": {
        "text": {"text": str},
        "thinking": {"thinking": str, "signature": str},
        "redacted_thinking": {"data": str},
        "tool_use": {"id": str, "name": str, "input": dict},
    },
}
_RESULT_BLOCKS: Final = {name: _BLOCKS["user"][name] for name in ("text", "image", "document")}
_MAY_BE_EMPTY: Final = frozenset({"thinking"})
_TYPE_NAMES: Final = {str: "a text", dict: "a mapping"}
_API_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")  # what the API takes as the id of a call and the name of a tool
_OWN_ANSWER: Final = "<synthetic>"
"""The model of answers that no model gave. Any other name would become the model of the resumed session."""


def write_history(
    history: Iterable[HistoryMessage],
    directory: StrPath = ".",
    *,
    session_id: str | None = None,
    config_dir: StrPath | None = None,
) -> str:
    """Write a conversation that the CLI has not had, such as one from a database, as a session.

    ::

        session_id = write_history([
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Hello Ada."},
        ])
        await ph.query("What is my name?", resume=session_id)

    Args:
        history: the messages, oldest first: of the user and of the assistant in turn, from a prompt to an answer. Each
            `tool_use` block has its `tool_result` in the next message.
        directory: the working directory in which the session will be resumed.
        session_id: the id of the session, a UUID. Default: a new one.
        config_dir: another configuration directory of the CLI than that of this process.

    Returns:
        The id of the session, for `resume`.

    Raises:
        UsageError: the CLI would drop, join or reorder a part of the history, or the API would refuse it, and the
            message says which; or the id is not valid, or taken. Nothing is written.
        OSError: the session cannot be written.
    """
    session_id = session_id or str(uuid4())
    rows = make_history_rows(history, resolve_directory(directory), session_id)
    folder = get_new_session_directory(directory, config_dir)
    make_private_directory(folder)
    write_new_file(folder / f"{session_id}{SUFFIX}", (encode_json(row) + b"\n" for row in rows))
    return session_id


def make_history_rows(history: Iterable[HistoryMessage], cwd: str, session_id: str) -> list[dict[str, Any]]:
    """Return the rows of a session that begins with these messages; errors as in `write_history`."""
    if not is_session_id(session_id):
        raise UsageError(f"not a session id: {session_id!r:.80}")
    messages = [_read_message(number, message) for number, message in enumerate(history)]
    _check_order(messages)
    _check_calls(messages)
    begun = datetime.now(UTC) - timedelta(milliseconds=len(messages))  # the CLI takes the newest row for the last one
    parent: str | None = None
    rows: list[dict[str, Any]] = []
    for number, (role, blocks) in enumerate(messages):
        row: dict[str, Any] = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": cwd,
            "sessionId": session_id,
            "type": role,
            "message": _make_body(role, blocks),
            "uuid": str(uuid4()),
            "timestamp": format_timestamp(begun + timedelta(milliseconds=number)),
        }
        parent = row["uuid"]
        rows.append(row)
    return rows


_Message = tuple[str, list[dict[str, Any]]]


def _make_body(role: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    if role == "user":
        is_plain = [block["type"] for block in blocks] == ["text"]
        return {"role": role, "content": blocks[0]["text"] if is_plain else blocks}
    has_calls = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": f"msg_{uuid4().hex[:24]}",
        "type": "message",
        "role": role,
        "model": _OWN_ANSWER,
        "content": blocks,
        "stop_reason": "tool_use" if has_calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _read_message(number: int, message: object) -> _Message:
    place = f"history[{number}]"
    if not isinstance(message, Mapping):
        raise UsageError(f"{place}: expected a mapping with role and content, got {type(message).__name__}")
    given = dict(cast("Mapping[str, Any]", message))
    role: Any = given.pop("role", None)
    content = given.pop("content", None)
    if not isinstance(role, str) or role not in _BLOCKS:
        advice = "; a system prompt is the option `system_prompt`" if role == "system" else ""
        raise UsageError(f"{place}: expected the role 'user' or 'assistant', got {role!r:.80}{advice}")
    if given:
        raise UsageError(f"{place}: a message has a role and content, and no {next(iter(given))!r:.80}")
    blocks = _read_blocks(place, content, _BLOCKS[role])
    for index, block in enumerate(blocks):
        if block["type"] == "tool_result" and block.get("content") is not None and block["content"] != "":
            results = _read_blocks(f"{place}.content[{index}]", block["content"], _RESULT_BLOCKS)
            if not isinstance(block["content"], str):
                block["content"] = results
    return role, blocks


def _read_blocks(place: str, content: object, known: Mapping[str, Mapping[str, type]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not isinstance(content, Sequence):
        raise UsageError(f"{place}: expected a text or a list of blocks as content, got {type(content).__name__}")
    try:
        plain = to_json_values(list(cast("Sequence[Any]", content)))
        json.dumps(plain, allow_nan=False)  # where `encode_json` would write null
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{place}: the content is not JSON: {error}") from error
    if not plain:
        raise UsageError(f"{place}: the content is empty, and Claude Code would drop the message")
    return [_read_block(f"{place}.content[{index}]", block, known) for index, block in enumerate(plain)]


def _read_block(place: str, block: object, known: Mapping[str, Mapping[str, type]]) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise UsageError(f"{place}: expected a block, got {type(block).__name__}")
    body = cast("dict[str, Any]", block)
    kind: Any = body.get("type")
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"{place}: expected a block of type {', '.join(known)} here, got {kind!r:.80}")
    for name, expected in known[kind].items():
        value: Any = body.get(name)
        if not isinstance(value, expected):
            raise UsageError(f"{place}: {name!r} of {kind!r} is {_TYPE_NAMES[expected]}, not {type(value).__name__}")
        if isinstance(value, str) and not value.strip() and name not in _MAY_BE_EMPTY:
            raise UsageError(f"{place}: {name!r} of {kind!r} is empty, and the API would refuse every prompt after it")
        if name in ("id", "tool_use_id", "name") and not _API_NAME.fullmatch(value):
            raise UsageError(f"{place}: {name!r} may have letters, digits, _ and - only, got {value!r:.80}")
    if body.get("cache_control") is not None:
        raise UsageError(f"{place}: Claude Code sets 'cache_control' itself; leave it out")
    if kind != "image":
        return body
    try:
        return fit_picture_block(body)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def _check_order(messages: Sequence[_Message]) -> None:
    if not messages:
        raise UsageError("history: there is no message")
    for number, (role, blocks) in enumerate(messages):
        if role != ("user", "assistant")[number % 2]:
            if number == 0:
                raise UsageError("history[0]: a conversation begins with a message of the user")
            raise UsageError(
                f"history[{number}]: two messages of the {role} in a row, which would be joined; join them"
            )
        if role == "assistant" and all("thinking" in block["type"] for block in blocks):
            raise UsageError(f"history[{number}]: an answer of thinking alone, which Claude Code would drop")
    if messages[-1][0] == "user":
        raise UsageError("history: the last message is of the user; send it as the prompt of the resumed session")


def _check_calls(messages: Sequence[_Message]) -> None:
    seen: set[str] = set()
    waiting: list[str] = []
    for number, (role, blocks) in enumerate(messages):
        place = f"history[{number}]"
        if role == "user":
            _check_results(place, blocks, waiting)
            waiting = []
            continue
        waiting = list(_find_calls(place, blocks))
        for call in waiting:
            if call in seen:
                raise UsageError(f"{place}: a second call with the id {call!r:.80}")
            seen.add(call)
    if waiting:
        raise UsageError(f"history: the call {waiting[0]!r:.80} has no result, and Claude Code would invent one")


def _find_calls(place: str, blocks: Sequence[dict[str, Any]]) -> Iterator[str]:
    is_after_call = False
    for block in blocks:
        if block["type"] == "tool_use":
            is_after_call = True
            yield block["id"]
        elif is_after_call:
            raise UsageError(
                f"{place}: {block['type']!r} behind a call, where Claude Code would move it before the call"
            )


def _check_results(place: str, blocks: Sequence[dict[str, Any]], waiting: Sequence[str]) -> None:
    missing = list(waiting)
    is_first = True
    for block in blocks:
        if block["type"] != "tool_result":
            is_first = False
            continue
        if not is_first:
            raise UsageError(f"{place}: results of tools come first in a message; the API refuses another order")
        call = block["tool_use_id"]
        if call not in missing:
            raise UsageError(f"{place}: a result without its call, {call!r:.80}, which Claude Code would drop")
        missing.remove(call)
    if missing:
        raise UsageError(f"{place}: the call {missing[0]!r:.80} has no result, and Claude Code would invent one")
