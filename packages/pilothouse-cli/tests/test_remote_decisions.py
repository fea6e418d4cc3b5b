"""`pilothouse chat --remote`: what a typed line decides, and which hosts it finds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from pilothouse.errors import RemoteError, UsageError
from pilothouse_cli.acp import HostConversations
from pilothouse_cli.chat_logins import handle_mcp, log_in_to_claude
from pilothouse_cli.chat_on_host import RemoteChat, make_decision
from pilothouse_cli.console import find_link
from pilothouse_cli.host_client import client_settings
from pilothouse_cli.screen import Style
from pilothouse_testing import frames

LIMIT = 10
PERMISSION = {"kind": "permission", "can_always_allow": True, "request": {"tool_name": "Bash", "input": {}}}
PLAN = {"kind": "plan", "can_always_allow": False, "request": {"input": {"plan": "p"}}}
QUESTIONS = [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]
QUESTION = {"kind": "question", "request": {"input": {"questions": QUESTIONS}}}


@pytest.mark.parametrize(
    ("ask", "line", "body"),
    [
        (PERMISSION, "y", {"decision": "allow"}),
        (PERMISSION, "A", {"decision": "allow", "always": True}),
        (PERMISSION, "n not  now ", {"decision": "deny", "reason": "not  now"}),
        (PLAN, "yes", {"decision": "allow"}),
        (QUESTION, "2", {"decision": "answer", "answers": {"Which?": "B"}}),
        (QUESTION, "3", {"decision": "answer", "answers": {"Which?": "3"}}),
        (QUESTION, "neither", {"decision": "answer", "answers": {"Which?": "neither"}}),
        (QUESTION, "no", {"decision": "deny", "reason": ""}),
    ],
)
def test_a_line_settles_what_waits(ask: dict[str, Any], line: str, body: dict[str, Any]) -> None:
    assert make_decision(ask, line) == body


@pytest.mark.parametrize(
    ("ask", "line", "words"),
    [
        (PERMISSION, "yesterday", "type y, or n REASON, or a"),
        (PLAN, "a", "type y, or n REASON$"),
        ({"kind": "elicitation", "request": {}}, "y", "a form"),
        ({**QUESTION, "request": {"input": {"questions": QUESTIONS * 2}}}, "1", "several questions"),
    ],
)
def test_a_line_that_decides_nothing_leaves_it(ask: dict[str, Any], line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_decision(ask, line)


def test_a_host_needs_an_address_and_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_link("http://h:1", {"PILOTHOUSE_HOST_TOKEN": "t"}) == ("http://h:1", "t")
    with pytest.raises(UsageError, match="PILOTHOUSE_HOST_TOKEN"):
        find_link("http://h:1", {})
    with pytest.raises(UsageError, match="no console runs here"):
        find_link("", {"PILOTHOUSE_HOST_TOKEN": "t"})
    with pytest.raises(UsageError, match="expected an address"):
        client_settings("h:1", "t")


def test_a_host_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", "t")
    with pytest.raises(UsageError, match=r"--remote: no host answers at http://127.0.0.1:1 \(.+\); check the address"):
        HostConversations("http://127.0.0.1:1").list_newest(None, 0, 5)


def test_a_conversation_is_missing_only_if_the_host_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", "t")
    conversations = HostConversations("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="no host answers"):
        conversations.find("a")
    with pytest.raises(UsageError, match="no host answers"):
        conversations.delete("a")
    refusal = httpx2.Response(404, json={"error": {"code": "unknown_session", "message": "there is no transcript 'a'"}})
    conversations._client = httpx2.Client(base_url="http://h", transport=httpx2.MockTransport(lambda _: refusal))
    assert conversations.find("a") is None
    refusal = httpx2.Response(401, json={"error": {"code": "unauthorized", "message": "the token is wrong"}})
    with pytest.raises(UsageError, match="--remote: the token is wrong"):
        conversations.find("a")
    refusal = httpx2.Response(404, text="no such page")
    with pytest.raises(UsageError, match="HTTP 404"):
        conversations.find("a")


@pytest.mark.anyio
async def test_an_ask_between_the_list_and_the_stream_is_shown() -> None:
    """The stream begins where the list has ended; without a number it would begin when it is connected."""
    followed: dict[str, str | None] = {}
    shown: list[str] = []

    async def stream_asked() -> AsyncIterator[bytes]:
        ask = {**PERMISSION, "id": "a1", "session": "s1", "title": "Allow Bash?"}
        yield f"id: 8\nevent: asked\ndata: {json.dumps(ask)}\n\n".encode()
        await anyio.sleep_forever()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.endswith("/events"):
            followed[path] = request.headers.get("last-event-id")
            content = stream_asked() if path == "/v1/events" else b""
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        return httpx2.Response(200, json={"asks": [], "events_from": 7} if path == "/v1/asks" else {"id": "s1"})

    class Chat(RemoteChat):
        async def _read_line(self) -> str | None:
            while not self._asks:
                await anyio.sleep(0.01)
            return None

    note: Any = lambda text, *_: shown.append(text)  # noqa: E731
    screen: Any = SimpleNamespace(note=note, paragraph=note, end_text=lambda: None, idle=lambda: None)
    request: Any = SimpleNamespace(thinking=False, settings={}, prompt=None)
    settings: dict[str, Any] = client_settings("http://host.example", "t") | {"transport": httpx2.MockTransport(answer)}
    with anyio.fail_after(LIMIT):
        async with httpx2.AsyncClient(**settings) as client:
            assert await Chat(client, request, screen).run() == 0
    assert (followed["/v1/events"], shown[2]) == ("7", "? Allow Bash?")


class Host:
    """Answers as a host whose session has the given messages, each after a call of a path, or at once for None."""

    def __init__(self, *messages: tuple[str | None, dict[str, Any]]) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._messages = messages

    async def _stream(self) -> AsyncIterator[bytes]:
        for place, (after, message) in enumerate(self._messages):
            while after is not None and after not in [name for name, _ in self.calls]:
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)  # a chat that does not wait for the message leaves before it
            yield f"id: {place}\nevent: message\ndata: {json.dumps(message)}\n\n".encode()
        await anyio.sleep_forever()

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, name = request.url.path, request.url.path.rpartition("/")[2]
        if name == "events":
            content = b"" if path == "/v1/events" else self._stream()
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        if name in ("prompt", "steer"):
            self.calls.append((name, json.loads(request.content)["prompt"]))
        key = {"prompt": "prompt", "steer": "steering"}.get(name, "id")
        facts = {key: f"{name}-{len(self.calls)}", "outcome": None, "waiting": 1, "events_from": 0}
        return httpx2.Response(200, json={"asks": [], "events_from": 7} if path == "/v1/asks" else facts)


async def chat_with(host: Host, *lines: str, is_typed: bool) -> list[str]:
    """What a chat prints whose lines these are."""
    typed, shown = [*lines], list[str]()

    class Chat(RemoteChat):
        async def _read_line(self) -> str | None:
            return typed.pop(0) if typed else None

        def _is_typed(self) -> bool:
            return is_typed

    screen: Any = SimpleNamespace(
        note=lambda text, *_: shown.append(text),
        paragraph=lambda text, *_: shown.append(text),
        end_text=lambda: None,
        idle=lambda: None,
        busy=lambda *_: None,
        text=shown.append,
    )
    request: Any = SimpleNamespace(thinking=False, settings={}, prompt=None)
    transport = httpx2.MockTransport(host.answer)
    settings: dict[str, Any] = client_settings("http://host.example", "t") | {"transport": transport}
    with anyio.fail_after(LIMIT):
        async with httpx2.AsyncClient(**settings) as client:
            assert await Chat(client, request, screen).run() == 0
    return shown


def result_of(*ids: str, **more: Any) -> dict[str, Any]:
    return {**frames.result(more.pop("text", "")), "user_message_uuids": [*ids], **more}


@pytest.mark.anyio
async def test_a_pipe_waits_for_its_own_answers() -> None:
    """Words of another viewer make two results of one prompt."""
    others = [(None, result_of("other")), ("prompt", result_of("other")), ("prompt", result_of("words"))]
    failed = {"type": "system", "subtype": "query_failed", "prompt": "prompt-2", "error": "e"}
    own = {**result_of("prompt-1"), "is_error": True, "result": "the own one"}
    host = Host(*others, ("prompt", failed), ("prompt", own))
    shown = await chat_with(host, "one", "two", is_typed=False)
    assert host.calls == [("prompt", "one"), ("prompt", "two")]
    assert "the own one" in shown


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("outcome", "ends", "note"),
    [
        ("taken", [result_of("p", "steer-1")], "+ mend it (read by Claude)"),
        ("next_turn", [result_of("p"), result_of("steer-1")], "+ mend it (read by Claude, in the next turn)"),
        ("returned", [], "+ mend it (not read: send it again)"),
        ("query", [result_of("steer-1")], None),
    ],
)
async def test_a_typed_line_is_for_the_turn_that_runs(outcome: str, ends: list[Any], note: str | None) -> None:
    told = {"type": "system", "subtype": "steering", "steering": "steer-1", "outcome": outcome, "title": "mend it"}
    host = Host(*(("steer", message) for message in (told, *ends)), ("prompt", result_of("prompt-2")))
    shown = await chat_with(host, "mend it", "/queue then test", "/queue", "/help", is_typed=True)
    assert host.calls == [("steer", "mend it"), ("prompt", "then test")]
    assert [line for line in shown if line.startswith("+ ")] == ([] if note is None else [note])
    assert "give the text: /queue TEXT" in shown
    assert sum("/queue TEXT keeps the text as the next prompt" in line for line in shown) == 2


class LoginChat:
    """A chat whose person leaves each login with an empty line, and the logins of its host."""

    can_ask = True

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.cancelled = 0
        self._is_over = anyio.Event()
        self.session: Any = self
        self.mcp = self
        self.url = "https://login.example"

    def print_line(self, line: str, style: Style = "") -> None:
        self.lines.append(line)

    async def ask(self, question: str) -> str | None:
        return " "

    async def login(self, account: str) -> Any:
        return self

    async def authenticate(self, server: str) -> Any:
        return self

    async def complete(self, answer: str) -> Any:
        raise AssertionError(answer)

    async def wait(self) -> Any:
        await self._is_over.wait()
        raise RemoteError("cancelled", code="login_failed")

    async def cancel(self) -> None:
        self.cancelled += 1
        self._is_over.set()
        await anyio.wait_all_tasks_blocked()
        raise RemoteError("it has ended", code="unknown_login")


@pytest.mark.anyio
async def test_an_empty_line_ends_the_login_at_the_host() -> None:
    chat = LoginChat()
    await log_in_to_claude(chat, "")
    await handle_mcp(chat, "login ledger")
    assert (chat.cancelled, chat.lines.count("not logged in")) == (2, 2)
