"""Cancelled at every turn of the event loop: the session stays usable, and the next query gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
import trio
from loop_turns import CountingLoop, Turns
from session_cli import Cli, die, hang

import pilothouse as ph
from pilothouse.client import Middleware, NextPrompt
from pilothouse.client.sessions import Session

Use = Callable[[Session], Awaitable[object]]
ENOUGH = 300  # turns; no run takes so many


async def asked(session: Session) -> None:
    await session.query("one")


async def changed(session: Session) -> None:
    await session.query("one", model="haiku", permission_mode="plan")


async def left(session: Session) -> None:
    async for message in session.query("slow"):
        if isinstance(message, ph.AssistantMessage):
            break


async def interrupted(session: Session) -> None:
    async with session.query("slow") as query:
        async for message in query:
            if isinstance(message, ph.AssistantMessage):
                break
        await session.interrupt()
        await query.result()


async def queued(session: Session) -> None:
    async with session.query("one") as first, session.query("two") as second:
        await second.result()
        await first.result()


async def several(session: Session) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "one"
        await anyio.lowlevel.checkpoint()
        yield "two"

    await session.query(prompts())


async def cleared(session: Session) -> None:
    await session.query("one")
    await session.clear()


async def crashed(session: Session) -> None:
    await session.query("one")
    with pytest.raises(ph.CLIExitedError):
        await session.query("crash")
    await session.query("two")


async def continued(session: Session) -> None:
    class Twice(Middleware):
        async def after_result(self, result: ph.ResultMessage) -> NextPrompt:
            await anyio.lowlevel.checkpoint()
            if result.result != "re: one":
                return NextPrompt()
            return self.make_next_prompt("two")

    await session.query("one", middleware=[Twice])


async def controlled(session: Session) -> None:
    await session.set_model("haiku")
    await session.mcp.status()
    await session.tasks.wait_idle()


USES: tuple[Use, ...] = (asked, changed, left, interrupted, queued, several, cleared, crashed, continued, controlled)


def make_cli() -> Cli:
    cli = Cli()
    cli.acts = {"slow": hang, "crash": die}
    return cli


async def after(cli: Cli, session: Session, use: Use) -> None:
    """What must be so, wherever the cut was."""
    with anyio.fail_after(8):
        answer = await session.query("next")
        assert answer.full_text == "re: next"
        assert [m.type for m in answer.messages if m.type != "command_lifecycle"] == ["system", "assistant", "result"]
        assert (session.state, session.waiting) == ("idle", 0)
        assert (await session.query("and again")).full_text == "re: and again"
        assert session.restarts <= (use is crashed)  # a start that was cancelled is no crash
        assert cli.prompts[-1][-2:] == ["next", "and again"]
        assert cli.running == {len(cli.children) - 1}
        await session.close()
        assert not cli.running


def on_asyncio(use: Use, at: int) -> bool:
    """Cancel at turn `at`; whether it ran for so long."""
    noise: list[str] = []

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        loop.set_exception_handler(lambda _, context: noise.append(str(context)))
        cli = make_cli()
        session = ph.Agent(transport=cli.transport, model="opus").session()
        tasks = [asyncio.ensure_future(use(session))]
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == at + 1:
                tasks[0].cancel()

        loop.turn = turn
        await asyncio.wait(tasks)
        loop.turn = lambda: None
        if not tasks[0].cancelled():
            await tasks[0]
        tasks.clear()  # its error holds the loop that was left
        await after(cli, session, use)
        with anyio.fail_after(5):
            while len(asyncio.all_tasks()) > 1:
                await anyio.lowlevel.checkpoint()
        return turns > at

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        reached = runner.run(main())
    assert noise == []
    return reached


def on_trio(use: Use, at: int) -> bool:
    async def main() -> bool:
        cli = make_cli()
        session = ph.Agent(transport=cli.transport, model="opus").session()
        scope = trio.CancelScope()
        instrument = Turns(at, scope.cancel)
        with scope:
            trio.lowlevel.add_instrument(instrument)
            try:
                await use(session)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        await after(cli, session, use)
        return instrument.count > at

    return trio.run(main)


RUNNERS = {"asyncio": on_asyncio, "trio": on_trio}


@pytest.mark.sample(3)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.requirement("G45", "G47", "E25", "E52")
def test_cancelled_anywhere(use: Use, anyio_backend: str) -> None:
    for at in range(ENOUGH):
        try:
            reached = RUNNERS[anyio_backend](use, at)
        except BaseException as error:
            error.add_note(f"cancelled at turn {at}")
            raise
        if not reached:
            assert at > 10
            return
    pytest.fail("no run got through")
