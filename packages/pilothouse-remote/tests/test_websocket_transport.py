"""The client's side of the link over connections that break, hosts that refuse, and hosts that are gone."""

from __future__ import annotations

import random
import threading

import anyio
import pytest
from connection_proxy import cut_after, cut_before_ready, swallow_after
from places import source_files
from process_checks import until
from served_host import TOKEN
from served_transports import LIMIT, PLAIN, QUICK, host_with_proxy, read, served

from pilothouse.errors import CLIStartError, RemoteError, UsageError
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, MemoryPeer, MemoryTransport
from pilothouse_access import RefusedRequestError
from pilothouse_remote import Backoff
from pilothouse_remote.transport import WebSocketTransport
from pilothouse_testing.conformance import MEMORY_PEERS

pytestmark = pytest.mark.anyio


# --- nothing is lost or doubled --------------------------------------------------------------------------------------


@pytest.mark.requirement("E84")
@pytest.mark.parametrize("seed", range(6))
async def test_a_connection_that_is_cut_anywhere_loses_and_doubles_nothing(seed: int) -> None:
    chance = random.Random(seed)
    lines = [bytes(chance.choices(b"abcdefgh", k=chance.choice([1, 50, 5_000, 90_000]))) + b"\n" for _ in range(40)]
    whole = b"".join(lines)
    async with host_with_proxy() as (host, proxy):
        proxy.plans = [cut_after(chance.choice(["up", "down"]), chance.randint(2_000, 150_000)) for _ in range(12)]
        async with served(WebSocketTransport(proxy.url, reconnect=QUICK)) as transport:
            async with anyio.create_task_group() as group:

                async def send() -> None:
                    for line in lines:
                        await transport.send(line)

                group.start_soon(send)
                assert await read(transport, len(whole)) == whole
            assert proxy.connections >= 2  # how much arrives before a cut is a matter of time
            assert len(host.host.sessions) == 1
            await transport.end_input()
            assert await transport.receive() == b""
            assert (await transport.exit_info()).exit_code == 0


async def test_a_connection_that_is_cut_in_the_opening_starts_one_session() -> None:
    async with host_with_proxy() as (host, proxy):
        proxy.plans = [cut_before_ready, cut_before_ready]
        async with served(WebSocketTransport(proxy.url, reconnect=QUICK)) as transport:
            await transport.send(b"hello\n")
            assert await read(transport, 6) == b"hello\n"
            assert len(host.host.sessions) == 1
            assert proxy.connections == 3


@pytest.mark.requirement("E84")
async def test_a_new_connection_that_is_half_open_is_not_waited_for_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swallow_ready(which: str, count: int, data: bytes) -> bytes:
        return b"" if which == "down" and count else data

    monkeypatch.setattr("pilothouse_remote.remote_connection.CONNECT_SECONDS", 1.0)
    backoff = Backoff(first=0.01, longest=0.05, give_up_after=10.0)
    async with host_with_proxy() as (_, proxy), served(WebSocketTransport(proxy.url, reconnect=backoff)) as transport:
        proxy.plans = [swallow_ready]
        proxy.cut()
        await transport.send(b"hello\n")
        assert await read(transport, 6) == b"hello\n"
        assert proxy.connections >= 3  # on a machine that has much to do, others take too long, too


async def test_heartbeats_find_a_connection_that_is_half_open() -> None:
    async with host_with_proxy(heartbeat=0.1) as (_, proxy):
        proxy.plans = [swallow_after(1_000)]
        async with served(WebSocketTransport(proxy.url, reconnect=QUICK, heartbeat=0.1)) as transport:
            line = b"x" * 3_000 + b"\n"
            await transport.send(line)
            assert await read(transport, len(line)) == line
            assert proxy.connections >= 2


async def test_heartbeats_measure_the_round_trip() -> None:
    async with host_with_proxy() as (host, _), served(WebSocketTransport(host.url, heartbeat=0.02)) as transport:
        await until(lambda: transport.round_trip is not None)
        assert 0 <= (transport.round_trip or 0) < LIMIT


