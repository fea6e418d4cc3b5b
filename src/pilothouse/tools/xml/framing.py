"""Calls, results and whole conversations as framed text for the model.

No text inside a frame can close or forge it. Pure. Owns escaping, the frames of the protocol, and how earlier turns
become one user message. Must not know who ran a tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from msgspec import Struct, to_builtins

from pilothouse.errors import UsageError
from pilothouse.tools.content import JsonObject, json_text, make_text_block, split_content, to_blocks


class CallAnswer(Struct, frozen=True):
    """The result of one call, with the call's id.

    Attributes:
        call_id: id of the call.
        name: name of the tool.
        result: the tool's result in the format of MCP: `content`, optionally `structuredContent` and `isError`.
    """

    call_id: str
    name: str
    result: Mapping[str, Any]


def call_frame(call_id: str | None, name: str, arguments: Any, nonce: str | None = None) -> str:
    """Write a call as the model itself would write it."""
    outer = outer_tag_name("tool_use", nonce)
    told_id = f"<tool_call_id>{escape_text(call_id)}</tool_call_id>" if call_id else ""
    inside = escape_frames(json_text(arguments), nonce, as_json=True)
    return f"<{outer}><tool_name>{escape_text(name)}</tool_name>{told_id}<arguments>{inside}</arguments></{outer}>"


def result_frame(
    call_id: str | None, name: str, result: Mapping[str, Any], nonce: str | None = None
) -> list[JsonObject]:
    """Write one result as content blocks: its frame, then its images and documents.

    Structured content replaces all text, as JSON, unless the call failed.

    Args:
        call_id: id of the call; None leaves it out.
        name: name of the tool.
        result: `{content, structuredContent, isError}` as from a tool, or `{content, is_error}` as in the API.
        nonce: nonce of the conversation.
    """
    failed = result.get("isError") is True or result.get("is_error") is True
    texts, media = split_content(result.get("content"))
    structured = result.get("structuredContent")
    if structured is not None and not failed:
        said = escape_frames(json_text(structured), nonce, as_json=True)
    else:
        said = escape_frames("\n".join(texts), nonce)
        if not texts and not media:
            said = "the call failed" if failed else "(no output)"
    if media:
        said += f"\n({len(media)} attached below)" if said else f"({len(media)} attached below)"
    outer, inner = outer_tag_name("tool_result", nonce), "error" if failed else "result"
    told_id = f"<tool_call_id>{escape_text(call_id)}</tool_call_id>" if call_id else ""
    frame = f"<{outer}><tool_name>{escape_text(name)}</tool_name>{told_id}<{inner}>{said}</{inner}></{outer}>"
    return [make_text_block(frame), *media]


def results_content(answers: Iterable[CallAnswer], nonce: str | None = None) -> list[JsonObject]:
    """Make the content of the user message with the results of all calls of a reply, in their order."""
    return [block for each in answers for block in result_frame(each.call_id, each.name, each.result, nonce)]


def outer_tag_name(name: str, nonce: str | None) -> str:
    """Return the name of an outer tag."""
    return f"{name}-{nonce}" if nonce else name


_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ATTRIBUTE: Final = {**_TEXT, '"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
# XML cannot contain these, and neither the command line nor UTF-8 accepts all of them.
_UNWRITABLE: Final = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF), "\ufffd")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_TEXT_TABLE: Final = str.maketrans(_TEXT) | _UNWRITABLE
_ATTRIBUTE_TABLE: Final = str.maketrans(_ATTRIBUTE) | _UNWRITABLE

# The tags of results and calls; outer tags with any suffix.
_FRAME_TAG: Final = re.compile(
    r"<(?=\s{0,32}/?\s{0,32}(?:[\w.-]{1,32}:)?(?:tool_(?:use|result)(?!\w)|(?:tool_name|tool_call_id|result|error)(?![\w-])))",
    re.IGNORECASE,
)


def escape_text(text: str) -> str:
    """Escape `text` as the content of an element."""
    return _replace_surrogates(text.translate(_TEXT_TABLE))


def quote_attribute(text: str) -> str:
    """Quote `text` as the value of an attribute."""
    return f'"{_replace_surrogates(text.translate(_ATTRIBUTE_TABLE))}"'


def escape_frames(text: str, nonce: str | None, *, as_json: bool = False) -> str:
    r"""Replace everything in `text` that looks like a frame; the rest stays as it is.

    Only the `<` of tags that look like the protocol's is replaced, because a model reads unescaped code best.

    Args:
        text: any text.
        nonce: nonce of the conversation; it is masked, so that a copy of the text does not reveal it.
        as_json: `text` is JSON and stays JSON with the same meaning: the `<` becomes ``\u003c`` in place of `&lt;`.
    """
    return _FRAME_TAG.sub(r"\\u003c" if as_json else "&lt;", mask_nonce(_replace_surrogates(text), nonce))


def mask_nonce(text: str, nonce: str | None) -> str:
    """Mask the nonce in `text` with asterisks."""
    return re.sub(re.escape(nonce), "*" * len(nonce), text, flags=re.IGNORECASE) if nonce else text


def _replace_surrogates(text: str) -> str:
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


_INTRODUCTION: Final = "The conversation up to now, oldest message first. Go on with it where it ends."
_CONTINUE: Final = "Go on from the end of the conversation."
_SYSTEM_ROLES: Final = ("system", "developer")


class EncodedHistory(Struct, frozen=True):
    """A conversation, ready to be sent.

    Attributes:
        system: text of the system messages, for the system prompt; None if there are none.
        content: the blocks of one user message. Send it with `client_composed`.
    """

    system: str | None
    content: list[JsonObject]


class _BlockWriter:
    """Builds a list of blocks; adjacent texts become one."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.blocks: list[JsonObject] = []
        self.names: dict[str, str] = {}  # names of tools, by the ids of their calls
        self._texts: list[str] = []

    def write(self, text: str) -> None:
        self._texts.append(text)

    def add(self, block: JsonObject) -> None:
        if self._texts:
            self.blocks.append(make_text_block("".join(self._texts)))
            self._texts = []
        if block.get("text") != "":
            self.blocks.append(block)

    def finish(self) -> list[JsonObject]:
        self.add(make_text_block(""))
        return self.blocks


