"""Prompts that come one by one from a plain iterable: read beside the loop, one thread each.

Owns where the caller's iterator runs. What a prompt may be is checked by the client.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import anyio
from anyio import to_thread

from pilothouse.client.prompt import Prompt

_DONE = object()


def beside_the_loop(prompt: Prompt) -> Prompt:
    """The prompt, with a plain iterable made into an asynchronous one; anything else as it is."""
    given: Any = prompt
    if isinstance(given, Sequence | Mapping | AsyncIterable) or not isinstance(given, Iterable):
        return prompt
    return _steps(cast("Iterable[Any]", given))


async def _steps(prompts: Iterable[Any]) -> AsyncIterator[Any]:
    # A limiter of its own: iterators that wait for people must not use up the threads of everybody else.
    limiter = anyio.CapacityLimiter(1)
    iterator: Iterator[Any] | None = None
    while True:
        iterator, item = await to_thread.run_sync(_step, iterator, prompts, abandon_on_cancel=True, limiter=limiter)
        if item is _DONE:
            return
        yield item


def _step(iterator: Iterator[Any] | None, prompts: Iterable[Any]) -> tuple[Iterator[Any], Any]:
    # The thread may wait for a line of standard input when Python exits. Python then closes that stream, cannot get
    # its lock, and aborts; but not while somebody holds the stream, as this frame does.
    held = sys.stdin, sys.__stdin__
    iterator = iter(prompts) if iterator is None else iterator
    item = next(iterator, _DONE)
    del held
    return iterator, item
