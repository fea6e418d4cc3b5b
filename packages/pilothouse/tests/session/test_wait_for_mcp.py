"""`wait_for_mcp`: the first prompt waits until the MCP servers are connected, and is not sent when they cannot be."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from failing_api import ask_each
from session_cli import Cli, die, talking

import pilothouse as ph
from pilothouse_testing import FakeCLI

# Queries are made to see how they are checked, and not run.
UNUSED = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")
pytestmark = [pytest.mark.anyio, UNUSED]

SERVER = {"command": "server"}


def servers(*states: str) -> dict[str, Any]:
    """An answer to `mcp_status`; a state is "name status scope error", the last two as need be."""
    keys = ("name", "status", "scope", "error")
    return {"mcpServers": [{"scope": "dynamic"} | dict(zip(keys, s.split(" ", 3), strict=False)) for s in states]}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.client.controls.POLL_SECONDS", 0)


def asked(cli: Cli) -> int:
    return [control["subtype"] for control in cli.controls].count("mcp_status")


async def test_the_prompt_waits_until_the_servers_are_connected(cli: Cli, kind: str) -> None:
    states = iter(["pending", "pending", "connected"])

    def status(_: object) -> dict[str, Any]:
        assert cli.prompts == [[]]  # nothing was sent before
        return servers(f"a {next(states)}", "b connected")

    cli.answers["mcp_status"] = status
    assert await ask_each(cli, kind, "go", mcp_servers={"a": SERVER, "b": SERVER}, wait_for_mcp=True) == "re: go"
    assert asked(cli) == 3


@pytest.mark.parametrize("off", [None, False])
async def test_queries_do_not_wait_by_default(cli: Cli, kind: str, off: Any) -> None:
    cli.answers["mcp_status"] = servers("a failed")
    assert await ask_each(cli, kind, "go", mcp_servers={"a": SERVER}, wait_for_mcp=off) == "re: go"
    assert asked(cli) == 0


@pytest.mark.parametrize("status", ["failed", "needs-auth", "disabled"])
async def test_a_server_that_cannot_be_reached_is_named_and_nothing_is_sent(cli: Cli, kind: str, status: str) -> None:
    cli.answers["mcp_status"] = servers(f"a {status} dynamic no route", "b pending", f"c {status}")
    with pytest.raises(ph.ControlError) as caught:
        await ask_each(cli, kind, "go", mcp_servers={"a": SERVER, "b": SERVER, "c": SERVER}, wait_for_mcp=20)
    assert str(caught.value) == f"MCP server 'a' is not connected: no route; 'c' is not connected: {status}"
    assert caught.value.code == status
    assert cli.prompts == [[]]
    assert not cli.running


async def test_a_server_that_is_late_is_named_and_nothing_is_sent(cli: Cli, kind: str) -> None:
    cli.answers["mcp_status"] = servers("a pending", "b connected", "z connected")
    with pytest.raises(ph.ControlTimeout, match=r"within 0\.05 s: 'a', 'gone'; MCP servers of the session: a, b, z"):
        await ask_each(cli, kind, "go", mcp_servers={"a": SERVER, "b": SERVER, "gone": SERVER}, wait_for_mcp=0.05)
    assert cli.prompts == [[]]
    assert not cli.running


async def test_a_server_that_the_cli_does_not_list_is_missed_soon(
    cli: Cli, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.client.controls.UNLISTED_SECONDS", 0)
    states = iter(["pending", "connected"])
    cli.answers["mcp_status"] = lambda _: servers(f"b {next(states)}")
    with pytest.raises(ph.ControlError, match=r"does not have the MCP server 'a'.*; MCP servers of the session: b$"):
        await ask_each(cli, kind, "go", mcp_servers={"a": SERVER, "b": SERVER}, wait_for_mcp=True)
    assert asked(cli) == 2
    assert cli.prompts == [[]]


async def test_a_cli_that_does_not_answer_is_not_waited_for_any_longer(cli: Cli, kind: str) -> None:
    cli.silent.add("mcp_status")
    with pytest.raises(ph.ControlTimeout, match=r"no answer to 'mcp_status' within 0\.05 s"):
        await ask_each(cli, kind, "go", wait_for_mcp=0.05)
    assert cli.prompts == [[]]


async def test_servers_from_elsewhere_are_waited_for_and_may_fail(
    cli: Cli, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pilothouse")
    states = iter(["pending", "failed"])
    cli.answers["mcp_status"] = lambda _: servers("a connected", f"b {next(states)} project", "c needs-auth user")
    assert await ask_each(cli, kind, "go", mcp_servers={"a": SERVER}, wait_for_mcp=True) == "re: go"
    assert asked(cli) == 2
    assert "MCP server 'b' is not connected: failed" in caplog.text

    cli.prompts.clear()
    cli.children.clear()
    cli.answers["mcp_status"] = servers("late pending user")
    assert await ask_each(cli, kind, "go", wait_for_mcp=0.05) == "re: go"
    assert "not connected within 0.05 s: late" in caplog.text


async def test_servers_of_a_file_are_known_by_where_the_cli_has_them_from(cli: Cli, kind: str) -> None:
    cli.answers["mcp_status"] = servers("mine failed dynamic gone", "theirs failed project")
    with pytest.raises(ph.ControlError, match=r"'mine' is not connected: gone$"):
        await ask_each(cli, kind, "go", mcp_servers='{"mcpServers": {"mine": {"command": "x"}}}', wait_for_mcp=True)


async def test_an_iterable_of_prompts_waits_too(cli: Cli) -> None:
    cli.answers["mcp_status"] = servers("a failed")

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        raise AssertionError("nobody asks for it")
        yield

    with pytest.raises(ph.ControlError):
        await ph.query(prompts(), transport=cli.transport, mcp_servers={"a": SERVER}, wait_for_mcp=True)


@pytest.mark.virtual_time
async def test_silence_does_not_count_while_servers_connect(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilothouse.client.controls.POLL_SECONDS", 0.1)
    states = iter(["pending"] * 4 + ["connected"])
    cli.answers["mcp_status"] = lambda _: servers(f"a {next(states)}")
    settings: dict[str, Any] = {"mcp_servers": {"a": SERVER}, "wait_for_mcp": True, "idle_timeout": 0.25}
    assert await ask_each(cli, "alone", "go", **settings) == "re: go"


async def test_the_time_of_a_query_goes_on_while_servers_connect(cli: Cli) -> None:
    cli.answers["mcp_status"] = servers("a pending")
    with pytest.raises(ph.QueryTimeout):
        await ask_each(cli, "alone", "go", mcp_servers={"a": SERVER}, wait_for_mcp=True, timeout=0.1)


@pytest.mark.requirement("E34")
@pytest.mark.parametrize("end", ["interrupt", "close"])
async def test_a_query_that_waits_for_servers_can_be_ended(cli: Cli, end: str) -> None:
    waiting = anyio.Event()

    def status(_: object) -> dict[str, Any]:
        waiting.set()
        return servers("a pending")

    cli.answers["mcp_status"] = status
    query = ph.query("go", transport=cli.transport, mcp_servers={"a": SERVER}, wait_for_mcp=True)
    await query.start()
    with anyio.fail_after(5):
        await waiting.wait()
        if end == "close":
            await query.aclose()
        else:
            await query.interrupt()
            assert (await query.result()).outcome == "interrupted"
    assert cli.prompts == [[]]
    assert not cli.running


async def test_hooks_and_permissions_are_in_force_while_servers_connect(cli: Cli) -> None:
    cli.info = {"hook_on_failure_supported": True}
    cli.answers["mcp_status"] = servers("a connected")
    settings: dict[str, Any] = {"hooks": {"PreToolUse": [ph.HookMatcher("Bash", [lambda event: None])]}}
    assert await ask_each(cli, "alone", "go", mcp_servers={"a": SERVER}, wait_for_mcp=True, **settings) == "re: go"
    assert asked(cli) == 1


async def test_a_child_that_takes_over_waits_again(cli: Cli) -> None:
    cli.answers["mcp_status"] = servers("a connected")
    cli.acts["die"] = die
    async with talking(cli, mcp_servers={"a": SERVER}, wait_for_mcp=True) as session:
        with pytest.raises(ph.CLIExitedError):
            await session.query("die")
        assert (await session.query("go")).text == "re: go"
    assert asked(cli) == 2


@pytest.mark.parametrize(("status", "sent"), [("connected", 1), ("failed", 0)])
async def test_a_child_is_asked_between_the_handshake_and_the_prompt(
    fake_cli: Callable[..., FakeCLI], status: str, sent: int
) -> None:
    fake = fake_cli()
    fake.on_control("mcp_status", servers(f"a {status}")).text("hello")
    query = ph.query("go", cli=fake.path, mcp_servers={"a": SERVER}, wait_for_mcp=True)
    if sent:
        assert (await query).text == "hello"
    else:
        with pytest.raises(ph.ControlError, match="'a' is not connected: failed"):
            await query
    (call,) = fake.calls
    output = [frame.get("request", frame).get("subtype", frame["type"]) for frame in call.frames]
    assert output == ["initialize", "mcp_status", "user"][: 2 + sent]


async def test_what_it_may_be(cli: Cli) -> None:
    for wrong in (0, -1, "soon", float("nan"), []):
        with pytest.raises(
            ph.OptionsError, match="option 'wait_for_mcp': expected True, False, or a number of seconds"
        ):
            ph.Options(wait_for_mcp=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ph.OptionsError, match="'wait_for_mcp' and 'prompt_via' cannot be combined"):
        ph.query("go", wait_for_mcp=True, prompt_via="argv")
    ph.query("go", wait_for_mcp=False, prompt_via="argv")
    async with talking(cli) as session:
        cli.answers["mcp_status"] = servers("a failed")
        with pytest.raises(ph.ControlError, match="'a' is not connected"):  # waited for in the child of the query
            await session.query("go", wait_for_mcp=True, mcp_servers={"a": {"command": "nothing"}})
        assert (await session.query("go")).text == "re: go"