def encode_history(messages: Iterable[Any], nonce: str) -> EncodedHistory:
    """Encode a conversation as one user message.

    A single user message stays as it is. Otherwise all but the user's last turn is put into a frame, and the results
    of the last calls are written as if the model had just made the calls.

    Args:
        messages: mappings or structs with `role` (user, assistant, tool or system) and `content`: a text, or blocks
            in the form of the Messages API, including `tool_use` and `tool_result`. A message of role `tool` with
            plain text names its call by `tool_call_id`.
        nonce: nonce of this request, the one in the system prompt; earlier messages cannot contain it.

    Raises:
        UsageError: a message has no known role, or its content cannot be encoded.
    """
    system: list[str] = []
    told: list[tuple[str, list[JsonObject]]] = []
    for at, message in enumerate(messages):
        role, blocks = _read_message(at, message)
        if role in _SYSTEM_ROLES:
            system += _system_texts(at, blocks)
        elif told and told[-1][0] == role:
            told[-1][1].extend(blocks)
        else:
            told.append((role, blocks))
    if not told:
        raise UsageError("there is no message to answer")
    page = _BlockWriter(nonce)
    last = told.pop() if told[-1][0] == "user" else None
    if told:
        _write_turns(page, told)
    if last is not None:
        for block in last[1]:
            _write_block(page, block)
    else:
        page.write(_CONTINUE)
    return EncodedHistory("\n\n".join(system) or None, page.finish())


