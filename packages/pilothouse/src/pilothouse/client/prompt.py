"""Turns what callers pass as a prompt into user messages on the wire, checked before a child exists.

A prompt is text, a list of content blocks, or an iterable (sync or async) of user messages, each of them text, a list
of blocks, or a mapping in wire form.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from pilothouse.callbacks import convert_failures, run_in_worker
from pilothouse.engine import PromptMessage
from pilothouse.errors import UsageError
from pilothouse.messages import UserMessage, to_dict
from pilothouse.protocol import user_message

Content = str | Sequence[Any]
Prompt = str | Sequence[Any] | Iterable[Any] | AsyncIterable[Any]

_DONE = object()


def prepare_prompts(prompt: Any, *, verbatim: bool) -> tuple[PromptMessage, ...] | AsyncGenerator[PromptMessage, None]:
    """Check a prompt and encode it.

    Args:
        prompt: see the module.
        verbatim: whether `@path` and `/command` have no effect in it.

    Raises:
        UsageError: the prompt is empty, not text or blocks, contains NUL or lone surrogates, or does not fit into
            JSON.
    """
    if isinstance(prompt, str):
        return (_make_text_message(check_text(prompt), verbatim),)
    if isinstance(prompt, bytes | bytearray | Mapping) or prompt is None:
        raise _invalid_prompt(cast("object", prompt))
    if isinstance(prompt, Sequence):
        items = list(cast("Sequence[Any]", prompt))
        if any(_is_message(item) for item in items):
            return tuple(_make_message(item, verbatim) for item in items)
        return (_make_message(items, verbatim),)
    if isinstance(prompt, AsyncIterable):
        return _from_async(cast("AsyncIterable[Any]", prompt), verbatim)
    if isinstance(prompt, Iterable):
        return _from_sync(cast("Iterable[Any]", prompt), verbatim)
    raise _invalid_prompt(prompt)


def _invalid_prompt(value: Any) -> UsageError:
    is_message = isinstance(value, Mapping) and "content" in cast("Mapping[str, Any]", value)
    kind = type(cast("object", value)).__name__
    hint = "; pass the value of 'content'" if is_message else ""
    return UsageError(f"a prompt is text, a list of content blocks, or an iterable of user messages, not {kind}{hint}")


async def _from_async(prompts: AsyncIterable[Any], verbatim: bool) -> AsyncGenerator[PromptMessage, None]:
    empty = True
    iterator = aiter(prompts)
    try:
        with convert_failures("the iterable of prompts"):
            async for item in iterator:
                empty = False
                yield _make_message(item, verbatim)
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()
    _reject_empty(empty)


async def _from_sync(prompts: Iterable[Any], verbatim: bool) -> AsyncGenerator[PromptMessage, None]:
    # A generator may read a file or wait for input: its steps run in a worker thread, one after the other.
    iterator = iter(prompts)
    empty = True
    with convert_failures("the iterable of prompts"):
        while (item := await run_in_worker(partial(next, iterator, _DONE))) is not _DONE:
            empty = False
            yield _make_message(item, verbatim)
    _reject_empty(empty)


def _reject_empty(empty: bool) -> None:
    if empty:
        raise UsageError("the iterable of user messages was empty")


def _is_message(item: Any) -> bool:
    return isinstance(item, UserMessage) or (isinstance(item, Mapping) and cast("Any", item).get("type") == "user")


def _make_message(item: Any, verbatim: bool) -> PromptMessage:
    if isinstance(item, UserMessage):
        item = to_dict(item)
    if not isinstance(item, Mapping):
        return make_prompt(item, verbatim=verbatim)
    body = dict(cast("Mapping[str, Any]", item))
    if body.pop("type", "user") != "user":
        raise UsageError(f"a message of a prompt has type 'user', not {item['type']!r}")
    message = body.pop("message", None)
    if not isinstance(message, Mapping) or "content" not in message:
        raise UsageError("a user message has the form {'type': 'user', 'message': {'role': 'user', 'content': …}}")
    key = str(body.pop("uuid", None) or uuid.uuid4())
    content = _check_content(cast("Mapping[str, Any]", message)["content"])
    composed = bool(body.pop("client_composed", verbatim))
    return PromptMessage(
        key,
        user_message(
            content,
            uuid=key,
            session_id=body.pop("session_id", None) or "",
            parent_tool_use_id=body.pop("parent_tool_use_id", None),
            client_composed=composed,
            extra=body,
        ),
    )


def make_prompt(content: Any, *, verbatim: bool) -> PromptMessage:
    """Check the content of one user message, text or blocks, and encode it; arguments and errors as above."""
    return _make_text_message(_check_content(content), verbatim)


def make_steering_prompt(content: Any, when: str, *, verbatim: bool) -> PromptMessage:
    """Check words for a turn that runs, text or blocks, and encode them.

    Args:
        content: as above.
        when: the priority that the CLI is told: "next", or "now".
        verbatim: as above.
    """
    return _make_text_message(_check_content(content), verbatim, {"priority": when})


def _make_text_message(
    content: str | list[dict[str, Any]], verbatim: bool, extra: Mapping[str, Any] | None = None
) -> PromptMessage:
    key = str(uuid.uuid4())
    return PromptMessage(key, user_message(content, uuid=key, client_composed=verbatim, extra=extra))


def _check_content(content: Any) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return check_text(content)
    if isinstance(content, Mapping | bytes | bytearray) or not isinstance(content, Sequence):
        raise _invalid_prompt(cast("object", content))
    blocks = [_check_block(index, block) for index, block in enumerate(cast("Sequence[Any]", content))]
    if not blocks:
        raise UsageError("the prompt is empty: a list of content blocks needs at least one")
    return blocks


def _check_block(index: int, block: Any) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": check_text(block)}
    plain: Any = msgspec.to_builtins(block) if isinstance(block, msgspec.Struct) else block
    if not isinstance(plain, Mapping) or not isinstance(cast("Any", plain).get("type"), str):
        is_chat = isinstance(plain, Mapping) and "role" in plain
        hint = "; of a chat message pass the content, and use a session for several questions" if is_chat else ""
        raise UsageError(
            f"content block {index} of the prompt is {type(block).__name__}; expected text, a block of "
            f"pilothouse.messages, or a mapping with a 'type'{hint}"
        )
    body = dict(cast("Mapping[str, Any]", plain))
    if body["type"] == "text":
        check_text(body.get("text"))
    return body


def check_text(text: Any) -> str:
    """Return `text` if it can be a prompt.

    Raises:
        UsageError: not text, empty, or with characters that no CLI accepts.
    """
    if not isinstance(text, str):
        raise UsageError(f"a prompt is text, not {type(text).__name__}")
    if not text.strip():
        raise UsageError("the prompt is empty, or only white space")
    if (at := text.find("\0")) >= 0:
        raise UsageError(f"the prompt has a NUL character at position {at}; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the prompt has a lone surrogate at position {error.start}, half of a character, probably from text that "
            "was cut or read with the wrong encoding; use text.encode('utf-8', 'replace').decode() to replace it"
        ) from None
    return text
