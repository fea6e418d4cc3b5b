"""The console's files, and the requests that its pages make beside those of other clients."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from places import CONSOLE_FILES
from served_host import PYTHON, TOKEN, MakeHost, Program

from pilothouse.errors import UsageError
from pilothouse.options import CREDENTIAL_VARIABLES
from pilothouse_cli import console
from pilothouse_cli.arguments import parse
from pilothouse_cli.flags import ConsoleRequest
from pilothouse_cli.screen import Screen
from pilothouse_host import ClientLimits
from pilothouse_testing import FakeCLI

VENDOR = CONSOLE_FILES / "vendor"


def test_the_files_of_other_projects_are_those_that_are_listed() -> None:
    listed = {row["file"]: row for row in json.loads((VENDOR / "LICENSES.json").read_text())["files"]}
    there = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert set(listed) == there
    for name, row in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == row["sha256"], name
        assert row["package"] in (VENDOR / "LICENSES.txt").read_text().lower()


def test_the_files_need_no_token_and_load_nothing_from_elsewhere(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        for path, kind in (
            ("/", "text/html"),
            ("/static/app.js", "text/javascript"),
            ("/static/style.css", "text/css"),
        ):
            with served.response("GET", path, token=None) as answer:
                assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
                assert answer.headers["content-security-policy"].startswith("default-src 'self'; img-src 'self' data:")
                assert answer.headers["x-content-type-options"] == "nosniff"
                tag, content = answer.headers["etag"], answer.read()
            with served.response("GET", path, token=None, If_None_Match=tag) as answer:
                assert (answer.status, answer.read()) == (304, b"")
            assert b"https://" not in content
        for path in ("/static/", "/static/../host.py", "/static/%2e%2e/host.py", "/static/none.js", "/static/vendor"):
            assert served.response("GET", path, token=None).__enter__().status == 404
        assert served.request("GET", "/v1/sessions", token=None)[0] == 401
        with served.response("POST", "/", token=None) as answer:
            assert answer.status == 405


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 200), ("https://127.0.0.1:{port}", 200), ("http://127.0.0.1:1", 403),
        ("http://127.0.0.1:{port}.evil.example", 403), ("http://evil.example", 403), ("null", 403),
    ],
)  # fmt: skip
def test_only_pages_of_the_host_itself_may_use_it(serve_host: MakeHost, origin: str, status: int) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        assert served.request("GET", "/v1/sessions", Origin=origin.format(port=served.port))[0] == status


def test_model_and_mode_of_a_session_change_for_good(serve_host: MakeHost) -> None:
    changed = {"model": "opus", "permission_mode": "plan"}
    with FakeCLI().on_control("set_model", {}).on_control("set_permission_mode", {}).wait_eof() as fake:
        served = serve_host(cli=fake.path, clients=ClientLimits(permission_mode="acceptEdits"))
        _, made = served.request("POST", "/v1/sessions", {"options": {"model": "haiku"}})
        path = f"/v1/sessions/{made['id']}/settings"
        status, found = served.request("POST", path, changed)
        assert (status, found["start"]["options"]) == (200, changed)
        status, refusal = served.request("POST", path, {"permission_mode": "bypassPermissions"})
        assert (status, "up to 'acceptEdits'" in refusal["error"]["message"]) == (403, True)
        assert served.request("POST", path, {"permission_mode": "none"})[0] == 403
        assert served.request("GET", f"/v1/sessions/{made['id']}")[1]["start"]["options"] == changed
        with served.events(last=0) as events:
            told = [next(events)["data"]["start"]["options"] for _ in range(3)]
        assert told == [{"model": "haiku"}, {"model": "haiku"}, changed]  # pages that follow the events show it


def write_transcript(home: Path, work: Path, session: str) -> None:
    place = home / ".claude" / "projects" / str(work).replace("/", "-").replace("_", "-")
    place.mkdir(parents=True)
    message: dict[str, Any] = {"role": "user", "content": "hello"}
    row = {"type": "user", "uuid": "u", "parentUuid": None, "sessionId": session, "cwd": str(work), "message": message}
    (place / f"{session}.jsonl").write_text(json.dumps({**row, "timestamp": "2026-11-24T00:00:00Z"}) + "\n")


def test_a_conversation_on_disk_is_renamed_archived_and_removed(serve_host: MakeHost, tmp_path: Path) -> None:
    session = "11111111-2222-4333-8444-555555555555"
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path, environ={"HOME": str(tmp_path)}, tokens={"ann": "ann-token-0123456789"})
        write_transcript(tmp_path, tmp_path / "work", session)
        path = f"/v1/transcripts/{session}"
        _, found = served.request("POST", path, {"title": "Greeting", "archived": True})
        assert (found["transcript"]["custom_title"], found["transcript"]["archived"]) == ("Greeting", True)
        assert served.request("POST", path, {"archived": False})[1]["transcript"]["archived"] is False
        assert served.request("POST", path, {"title": " "})[0] == 400
        assert served.request("POST", path, {"title": "x"}, token="ann-token-0123456789")[0] == 403
        assert served.request("DELETE", path, token="ann-token-0123456789")[0] == 403
        assert served.request("DELETE", path)[0] == 204
        assert served.request("GET", path)[0] == 404
        assert served.request("DELETE", path)[0] == 404


def test_the_first_prompt_is_the_title(serve_host: MakeHost) -> None:
    with FakeCLI().text("Hello") as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "\n  Mend the test  \nnow"})
        assert made["start"]["title"] == "Mend the test"
        assert "--replay-user-messages" in fake.calls[0].argv


def test_the_flags_are_those_of_serve_and_two_more() -> None:
    asked = parse(["console", "--open", "--join", "http://h", "--root", "a", "--port", "9"])
    assert isinstance(asked, ConsoleRequest)
    assert (asked.open, asked.join, asked.roots, asked.port) == (True, "http://h", ("a",), 9)
    assert console.make_link("http://h:1/", "a b#c") == "http://h:1/#token=a%20b%23c"


@pytest.mark.anyio
async def test_a_host_that_runs_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", TOKEN)
    notes = io.StringIO()
    screen = Screen(io.StringIO(), notes)
    with FakeCLI() as fake, Program(tmp_path, fake.path) as served:
        url = f"http://127.0.0.1:{served.port}"
        assert await console.console(parse(["console", "--join", url]), screen) == 0
        assert capsys.readouterr().out == f"{url}/#token={TOKEN}\n"
        kept = tmp_path / "host.sqlite.link"
        kept.write_text(json.dumps({"url": url, "token": TOKEN, "process": os.getpid()}))
        assert await console.console(parse(["console", "--journal", str(tmp_path / "host.sqlite")]), screen) == 0
        assert capsys.readouterr().out == f"{url}/#token={TOKEN}\n"
        assert "joined the console that runs already" in notes.getvalue()  # the file of an older version
        monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", "another-token-9876543210")
        for wrong, fault in (
            (url, f"the host at {url} has another token; give its token in PILOTHOUSE_HOST_TOKEN or --token-file"),
            ("http://127.0.0.1:1", "no host answers at http://127.0.0.1:1 "),
            ("file:///etc", "expected an address such as"),
        ):
            with pytest.raises(UsageError, match=f"--join: .*{re.escape(fault)}"):
                await console.console(parse(["console", "--join", wrong]), screen)


def test_another_program_on_the_port_of_a_killed_host_gets_no_token(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    kept = tmp_path / "host.sqlite.link"
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        kept.write_text(json.dumps({"url": url, "token": TOKEN, "process": ended.pid}))
        assert console._find_running(kept) is None
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("answer", [b"220 mail ready\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n12", b""])
def test_a_program_that_is_no_host_is_not_joined(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer_once() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        fault = console._find_fault(f"http://127.0.0.1:{other.getsockname()[1]}", TOKEN)
        assert fault is not None
        assert ("is not a pilothouse host" if answer.startswith(b"HTTP") else "no host answers") in fault
        thread.join(10)


def test_the_link_of_a_console_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    with FakeCLI() as fake:
        program = Program(tmp_path, fake.path, command="console")
        with program as served:
            kept = tmp_path / "host.sqlite.link"
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
            assert json.loads(kept.read_text())["url"] == f"http://127.0.0.1:{served.port}"
            program.process.terminate()
            program.process.wait(20)
            assert not kept.exists()


def call_console(directory: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*PYTHON, "-m", "pilothouse", "console", "--journal", str(directory / "host.sqlite"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def test_a_second_call_says_what_it_joined_and_ignores_no_flag(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    work = tmp_path / "work"
    with FakeCLI() as fake, Program(tmp_path, fake.path, "--idle", "60", command="console") as served:
        same = call_console(tmp_path, "--root", "work", "--idle", "60", "--port", str(served.port), cwd=tmp_path)
        assert (same.returncode, "#token=" in same.stdout) == (0, True)
        assert f"its sessions work below {work}" in same.stderr
        assert re.search(r"joined the console that was started at \d\d:\d\d", same.stderr)
        there = call_console(tmp_path, cwd=work)
        assert (there.returncode, "another one" in there.stderr) == (0, False)
        elsewhere = call_console(tmp_path, cwd=other)
        assert elsewhere.returncode == 0
        assert f"for sessions in {other}, start another one: pilothouse console --journal FILE" in elsewhere.stderr
        refused = call_console(tmp_path, "--root", str(other), "--port", "1", "--openai", cwd=other)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"http://127.0.0.1:{served.port} has the console that was started at" in refused.stderr
        assert "--port, --root and --openai would have no effect on it" in refused.stderr


def test_flags_of_a_host_are_refused_beside_join(tmp_path: Path) -> None:
    refused = call_console(tmp_path, "--join", "http://127.0.0.1:1", "--root", ".", "--token-file", "none")
    assert refused.returncode == 2
    assert "--join starts no host, so --root would have no effect" in refused.stderr


@pytest.mark.parametrize("key", [None, "sk-ant-fake-0123456789"])
def test_a_console_without_a_key_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if sys.platform == "darwin":
        pytest.skip("a login may be in the keychain")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*CREDENTIAL_VARIABLES, "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    if key is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with FakeCLI() as fake:
        program = Program(tmp_path, fake.path, command="console")
        with program:
            code, output = program.end(signal.SIGTERM)
    assert code == 0
    told = [way in output for way in ("neither a key nor a login", "export ANTHROPIC_API_KEY", "chat --local")]
    assert told == [key is None] * 3


@pytest.mark.requirement("E84")
def test_the_browser_is_opened_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user can read command lines; the browser gets the path of a page that only this user can read."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" >> {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("pilothouse_cli.console.OPEN_SECONDS", 0.0)
    with FakeCLI() as fake, Program(tmp_path, fake.path, "--open", command="console") as served:
        while not opened.exists() or not opened.read_text():
            time.sleep(0.02)
        address = opened.read_text().strip()
        assert TOKEN not in address
        page = Path(address.removeprefix("file://"))
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert f'url=http://127.0.0.1:{served.port}/#token={TOKEN}"' in page.read_text()
        joining = ["console", "--join", f"http://127.0.0.1:{served.port}", "--open"]
        monkeypatch.setenv("PILOTHOUSE_HOST_TOKEN", TOKEN)
        screen: Any = None
        assert anyio.run(console.console, parse(joining), screen) == 0
    assert TOKEN not in opened.read_text()
    assert len(opened.read_text().splitlines()) == 2
