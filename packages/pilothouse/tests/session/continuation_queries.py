"""Queries with a continuation: in a query of its own, and in one of a session, over the same stand-in for the CLI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse.client.middleware import Middleware
from pilothouse.client.prompt import make_prompt
from pilothouse.client.queries import Query
from pilothouse.client.sessions import Session
from pilothouse.engine import NextPrompt, PromptMessage
from pilothouse.messages import Message, ResultMessage, from_dict

Answer = Callable[[ResultMessage], Awaitable[NextPrompt]]
Read = Callable[[list[Message]], list[Message]]
DEADLINE = 8


def cancelled() -> str:
    """How a continuation ends that was cancelled."""
    return anyio.get_cancelled_exc_class().__name__


def prompt(text: str) -> PromptMessage:
    return make_prompt(text, verbatim=True)


def message(frame: dict[str, Any]) -> Message:
    return from_dict(frame)


class Plan(Middleware):
    """A continuation that gives one answer after the other, and then says that this was all.

    Attributes:
        asked: the texts of the results that it was asked about.
        seen: what `read` got.
        ended: how each question ended.
    """

    def __init__(self, *answers: Answer | NextPrompt, read: Read | None = None) -> None:
        self._answers = list(answers)
        self._read = read
        self.asked: list[str | None] = []
        self.seen: list[Message] = []
        self.ended: list[str] = []
        self.begun = anyio.Event()

    def on_messages(self, batch: list[Message]) -> list[Message]:
        self.seen += batch
        return batch if self._read is None else self._read(batch)

    async def after_result(self, result: ResultMessage) -> NextPrompt:
        self.asked.append(result.result)
        assert any(result is m for m in self.seen)  # it has read everything before it is asked
        answer = self._answers.pop(0) if self._answers else NextPrompt()
        self.begun.set()
        try:
            following = answer if isinstance(answer, NextPrompt) else await answer(result)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        self.ended.append("answered")
        return following


class QueryRunner:
    """Asks either alone or in a session; both over the same stand-in for the CLI."""

    def __init__(self, cli: Cli, session: Session | None) -> None:
        self.cli = cli
        self.session = session

    def ask(self, text: Any, continuation: Middleware, **settings: Any) -> Query:
        settings["middleware"] = [lambda: continuation]
        if self.session is None:
            return ph.query(text, transport=self.cli.transport, **settings)
        return self.session.query(text, **settings)

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
async def query_runner(cli: Cli, kind: str) -> AsyncGenerator[QueryRunner]:
    if kind == "alone":
        yield QueryRunner(cli, None)
        assert not cli.running
        return
    async with ph.Agent(transport=cli.transport).session() as session:
        yield QueryRunner(cli, session)
    assert not cli.running


async def forever(_: ResultMessage) -> NextPrompt:
    await anyio.sleep_forever()
    raise AssertionError


async def no_end(cli: Cli, say: Say, text: str) -> str:
    await anyio.sleep_forever()
    raise AssertionError
