"""What a recording holds, how it is written, and what happens when it cannot be."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse.errors import CassetteError, CLINotFoundError, UsageError
from pilothouse.options import Invocation
from pilothouse.transports import CliTransport, MemoryPeer, MemoryTransport
from pilothouse_testing import Cassette, FakeCLI, Recorder, RecordingTransport, ReplayTransport, frames, mock_transport

pytestmark = pytest.mark.anyio

KEY = "sk-ant-secret-key-0123456789"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="rights and locks of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def read_recording(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def events(path: Path) -> list[str]:
    return [entry["msg"]["event"] for entry in read_recording(path)[1:] if entry["dir"] == "meta"]


@pytest.mark.requirement("E32", "E38")
async def test_both_directions_are_there_in_order_and_in_time(path: Path) -> None:
    inner = mock_transport("Hello")
    result = await ph.query("Hi", transport=RecordingTransport(inner, path))
    assert result.text == "Hello"
    header, *entries = read_recording(path)
    assert header["cassette"] == 1
    assert header["pilothouse"] == ph.__version__
    kinds = [(entry["dir"], entry["msg"].get("type")) for entry in entries if entry["dir"] != "meta"]
    assert kinds == [
        ("in", "control_request"),
        ("in", "user"),
        ("out", "control_response"),
        ("out", "command_lifecycle"),
        ("out", "command_lifecycle"),
        ("out", "system"),
        ("out", "assistant"),
        ("out", "result"),
        ("out", "command_lifecycle"),
    ]
    assert [entry["t"] for entry in entries] == sorted(entry["t"] for entry in entries)
    assert events(path) == ["spawn", "stdin_eof", "stdout_eof", "exit"]
    assert [entry["msg"] for entry in entries if entry["dir"] == "in"] == inner.sent_frames
    assert Cassette.load(path).connections[0].exit_info().exit_code == 0


async def test_the_process_behind_it_can_be_seen(path: Path) -> None:
    with FakeCLI().text("Hello") as fake:
        async with ph.session(cli=fake.path, transport=Recorder(path)) as session:
            await session.query("Hi")
            assert session.pid == fake.calls[0].pid
            assert session.health().state == "healthy"


@POSIX
async def test_only_its_user_may_read_it(path: Path) -> None:
    path.parent.chmod(0o755)
    path.write_bytes(b'{"cassette":1}\n')
    path.chmod(0o644)
    deep = path.parent / "some" / "where" / "run.jsonl"
    for place in (path, deep):
        await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), place))
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert len(Cassette.load(place).connections) == 1


async def test_keys_are_taken_out_in_both_directions(path: Path) -> None:
    async def tell(peer: MemoryPeer) -> None:
        peer.stderr(f"the key is {KEY}\nand the word is open sesame\n")
        while frame := await peer.read_frame():
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
            else:
                for frame in (frames.init(), frames.assistant(f"Your key is {KEY}."), frames.result("open sesame")):
                    await peer.write(frame)

    transport = RecordingTransport(MemoryTransport(tell), path, secrets=["open sesame"])
    stderr: list[str] = []
    settings: dict[str, Any] = {"env": {"ANTHROPIC_API_KEY": KEY}, "stderr": stderr.append}
    result = await ph.query(f"Is it {KEY}?", transport=transport, **settings)
    assert result.text == "open sesame"  # the run itself is as it was
    text = path.read_text()
    assert KEY not in text
    assert "open sesame" not in text
    assert "Is it [redacted]?" in text
    assert "Your key is [redacted]." in text
    assert [e["msg"] for e in read_recording(path) if e.get("dir") == "err"] == [
        "the key is [redacted]",
        "and the word is [redacted]",
    ]
    assert stderr == ["the key is [redacted]", "and the word is open sesame"]


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("size", [1, 2, 7, 20, 40])
async def test_a_key_that_comes_in_pieces_is_taken_out(path: Path, size: int) -> None:
    key = "planted.0123456789.abcdefghijklmnop"
    whole = f"before {key} between {key[:7]} and after"
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]

    async def tell(peer: MemoryPeer) -> None:
        while frame := await peer.read_frame():
            if frame["type"] == "control_request":
                await peer.write(frames.control_response(frame["request_id"], frames.server_info()))
                continue
            await peer.write(frames.init())
            for name, field in (("text_delta", "text"), ("input_json_delta", "partial_json")):
                for piece in pieces:
                    delta = {"type": name, field: piece}
                    await peer.write(frames.stream_event({"type": "content_block_delta", "index": 0, "delta": delta}))
            await peer.write(frames.assistant(base64.b64encode(key.encode()).decode()))
            await peer.write(frames.result("done"))

    texts: list[str] = []
    transport = RecordingTransport(MemoryTransport(tell), path)
    async for text in ph.query("go", transport=transport, env={"MY_TOKEN": key}).text_stream():
        texts.append(text)
    assert "".join(texts) == whole  # the run itself is as it was
    written = path.read_text()
    assert base64.b64encode(key.encode()).decode()[:20] not in written
    sent = [entry["msg"] for entry in read_recording(path) if entry.get("dir") == "out"]
    deltas = [frame["event"]["delta"] for frame in sent if frame["type"] == "stream_event"]
    for field in ("text", "partial_json"):
        joined = "".join(delta[field] for delta in deltas if field in delta)
        assert key[8:] not in joined
        assert not any(key[at : at + 8] in joined for at in range(8, len(key) - 8))
        assert joined.startswith("before ")
        assert " between " in joined
        assert joined.endswith(" and after")


async def test_output_is_on_disk_before_it_is_passed_on(path: Path) -> None:
    async for message in ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path)):
        written = path.read_bytes()
        assert written.endswith(b"\n")
        assert f'"type": "{message.type}"'.encode() in written


@POSIX
async def test_a_killed_program_leaves_a_readable_recording(path: Path) -> None:
    program = f"""