async def test_the_output_ends_while_there_is_no_connection() -> None:
    async def peer(conn: MemoryPeer) -> None:
        await conn.read_line()
        await conn.write("last words\n")
        conn.end(exit_code=7, stderr="it is over")

    async with (
        host_with_proxy(peer) as (host, proxy),
        served(WebSocketTransport(proxy.url, reconnect=QUICK)) as transport,
    ):
        await transport.send(b"go\n")
        await until(lambda: host.session.client_scope is not None)
        proxy.cut()
        assert await read(transport, 11) == b"last words\n"
        assert await transport.receive() == b""
        ending = await transport.exit_info()
        assert (ending.exit_code, ending.stderr) == (7, "it is over")


async def test_a_peer_that_does_not_read_makes_the_sender_wait() -> None:
    async with host_with_proxy(MEMORY_PEERS["deaf"]) as (host, _), served(WebSocketTransport(host.url)) as transport:
        sent = 0
        line = b"x" * 99_999 + b"\n"
        with anyio.move_on_after(1.0):
            while True:
                await transport.send(line)
                sent += len(line)
        assert transport.health().state == "healthy"  # nobody waits now
        assert sent < 6_000_000


async def test_a_client_that_does_not_read_holds_up_the_peer() -> None:
    async with host_with_proxy(MEMORY_PEERS["flood"]) as (host, _), served(WebSocketTransport(host.url)) as transport:
        await anyio.sleep(0.2)
        await anyio.wait_all_tasks_blocked()
        in_hand = sum(map(len, transport._connection.received_chunks))
        assert in_hand <= 4 * 1024 * 1024


# --- when it is given up ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("E84")
async def test_a_host_that_stays_away_is_given_up_in_time() -> None:
    async with host_with_proxy() as (_, proxy):
        backoff = Backoff(give_up_after=0.3, first=0.01, longest=0.05)
        async with served(WebSocketTransport(proxy.url, reconnect=backoff)) as transport:
            proxy.is_down = True
            proxy.cut()
            await until(lambda: transport.health().state != "healthy")
            assert transport.health().state == "degraded"
            assert "again" in transport.health().reason
            with pytest.raises(RemoteError, match=r"could not connect again within 0\.3 s") as caught:
                await transport.receive()
            assert caught.value.code == "lost"
            assert f"session={transport.session!r}" in str(caught.value)
            assert transport.health().state == "unhealthy"
            with pytest.raises(anyio.BrokenResourceError):
                await transport.send(b"x\n")
            assert "could not connect again" in (await transport.exit_info()).detail


async def test_what_is_sent_without_a_connection_arrives_with_the_next() -> None:
    async with host_with_proxy() as (_, proxy), served(WebSocketTransport(proxy.url, reconnect=QUICK)) as transport:
        proxy.is_down = True
        proxy.cut()
        await until(lambda: transport.health().state == "degraded")
        await transport.send(b"meanwhile\n")
        proxy.is_down = False
        assert await read(transport, 10) == b"meanwhile\n"


async def test_close_is_bounded_when_the_host_is_gone() -> None:
    async with host_with_proxy() as (_, proxy), served(WebSocketTransport(proxy.url)) as transport:
        proxy.is_down = True
        proxy.cut()
        await until(lambda: transport.health().state == "degraded")
        with anyio.fail_after(8.0):
            await transport.close()


async def test_close_ends_the_session_after_a_break() -> None:
    async with (
        host_with_proxy() as (host, proxy),
        served(WebSocketTransport(proxy.url, reconnect=Backoff(first=60))) as transport,
    ):
        proxy.is_down = True
        proxy.cut()
        await until(lambda: transport.health().state == "degraded")
        proxy.is_down = False
        await transport.close()
        await until(lambda: not host.host.sessions)


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    waits, closed = threading.Event(), threading.Event()

    class Slow(MemoryTransport):
        async def start(self, invocation: Invocation) -> None:
            waits.set()
            await anyio.sleep(0.05)
            await super().start(invocation)

        async def close(self) -> None:
            await super().close()
            closed.set()

    async with host_with_proxy(make_transport=lambda: Slow(MEMORY_PEERS["silent"])) as (host, _):
        transport = WebSocketTransport(host.url)
        async with anyio.create_task_group() as group:
            group.start_soon(transport.start, PLAIN)
            await until(waits.is_set)
            group.cancel_scope.cancel()
        await transport.close()
        await until(lambda: closed.is_set() and not host.host.sessions)


