"""The client of a host's REST API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_login_server import EMAIL, ClaudeLogins
from connection_proxy import Proxy
from oauth_mcp_server import OAuthServer, deny, follow, open_page
from process_checks import until
from served_host import TOKEN, MakeHost, Served, settings

import pilothouse as ph
from pilothouse.errors import OptionsError, RemoteError, UsageError
from pilothouse_host import Host
from pilothouse_remote import HostClient
from pilothouse_remote.link import Backoff
from pilothouse_testing import FakeCLI, ScriptedModel, Steps, ToolUse, frames

pytest_plugins = ["login_fixtures"]
BASH: dict[str, Any] = {"tool_name": "Bash", "input": {"command": "ls"}, "tool_use_id": "call_1"}
pytestmark = [
    pytest.mark.anyio,
    # httpx2 leaves the generators of a response that is not read to its end to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]


@pytest.fixture
def serve_host(tmp_path: Path) -> Iterator[MakeHost]:
    made: list[Served] = []

    def make(**given: Any) -> Served:
        environ = given.pop("environ", {"PATH": "/usr/bin:/bin"})
        chosen = settings(tmp_path, **{"drain_seconds": 0.2, **given})
        made.append(Served(lambda: Host(chosen, environ=environ)))
        return made[-1].start()

    yield make
    for served in made:
        served.stop()


def connect(served: Served, token: str = TOKEN, **given: Any) -> HostClient:
    return HostClient(f"http://127.0.0.1:{served.port}", token=token, **given)


async def until_result(messages: AsyncIterator[ph.Message]) -> AsyncIterator[ph.Message]:
    async for message in messages:
        yield message
        if isinstance(message, ph.ResultMessage):
            return


def answering(*texts: str) -> FakeCLI:
    fake = FakeCLI()
    for text in texts:
        fake = fake.expect("user").emit(frames.init(), frames.assistant(text), frames.result(text))
    return fake


async def test_a_prompt_runs_at_the_host(serve_host: MakeHost) -> None:
    with answering("One.", "Two \u2028 lines.") as fake:
        async with connect(serve_host(cli=fake.path)) as host:
            session = await host.start("hi", model="sonnet")
            result = await session.result()
            assert (result.text, result.is_success, result.error) == ("One.", True, None)
            place = (await session.state()).output_bytes
            assert await session.send("again")
            assert (await session.result()).text == "Two \u2028 lines."
            async with aclosing(session.messages(place)) as messages:
                seen = [message async for message in until_result(messages)]
            assert {ph.InitMessage, ph.AssistantMessage, ph.ResultMessage} <= {type(message) for message in seen}
            assert "One." not in str(seen)
            assert [each.id for each in await host.sessions()] == [session.id]
            await session.interrupt()
            await session.close()
            assert await host.sessions() == []
            with pytest.raises(RemoteError) as caught:
                await session.state()
            assert caught.value.code == "unknown_session"


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_program_decides_for_the_sessions_of_others(serve_host: MakeHost, decision: str) -> None:
    fake = FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **BASH).emit(frames.result("done"))
    with fake:
        seen: list[str] = []
        async with connect(serve_host(cli=fake.path)) as host, anyio.create_task_group() as tasks:

            async def decide() -> None:
                async for ask in host.watch_asks():
                    seen.append(f"{ask.kind} {ask.tool} {ask.request['input']['command']}")
                    await (ask.allow() if decision == "allow" else ask.deny("not now"))
                    with pytest.raises(RemoteError) as caught:
                        await ask.allow()
                    assert caught.value.code == "settled"

            tasks.start_soon(decide)
            assert (await (await host.start("hi")).result()).text == "done"
            tasks.cancel_scope.cancel()
        assert seen == ["permission Bash ls"]
        [response] = [each for each in fake.calls[0].frames if each.get("type") == "control_response"]
        assert response["response"]["response"]["behavior"] == decision


async def test_asks_that_wait_already_come_first(serve_host: MakeHost) -> None:
    request: dict[str, Any] = {**BASH, "input": {"command": "x" * 40_000}}  # too long for an event of the host
    with (
        FakeCLI().expect("user").emit(frames.init()).ask("can_use_tool", **request).emit(frames.result("done")) as fake
    ):
        async with connect(serve_host(cli=fake.path)) as host:
            session = await host.start("hi")
            async with aclosing(host.watch_asks()) as asks:
                ask = await anext(asks)
            assert len(ask.request["input"]["command"]) == 40_000
            assert [each.id for each in await host.asks()] == [ask.id]
            await ask.allow()
            assert (await session.result()).text == "done"
            assert await host.asks() == []


async def test_a_prompt_that_fails_is_an_error(serve_host: MakeHost) -> None:
    with FakeCLI().expect("user").emit(frames.init()).exit(3) as fake:
        async with connect(serve_host(cli=fake.path)) as host:
            session = await host.start()
            with pytest.raises(RemoteError, match="send one") as caught:
                await session.result()
            assert caught.value.code == "no_result"
            await session.send("hi")
            with pytest.raises(RemoteError, match="exit") as caught:
                await session.result()
            assert caught.value.code == "query_failed"


async def test_refusals_say_what_is_wrong(serve_host: MakeHost) -> None:
    with answering() as fake:
        served = serve_host(cli=fake.path)
        async with connect(served) as host:
            with pytest.raises(OptionsError, match="model"):
                await host.start("hi", modle="sonnet")
            with pytest.raises(RemoteError, match="belongs to the host") as caught:
                await host.start("hi", cli="/bin/sh")
            assert caught.value.code == "bad_request"
            with pytest.raises(UsageError, match="JSON"):
                await host.start("hi", can_use_tool=lambda request: True)
        async with connect(served, token="another-token-of-16-chars") as host:
            with pytest.raises(RemoteError) as caught:
                await host.sessions()
            assert (caught.value.code, str(caught.value)) == ("unauthorized", "the token is wrong")


async def test_an_address_without_a_host_is_an_error() -> None:
    async with HostClient("http://127.0.0.1:9", token=TOKEN, reconnect=Backoff(give_up_after=0)) as host:
        with pytest.raises(RemoteError, match="does not respond") as caught:
            await host.start("hi")
        assert caught.value.code == "unreachable"
        with pytest.raises(RemoteError, match="does not respond"):
            await anext(host.session("s").messages())


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("http://example.org", TOKEN, "in the clear"),
        ("ftp://127.0.0.1", None, "ws://HOST:PORT"),
        ("https://user:word@127.0.0.1", None, "token="),
    ],
)
def test_unsafe_addresses_are_refused(url: str, token: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        HostClient(url, token=token)


def test_addresses_of_both_kinds() -> None:
    assert (
        repr(HostClient("wss://example.org/agents/v1/wire", token=TOKEN)) == "HostClient('https://example.org/agents')"
    )
    assert repr(HostClient("http://127.0.0.1:8750/")) == "HostClient('http://127.0.0.1:8750')"


async def test_messages_go_on_after_a_broken_connection(serve_host: MakeHost) -> None:
    with answering("One.", "Two.") as fake:
        async with Proxy(serve_host(cli=fake.path).port).running() as proxy:
            address = proxy.url.replace("ws", "http")
            async with HostClient(address, token=TOKEN, reconnect=Backoff(first=0.01)) as host:
                session = await host.start("hi")
                async with aclosing(session.messages()) as messages:
                    first = [message async for message in until_result(messages)]
                    proxy.cut()
                    await until(lambda: not proxy.open_count)
                    before = proxy.connections
                    await session.send("again")
                    second = [message async for message in until_result(messages)]
        assert proxy.connections > before
        texts = [each.result for each in [*first, *second] if isinstance(each, ph.ResultMessage)]
        assert texts == ["One.", "Two."]


@pytest.mark.real_cli
async def test_words_reach_the_turn_that_runs_at_the_host(
    serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel
) -> None:
    ready = scripted_model.home / "ready"
    command = ToolUse("Bash", {"command": f"until [ -e {ready} ]; do sleep 0.02; done; sleep 0.5"})
    scripted_model.on("go", reply=Steps([command], "done"))
    scripted_model.on("and then?", reply="nothing more")
    environ = {"PATH": os.environ["PATH"], **scripted_model.env(max_retries=0)}
    async with connect(serve_host(cli=str(real_cli), environ=environ)) as host:
        session = await host.start("go", allowed_tools=["Bash"])
        async with aclosing(session.messages()) as messages:
            async for message in messages:
                if isinstance(message, ph.AssistantMessage):
                    break
        steering = await session.steer("only the unit tests")
        ready.touch()
        assert await steering.outcome() == "taken"
        assert (await session.result()).text == "done"
        assert "only the unit tests" in str(scripted_model.requests[1].messages)

        assert await (await session.steer("nobody is there", if_late="return")).outcome() == "returned"
        assert await (await session.steer([{"type": "text", "text": "and then?"}])).outcome() == "query"
        assert (await session.result()).text == "nothing more"


async def test_the_words_of_a_session_that_is_closed_come_back(serve_host: MakeHost) -> None:
    with FakeCLI().expect("user").emit(frames.init()).wait_eof() as fake:
        served = serve_host(cli=fake.path)
        async with connect(served) as host:
            session = await host.start("go")
            steering = await session.steer("only the unit tests")
            assert repr(steering) == f"HostedSteering({steering.id!r})"
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    assert await steering.outcome() == "returned"

                tasks.start_soon(wait)
                await until(lambda: served.session.attached_count)
                await session.close()


@pytest.mark.real_cli
async def test_a_client_logs_the_host_in_at_a_server(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, oauth_server: OAuthServer
) -> None:
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0))
    async with connect(served) as host:
        session = await host.start(mcp_servers={"ledger": {"type": "http", "url": oauth_server.url}})
        login = await session.mcp.authenticate("ledger")
        assert [(each.name, each.status) for each in await session.mcp.status()] == [("ledger", "needs-auth")]
        assert (repr(login), login.server) == (f"HostedLogin({login.id!r})", "ledger")
        with pytest.raises(RemoteError) as caught:
            await login.complete("http://localhost/?code=a-code&state=another")
        assert (caught.value.code, "a-code" in str(caught.value)) == ("wrong_callback", False)
        with pytest.raises(RemoteError, match=r"within 0\.2 s") as caught:
            await login.wait(0.2)
        assert caught.value.code == "timeout"
        with pytest.raises(RemoteError, match="access_denied") as caught:
            await login.complete(deny(login.url or ""))
        assert caught.value.code == "login_failed"
        with pytest.raises(RemoteError, match="access_denied"):
            await login.wait()
        login = await session.mcp.authenticate("ledger")
        assert (await login.complete(open_page(login.url or ""))).tools == ("balance",)
        await session.mcp.clear_auth("ledger")
        login = await session.mcp.authenticate("ledger")
        await anyio.to_thread.run_sync(follow, open_page(login.url or ""))
        assert (await login.wait()).state == "done"
        await session.mcp.clear_auth("ledger")
        login = await session.mcp.authenticate("ledger")
        await login.cancel()
        with pytest.raises(RemoteError) as caught:
            await login.wait()
        assert caught.value.code == "unknown_login"
        with pytest.raises(RemoteError) as caught:
            await session.mcp.authenticate("a/b ?")
        assert caught.value.code == "unknown_server"
        with pytest.raises(RemoteError, match="a/b") as caught:
            await session.mcp.clear_auth("a/b ?")
        assert caught.value.code == "unknown_server"


@pytest.mark.real_cli
async def test_a_client_logs_the_host_in_at_claude(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, claude_logins: ClaudeLogins
) -> None:
    scripted_model.default = "Hello Ann."
    environ = {**scripted_model.env(max_retries=0), **claude_logins.env(), "ANTHROPIC_API_KEY": ""}
    async with connect(serve_host(cli=real_cli, environ=environ)) as host:
        session = await host.start()
        login = await session.login()
        done = await login.complete(claude_logins.show_code(login.url or ""))
        assert (done.email, done.subscription_type, done.api_key_source) == (EMAIL, "Claude Pro", None)
        await session.send("hi")
        assert (await session.result()).text == "Hello Ann."