import os, signal, anyio, pilothouse as ph
from pilothouse_testing import RecordingTransport, mock_transport
async def main():
    transport = RecordingTransport(mock_transport("Hello", "Hello again"), {str(path)!r})
    async with ph.session(transport=transport) as session:
        await session.query("Hi")
        await session.query("Hi again")
        os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""
    done = await anyio.run_process([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cassette = Cassette.load(path)
    assert not cassette.is_truncated
    results = [e for e in cassette.connections[0].entries if e.frame and e.frame["type"] == "result"]
    assert len(results) == 2


# --- several connections


async def test_a_recorder_takes_all_connections_of_a_program(path: Path) -> None:
    recorder = Recorder(path, lambda: mock_transport("Hello"))
    agent = ph.Agent(transport=recorder)
    async with anyio.create_task_group() as group:
        for prompt in ("one", "two", "three"):
            group.start_soon(agent.query(prompt).result)
    await agent.query("four")
    connections = Cassette.load(path).connections
    assert [connection.number for connection in connections] == [1, 2, 3, 4]
    for connection in connections:
        kinds = [entry.frame["type"] for entry in connection.entries if entry.frame]
        kinds = [kind for kind in kinds if kind != "command_lifecycle"]
        assert kinds == ["control_request", "user", "control_response", "system", "assistant", "result"]
    assert recorder.connections == 4
    assert recorder.failure is None


async def test_a_new_recorder_replaces_the_file(path: Path) -> None:
    for _ in range(2):
        await ph.query("Hi", transport=Recorder(path, lambda: mock_transport("Hello")))
    assert len(Cassette.load(path).connections) == 1


def test_the_blocking_twin_is_recorded_from_many_threads(path: Path) -> None:
    agent = sync.Agent(transport=Recorder(path, lambda: mock_transport("Hello")))
    queries = [agent.query(str(number)) for number in range(4)]
    assert [query.result().text for query in queries] == ["Hello"] * 4
    assert len(Cassette.load(path).connections) == 4


# --- what goes wrong


@POSIX
async def test_two_writers_of_one_file(path: Path) -> None:
    async with ph.session(transport=RecordingTransport(mock_transport("Hello"), path)) as session:
        with pytest.raises(CassetteError, match="another recording is writing this file"):
            await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path))
        assert (await session.query("Hi")).text == "Hello"
    assert len(Cassette.load(path).connections) == 1
    await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path))  # it is free again


async def test_what_is_no_cassette_is_not_replaced(path: Path, tmp_path: Path) -> None:
    path.write_text("# My thesis\n")
    inner = mock_transport("Hello")
    with pytest.raises(CassetteError, match="the file is not a cassette"):
        await ph.query("Hi", transport=RecordingTransport(inner, path))
    assert path.read_text() == "# My thesis\n"
    with pytest.raises(CassetteError, match="cannot be written: Is a directory"):
        await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), tmp_path))
    with pytest.raises(CassetteError, match="cannot be written: "):
        await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path / "below"))
    assert inner.sent == []


@POSIX
async def test_a_device_is_no_file() -> None:
    with pytest.raises(CassetteError, match="it is not a file"):
        Recorder(os.devnull).open()


