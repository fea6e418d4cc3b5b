"""The embedded model: answers, starts and ends cleanly, leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from fetched_files import fetched
from process_checks import until

from pilothouse.errors import ProcessError, UsageError
from pilothouse.provision.pinned_files import managed_cli_path, model_path
from pilothouse_models.local import LocalModel
from pilothouse_models.local.model import SYSTEM_PROMPT

QUESTION = "What is the capital of France?"
SOON = 10.0  # seconds on any machine: an answer of 4000 tokens takes longer

pytestmark = [pytest.mark.anyio, pytest.mark.local_model]


@pytest.fixture(scope="module")
def gguf() -> Path:
    return fetched(model_path())


@pytest.fixture(scope="module")
def running(gguf: Path) -> Iterator[LocalModel]:
    with LocalModel(gguf) as model:
        yield model


def post(model: LocalModel, key: str | None = None, **body: Any) -> Any:
    asked = {
        "model": "claude-haiku-4-5",
        "max_tokens": 50,
        "temperature": 1,
        "system": SYSTEM_PROMPT,
        "messages": [{"role": "user", "content": QUESTION}],
        **body,
    }
    headers = {"content-type": "application/json", "x-api-key": key or model.env()["ANTHROPIC_API_KEY"]}
    request = urllib.request.Request(f"{model.url}/v1/messages", json.dumps(asked).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as response:
        data = response.read().decode()
    if not body.get("stream"):
        return json.loads(data)
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: ")]


def is_open(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) == 0


def test_answers(running: LocalModel) -> None:
    message = post(running)
    assert "Paris" in message["content"][0]["text"]
    assert message["stop_reason"] == "end_turn"
    assert message["usage"]["output_tokens"] > 0
    assert "/" not in message["model"], "no path of this machine leaves it"
    assert post(running)["content"] == message["content"], "the same question gets the same answer"


def test_streams(running: LocalModel) -> None:
    events = post(running, stream=True)
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert len(deltas) > 1
    assert "Paris" in "".join(deltas)


def test_calls_no_tools(running: LocalModel) -> None:
    tool = {"name": "capital", "description": "The capital", "input_schema": {"type": "object", "properties": {}}}
    message = post(running, tools=[tool], tool_choice={"type": "any"})
    assert [block["type"] for block in message["content"]] == ["text"]


def test_wants_its_key(running: LocalModel) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        post(running, key="sk-another")
    caught.value.close()


@pytest.mark.real_cli
@pytest.mark.parametrize("disturbed", [False, True])
def test_the_real_cli_talks_to_it(running: LocalModel, tmp_path: Path, disturbed: bool) -> None:
    options = running.options()
    dead = "http://127.0.0.1:9"
    users = {
        "HTTP_PROXY": dead, "HTTPS_PROXY": dead, "ANTHROPIC_AUTH_TOKEN": "another", "CLAUDE_CODE_USE_BEDROCK": "1",
    }  # fmt: skip
    command = [fetched(managed_cli_path()), "--print", "--bare", "--tools", "", "--setting-sources="]
    command += ["--strict-mcp-config", "--output-format", "json"]
    command += ["--system-prompt", options["system_prompt"], "--model", options["model"], QUESTION]
    env = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "IS_SANDBOX": "1",
        **(users if disturbed else {}),
        **options["env"],
    }
    done = subprocess.run(
        command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert not result["is_error"]
    assert "Paris" in result["result"]


def test_options_name_the_whole_recipe(running: LocalModel) -> None:
    options = running.options()
    assert options["env"]["ANTHROPIC_BASE_URL"] == running.url
    assert (options["bare"], options["tools"], options["setting_sources"]) == (True, [], [])
    assert options["strict_mcp_config"] is True


def test_nothing_is_left(gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LocalModel(gguf) as model:
        url, child = model.url, model._child
        assert is_open(url)
        begun = time.monotonic()
    assert time.monotonic() - begun < SOON
    assert child is not None
    assert child.returncode == 0
    assert not is_open(url)
    assert capfd.readouterr() == ("", ""), "llama.cpp is not heard"
    with pytest.raises(UsageError, match="not running"):
        _ = model.url
    model.stop()


def test_ends_while_it_is_answering(gguf: Path) -> None:
    with LocalModel(gguf) as model:
        request = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {model.env()['ANTHROPIC_API_KEY']}\r\n"
        body = json.dumps(
            {"model": "m", "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": "Count."}]}
        )
        with socket.create_connection(("127.0.0.1", urlsplit(model.url).port or 0)) as busy:
            busy.sendall(f"{request}content-length: {len(body)}\r\n\r\n{body}".encode())
            busy.recv(100)
            begun = time.monotonic()
            model.stop()
            assert time.monotonic() - begun < SOON


def test_can_start_again(gguf: Path) -> None:
    model = LocalModel(gguf)
    for _ in range(2):
        with model:
            assert is_open(model.url)
            with pytest.raises(UsageError, match="already"):
                model.start()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows")
def test_dies_with_its_parent(gguf: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pilothouse_models.local import LocalModel\n"
        "with LocalModel(Path(sys.argv[1])) as model:\n"
        "    print(model.url, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(gguf)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert is_open(url)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_open(url):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)


async def test_async(gguf: Path) -> None:
    stages: list[str] = []
    async with LocalModel(gguf, progress=lambda stage, done, total: stages.append(stage)) as model:
        url = model.url
        assert is_open(url)
    assert not is_open(url)
    assert stages == ["load", "load"]


async def test_cancelled_while_loading(gguf: Path) -> None:
    model = LocalModel(gguf)
    with anyio.move_on_after(0.02) as scope:
        async with model:
            pytest.fail("it cannot have loaded so fast")
    assert scope.cancelled_caught
    assert model._child is None


async def test_cancelled_while_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    begun = threading.Event()
    ended: list[BaseException] = []

    def slow_download(progress: Callable[[str, int, int | None], object]) -> Path:
        begun.set()
        try:
            while True:
                progress("download", 0, None)
                time.sleep(0.01)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr("pilothouse.provision.ensure_model", slow_download)

    async def start() -> None:
        async with LocalModel():
            pytest.fail("there is no model")

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await until(begun.is_set)
        group.cancel_scope.cancel()
    assert len(ended) == 1, "the download must have ended too"


async def test_errors_are_plain_in_async(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"this is no model")
    with pytest.raises(ProcessError, match="ended while loading"):
        async with LocalModel(bad):
            pytest.fail("it cannot have loaded")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"this is no model")
    with pytest.raises(ProcessError, match="ended while loading") as caught:
        LocalModel(bad).start()
    assert caught.value.stderr
    with pytest.raises(UsageError, match="there is no model file"):
        LocalModel(tmp_path / "none.gguf").start()


def test_a_missing_library_of_the_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "bad.gguf").write_bytes(b"this is no model")
    log = "Traceback\nImportError: libgomp.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(LocalModel, "_read_log_tail", lambda self: log)
    with pytest.raises(ProcessError, match=r"libgomp.so.1: .* On Debian and Ubuntu: apt-get install libgomp1"):
        LocalModel(tmp_path / "bad.gguf").start()


def test_loading_has_a_limit(gguf: Path) -> None:
    model = LocalModel(gguf, start_timeout=0.0)
    with pytest.raises(ProcessError, match="did not load within 0 s"):
        model.start()
    assert model._child is None


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'pilothouse\[local\]'"):
        LocalModel().start()