async def test_an_unreachable_host_is_reported_at_once() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    await listener.aclose()
    transport = WebSocketTransport(f"ws://127.0.0.1:{port}")
    with pytest.raises(RemoteError, match="cannot be reached") as caught:
        await transport.start(PLAIN)
    assert caught.value.code == "unreachable"
    assert transport.health().state == "unhealthy"
    await transport.close()


async def test_something_else_that_answers_is_no_host() -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(RemoteError) as caught:
            await WebSocketTransport(f"ws://127.0.0.1:{port}").start(PLAIN)
        assert caught.value.code == "protocol"
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("token", "is_right"), [(None, False), ("other-token-0123456789", False), (TOKEN, True)])
async def test_the_token_is_asked_for(token: str | None, is_right: bool) -> None:
    async with host_with_proxy(token=TOKEN) as (host, _):
        transport = WebSocketTransport(host.url, token=token)
        if is_right:
            async with served(transport):
                return
        with pytest.raises(RemoteError, match="token") as caught:
            await transport.start(PLAIN)
        assert caught.value.code == "unauthorized"
        assert token is None or token not in str(caught.value)
        assert "token" not in repr(transport)


@pytest.mark.requirement("E76")
async def test_neither_token_nor_content_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with host_with_proxy(token=TOKEN) as (_, proxy):
        with caplog.at_level("DEBUG"):
            async with served(WebSocketTransport(proxy.url, token=TOKEN, reconnect=QUICK)) as transport:
                proxy.cut()
                await transport.send(b"between us\n")
                assert await read(transport, 11) == b"between us\n"
        ours = [record for record in caplog.records if record.name != "uvicorn.error"]
        assert ours
        assert not [record for record in ours if TOKEN in record.getMessage() or "between" in record.getMessage()]


@pytest.mark.parametrize("code", ["limit", "draining", "forbidden", "bad_request", "version", "pruned"])
async def test_a_refusal_is_reported_with_its_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*args: object) -> None:
        raise RefusedRequestError(code, "not here")

    monkeypatch.setattr("pilothouse_host.websocket._open_session", refuse)
    async with host_with_proxy() as (host, _):
        with pytest.raises(RemoteError, match="not here") as caught:
            await WebSocketTransport(host.url).start(PLAIN)
        assert caught.value.code == code


async def test_an_address_with_another_path_is_named_as_the_cause() -> None:
    async with host_with_proxy() as (host, _):
        with pytest.raises(RemoteError, match="or not its path") as caught:
            await WebSocketTransport(f"{host.url}/v1").start(PLAIN)
        assert caught.value.code == "forbidden"


async def test_a_child_that_cannot_be_started_is_an_error_of_its_own() -> None:
    async with host_with_proxy(make_transport=CliTransport, cli="/nowhere/claude") as (host, _):
        with pytest.raises(CLIStartError, match="/nowhere/claude"):
            await WebSocketTransport(host.url).start(PLAIN)


async def test_a_host_that_breaks_the_rules_is_left() -> None:
    def send_gap(which: str, count: int, data: bytes) -> bytes:
        return data + b"\x82\x0d" + b"\x00" * 7 + b"\xff" + b"a gap" if b'"ready"' in data else data

    async with host_with_proxy() as (_, proxy):
        proxy.plans = [send_gap]
        async with served(WebSocketTransport(proxy.url)) as transport:
            with pytest.raises(RemoteError, match="gap") as caught:
                await transport.receive()
            assert caught.value.code == "protocol"