async def test_a_peer_that_cannot_be_started_leaves_the_file_as_it_was(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CLINotFoundError):
        await ph.query("Hi", transport=Recorder(path), cli=str(tmp_path / "nowhere"))
    assert not path.exists()
    await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path))
    before = path.read_bytes()
    with pytest.raises(CLINotFoundError):
        await ph.query("Hi", transport=Recorder(path), cli=str(tmp_path / "nowhere"))
    assert path.read_bytes() == before


class FullDisk:
    """`os.write` on a disk with room for so many bytes more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capacity: int) -> None:
        self.capacity = capacity
        self.write = os.write
        monkeypatch.setattr("pilothouse_testing.cassettes.recorder.os.write", self)

    def __call__(self, fd: int, data: memoryview) -> int:
        if not self.capacity:
            raise OSError(28, "No space left on device")
        written = self.write(fd, data[: self.capacity])
        self.capacity -= written
        return written


async def test_a_full_disk_lets_the_run_continue_and_is_reported_at_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk(monkeypatch, 1500)
    session = await ph.session(transport=RecordingTransport(mock_transport("one", "two", "three"), path)).start()
    assert [(await session.query(prompt)).text for prompt in "123"] == ["one", "two", "three"]
    assert session.health().state == "degraded"
    assert "No space left" in session.health().reason
    with pytest.raises(CassetteError, match="cannot be written any more: No space left on device"):
        await session.close()
    await session.close()  # it is told once
    assert disk.capacity == 0
    assert len([record for record in caplog.records if "what follows is not recorded" in record.message]) == 1
    cassette = Cassette.load(path)  # whole lines
    assert not cassette.is_truncated
    assert 100 < path.stat().st_size <= 1500


async def test_a_query_on_a_full_disk_fails_although_it_was_answered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, 300)
    texts: list[str] = []

    def listen(message: ph.Message) -> None:
        texts.append(message.type)

    with pytest.raises(CassetteError, match="cannot be written any more"):
        await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path), on_message=listen)
    assert texts[-1] == "result"


@POSIX
def test_a_limit_of_the_system_is_a_full_disk_too(path: Path) -> None:
    program = f"""
import resource, anyio, pilothouse as ph
from pilothouse.errors import CassetteError
from pilothouse_testing import RecordingTransport, mock_transport
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    anyio.run(ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), {str(path)!r})).result)
except CassetteError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "the cassette cannot be written any more: File too large" in done.stdout, done.stderr
    assert Cassette.load(path).connections
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only loop that blockbuster knows
async def test_nothing_blocks_the_loop(path: Path) -> None:
    from blockbuster import blockbuster_ctx

    transport = RecordingTransport(mock_transport("Hello"), path)
    replay = ReplayTransport(path)
    with blockbuster_ctx("pilothouse_testing.cassettes"):
        for made in (transport, replay):
            await made.start(Invocation(cli="auto", argv=("--print", "Hi"), env={}, cwd="/"))
            async with anyio.create_task_group() as group:
                group.start_soon(made.serve)
                while await made.receive():
                    pass
            await made.end_input()
            await made.exit_info()
            await made.close()


async def test_one_transport_serves_one_connection(path: Path) -> None:
    transport = RecordingTransport(mock_transport("Hello"), path)
    await ph.query("Hi", transport=transport)
    with pytest.raises((UsageError, anyio.ClosedResourceError)):
        await transport.start(Invocation(cli="auto", argv=(), env={}))


async def test_a_fake_child_plays_a_cassette_too(path: Path) -> None:
    await ph.query("Hi", transport=RecordingTransport(mock_transport("Hello"), path))
    with FakeCLI.from_transcript(path) as fake:
        result = await ph.query("Hi", cli=fake.path)
        assert result.text == "Hello"
    path.write_text("what\n")
    with pytest.raises(CassetteError, match="line 1: not a line of a cassette"):
        FakeCLI.from_transcript(path)


@pytest.mark.parametrize("wrong", ["open sesame", ["open sesame", None]])
async def test_secrets_are_a_list_of_texts(path: Path, wrong: Any) -> None:
    """A single text would be taken for its letters, and stay in the file."""
    for first in ((path,), (CliTransport(), path)):
        make: Any = Recorder if len(first) == 1 else RecordingTransport
        with pytest.raises(UsageError, match="secrets: expected a list of texts, got") as caught:
            make(*first, secrets=wrong)
        assert "sesame" not in str(caught.value)


async def test_what_is_recorded_has_to_be_a_transport(path: Path) -> None:
    inner: Any = CliTransport()
    with pytest.raises(UsageError, match="inner: expected a class or a function that makes a transport, got Cli"):
        Recorder(path, inner)
    swapped: tuple[Any, Any] = (path, inner)
    with pytest.raises(UsageError, match="inner: expected a transport, got PosixPath, which has no "):
        RecordingTransport(*swapped)
