"""What an operator does not let clients have, with children that run: the real CLI, and the fake one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from served_host import ARGV, TOKEN, MakeHost, Served, settings

import pilothouse as ph
from pilothouse.errors import SettingsError, UsageError
from pilothouse_host import ClientLimits, Host, make_app
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing import FakeCLI, ScriptedModel, ToolUse

pytestmark = pytest.mark.anyio

SECRET = "the content of a file outside"


def over(served: Served, **settings: Any) -> ph.Agent:
    return ph.Agent(transport=lambda: WebSocketTransport(served.url, token=TOKEN), **settings)


async def answered(served: Served, options: dict[str, Any], prompt: str) -> Any:
    """What became of a prompt over REST."""
    body = {"options": {"tools": [], "setting_sources": [], **options}, "prompt": prompt}
    status, made = await anyio.to_thread.run_sync(lambda: served.request("POST", "/v1/sessions", body))
    assert status == 201, made
    with anyio.fail_after(30):
        while True:
            answer = served.host.get(made["id"]).describe()
            if answer["last_result"] or answer["error"]:
                return answer
            await anyio.sleep(0.02)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_the_key_of_the_host_does_not_reach_an_address_of_a_client(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel
) -> None:
    environ = scripted_model.env(max_retries=0, ANTHROPIC_API_KEY="sk-ant-the-key-of-the-host")
    served = serve_host(cli=real_cli, environ=environ)
    with ScriptedModel(default="from elsewhere") as elsewhere:
        redirected = {"settings": {"env": {"ANTHROPIC_BASE_URL": elsewhere.url}}}
        answer = await answered(served, redirected, "hi")
        assert not (answer["last_result"] or {}).get("is_success")
        assert not [request for request in elsewhere.requests if "x-api-key" in request.headers]
        own = {"env": {"ANTHROPIC_API_KEY": "sk-ant-the-key-of-the-client"}}
        answer = await answered(served, {**redirected, **own}, "hi")
        assert answer["last_result"]["text"] == "from elsewhere"
    assert not scripted_model.requests


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_settings_that_the_host_forces(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    forced = {"permissions": {"deny": ["Bash"]}}
    clients = ClientLimits(managed_settings=forced)
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0), clients=clients)
    scripted_model.reply(ToolUse("Bash", {"command": "touch over-there"}))
    scripted_model.reply("denied")
    options: dict[str, Any] = {"tools": ["Bash"], "settings": {"permissions": {"deny": []}}}
    async with over(served, can_use_tool=lambda request: True, **options).session() as session:
        assert (await session.query("Run it")).text == "denied"
    assert not (tmp_path / "work" / "over-there").exists()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_a_host_with_settings_that_the_cli_drops_does_not_start(
    real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    environ = {"PATH": os.environ["PATH"], **scripted_model.env(max_retries=0)}
    for forced, message in (
        ({"permissions": {"deny": "Bash"}}, r"permissions\.deny: expected a list of rules.*The host does not start"),
        ({"permissions": {"deny": ["Bash("]}}, r"permissions\.deny\[0\]: 'Bash\(' is not a permission rule"),
    ):
        chosen = settings(tmp_path, cli=real_cli, clients=ClientLimits(managed_settings=forced))
        with pytest.raises(SettingsError, match=message):
            async with Host(chosen, environ=environ):
                pass
    assert not scripted_model.requests


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
@pytest.mark.filterwarnings("ignore::pilothouse.options.PolicyWarning")
async def test_broken_settings_of_a_client_end_its_session(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel
) -> None:
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0))
    broken = {"permissions": {"deny": ["Bash"]}, "cleanupPeriodDays": "x"}
    refused = {"permissions": {"deny": ["Bash("]}}
    for options, message in (
        ({"settings": broken}, "cleanupPeriodDays: Expected number"),
        ({"settings": refused}, "is not a permission rule"),
        ({"managed_settings": refused}, "is not a permission rule"),
    ):
        with pytest.raises(SettingsError, match=message):
            async with over(served, **options).session():
                pass
        body = {"options": options, "prompt": "Hi"}
        status, answer = await anyio.to_thread.run_sync(lambda body=body: served.request("POST", "/v1/sessions", body))
        assert status == 400
        assert message in json.dumps(answer)
    assert not scripted_model.requests


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_keys_in_the_settings_of_the_host_stay_there(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    scripted_model.default = "ok"
    (scripted_model.home / ".claude").mkdir()
    own = {"env": {"SOME_PASSWORD": SECRET}, "permissions": {"deny": ["WebFetch"]}}
    (scripted_model.home / ".claude" / "settings.json").write_text(json.dumps(own))
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0))
    deny = {"permissions": {"deny": ["Bash"]}}
    async with over(served, settings=deny).session() as session:
        assert (await session.query("Hi")).text == "ok"
        found = await session.settings.get()
    assert SECRET not in str(found.raw)
    assert [each["settings"].get("permissions") for each in found.sources] == [own["permissions"], deny["permissions"]]
    answer = await answered(served, {"settings": deny, "setting_sources": ["user"]}, "Hi")
    assert answer["last_result"]["text"] == "ok"
    served.stop()
    for file in tmp_path.glob("host.sqlite*"):
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.real_cli
async def test_a_session_over_rest_lists_denials(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    served = serve_host(cli=real_cli, environ=scripted_model.env(max_retries=0))
    scripted_model.reply(ToolUse("Bash", {"command": "touch over-there"}))
    scripted_model.reply("it was denied")
    answer = await answered(served, {"tools": ["Bash"], "permission_prompts": "none"}, "Run it")
    assert answer["last_result"]["denied"] == ["Bash"]
    assert not (tmp_path / "work" / "over-there").exists()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_request_above_the_limits_is_answered_and_the_session_goes_on(serve_host: MakeHost) -> None:
    with FakeCLI().text("one").text("two") as fake:
        served = serve_host(cli=fake.path, clients=ClientLimits(permission_mode="default", verbatim_prompts=True))
        async with over(served).session() as session:
            assert (await session.query("hi")).text == "one"
            with pytest.raises(ph.ControlError, match="permission modes up to 'default'"):
                await session.set_permission_mode("bypassPermissions")
            await session.set_permission_mode("plan")
            assert (await session.query("@/etc/passwd")).text == "two"
        [call] = fake.calls
        sent = [json.loads(line) for line in call.stdin]
        prompts = [line for line in sent if line["type"] == "user"]
        assert [prompt["client_composed"] for prompt in prompts] == [True, True]
        modes = [line["request"]["mode"] for line in sent if "mode" in line.get("request", {})]
        assert modes == ["plan"]


def test_rest_sessions_above_the_limits(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        limits = ClientLimits(permission_mode="plan", verbatim_prompts=True, mcp_servers=False)
        served = serve_host(cli=fake.path, clients=limits)
        for options, status, words in (
            ({"permission_mode": "default"}, 403, "up to 'plan'"),
            ({"mcp_servers": {"s": {"command": "x"}}}, 403, "no MCP servers"),
            ({"verbatim_prompts": False}, 400, "sends every prompt as it is"),
            ({"agents": {"a": {"description": "d", "prompt": "p", "permission_mode": "auto"}}}, 403, "up to 'plan'"),
        ):
            got, answer = served.request("POST", "/v1/sessions", {"options": options})
            assert (got, words in answer["error"]["message"]) == (status, True), answer
        assert not fake.calls


# Several tokens.

ANN, BOB = "the-token-of-ann-0123456789", "the-token-of-bob-9876543210"


def test_each_token_sees_its_own_sessions(serve_host: MakeHost, tmp_path: Path) -> None:
    with FakeCLI().text("for Ann").text("for Bob") as fake:
        served = serve_host(cli=fake.path, tokens={"ann": ANN, "bob": BOB})
        _, ann = served.request("POST", "/v1/sessions", {}, token=ANN)
        with served.dial(token=ANN) as dialled:
            assert dialled.start()["op"] == "ready"
            wire, client = dialled.session, dialled.client
            for method, path in (
                ("GET", ""),
                ("GET", "/events"),
                ("POST", "/prompt"),
                ("POST", "/interrupt"),
                ("DELETE", ""),
            ):
                for session in (ann["id"], wire):
                    status, answer = served.request(method, f"/v1/sessions/{session}{path}", {"prompt": "x"}, token=BOB)
                    assert (status, answer["error"]["code"]) == (404, "unknown_session"), (method, path)
            for known in (client, None):
                with served.dial(token=BOB) as other:
                    assert other.attach(wire, 0, client=known, take_over=True)["op"] == "refused"
            with served.dial(token=BOB) as other:  # the id of a client is no way to its session
                other.client = client
                assert other.start()["op"] == "ready"
                assert other.session != wire
                bobs = other.session
        seen = {
            token: {session["id"] for session in served.request("GET", "/v1/sessions", token=token)[1]["sessions"]}
            for token in (ANN, BOB, TOKEN)
        }
        assert seen == {ANN: {ann["id"], wire}, BOB: {bobs}, TOKEN: {ann["id"], wire, bobs}}
        assert served.request("GET", f"/v1/sessions/{wire}", token=TOKEN)[1]["owner"] == "ann"
        assert served.request("GET", "/v1/sessions", token=ANN[:-1])[0] == 401
        assert served.request("DELETE", f"/v1/sessions/{wire}", token=ANN)[0] == 204
        served.stop()
        # The journal knows whose they are.
        again = serve_host(cli=fake.path, tokens={"ann": ANN, "bob": BOB})
        [left] = again.request("GET", "/v1/sessions", token=ANN)[1]["sessions"]
        assert left["id"] == ann["id"]
        assert ann["id"] not in str(again.request("GET", "/v1/sessions", token=BOB))


def test_tokens_of_clients_alone_and_wrong_ones(serve_host: MakeHost, tmp_path: Path) -> None:
    host = Host(settings(tmp_path))
    for wrong in ({"ann": "short"}, {"": ANN}, {"ann": ANN, "bob": ANN}, {"ann": TOKEN}):
        with pytest.raises(UsageError, match="token"):
            make_app(host, token=TOKEN, tokens=wrong)
    served = serve_host(cli="/nowhere", token=None, tokens={"ann": ANN})
    assert served.request("GET", "/v1/sessions", token=ANN)[0] == 200
    assert served.request("GET", "/v1/sessions", token=None)[0] == 401


def test_an_owner_goes_on_only_with_what_it_can_name(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, tokens={"ann": ANN})
        for options in ({"continue_conversation": True}, {"resume": "the title of another"}):
            status, answer = served.request("POST", "/v1/sessions", {"options": options}, token=ANN)
            assert (status, "by its id" in answer["error"]["message"]) == (403, True), answer
            assert served.request("POST", "/v1/sessions", {"options": options})[0] == 201
        for argument in ("--continue", "--resume", "--resume=title"):
            with served.dial(token=ANN) as dialled:
                assert dialled.start((*ARGV, argument))["op"] == "refused"