# --- several clients -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E86")
async def test_another_client_goes_on_where_the_one_before_has_left() -> None:
    async with host_with_proxy() as (host, _):
        async with served(WebSocketTransport(host.url)) as first:
            await first.send(b"one\ntwo\n")
            assert await read(first, 8) == b"one\ntwo\n"
            receive = None
            with anyio.move_on_after(0):  # asking for more says that this was looked at
                receive = await first.receive()
            assert receive is None
            await first.send(b"half a li")
            session = await first.detach()
            with pytest.raises(anyio.ClosedResourceError):
                await first.receive()
        await until(lambda: host.session.client_scope is None)
        async with served(WebSocketTransport(host.url, session=session)) as second:
            await second.send(b"three\n")
            assert await read(second, 6) == b"three\n"
        await until(lambda: not host.host.sessions)


async def test_what_was_looked_at_a_moment_ago_does_not_come_again() -> None:
    async with host_with_proxy() as (host, _):
        async with served(WebSocketTransport(host.url)) as first:
            await first.send(b"one\n")
            assert await read(first, 4) == b"one\n"
            link = host.session.link
            await until(lambda: link.send_buffer.acknowledged == 4)  # of what comes now, it is not told yet
            with anyio.move_on_after(0):
                await first.receive()
            session = await first.detach()
        await until(lambda: host.session.client_scope is None)
        assert host.session.record.acknowledged == 4
        async with served(WebSocketTransport(host.url, session=session)) as second:
            await second.send(b"two\n")
            assert await read(second, 4) == b"two\n"


async def test_an_acknowledgement_that_is_being_sent_arrives_when_the_client_leaves() -> None:
    async with host_with_proxy() as (host, _):
        async with served(WebSocketTransport(host.url)) as first:
            await first.send(b"one\n")
            assert await read(first, 4) == b"one\n"
            await until(lambda: host.session.link.send_buffer.acknowledged == 4)
            stream = first._connection._socket._stream  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
            send, sending = stream.send, anyio.Event()

            async def send_slowly(item: bytes) -> None:
                sending.set()
                await anyio.sleep(0.2)
                await send(item)

            stream.send = send_slowly
            with anyio.move_on_after(0):
                await first.receive()  # tells the host to begin behind that line
            await sending.wait()
            session = await first.detach()
        await until(lambda: host.session.client_scope is None)
        async with served(WebSocketTransport(host.url, session=session)) as second:
            await second.send(b"two\n")
            assert await read(second, 4) == b"two\n"


async def test_what_was_not_looked_at_comes_again() -> None:
    async with host_with_proxy() as (host, _):
        async with served(WebSocketTransport(host.url)) as first:
            await first.send(b"one\n")
            assert await read(first, 4) == b"one\n"
            session = await first.detach()
        await until(lambda: host.session.client_scope is None)
        async with served(WebSocketTransport(host.url, session=session)) as second:
            assert await read(second, 4) == b"one\n"


async def test_a_client_is_taken_over_only_on_demand() -> None:
    async with host_with_proxy() as (host, _), served(WebSocketTransport(host.url)) as first:
        session = host.session.id
        with pytest.raises(RemoteError) as caught:
            await WebSocketTransport(host.url, session=session).start(PLAIN)
        assert caught.value.code == "attached_elsewhere"
        async with served(WebSocketTransport(host.url, session=session, take_over=True)) as second:
            with pytest.raises(RemoteError) as replaced:
                await first.receive()
            assert replaced.value.code == "replaced"
            await second.send(b"mine now\n")
            assert await read(second, 9) == b"mine now\n"
            await first.close()  # does not end what is another's now
            await second.send(b"still mine\n")
            assert await read(second, 11) == b"still mine\n"


async def test_an_unknown_session_is_refused() -> None:
    async with host_with_proxy() as (host, _):
        with pytest.raises(RemoteError) as caught:
            await WebSocketTransport(host.url, session="no-such").start(PLAIN)
        assert caught.value.code == "unknown_session"


async def test_what_was_never_started_cannot_be_left() -> None:
    transport = WebSocketTransport("ws://127.0.0.1:1")
    with pytest.raises(UsageError, match="no session to detach from"):
        await transport.detach()
    with pytest.raises(UsageError, match="WebSocketTransport"):
        await MemoryTransport().detach()


def test_the_package_is_imported_in_one_file() -> None:
    users = [path.name for path in source_files() if "from websockets" in path.read_text()]
    assert [name for name in users if "server" not in name] == ["websocket.py"]
