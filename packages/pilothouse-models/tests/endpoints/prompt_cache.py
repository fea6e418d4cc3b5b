"""A model of the API's prompt cache: what a request reads from it, writes to it, and pays for anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pilothouse_testing import RecordedRequest

LOOKBACK = 20
"""So many blocks before a mark the API looks for the end of an earlier request."""
MAX_MARKS = 4
PRICE_OF_READ, PRICE_OF_WRITE = 0.1, 1.25
"""Of a token that is read from the cache or written to it for five minutes, beside one that is not cached."""


class Share(NamedTuple):
    """How many characters of a request were read from the cache, written for the next one, and written for nothing."""

    read: int
    written: int
    wasted: int

    @property
    def price(self) -> float:
        return self.read * PRICE_OF_READ + (self.written + self.wasted) * PRICE_OF_WRITE

    @property
    def of_conversation(self) -> float:
        """The share that is read, of all that the next request can begin with."""
        return self.read / (self.read + self.written)


class Block(NamedTuple):
    text: str
    is_marked: bool


def list_blocks(request: RecordedRequest) -> Iterator[Block]:
    """The tools, the system prompt and the messages of a request, in the order in which the API reads them."""
    for tool in request.body.get("tools", ()):
        yield _make_block("tool", tool)
    for block in request.body["system"]:
        yield _make_block("system", block)
    for message in request.body["messages"]:
        content: Any = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield _make_block(message["role"], block)


def _make_block(role: str, block: dict[str, Any]) -> Block:
    rest = {key: value for key, value in block.items() if key != "cache_control"}
    return Block(f"{role} {json.dumps(rest)}", "cache_control" in block)


class PromptCache:
    """Reads requests in their order, as the API would."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def read(self, request: RecordedRequest) -> Share:
        blocks = list(list_blocks(request))
        # The CLI's message about the environment follows the conversation, and nothing ever begins with it.
        environment = blocks[-1] if request.body["messages"][-1]["role"] == "system" else None
        digest, digests, ends, end = hashlib.sha256(), list[bytes](), list[int](), 0
        for block in blocks:
            digest.update(f"{len(block.text)} {block.text}".encode())
            end += len(block.text)
            digests.append(digest.digest())
            ends.append(end)
        marks = [at for at, block in enumerate(blocks) if block.is_marked]
        assert len(marks) <= MAX_MARKS, "the API refuses the request"
        read = max(
            (
                ends[at]
                for mark in marks
                for at in range(mark, max(-1, mark - LOOKBACK), -1)
                if digests[at] in self._known
            ),
            default=0,
        )
        self._known.update(digests[mark] for mark in marks)
        useful = [ends[mark] for mark in marks if blocks[mark] is not environment]
        written = max([*useful, read]) - read
        return Share(read, written, end - read - written)
