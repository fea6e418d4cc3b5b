"""An MCP server of the options that does not start is logged once, with its name and the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from failing_api import ask_each
from session_cli import Cli, Say

import pilothouse as ph
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.anyio

SERVERS: dict[str, Any] = {"shop": {"command": "no-such-program"}}
NOT_FOUND = 'Executable not found in $PATH: "stdio"'  # what the CLI says about every program (2.1.332)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "pilothouse")
    return lambda: [record.getMessage() for record in caplog.records if "MCP server" in record.getMessage()]


def starting(*states: str, **fields: Any) -> Any:
    """An act whose turn begins with servers in these states: "name status source"."""
    servers = [dict(zip(("name", "status", "source"), state.split(), strict=False)) for state in states]

    async def act(cli: Cli, say: Say, text: str) -> str:
        await say(frames.init(mcp_servers=servers, **fields))
        return "done"

    return act


def status(name: str, error: str | None, **config: Any) -> dict[str, Any]:
    server = {"name": name, "status": "failed", "scope": "dynamic", "config": config}
    return {"mcpServers": [server | ({} if error is None else {"error": error})]}


ask = partial(ask_each, mcp_servers=SERVERS)


async def test_a_server_that_did_not_start_is_logged_with_the_reason(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = starting("shop failed dynamic", "ledger connected dynamic")
    cli.answers["mcp_status"] = status("shop", "Connection closed", type="stdio", command="/bin/false", args=[])
    await ask(cli, kind, "go")
    (text,) = warned()
    assert text.startswith("the MCP server 'shop' did not start: Connection closed (its command is '/bin/false')")
    assert "the model does not have its tools" in text
    assert "wait_for_mcp" in text


async def test_a_missing_program_is_named(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = starting("shop failed dynamic")
    cli.answers["mcp_status"] = status("shop", NOT_FOUND, type="stdio", command="no-such-program", args=[])
    await ask(cli, kind, "go")
    (text,) = warned()
    assert "'shop' did not start: the program 'no-such-program' was not found" in text
    assert "stdio" not in text


async def test_a_session_logs_a_server_once_until_it_has_connected(cli: Cli, warned: Any) -> None:
    cli.acts |= {"lost": starting("shop failed dynamic"), "back": starting("shop connected dynamic")}
    cli.answers["mcp_status"] = status("shop", "gone")
    await ask(cli, "session", "lost", "lost", "back", "lost")
    assert len(warned()) == 2


async def test_servers_that_are_not_of_the_options_are_not_logged(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = starting(
        "theirs failed project", "mine failed user", "shop connected dynamic", "late pending dynamic"
    )
    await ask(cli, kind, "go")
    assert warned() == []
    assert cli.controls == []


async def test_a_server_that_needs_a_login_is_logged(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = starting("shop needs-auth dynamic")
    await ask(cli, kind, "go")
    (text,) = warned()
    assert text.startswith("the MCP server 'shop' needs a login")


async def test_a_server_with_an_invalid_entry_is_logged(cli: Cli, kind: str, warned: Any) -> None:
    error = {"name": "shop", "type": "invalid_config", "message": 'Skipped — invalid MCP server config for "shop": url'}
    cli.acts["go"] = starting(mcp_server_errors=[error])
    await ask(cli, kind, "go")
    (text,) = warned()
    assert "'shop' did not start: Skipped — invalid MCP server config" in text


@pytest.mark.parametrize("refusal", ["silent", "refused"])
async def test_a_cli_that_gives_no_reason_is_no_reason_for_silence(
    cli: Cli, kind: str, warned: Any, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilothouse.engine.diagnostics.ANSWER_SECONDS", 0.05)
    cli.acts["go"] = starting("shop failed dynamic")
    cli.answers["mcp_status"] = "not today"
    if refusal == "silent":
        cli.silent.add("mcp_status")
    await ask(cli, kind, "go")
    (text,) = warned()
    assert text.startswith("the MCP server 'shop' did not start: failed;")


async def test_keys_of_the_configuration_are_not_logged(cli: Cli, kind: str, warned: Any) -> None:
    cli.acts["go"] = starting("shop failed dynamic")
    url = "https://ann:hunter2hunter2@shop.example/mcp"
    cli.answers["mcp_status"] = status("shop", f"Unable to connect to {url}", type="http", url=url)
    await ask(cli, kind, "go")
    (text,) = warned()
    assert "shop.example" in text
    assert "hunter2" not in text


async def test_a_query_in_the_argv_form_logs_what_is_known(fake_cli: Callable[..., FakeCLI], warned: Any) -> None:
    fake = fake_cli()
    init = frames.init(mcp_servers=[{"name": "shop", "status": "failed", "source": "dynamic"}])
    fake.turn(init, frames.assistant("done"), frames.result("done"))
    await ph.query("go", cli=fake.path, prompt_via="argv", mcp_servers=SERVERS)
    assert [text.partition(";")[0] for text in warned()] == ["the MCP server 'shop' did not start: failed"]


async def test_wait_for_mcp_names_the_missing_program(cli: Cli, kind: str) -> None:
    cli.answers["mcp_status"] = status("shop", NOT_FOUND, type="stdio", command="no-such-program", args=[])
    with pytest.raises(ph.ControlError, match="'shop' is not connected: the program 'no-such-program' was not found"):
        await ask(cli, kind, "go", wait_for_mcp=True)
