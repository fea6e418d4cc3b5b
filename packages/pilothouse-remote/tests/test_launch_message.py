"""What travels to a host, and what must not: the environment, keys, secrets in addresses; and that TLS is checked."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.tls import TLSListener
from msgspec.structs import replace
from served_transports import PLAIN, host_with_proxy, read, served

from pilothouse.errors import RemoteError, UsageError
from pilothouse.options import Invocation, Options, render
from pilothouse.options.renderer import PrivateFile
from pilothouse.transports import MemoryTransport
from pilothouse_remote.messages import HostAddress
from pilothouse_remote.transport import WebSocketTransport, make_launch_message
from pilothouse_testing.conformance import MEMORY_PEERS

pytestmark = pytest.mark.anyio


# --- what travels ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E84", "E76")
async def test_nothing_that_was_inherited_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "inherited-key-123456")
    options = Options(env={"MINE": "yes", "NOT_THIS": None}, max_output_tokens=1000, cwd="/srv/work")
    invocation = render(options, {"HOME": "/home/me", "ANTHROPIC_API_KEY": "inherited-key-123456", "MINE": "no"})
    launch = make_launch_message(invocation)
    assert launch.env == {"MINE": "yes", "NOT_THIS": None, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000"}
    assert launch.cwd == "/srv/work"
    assert "inherited" not in repr(invocation.explicit_env) + repr(launch)


async def test_only_the_host_decides_what_its_children_leave_running() -> None:
    with pytest.raises(UsageError, match="option 'keep_detached': the host decides"):
        make_launch_message(render(Options(keep_detached=True), {}))


async def test_private_files_travel_with_their_content() -> None:
    content = '{"mcpServers":{},"text":"\u00e4\\u0000"}'.encode()
    started: list[Invocation] = []

    class Watched(MemoryTransport):
        async def start(self, invocation: Invocation) -> None:
            started.append(invocation)
            await super().start(invocation)

    files = (PrivateFile("mcp-config", ".json", content),)
    async with (
        host_with_proxy(make_transport=lambda: Watched(MEMORY_PEERS["silent"])) as (host, _),
        served(WebSocketTransport(host.url), replace(PLAIN, files=files)),
    ):
        [file] = started[0].files
        assert (file.flag, file.suffix, json.loads(file.content)) == ("mcp-config", ".json", json.loads(content))
        assert "mcpServers" not in repr(make_launch_message(replace(PLAIN, files=files)))


@pytest.mark.requirement("E76", "E84")
@pytest.mark.parametrize(
    ("token", "changes"),
    [
        ("a-token-123", {}),
        (None, {"explicit_env": {"ANTHROPIC_API_KEY": "sk-ant-123456"}}),
        (None, {"files": (PrivateFile("mcp-config", ".json", b'{"x":{"headers":{"Authorization":"Bearer a123"}}}'),)}),
    ],
)
async def test_no_key_travels_in_the_clear(token: str | None, changes: dict[str, Any]) -> None:
    transport = WebSocketTransport("ws://host.example:8765", token=token)
    with pytest.raises(UsageError, match="in the clear") as caught:
        await transport.start(replace(PLAIN, **changes))
    assert "123" not in str(caught.value)


async def test_settings_that_are_too_large_are_reported_before_anything_is_sent() -> None:
    async with host_with_proxy() as (host, _):
        invocation = replace(PLAIN, files=(PrivateFile("settings", ".json", b"x" * 900_000),))
        with pytest.raises(UsageError, match="1,048,576"):
            await WebSocketTransport(host.url).start(invocation)
        assert host.host.sessions == []


@pytest.mark.parametrize(
    "url",
    [
        "", "ftp://a:1", "ws://", "ws://:1", "ws://a:b", "ws://me:pw@a:1", "ws://a:1?token=x", "ws://a:1#x",
        "ws://a:99999",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="address of a host"):
        WebSocketTransport(url)


@pytest.mark.parametrize(
    ("url", "expected", "is_loopback"),
    [
        ("ws://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/wire", True),
        ("ws://localhost", "ws://localhost/v1/wire", True),
        ("ws://[::1]:80/", "ws://[::1]:80/v1/wire", True),
        ("http://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/wire", True),
        ("https://host.example", "wss://host.example/v1/wire", False),
        ("wss://host.example/pilot/wire", "wss://host.example/pilot/wire", False),
        ("ws://127.0.0.1.example:1", "ws://127.0.0.1.example:1/v1/wire", False),
    ],
)
def test_addresses_are_completed(url: str, expected: str, is_loopback: bool) -> None:
    address = HostAddress.parse(url)
    assert (address.url, address.is_loopback) == (expected, is_loopback)


@pytest.mark.parametrize("heartbeat", [-1.0, float("nan")])
def test_impossible_heartbeats_are_refused(heartbeat: float) -> None:
    with pytest.raises(UsageError, match="heartbeat"):
        WebSocketTransport("ws://127.0.0.1:1", heartbeat=heartbeat)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    how = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", *names]
    subprocess.run([openssl, "req", *how, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


@pytest.mark.requirement("E84")
async def test_the_link_is_encrypted_and_certificates_are_checked(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(cert, key)
    theirs = ssl.create_default_context(cafile=str(cert))
    async with host_with_proxy() as (host, _):

        async def pass_on(secure: anyio.abc.ByteStream) -> None:
            plain = await anyio.connect_tcp("127.0.0.1", host.port)
            async with secure, plain, anyio.create_task_group() as group:
                group.start_soon(pump, plain, secure, group.cancel_scope)
                await pump(secure, plain, group.cancel_scope)

        bare = await anyio.create_tcp_listener(local_host="127.0.0.1")
        url = f"wss://127.0.0.1:{bare.extra(anyio.abc.SocketAttribute.local_port)}"
        listener = TLSListener(bare, ours, standard_compatible=False)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, pass_on)
            with pytest.raises(RemoteError, match="certificate") as caught:
                await WebSocketTransport(url, token="a-token-123").start(PLAIN)
            assert caught.value.code == "unreachable"
            async with served(WebSocketTransport(url, token="a-token-123", tls=theirs)) as transport:
                await transport.send(b"x" * 500_000 + b"\n")
                assert len(await read(transport, 500_001)) == 500_001
            group.cancel_scope.cancel()


async def pump(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream, scope: anyio.CancelScope) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await target.send(data)
    scope.cancel()
