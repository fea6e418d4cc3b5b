"""`Middleware`: the extension point of a query.

Retries, typed output, tool bridges, budgets and observers are middlewares too, each in a module of its own;
`queries` has their order. Loaded only by queries that have one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pilothouse.client.prompt import make_prompt
from pilothouse.engine import NextPrompt, Prompts, QueryRun
from pilothouse.engine.pending_work import PromptMessage
from pilothouse.errors import OptionsError, PilothouseError, UsageError
from pilothouse.messages import Message, ResultMessage

if TYPE_CHECKING:
    from pilothouse.client.result import QueryResult
    from pilothouse.events import QueryEvent

ReadEvents: TypeAlias = "Callable[[Message], Iterator[QueryEvent]]"
"""Turns a message into events."""
_PLAIN_METHODS: Final = (
    "prepare_prompts", "on_start", "on_messages", "complete_result", "explain", "wrap_events",
)  # fmt: skip


class Middleware:
    """Steps into a query: changes its prompts, sees its messages, sends another prompt after a result.

    Derive from it, override what you need, and pass the class, or a function that makes an instance, as the option
    `middleware`. Each query gets an instance of its own. The first in the list is the outermost: it changes the
    prompts first, and is the last to see messages and results.

    A middleware must not keep a reference to its `Query`, which could otherwise not end when it is dropped. An
    exception in `on_messages` or `after_result` is the failure of the query.

    Example::

        class RunTests(ph.client.Middleware):
            asked = False

            async def after_result(self, result):
                if self.asked or result.is_error:
                    return None  # the answer stands
                self.asked = True
                return self.make_next_prompt("Run the tests now, and mend what fails.")

        await ph.query("Rename `load` to `read`", middleware=[RunTests])
    """

    def prepare_prompts(self, prompts: Prompts) -> Prompts:
        """Return what is sent in place of `prompts`: a sequence, or an async generator that is closed at the end."""
        return prompts

    def on_start(self, run: QueryRun) -> None:
        """Take note of the run, before it starts: `run.interrupt()` stops it, `run.session_id` names its session."""

    def on_messages(self, batch: list[Message]) -> list[Message]:
        """Return what the consumer gets in place of `batch`. Called with every message, in order. Must not wait.

        Dropping or changing a message affects only the consumer. The list may be modified.
        """
        return batch

    async def after_result(self, result: ResultMessage) -> NextPrompt | None:
        """Return what follows `result`: another prompt, messages, the end (`NextPrompt()`); None: others decide.

        Called once for each result that leaves no prompt of the query pending, also for failed ones. May take long;
        the idle timeout is paused meanwhile. Cancelled when the query is interrupted, closed or out of time.
        """
        return None

    def complete_result(self, result: QueryResult[Any], messages: Sequence[Message]) -> None:
        """Change the whole answer before the caller gets it; `messages` are those that were kept."""

    def explain(self, error: PilothouseError) -> None:
        """Add to an error of the answer, or one that is about to be raised, what is known about its cause."""

    def wrap_events(self, read: ReadEvents) -> ReadEvents:
        """Return a function that makes events of messages, in place of `read`; for `Query.events()`."""
        return read

    @property
    def is_passive(self) -> bool:
        """Whether nothing ever follows a result: `after_result` is not overridden."""
        return type(self).after_result is Middleware.after_result

    @staticmethod
    def make_next_prompt(content: str | Sequence[Any], messages: Sequence[Message] = ()) -> NextPrompt:
        """Make the answer of `after_result` that sends a prompt.

        Args:
            content: text, or content blocks. An `@path` or a `/command` in it has no effect.
            messages: delivered to the consumer first. A `ResultMessage` among them replaces the result of the CLI.

        Raises:
            UsageError: the content is empty, or cannot be a prompt.
        """
        return NextPrompt(make_prompt(content, verbatim=True), messages)


def make_custom(make: Callable[[], Any]) -> Middleware:
    """Make a middleware of the option `middleware`.

    Raises:
        OptionsError: `make` made something else.
    """
    middleware = make()
    kind = type(middleware).__name__
    if not isinstance(middleware, Middleware):
        raise OptionsError(
            f"option 'middleware': {make!r} made {kind}; derive it from pilothouse.client.Middleware",
            option="middleware",
        )
    if wrong := [name for name in _PLAIN_METHODS if iscoroutinefunction(getattr(middleware, name))]:
        raise OptionsError(
            f"option 'middleware': {kind}.{wrong[0]} is called, not awaited: write `def`; after_result may wait",
            option="middleware",
        )
    return middleware


def change_prompts(middleware: Any, prompts: Prompts) -> Prompts:
    """Return the prompts as the middleware wants them. Raises UsageError if it returns something else."""
    changed: Any = middleware.prepare_prompts(prompts)
    if isinstance(changed, AsyncGenerator):
        return cast("AsyncGenerator[PromptMessage, None]", changed)
    items = cast("Sequence[Any]", changed) if isinstance(changed, Sequence) else (None,)
    if all(isinstance(each, PromptMessage) for each in items):
        return items
    kind = type(cast("object", changed)).__name__
    raise UsageError(
        f"prepare_prompts of the middleware {type(middleware).__name__} returned {kind}; return "
        "a list of prompts or an async generator, of those that it gets and of self.make_next_prompt(…).prompt"
    )


def append_cause(error: BaseException, cause: BaseException) -> None:
    """Chain `cause` to `error`, behind the causes that it has."""
    while error is not cause:
        if error.__cause__ is None:
            error.__cause__ = cause
            return
        error = error.__cause__
