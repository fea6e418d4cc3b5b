"""Logins over REST, with the real CLI: at a server of the official MCP package, and at a stand-in for Claude's."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from claude_login_server import EMAIL, ClaudeLogins
from oauth_mcp_server import OAuthServer, deny, follow, open_page
from served_host import LIMIT, TOKEN, MakeHost, Served

from pilothouse.client import ClaudeLogin
from pilothouse_host.rest import LoginAnswerBody
from pilothouse_testing import FakeCLI, ScriptedModel

pytest_plugins = ["login_fixtures"]
TOKENS = {"ann": "the-token-of-ann-0123", "bob": "the-token-of-bob-0123"}


@pytest.fixture
def serve(serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel) -> MakeHost:
    """Serves the real CLI; takes variables of its environment."""

    def start(**env: str) -> Served:
        environ = {**scripted_model.env(max_retries=0), **env}
        return serve_host(cli=str(real_cli), roots=(str(scripted_model.home),), environ=environ, tokens=TOKENS)

    return start


def begin_session(served: Served, server: OAuthServer | None = None, token: str = TOKEN) -> str:
    """The path of a session."""
    options: dict[str, Any] = {}
    if server is not None:
        options["mcp_servers"] = {"ledger": {"type": "http", "url": server.url}}
    status, made = served.request("POST", "/v1/sessions", {"options": options}, token=token)
    assert status == 201, made
    return f"/v1/sessions/{made['id']}"


def begin_login(served: Served, path: str, **body: str) -> tuple[dict[str, Any], str]:
    """A login, and its path."""
    status, login = served.request("POST", f"{path}/logins", body)
    assert status == 201, login
    return login, f"{path}/logins/{login['id']}"


def read(served: Served, path: str, wait: int = 0) -> dict[str, Any]:
    return served.request("GET", f"{path}?wait={wait}")[1]


def complete(served: Served, path: str, answer: str) -> tuple[int, Any]:
    return served.request("POST", path, {"answer": answer})


def list_servers(served: Served, path: str) -> list[dict[str, Any]]:
    """The MCP servers of a session, once it is known how they are."""
    deadline = time.monotonic() + LIMIT
    while "pending" in str(servers := served.request("GET", f"{path}/mcp")[1]["servers"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return servers


def told_states(events: Iterator[dict[str, Any]], last: str) -> list[str]:
    """The states of a login that the events of the host tell, until this one."""
    states: list[str] = []
    while last not in states:
        login = next(iter(next(events)["data"].get("logins", [])), None)
        states += [] if login is None or login["state"] in states else [login["state"]]
    return states


def logged(caplog: pytest.LogCaptureFixture) -> bytes:
    """All that pilothouse has logged."""
    records = [record for record in caplog.records if record.name.startswith("pilothouse")]
    return "\n".join(record.getMessage() for record in records).encode()


def kept_bytes(served: Served) -> bytes:
    """All that the host keeps on disk."""
    journal = Path(served.host.settings.journal)
    return b"".join(file.read_bytes() for file in journal.parent.glob(f"{journal.name}*"))


@pytest.mark.real_cli
def test_the_address_of_the_browser_ends_a_login(
    serve: MakeHost, oauth_server: OAuthServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve()
    path = begin_session(served, oauth_server)
    assert list_servers(served, path) == [{"name": "ledger", "status": "needs-auth", "error": None, "tools": []}]
    login, place = begin_login(served, path, server="ledger")
    assert (login["state"], login["server"], login["account"]) == ("waiting", "ledger", None)
    back = open_page(login["url"])
    for wrong in ("no address", back.replace("state=", "state=x")):
        status, refusal = complete(served, place, wrong)
        assert (status, refusal["error"]["code"]) == (400, "wrong_callback")
        assert read(served, place)["state"] == "waiting"
    status, done = complete(served, place, f" {back}\n")
    assert (status, done["state"], done["tools"], done["url"]) == (200, "done", ["balance"], None)
    assert read(served, place, wait=20)["state"] == "done"
    assert list_servers(served, path)[0]["status"] == "connected"
    status, refusal = complete(served, place, back)
    assert (status, refusal["error"]["code"]) == (409, "login_failed")
    status, refusal = served.request("POST", f"{path}/logins", {"server": "ledger"})
    assert (status, refusal["error"]["code"]) == (409, "no_login")
    with served.events(last=0) as events:
        assert told_states(events, "done") == ["waiting", "done"]
    assert served.request("DELETE", f"{path}/mcp/ledger/login")[0] == 204
    assert list_servers(served, path)[0]["status"] == "needs-auth"
    seen = kept_bytes(served) + logged(caplog) + repr(served.session.describe()).encode()
    assert b"waiting" in seen
    assert len(oauth_server.secrets()) == 3
    hidden = [*oauth_server.secrets(), "callback?code", "authorize?"]  # nor the link, which only the client gets
    assert not [secret for secret in hidden if secret.encode() in seen]


@pytest.mark.real_cli
def test_a_browser_on_the_machine_of_the_host_ends_a_login(serve: MakeHost, oauth_server: OAuthServer) -> None:
    served = serve(ANTHROPIC_API_KEY="")
    path = begin_session(served, oauth_server)
    login, place = begin_login(served, path, server="ledger")
    follow(open_page(login["url"]))
    assert read(served, place, wait=20)["state"] == "done"
    assert served.request("GET", "/v1/sessions")[1]["has_key"] is False  # this login is none at Claude
    assert b"control_response" not in kept_bytes(served)  # the host asks four times a second while a login waits


@pytest.mark.real_cli
def test_a_login_fails_is_replaced_and_is_cancelled(serve: MakeHost, oauth_server: OAuthServer) -> None:
    served = serve()
    path = begin_session(served, oauth_server)
    login, place = begin_login(served, path, server="ledger")
    status, refusal = complete(served, place, deny(login["url"]))
    assert (status, refusal["error"]["code"]) == (409, "login_failed")
    failed = read(served, place)
    assert (failed["state"], "access_denied" in failed["error"]) == ("failed", True)
    oauth_server.logins.refuses = True
    login, place = begin_login(served, path, server="ledger")
    status, refusal = complete(served, place, open_page(login["url"]))
    assert (status, refusal["error"]["code"]) == (409, "login_failed")
    assert oauth_server.logins.codes[-1] not in str(refusal) + str(read(served, place))
    _, older = begin_login(served, path, server="ledger")
    login, place = begin_login(served, path, server="ledger")
    assert read(served, older)["error"]["code"] == "unknown_login"
    assert served.request("DELETE", place)[0] == 204
    assert complete(served, place, open_page(login["url"]))[0] == 404
    assert served.request("GET", path)[1]["logins"] == []
    begin_login(served, path, server="ledger")
    session = served.session
    served.call(lambda: session.stop("idle"))
    [ended] = served.request("GET", path)[1]["logins"]
    assert (ended["state"], "begin another one" in ended["error"]) == ("failed", True)
    assert begin_login(served, path, server="ledger")[0]["state"] == "waiting"  # in another child


@pytest.mark.real_cli
def test_who_waits_for_a_login_hears_of_a_newer_one(serve: MakeHost, oauth_server: OAuthServer) -> None:
    served = serve()
    path = begin_session(served, oauth_server)
    _, place = begin_login(served, path, server="ledger")
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(read, served, place, 20)
        older = served.session.logins.get(place.rpartition("/")[2])
        deadline = time.monotonic() + LIMIT
        while not older._ended.statistics().tasks_waiting:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        begin_login(served, path, server="ledger")
        assert waiting.result(LIMIT) == {**older.describe(), "url": None}
    assert (older.state, older.error) == ("failed", "a newer login has replaced this one")


@pytest.mark.real_cli
def test_a_login_at_claude_is_that_of_the_host(
    serve: MakeHost, claude_logins: ClaudeLogins, scripted_model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    scripted_model.default = "Hello Ann."
    served = serve(**claude_logins.env(), ANTHROPIC_API_KEY="")
    assert served.request("GET", "/v1/sessions")[1]["has_key"] is False
    path = begin_session(served)
    login, place = begin_login(served, path, account="claude")
    code = claude_logins.show_code(login["url"])
    status, refusal = complete(served, place, code.partition("#")[0])
    assert (status, refusal["error"]["code"]) == (400, "wrong_callback")
    status, done = complete(served, place, code)
    assert (status, done["email"], done["subscription_type"]) == (200, EMAIL, "Claude Pro")
    assert served.request("GET", "/v1/sessions")[1]["has_key"] is True
    for each in (path, begin_session(served)):  # another session has it, too
        assert served.request("POST", f"{each}/prompt", {"prompt": "hi"})[0] == 202
        deadline = time.monotonic() + LIMIT
        while (state := served.request("GET", each)[1])["waiting"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert state["last_result"]["text"] == "Hello Ann."
    claude_logins.refuses = True
    login, place = begin_login(served, path, account="console")
    assert complete(served, place, claude_logins.show_code(login["url"]))[0] == 409
    assert read(served, place)["state"] == "failed"
    seen = kept_bytes(served) + logged(caplog)
    assert len(claude_logins.given) == 4
    assert not [secret for secret in (*claude_logins.given, EMAIL) if secret.encode() in seen]


@pytest.mark.real_cli
def test_a_login_that_is_cancelled_while_it_ends_has_failed(
    serve: MakeHost, claude_logins: ClaudeLogins, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(**claude_logins.env(), ANTHROPIC_API_KEY="")
    path = begin_session(served)
    begun, place = begin_login(served, path, account="claude")
    logins = served.session.logins
    login = logins.get(begun["id"])
    trade = ClaudeLogin.complete

    async def cancel_meanwhile(self: ClaudeLogin, answer: str) -> Any:
        logins.cancel(login)
        return await trade(self, answer)

    monkeypatch.setattr(ClaudeLogin, "complete", cancel_meanwhile)
    status, refusal = complete(served, place, claude_logins.show_code(begun["url"]))
    assert (status, refusal["error"]["code"]) == (409, "login_failed")
    assert "cancelled" in refusal["error"]["message"]


@pytest.mark.real_cli
def test_a_login_ends_with_its_process_which_is_not_idle_before(
    serve: MakeHost, claude_logins: ClaudeLogins, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(**claude_logins.env(), ANTHROPIC_API_KEY="")
    path = begin_session(served)
    _, place = begin_login(served, path, account="claude")
    session = served.session
    session.last_used -= 2 * served.host.settings.idle_seconds
    monkeypatch.setattr(session, "mark_used", lambda: None)  # output of the child may still come
    served.call(served.host.end_idle)
    assert read(served, place)["state"] == "waiting"
    os.kill(session._session.pid, signal.SIGKILL)
    ended = read(served, place, wait=20)
    assert (ended["state"], ended["url"], "begin another one" in ended["error"]) == ("failed", None, True)
    served.call(served.host.end_idle)
    assert not session.has_child


@pytest.mark.real_cli
def test_a_login_that_begins_while_its_process_is_ended_ends_too(
    serve: MakeHost, claude_logins: ClaudeLogins, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(**claude_logins.env(), ANTHROPIC_API_KEY="")
    path = begin_session(served)
    begin_login(served, path, account="claude")
    session = served.session
    child, host = session._session, served.host
    close, before = child.close, list[str]()

    async def close_late() -> None:
        before.extend(login["state"] for login in session.logins.describe())
        await session.logins.begin(child, None, "claude", host._tasks)
        await close()

    monkeypatch.setattr(child, "close", close_late)
    served.call(lambda: session.stop("idle"))
    assert before == ["failed"]
    assert [login["state"] for login in served.request("GET", path)[1]["logins"]] == ["failed"]


@pytest.mark.real_cli
def test_only_the_token_of_the_host_may_log_in(serve: MakeHost, oauth_server: OAuthServer) -> None:
    served = serve()
    path = begin_session(served, oauth_server, TOKENS["ann"])
    own, others = TOKENS["ann"], TOKENS["bob"]
    login, place = begin_login(served, path, server="ledger")  # by the operator
    for method, where, body in (
        ("POST", f"{path}/logins", {"server": "ledger"}),
        ("GET", place, None),
        ("POST", place, {"answer": "x"}),
        ("DELETE", place, None),
        ("DELETE", f"{path}/mcp/ledger/login", None),
    ):
        assert served.request(method, where, body, token=others)[0] == 404
        status, refusal = served.request(method, where, body, token=own)
        assert (status, refusal["error"]["code"]) == (403, "forbidden")
        assert served.request(method, where, body, token=None)[0] == 401
    assert served.request("GET", f"{path}/mcp", token=others)[0] == 404
    described = served.request("GET", path, token=own)[1]
    assert described["logins"][0]["state"] == "waiting"
    assert login["url"] not in str(described)


def test_bodies_of_logins_are_checked(serve_host: MakeHost) -> None:
    with FakeCLI().wait_eof() as fake:
        served = serve_host(cli=fake.path)
        path = begin_session(served)
        for body in ({"account": "nobody"}, {"server": 7}, {"more": 1}):
            assert served.request("POST", f"{path}/logins", body)[0] == 400
        assert served.request("GET", f"{path}/logins/login_x")[1]["error"]["code"] == "unknown_login"
        assert served.request("POST", f"{path}/logins/login_x", {"answer": "x"})[0] == 404
        with served.dial() as program:
            session = program.start()["session"]
            status, refusal = served.request("POST", f"/v1/sessions/{session}/logins", {"account": "claude"})
            assert (status, "that client logs in" in refusal["error"]["message"]) == (409, True)
    assert "secret" not in repr(LoginAnswerBody("secret"))
