"""`Stream`: the parts of one answer as they come, and its end.

Owns how an answer ends: complete, failed, aborted, or left early; the process is gone in each case. What the parts
say, the steps know.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from pilothouse.client.queries import Query
from pilothouse.client.reading import Reading as Messages
from pilothouse.errors import BudgetError, Interrupted, PilothouseError, UsageError
from pilothouse.language_model.parts import Error, Finish, GenerateResult, StreamPart
from pilothouse.language_model.steps import ModelRun
from pilothouse.tracebacks import user_class


class Abort(Protocol):
    """Says when to stop: an `anyio.Event`, or one of the event loop that is used."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    async def wait(self) -> Any:
        """Return when to stop."""
        ...


@user_class
class Stream:
    """An answer as it is written; made by `LanguageModel.stream`. Nothing runs until it is read. (S2, S31)

    ::

        async for part in model.stream(messages): ...       # leaving the loop ends the process
        async with model.stream(messages) as stream: ...     # the same, and it is gone when the block is left

    It is read once; a second loop raises `UsageError`. The last part is `Finish` or `Error`, unless the loop is left:
    failures are parts, not exceptions.
    """

    def __init__(self, query: Query, run: ModelRun, abort: Abort | None) -> None:
        self._query = query
        self._run = run
        self._abort = abort
        self._end: Finish | Error | None = None

    def __aiter__(self) -> Parts:
        return Parts(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the answer and wait until the process is gone. Idempotent, bounded, from any task. (S34, S36)"""
        await self._query.aclose()

    async def result(self) -> GenerateResult:
        """Read to the end, and give the whole answer. (S32)

        Raises:
            PilothouseError: there is none; the class says why, as with `LanguageModel.generate`.
        """
        if self._end is None:
            async for _ in self:
                pass
        assert self._end is not None
        if isinstance(self._end, Error):
            raise self._end.error
        return self._end.result

    # What a loop calls.

    def messages(self) -> Messages[Any]:
        """What the CLI says; dropping this ends the query."""
        return aiter(self._query)

    async def advance(self, messages: Messages[Any]) -> None:
        """Wait for more parts, or for the end."""
        try:
            if await self._more(messages):
                messages.unread.clear()  # the run has read them
                return
            error = await self._failure()
        except PilothouseError as raised:
            error = raised
        self._finish(error)

    def next_part(self) -> StreamPart | None:
        """The next part, if there is one."""
        return self._run.parts.popleft() if self._run.parts else None

    def check_unread(self) -> None:
        """A loop begins.

        Raises:
            UsageError: another loop has read all of it.
        """
        if self.has_ended and not self._run.parts:
            raise UsageError("the stream was read to its end; its `result()` gives the whole answer")

    @property
    def has_ended(self) -> bool:
        """Whether the last part was told."""
        return self._end is not None

    async def _more(self, messages: Messages[Any]) -> bool:
        abort = self._abort
        if abort is None:
            return await messages.fill()
        more, failure = False, None
        if not abort.is_set():
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    await abort.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                try:
                    more = await messages.fill()
                except PilothouseError as error:
                    failure = error
                tasks.cancel_scope.cancel()
        if abort.is_set():
            await self._query.aclose()
            self._run.parts.clear()
            raise Interrupted("the request was aborted")
        if failure is not None:
            raise failure
        return more

    async def _failure(self) -> PilothouseError | None:
        """Why the answer is not complete, although the CLI came to its end; None if it is."""
        run = self._run
        if run.error is None and not run.was_cut:
            return None
        answer = await self._query.result()  # knows more than the result says: budgets, reset times
        used_up = BudgetError("max_budget_tokens is used up, before the calls could be run", result=answer.result)
        return answer.error or run.error or used_up

    def _finish(self, error: PilothouseError | None) -> None:
        result = self._run.result(failed=error is not None)
        if error is None:
            self._end = Finish(result.finish_reason, result.usage, result)
        else:
            self._end = Error(error, result)
        self._run.parts.append(self._end)


@user_class
class Parts:
    """One loop over a stream. Not a generator, so that dropping it ends the answer wherever it is collected."""

    __slots__ = ("_begun", "_messages", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._begun = False
        self._stream = stream
        self._messages = stream.messages()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamPart:
        stream = self._stream
        if not self._begun:
            self._begun = True
            stream.check_unread()
        while (part := stream.next_part()) is None:
            if stream.has_ended:
                raise StopAsyncIteration
            await stream.advance(self._messages)
        return part

    async def aclose(self) -> None:
        """Leave the loop, and wait until the process is gone."""
        await self._stream.aclose()