def _read_message(at: int, message: Any) -> tuple[str, list[JsonObject]]:
    plain = cast("Any", message) if isinstance(message, Mapping) else _to_mapping(at, message)
    if not hasattr(plain, "get"):
        raise UsageError(f"message {at}: a mapping with role and content is needed, not {type(plain).__name__}")
    read = cast("Mapping[str, Any]", plain)
    inner: Any = read.get("message")
    if "role" not in read and isinstance(inner, Mapping):
        read = cast("Mapping[str, Any]", inner)  # in the CLI's form
    role = read.get("role")
    if role not in ("user", "assistant", "tool", *_SYSTEM_ROLES):
        raise UsageError(f"message {at}: role is {role!r}; known are user, assistant, tool and system")
    if read.get("tool_calls"):
        raise UsageError(f"message {at}: calls are `tool_use` blocks of its content, not `tool_calls`")
    try:
        blocks = to_blocks(read.get("content"))
    except TypeError as error:
        raise UsageError(f"message {at}: content must be text or a list of blocks: {error}") from error
    for block in blocks:
        if not isinstance(cast("Any", block), Mapping) or not isinstance(block.get("type"), str):
            raise UsageError(f"message {at}: a content block needs a type; got {block!r:.80}")
    if role != "tool":
        return role, blocks
    if any(block["type"] == "tool_result" for block in blocks):
        return "user", blocks
    answered = {"tool_use_id": read.get("tool_call_id") or read.get("tool_use_id"), "name": read.get("name")}
    return "user", [{"type": "tool_result", **answered, "content": blocks, "is_error": read.get("is_error")}]


def _to_mapping(at: int, message: Any) -> Any:
    try:
        return to_builtins(message)
    except TypeError as error:
        raise UsageError(f"message {at}: {error}") from error


def _system_texts(at: int, blocks: list[JsonObject]) -> list[str]:
    if other := [block["type"] for block in blocks if block["type"] != "text"]:
        raise UsageError(f"message {at}: a system message is text, and cannot hold a block of type {other[0]!r}")
    return [block["text"] for block in blocks]


def _write_turns(page: _BlockWriter, turns: list[tuple[str, list[JsonObject]]]) -> None:
    outer = outer_tag_name("conversation", page.nonce)
    page.write(f"{_INTRODUCTION}\n<{outer}>\n")
    for role, blocks in turns:
        name = outer_tag_name(role, page.nonce)
        page.write(f"<{name}>\n")
        for block in blocks:
            _write_block(page, block)
            page.write("\n")
        page.write(f"</{name}>\n")
    page.write(f"</{outer}>\n\n")


def _write_block(page: _BlockWriter, block: JsonObject) -> None:
    _BLOCK_WRITERS.get(block["type"], _write_other)(page, block)


def _write_text(page: _BlockWriter, block: JsonObject) -> None:
    page.write(mask_nonce(str(block.get("text", "")), page.nonce))


def _write_call(page: _BlockWriter, block: JsonObject) -> None:
    call_id, name = str(block.get("id") or ""), str(block.get("name") or "")
    page.names[call_id] = name
    page.write(call_frame(call_id, name, block.get("input", {}), page.nonce))


def _write_result(page: _BlockWriter, block: JsonObject) -> None:
    call_id = str(block.get("tool_use_id") or "")
    name = str(block.get("name") or page.names.get(call_id, "unknown"))
    frame, *media = result_frame(call_id, name, block, page.nonce)
    page.write(f"{frame['text']}\n")
    for each in media:
        page.add(each)


def _write_thinking(page: _BlockWriter, block: JsonObject) -> None:
    page.write(f"<thinking>{mask_nonce(str(block.get('thinking', '')), page.nonce)}</thinking>")


def _write_media(page: _BlockWriter, block: JsonObject) -> None:
    page.add(block)


def _write_other(page: _BlockWriter, block: JsonObject) -> None:
    page.write(mask_nonce(f"[{block['type']}: {json_text(block)}]", page.nonce))


_BLOCK_WRITERS: Final[Mapping[str, Callable[[_BlockWriter, JsonObject], None]]] = {
    "text": _write_text,
    "image": _write_media,
    "document": _write_media,
    "tool_use": _write_call,
    "tool_result": _write_result,
    "thinking": _write_thinking,
}
