"""One call of a user's function, sync or async.

Owns on which thread it runs, and what a cancellation that nobody asked for is. Knows no tools, schemas or results.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pilothouse.callbacks import in_thread


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - it is known to be callable


async def call(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any], *, inline: bool) -> Any:
    """Call it, and wait for what it returns.

    Args:
        function: what to call.
        args: its arguments by position.
        named: its arguments by name.
        inline: whether it runs on the event loop; if not, in a worker thread, which a cancellation leaves to its end.
    """
    if inline:
        return await function(*args, **named)

    def boxed() -> tuple[Any]:  # trio lets no coroutine out of a thread
        return (function(*args, **named),)

    (answer,) = await in_thread(boxed)
    return await answer if inspect.isawaitable(answer) else answer


def is_stray_cancellation(error: BaseException) -> bool:
    """Whether a function let out the cancellation of something else, such as of a task that it waited for.

    Nobody cancelled the call itself, so somebody still waits for its answer.
    """
    asyncio: Any = sys.modules.get("asyncio")  # not loaded, not raised
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop, which has cancellations of its own
        return True
    return task is not None and not task.cancelling()
