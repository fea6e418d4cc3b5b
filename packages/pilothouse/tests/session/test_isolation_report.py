"""`session.info.isolation_report()`: what the child of a session has loaded, turn by turn and child by child."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from session_cli import Cli, die

import pilothouse as ph
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio


def loading(tools: list[str], **more: Any) -> dict[str, Any]:
    return frames.init(tools=tools, **more)


STRANGER: dict[str, Any] = {"agents": ["Plan", "stranger"], "mcp_servers": [{"name": "theirs", "status": "connected"}]}


async def test_there_is_none_before_the_first_turn_and_it_follows_the_last_one() -> None:
    fake = (
        FakeCLI()
        .turn(loading(["Read"]), frames.result("one"))
        .turn(loading(["Bash"], **STRANGER), frames.result("two"))
    )
    with fake, anyio.fail_after(20):
        session = ph.session(cli=fake.path, isolation="strict")
        assert session.info.isolation_report() is None
        async with session:
            assert session.info.isolation_report() is None
            await session.query("one")
            first = session.info.isolation_report()
            assert first is not None
            assert (first.tools, first.unexpected) == (("Read",), ())
            await session.query("two")
            second = session.info.isolation_report()
            assert second is not None
            assert second.tools == ("Bash",)
            assert second.unexpected == ("MCP server theirs", "agent stranger")
        assert session.info.isolation_report() == second


async def test_what_the_session_was_made_with_is_expected() -> None:
    servers = [{"name": name, "status": "connected"} for name in ("mine", "tools")]
    fake = FakeCLI().turn(loading([], mcp_servers=servers), frames.result("one"))

    def add(a: int) -> int:
        """Add."""
        return a

    with fake, anyio.fail_after(20):
        async with ph.session(cli=fake.path, mcp_servers={"mine": {"command": "x"}}, custom_tools=[add]) as session:
            await session.query("one")
            report = session.info.isolation_report()
    assert report is not None
    assert (report.mcp_servers, report.unexpected) == (("mine", "tools"), ())


async def test_a_new_child_has_no_report_yet(cli: Cli) -> None:
    cli.acts["die"] = die
    async with ph.Agent(transport=cli.transport).session() as session:
        await session.query("one")
        assert session.info.isolation_report() is not None
        with pytest.raises(ph.CLIExitedError):
            await session.query("die")
        await session.info.version()  # starts the next one
        assert session.restarts == 1
        assert session.info.isolation_report() is None
        await session.query("two")
        assert session.info.isolation_report() is not None
