"""A conversation of any length as one user message: the CLI takes no other messages. Pure.

Owns how prior turns are written down: user, assistant and tool parts, calls and pictures included, in frames that only
this request can make. (S40, S41) Must not know models, options or processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from msgspec import Struct, to_builtins

from pilothouse.errors import UsageError
from pilothouse.tools.blocks import Wire, blocks_of, text_block
from pilothouse.tools.content import json_text
from pilothouse.tools.xml.frames import call_frame, framed, result_frame
from pilothouse.tools.xml.markup import blotted

_INTRODUCTION: Final = "The conversation up to now, oldest message first. Go on with it where it ends."
_GO_ON: Final = "Go on from the end of the conversation."
_SYSTEM: Final = ("system", "developer")


class History(Struct, frozen=True):
    """A conversation, ready to be sent.

    Attributes:
        system: what the system messages say, for the system prompt; None if there are none.
        content: the blocks of one user message. Send it with `client_composed`.
    """

    system: str | None
    content: list[Wire]


class _Page:
    """Blocks in the making; texts that touch become one."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.blocks: list[Wire] = []
        self.names: dict[str, str] = {}  # of tools, by the ids of their calls
        self._texts: list[str] = []

    def write(self, text: str) -> None:
        self._texts.append(text)

    def add(self, block: Wire) -> None:
        if self._texts:
            self.blocks.append(text_block("".join(self._texts)))
            self._texts = []
        if block.get("text") != "":
            self.blocks.append(block)

    def done(self) -> list[Wire]:
        self.add(text_block(""))
        return self.blocks


def history(messages: Iterable[Any], nonce: str) -> History:
    """Write a conversation down. (S35, S40, S41)

    Args:
        messages: mappings or structs with `role` (user, assistant, tool or system) and `content`: a text, or blocks in
            the form of the Messages API, `tool_use` and `tool_result` among them. A message of role `tool` with a plain
            text names its call by `tool_call_id`.
        nonce: of this request, the one of the system prompt; nothing that was said before can contain it.

    A lone user message stays as it is. Otherwise all but the last turn of the user stands in a frame, and the results
    of the last calls stand as they would if the model had just made them.

    Raises:
        UsageError: a message has no known role, or content that cannot be told.
    """
    system: list[str] = []
    told: list[tuple[str, list[Wire]]] = []
    for at, message in enumerate(messages):
        role, blocks = _read(at, message)
        if role in _SYSTEM:
            system += _system_texts(at, blocks)
        elif told and told[-1][0] == role:
            told[-1][1].extend(blocks)
        else:
            told.append((role, blocks))
    if not told:
        raise UsageError("there is no message to answer")
    page = _Page(nonce)
    last = told.pop() if told[-1][0] == "user" else None
    if told:
        _write_turns(page, told)
    if last is not None:
        for block in last[1]:
            _write(page, block)
    else:
        page.write(_GO_ON)
    return History("\n\n".join(system) or None, page.done())


def _read(at: int, message: Any) -> tuple[str, list[Wire]]:
    plain = cast("Any", message) if isinstance(message, Mapping) else _plain(at, message)
    if not hasattr(plain, "get"):
        raise UsageError(f"message {at}: a mapping with role and content is needed, not {type(plain).__name__}")
    read = cast("Mapping[str, Any]", plain)
    inner: Any = read.get("message")
    if "role" not in read and isinstance(inner, Mapping):
        read = cast("Mapping[str, Any]", inner)  # in the form of the CLI
    role = read.get("role")
    if role not in ("user", "assistant", "tool", *_SYSTEM):
        raise UsageError(f"message {at}: role is {role!r}; known are user, assistant, tool and system")
    if read.get("tool_calls"):
        raise UsageError(f"message {at}: calls are `tool_use` blocks of its content, not `tool_calls`")
    try:
        blocks = blocks_of(read.get("content"))
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


def _plain(at: int, message: Any) -> Any:
    try:
        return to_builtins(message)
    except TypeError as error:
        raise UsageError(f"message {at}: {error}") from error


def _system_texts(at: int, blocks: list[Wire]) -> list[str]:
    if other := [block["type"] for block in blocks if block["type"] != "text"]:
        raise UsageError(f"message {at}: a system message is text, and cannot hold a block of type {other[0]!r}")
    return [block["text"] for block in blocks]


def _write_turns(page: _Page, turns: list[tuple[str, list[Wire]]]) -> None:
    outer = framed("conversation", page.nonce)
    page.write(f"{_INTRODUCTION}\n<{outer}>\n")
    for role, blocks in turns:
        name = framed(role, page.nonce)
        page.write(f"<{name}>\n")
        for block in blocks:
            _write(page, block)
            page.write("\n")
        page.write(f"</{name}>\n")
    page.write(f"</{outer}>\n\n")


def _write(page: _Page, block: Wire) -> None:
    _KINDS.get(block["type"], _write_other)(page, block)


def _write_text(page: _Page, block: Wire) -> None:
    page.write(blotted(str(block.get("text", "")), page.nonce))


def _write_call(page: _Page, block: Wire) -> None:
    call_id, name = str(block.get("id") or ""), str(block.get("name") or "")
    page.names[call_id] = name
    page.write(call_frame(call_id, name, block.get("input", {}), page.nonce))


def _write_result(page: _Page, block: Wire) -> None:
    call_id = str(block.get("tool_use_id") or "")
    name = str(block.get("name") or page.names.get(call_id, "unknown"))
    frame, *media = result_frame(call_id, name, block, page.nonce)
    page.write(f"{frame['text']}\n")
    for each in media:
        page.add(each)


def _write_thinking(page: _Page, block: Wire) -> None:
    page.write(f"<thinking>{blotted(str(block.get('thinking', '')), page.nonce)}</thinking>")


def _write_media(page: _Page, block: Wire) -> None:
    page.add(block)


def _write_other(page: _Page, block: Wire) -> None:
    page.write(blotted(f"[{block['type']}: {json_text(block)}]", page.nonce))


_KINDS: Final[Mapping[str, Callable[[_Page, Wire], None]]] = {
    "text": _write_text,
    "image": _write_media,
    "document": _write_media,
    "tool_use": _write_call,
    "tool_result": _write_result,
    "thinking": _write_thinking,
}
