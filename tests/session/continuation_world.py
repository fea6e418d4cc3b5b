"""Queries with a continuation: in a query of its own, and in one of a session, over the same stand-in for the CLI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
from session_world import Cli, Say

import pilothouse as ph
from pilothouse.client.house import started_with
from pilothouse.client.plan import limits_of
from pilothouse.client.prompt import prepare
from pilothouse.client.queries import Query
from pilothouse.client.sessions import Session
from pilothouse.driver import Continuation, Exchange, Next, Outgoing
from pilothouse.driver.turn import Turn
from pilothouse.messages import Message, ResultMessage, from_dict

Answer = Callable[[ResultMessage], Awaitable[Next]]
Read = Callable[[list[Message]], list[Message]]
DEADLINE = 8


def cancelled() -> str:
    """How a continuation ends that was cancelled."""
    return anyio.get_cancelled_exc_class().__name__


def prompt(text: str) -> Outgoing:
    [made] = cast("tuple[Outgoing]", prepare(text, verbatim=True))
    return made


def message(frame: dict[str, Any]) -> Message:
    return from_dict(frame)


class Plan:
    """A continuation that gives one answer after the other, and then says that this was all.

    Attributes:
        asked: the texts of the results that it was asked about.
        seen: what `read` got.
        ended: how each question ended.
    """

    def __init__(self, *answers: Answer | Next, read: Read | None = None) -> None:
        self._answers = list(answers)
        self._read = read
        self.asked: list[str | None] = []
        self.seen: list[Message] = []
        self.ended: list[str] = []
        self.begun = anyio.Event()

    def read(self, batch: list[Message]) -> list[Message]:
        self.seen += batch
        return batch if self._read is None else self._read(batch)

    async def go_on(self, result: ResultMessage) -> Next:
        self.asked.append(result.result)
        assert any(result is m for m in self.seen)  # it has read everything before it is asked
        answer = self._answers.pop(0) if self._answers else Next()
        self.begun.set()
        try:
            following = answer if isinstance(answer, Next) else await answer(result)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        self.ended.append("answered")
        return following


class World:
    """Asks either alone or in a session; both over the same stand-in for the CLI."""

    def __init__(self, cli: Cli, session: Session | None) -> None:
        self.cli = cli
        self.session = session

    def ask(self, text: Any, continuation: Continuation, **settings: Any) -> Query:
        options = ph.Options(transport=self.cli.transport, **settings)
        if self.session is None:

            def alone(final: Any, prompts: Any, _: Any) -> Exchange:
                invocation, host = started_with(final, None)
                return Exchange(self.cli.transport(), invocation, prompts, limits_of(final), continuation, host)

            return Query(text, options, make_run=alone)
        session = self.session

        def turn(final: Any, prompts: Any, _: Any) -> Turn:
            enter = partial(session._talking, {})
            return Turn(enter, prompts, limits_of(final), continuation, wants_partial=final.partial_messages)

        return Query(text, options, make_run=turn)

    async def still_works(self) -> None:
        """The next query gets its own answer, and of the one before nothing is left."""
        with anyio.fail_after(DEADLINE):
            if self.session is None:
                while self.cli.running:
                    await anyio.lowlevel.checkpoint()
                return
            answer = await self.session.query("next")
            assert answer.full_text == "re: next"
            assert (self.session.state, self.session.waiting) == ("idle", 0)


@asynccontextmanager
async def world(cli: Cli, kind: str) -> AsyncGenerator[World]:
    if kind == "alone":
        yield World(cli, None)
        assert not cli.running
        return
    async with ph.Agent(transport=cli.transport).session() as session:
        yield World(cli, session)
    assert not cli.running


async def forever(_: ResultMessage) -> Next:
    await anyio.sleep_forever()
    raise AssertionError


async def no_end(cli: Cli, say: Say, text: str) -> str:
    await anyio.sleep_forever()
    raise AssertionError
