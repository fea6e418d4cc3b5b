"""The WebSocket of a host, spoken by hand: start, resume, take over, end, and all that is refused."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from served_host import ARGV, LIMIT, MakeHost, prompt
from websockets.exceptions import InvalidStatus

from pilothouse_remote.link import WINDOW_BYTES
from pilothouse_testing import FakeCLI, frames

RESULT = b'"type": "result"'


def _lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.requirement("E84")
def test_a_session_over_the_wire(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello").text("Again") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            assert client.start()["op"] == "ready"
            client.send(0, prompt("hi"))
            client.until_output(RESULT)
            client.say("ack", received=len(client.output))
            sent = prompt("and again")
            client.send(len(prompt("hi")), sent)
            while client.output.count(RESULT) < 2:
                client.next()
            client.say("end_input", at=len(prompt("hi")) + len(sent))
            ended = client.until("ended")
        assert ended["at"] == len(client.output)
        assert ended["exit_code"] == 0
        assert [line["type"] for line in _lines(client.output)] == ["system", "assistant", "result"] * 2
        [call] = fake.calls
        assert call.argv == ["--permission-mode=default", *ARGV]
        assert call.prompts == ["hi", "and again"]
        assert call.saw_eof


@pytest.fixture
def numbers() -> Any:
    """A child that says the numbers from 0 on, a line each, until it has said 40,000; then it ends."""
    with FakeCLI.shell("exec seq 0 39999") as fake:
        yield fake


NUMBERS = b"".join(b"%d\n" % n for n in range(40_000))


@pytest.mark.requirement("E84")
def test_every_byte_once_whatever_is_cut(serve_host: MakeHost, numbers: FakeCLI) -> None:
    served = serve_host(cli=numbers.path)
    with served.dial() as client:
        client.start()
        client.next()
        session, name, have = client.session, client.client, client.output
    for _ in range(20):
        with served.dial() as again:
            # What was not handed on is asked for again: the host may cut it anew.
            have = have[: max(0, len(have) - 333)]
            ready = again.attach(session, len(have), name)
            assert ready["op"] == "ready", ready
            while again.next()["op"] != "data":
                pass
            have += again.output
            again.say("ack", received=len(have))
    with served.dial() as last:
        last.attach(session, len(have), name)
        assert last.until("ended")["at"] == len(NUMBERS)
        have += last.output
    assert have == NUMBERS
    with served.dial() as once_more:  # the end is said to whoever attaches, until somebody says close
        once_more.attach(session, len(NUMBERS), name)
        assert once_more.until("ended")["exit_code"] == 0
        once_more.say("close")
        assert once_more.until_closed() == 1000
    assert served.host.sessions == []


def test_input_that_comes_again_is_dropped(serve_host: MakeHost) -> None:
    with FakeCLI().text("one").text("two") as fake:
        served = serve_host(cli=fake.path)
        first, second = prompt("first"), prompt("second")
        with served.dial() as client:
            client.start()
            client.send(0, first + second[:10])  # cut in the middle of a line
            client.until_output(RESULT)
            while client.until("ack")["received"] < len(first) + 10:
                pass
            have = client.output
        with served.dial() as again:
            ready = again.attach(client.session, len(have), client.client)
            assert ready["received"] == len(first) + 10
            again.send(0, first + second)
            again.send(len(first), second)
            again.until_output(RESULT)
        assert fake.calls[0].prompts == ["first", "second"]


def test_another_client_takes_over(serve_host: MakeHost) -> None:
    with FakeCLI().text("one").text("two") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client, served.dial() as other, served.dial() as third:
            client.start()
            client.send(0, prompt("first") + b'{"type": "us')  # dies here, in the middle of a line
            client.until_output(RESULT)
            while client.until("ack")["received"] < len(prompt("first")) + 12:
                pass
            client.say("ack", received=len(client.output), keep_from=len(client.output))
            client.say("ping", t=1)
            client.until("pong")
            refused = other.attach(client.session, None)
            assert (refused["op"], refused["code"]) == ("refused", "attached_elsewhere")
            ready = third.attach(client.session, None, take_over=True)
            assert client.until("error")["code"] == "replaced"
            assert (ready["received"], ready["begin"]) == (len(prompt("first")), len(client.output))
            assert ready["conversation"] == frames.SESSION_ID
            third.send(ready["received"], prompt("second"))
            third.until_output(RESULT)
        assert fake.calls[0].prompts == ["first", "second"]


def test_the_same_start_twice_is_one_session(serve_host: MakeHost) -> None:
    with FakeCLI().text("one") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.say("start", version=1, client="c", invocation={"argv": ARGV})
        with served.dial() as again:
            again.client = "c"
            again.start()
            again.send(0, prompt("hi"))
            again.until_output(RESULT)
        with served.dial() as third:
            third.client = "c"
            assert third.start()["session"] == again.session
        assert len(served.host.sessions) == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ('{"op": "start"', "bad_request"),
        ('{"op": "dance"}', "bad_request"),
        ('{"op": "ping", "t": 1}', "bad_request"),
        (b"\0\0\0\0\0\0\0\0data", "bad_request"),
        (b"\0", "bad_request"),
        ('{"op": "start", "version": 2, "client": "c", "invocation": {"argv": ["--print"]}}', "version"),
        ('{"op": "start", "version": 1, "client": "", "invocation": {"argv": ["--print"]}}', "bad_request"),
        ('{"op": "attach", "version": 1, "client": "c", "session": "none", "received": 0}', "unknown_session"),
        ('{"op": "attach", "version": 1, "client": "c", "session": "none", "received": -1}', "bad_request"),
        ('{"op": "start", "version": 1, "client": "c", "invocation": {"argv": []}}', "forbidden"),
        ('{"op": "start", "version": 1, "client": "c", "invocation": {"argv": ["-p"], "user": "nobody"}}', "forbidden"),
        ('{"op": "start", "version": 1, "client": "c", "invocation": {"argv": ["-p"], "cwd": "/"}}', "forbidden"),
        ('{"op": "start", "version": 1, "client": "c", "invocation": {"argv": ["-p"]}}', "start_failed"),
    ],
)
def test_first_messages_that_are_refused(serve_host: MakeHost, sent: str | bytes, code: str) -> None:
    served = serve_host(cli="/nowhere/claude")
    with served.dial() as client:
        client.socket.send(sent)
        answer = client.next()
        assert (answer["op"], answer["code"]) == ("refused", code), answer
        assert client.until_closed() == 1008
    assert served.host.sessions == []
    assert served.request("GET", "/v1/sessions")[1]["sessions"] == []


@pytest.mark.parametrize(
    "say",
    [
        lambda client: client.socket.send("no json"),
        lambda client: client.socket.send(b"short"),
        lambda client: client.send(5, b"a gap"),
        lambda client: client.say("ready", session="x", received=0),
        lambda client: client.say("ack", received=10_000_000),
        lambda client: client.say("end_input", at=-3),
        lambda client: client.socket.send(bytes(2 * 1024 * 1024)),
    ],
    ids=["json", "short", "gap", "op", "ack", "negative", "oversize"],
)
def test_a_client_that_breaks_the_link_loses_its_connection_and_not_its_session(serve_host: MakeHost, say: Any) -> None:
    with FakeCLI().text("still here") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            say(client)
            assert client.until_closed() in (1008, 1009)
            if client.until_closed() == 1008:
                assert client.ops[-1]["op"] == "error"
        with served.dial() as again:
            again.attach(client.session, 0, client.client)
            again.send(0, prompt("hi"))
            again.until_output(b"still here")


def test_a_silent_connection_is_dropped(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, heartbeat=0.5)
        with served.dial() as client:
            client.start()
            client.until_closed()
            assert {op["op"] for op in client.ops} == {"ready", "ping"}
        with served.dial() as again:
            assert again.attach(client.session, 0, client.client)["op"] == "ready"
            for _ in range(3):
                again.until("ping")
                again.say("pong", t=again.ops[-1]["t"])


def test_a_slow_reader_holds_up_the_child_and_no_memory(serve_host: MakeHost) -> None:
    with FakeCLI.shell("exec yes 0123456789012345678901234567890123456789012345678901234567890123456789") as fake:
        served = serve_host(cli=fake.path, unacknowledged=6 * 1024 * 1024)
        with served.dial() as client:
            client.start()
            while len(client.output) < WINDOW_BYTES:
                client.next()
            [session] = served.host.sessions
            deadline = time.monotonic() + LIMIT
            while session.output.end < 6 * 1024 * 1024:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with suppress(TimeoutError):
                client.next(timeout=0.5)
            assert len(client.output) == WINDOW_BYTES
            assert session.output.end < 7 * 1024 * 1024
            client.say("ack", received=len(client.output))
            while len(client.output) < 8 * 1024 * 1024:
                client.next()
            client.say("close")


def test_unneeded_output_is_pruned(serve_host: MakeHost) -> None:
    with FakeCLI.shell("yes 0123456789012345678901234567890123456789 | head -c 12000000; sleep 60") as fake:
        served = serve_host(cli=fake.path, keep_bytes=1024)
        with served.dial() as client:
            client.start()
            while len(client.output) < 12_000_000:
                client.next()
                client.say("ack", received=len(client.output))
            client.say("ping", t=1)
            client.until("pong")
        [session] = served.host.sessions
        assert session.output.start > 6_000_000
        with served.dial() as again:
            refused = again.attach(client.session, 0, client.client)
            assert (refused["op"], refused["code"]) == ("refused", "pruned")
        with served.dial() as again:
            assert again.attach(client.session, len(client.output) - 5, client.client)["op"] == "ready"
            again.say("close")
            assert again.until_closed() == 1000


def test_no_more_sessions_than_the_limit(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, max_sessions=1)
        with served.dial() as client, served.dial() as other:
            client.start()
            refused = other.start()
            assert (refused["op"], refused["code"]) == ("refused", "limit")
            client.say("close")
            assert client.until_closed() == 1000
        with served.dial() as third:
            assert third.start()["op"] == "ready"


def test_lines_of_standard_error(serve_host: MakeHost) -> None:
    with FakeCLI.shell("echo trouble >&2; exit 3") as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            assert client.until("stderr")["line"] == "trouble"
            ended = client.until("ended")
            assert (ended["exit_code"], ended["stderr"]) == (3, "trouble\n")


def test_a_client_that_sends_too_much_is_read_slowly(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, messages_per_second=20)
        with served.dial() as client:
            client.start()
            begin = time.monotonic()
            for number in range(50):
                client.say("ack", received=0)
                assert number < 50
            client.say("ping", t=1)
            client.until("pong")
            assert time.monotonic() - begin > 0.9


def test_forbidden_connections(serve_host: MakeHost, caplog: pytest.LogCaptureFixture) -> None:
    served = serve_host(cli="/nowhere", origins=["https://console.example"])
    refused_settings: tuple[dict[str, Any], ...] = (
        {"token": None},
        {"token": "token-of-the-tests-0123456780"},
        {"origin": "https://evil.example"},
        {"subprotocols": ["chat"]},
    )
    for settings in refused_settings:
        with pytest.raises(InvalidStatus) as refused, served.dial(**settings):
            pass
        assert refused.value.response.status_code in (401, 403)
    assert "handshake" not in caplog.text
    with served.dial(origin="https://console.example"):
        pass
