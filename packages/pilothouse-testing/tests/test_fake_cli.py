"""The fake CLI, run as what it is: a child process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest

from pilothouse_testing import FakeCLI, frames

STREAM = ("--print", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json")
INITIALIZE = {"type": "control_request", "request_id": "r0", "request": {"subtype": "initialize", "hooks": None}}
USER = {"type": "user", "message": {"role": "user", "content": "Hi"}, "uuid": "u-1"}


def wire(*output: Any) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in output)


def run(fake: FakeCLI, *output: Any, args: tuple[str, ...] = STREAM) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([fake.path, *args], input=wire(*output), capture_output=True, timeout=20)


def written(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def parsed(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """What was written, but for what becomes of the prompts."""
    return [frame for frame in written(done) if frame["type"] != "command_lifecycle"]


def types(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [frame["type"] for frame in parsed(done)]


def read_frame(stream: IO[bytes] | None) -> dict[str, Any]:
    assert stream is not None
    frame = {"type": "command_lifecycle"}
    while frame.get("type") == "command_lifecycle":
        frame = json.loads(stream.readline())
    return frame


@contextlib.contextmanager
def child(fake: FakeCLI, *args: str):
    process = subprocess.Popen([fake.path, *STREAM, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def send(process: subprocess.Popen[bytes], *output: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(wire(*output))
    process.stdin.flush()


@pytest.mark.requirement("E80", "R39")
def test_the_common_case_is_one_line(tmp_path: Path):
    fake = FakeCLI().text("Hello")
    done = subprocess.run(
        [fake.path, *STREAM], input=wire(INITIALIZE, USER), capture_output=True, cwd=tmp_path, env={"MARK": "here"}
    )
    got = parsed(done)
    assert [f["type"] for f in got] == ["control_response", "system", "assistant", "result"]
    assert got[0]["response"]["request_id"] == "r0"
    assert got[0]["response"]["response"]["claude_code_version"] == frames.VERSION
    assert got[-1]["result"] == "Hello"
    assert got[-1]["user_message_uuid"] == "u-1"
    assert got[1]["user_message_uuids"] == ["u-1"]
    assert (done.returncode, done.stderr) == (0, b"")
    [call] = fake.calls
    assert call.argv == list(STREAM)
    assert call.env["MARK"] == "here"
    assert call.cwd == str(tmp_path.resolve())
    assert call.frames == [INITIALIZE, USER]
    assert call.prompts == ["Hi"]
    assert call.control("initialize") == [INITIALIZE["request"]]
    assert (call.exit_code, call.saw_eof) == (0, True)


@pytest.mark.requirement("E80")
def test_the_prompt_may_be_the_last_argument():
    fake = FakeCLI().text("Hello")
    done = run(fake, args=("--print", "--output-format", "stream-json", "Hi there"))
    assert types(done) == ["system", "assistant", "result"]
    assert fake.calls[0].argv[-1] == "Hi there"
    assert fake.calls[0].stdin == []


@pytest.mark.requirement("E80")
def test_a_mock_that_only_prints():
    reported = '{"type":"message","role":"assistant","content":"Hi"}\n{"type":"done"}\n'
    with FakeCLI().emit(reported) as fake, FakeCLI.shell(f"printf '%s' '{reported}'") as shell:
        assert run(fake, args=("--print", "x")).stdout.decode() == reported
        assert run(shell, args=("--print", "x")).stdout.decode() == reported
        assert shell.calls == []


def test_stream_events_come_when_they_are_asked_for():
    fake = FakeCLI().text("a text of some length")
    assert "stream_event" not in types(run(fake, USER))
    got = parsed(run(fake, USER, args=(*STREAM, "--include-partial-messages")))
    kinds = [f["event"]["type"] if f["type"] == "stream_event" else f["type"] for f in got]
    assert kinds.index("assistant") + 1 == kinds.index("content_block_stop")
    texts = [f["event"]["delta"]["text"] for f in got if f.get("event", {}).get("type") == "content_block_delta"]
    assert "".join(texts) == "a text of some length"


def test_several_turns_wait_for_their_prompts():
    fake = FakeCLI(lifecycle=False).text("one").text("two")
    with child(fake) as process:
        send(process, INITIALIZE, USER)
        assert [read_frame(process.stdout)["type"] for _ in range(4)][-1] == "result"
        send(process, USER)
        assert [read_frame(process.stdout).get("result") for _ in range(3)][-1] == "two"
        out, _ = process.communicate(timeout=20)
        assert (out, process.returncode) == (b"", 0)


def test_a_prompt_after_the_last_step_is_an_error():
    ended = run(FakeCLI().text("one"), USER, USER)
    assert (ended.returncode, types(ended).count("result")) == (1, 1)
    assert b"the scenario has ended, but another prompt came" in ended.stderr
    assert run(FakeCLI().text("one"), USER).stderr == b""


def test_it_reports_the_lifecycle_of_each_prompt():
    fake = FakeCLI().text("one").text("two")
    reported = written(run(fake, USER, {**USER, "uuid": "u-2"}))
    kinds = [(f.get("command_uuid"), f["state"]) if f["type"] == "command_lifecycle" else f["type"] for f in reported]
    one, two = (
        [(uuid, "queued"), (uuid, "started"), "system", "assistant", "result", (uuid, "completed")]
        for uuid in ("u-1", "u-2")
    )
    assert kinds == one + two
    nameless = {name: value for name, value in USER.items() if name != "uuid"}
    for plain in (run(FakeCLI().text("one"), nameless), run(FakeCLI(lifecycle=False).text("one"), USER)):
        assert [frame["type"] for frame in written(plain)] == ["system", "assistant", "result"]


def test_forever_answers_every_prompt_and_ends_with_stdin():
    fake = FakeCLI().text("again").forever()
    assert types(run(fake, USER, USER, USER)).count("result") == 3


def test_the_exit_code_follows_the_last_result():
    assert run(FakeCLI().text("no", is_error=True), USER).returncode == 1
    assert run(FakeCLI().text("no", is_error=True).text("yes"), USER, USER).returncode == 0
    assert run(FakeCLI().exit(7)).returncode == 7


def test_control_requests_are_answered_even_while_the_child_is_busy():
    fake = FakeCLI().expect("user").hang()
    with child(fake) as process:
        for subtype, outcome in (("interrupt", "success"), ("set_model", "success"), ("no_such_thing", "error")):
            send(process, {"type": "control_request", "request_id": subtype, "request": {"subtype": subtype}})
            response = read_frame(process.stdout)["response"]
            assert (response["request_id"], response["subtype"]) == (subtype, outcome)


def test_answers_to_control_requests_can_be_chosen():
    fake = FakeCLI().on_control("initialize", error="not today", code="busy").on_control("interrupt", silent=True)
    interrupt = {"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}
    assert parsed(run(fake, INITIALIZE, interrupt)) == [
        {
            "type": "control_response",
            "response": {"subtype": "error", "request_id": "r0", "error": "not today", "error_code": "busy"},
        }
    ]


def test_a_step_may_wait_for_a_control_request_and_answer_it():
    fake = FakeCLI().expect("user").expect("control_request", "interrupt").reply({"mine": 1}).emit(frames.result())
    interrupt = {"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}
    got = parsed(run(fake, INITIALIZE, USER, interrupt))
    assert [f["type"] for f in got] == ["control_response", "control_response", "result"]
    assert got[1]["response"] == {"subtype": "success", "request_id": "r1", "response": {"mine": 1}}


def test_the_child_asks_and_waits_for_the_answer():
    fake = FakeCLI().expect("user").ask("can_use_tool", tool_name="Bash", input={}).cancel().emit(frames.result())
    with child(fake) as process:
        send(process, USER)
        question = read_frame(process.stdout)
        assert question["request"] == {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}
        other = frames.control_response("unknown id")
        send(process, other, frames.control_response(question["request_id"], {"behavior": "allow"}))
        cancelled = read_frame(process.stdout)
        assert cancelled == {"type": "control_cancel_request", "request_id": question["request_id"]}
        assert read_frame(process.stdout)["type"] == "result"


def test_bytes_and_text_go_out_as_they_are():
    fake = FakeCLI().emit(b"\xff\x00", "ä\ud800", '{"cut', {"whole": 1})
    assert run(fake).stdout == b'\xff\x00\xc3\xa4\xed\xa0\x80{"cut{"whole": 1}\n'


def test_small_pieces_and_many_frames_arrive_whole():
    fake = FakeCLI().chunked(3).emit({"text": "äöü" * 5}).chunked(0).repeat(50_000, {"n": 1})
    lines = run(fake).stdout.splitlines()
    assert json.loads(lines[0]) == {"text": "äöü" * 5}
    assert lines[1:] == [b'{"n": 1}'] * 50_000


def test_stderr_and_a_closed_stdout():
    fake = FakeCLI().stderr("trouble\n").close_stdout().wait_eof().exit(3)
    with child(fake) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.poll() is None
        process.communicate(timeout=20)
        assert process.returncode == 3
    assert run(FakeCLI().stderr("trouble\n")).stderr == b"trouble\n"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_death_by_signal(name: str):
    fake = FakeCLI().expect("user").kill(name)
    assert run(fake, USER).returncode == -signal.Signals[name]
    assert fake.calls[0].prompts == ["Hi"]


def test_sigterm_can_be_survived():
    fake = FakeCLI().ignore_sigterm().emit({"ready": True}).hang()
    with child(fake) as process:
        assert read_frame(process.stdout) == {"ready": True}
        process.terminate()
        send(process, INITIALIZE)
        assert read_frame(process.stdout)["type"] == "control_response"
        assert process.poll() is None
        deadline = time.monotonic() + 10  # the answer comes from another thread than the note
        while not fake.calls[0].signals and time.monotonic() < deadline:
            time.sleep(0.01)
    assert fake.calls[0].signals == ["SIGTERM"]


def test_a_grandchild_holds_stdout_open():
    fake = FakeCLI().spawn_grandchild(30).emit({"ready": True}).exit(0)
    with child(fake) as process:
        assert read_frame(process.stdout) == {"ready": True}
        process.wait(10)
        [pid] = fake.calls[0].grandchildren
        os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_a_child_that_never_reads_leaves_the_pipe_full():
    fake = FakeCLI(reads=False).emit({"ready": True}).hang()
    with child(fake) as process:
        assert read_frame(process.stdout) == {"ready": True}
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        written = 0
        with contextlib.suppress(BlockingIOError):
            while written < 10_000_000:
                written += os.write(process.stdin.fileno(), b"x" * 65536)
        assert written < 10_000_000


def test_a_reader_that_goes_away_ends_the_child():
    fake = FakeCLI().repeat(1_000_000, {"n": 1})
    with child(fake) as process:
        read_frame(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(10) == 1


def test_a_function_can_be_the_child():
    def play(cli: Any) -> None:
        user = cli.expect("user")
        answer = cli.ask("can_use_tool", tool_name="Bash", input={})
        cli.emit({"type": "result", "result": [user["message"]["content"], answer["response"]], "argv": cli.argv[0]})

    fake = FakeCLI.from_function(play)
    got = parsed(run(fake, USER, frames.control_response("fake_1", {"behavior": "deny"})))
    assert got[-1]["result"] == ["Hi", {"behavior": "deny"}]
    assert got[-1]["argv"] == "--print"


def test_a_function_has_to_be_a_function():
    with pytest.raises(ValueError, match="def"):
        FakeCLI.from_function(lambda cli: cli.exit(0))


def test_version_is_printed_and_not_recorded():
    fake = FakeCLI(version="1.2.3").text("Hello")
    assert run(fake, args=("--version",)).stdout == b"1.2.3 (Claude Code)\n"
    assert fake.calls == []


def test_an_interpreter_with_a_blank_in_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    python = tmp_path / "with blank" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(python))
    fake = FakeCLI().text("Hello")
    assert types(run(fake, args=("--print", "x y"))) == ["system", "assistant", "result"]
    assert fake.calls[0].argv == ["--print", "x y"]


def test_the_files_go():
    with FakeCLI() as fake:
        home = Path(fake.path).parent
        assert home.is_dir()
    assert not home.exists()
    fake.close()
    other = FakeCLI()
    home = Path(other.path).parent
    del other
    assert not home.exists()


@pytest.mark.requirement("E80")
def test_every_recording_plays(transcripts: list[Path]):
    assert len(transcripts) > 50
    for path in transcripts:
        entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        args = next(e["msg"]["args"] for e in entries if e["dir"] == "meta" and e["msg"]["event"] == "spawn")
        code = next(e["msg"]["returncode"] for e in entries if e["dir"] == "meta" and e["msg"]["event"] == "exit")
        output = [e["msg"] for e in entries if e["dir"] == "out"]
        with FakeCLI.from_transcript(path) as fake:
            done = run(fake, *(e["msg"] for e in entries if e["dir"] == "in"), args=tuple(args))
        assert done.returncode == code, path.name
        lines = done.stdout.splitlines()
        assert len(lines) == len(output), path.name
        reported = [frame["uuid"] for frame in output if isinstance(frame, dict) and "uuid" in frame]
        got = [frame["uuid"] for frame in map(as_object, lines) if "uuid" in frame]
        assert got == reported, path.name


def as_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def test_a_recording_answers_the_ids_of_today(transcripts: list[Path]):
    path = next(p for p in transcripts if p.name.startswith("16_"))
    fake = FakeCLI.from_transcript(path)
    interrupt = {"type": "control_request", "request_id": "mine", "request": {"subtype": "interrupt"}}
    user = {**USER, "uuid": "22222222-2222-4222-8222-222222222222"}
    initialize = {**INITIALIZE, "request_id": "first"}
    mcp = {"type": "control_request", "request_id": "unplanned", "request": {"subtype": "mcp_status"}}
    done = run(fake, initialize, mcp, user, interrupt, {**USER, "uuid": "u-2"})
    got = parsed(done)
    answers = {f["response"]["request_id"]: f["response"]["subtype"] for f in got if f["type"] == "control_response"}
    assert answers == {"first": "success", "mine": "success", "unplanned": "error"}
    results = [f for f in got if f["type"] == "result"]
    assert results[0]["user_message_uuid"] == user["uuid"]
    assert results[0]["terminal_reason"] == "aborted_streaming"
    assert results[1]["user_message_uuid"] == "u-2"
    assert b"11111111-1111" not in done.stdout


def test_a_recording_of_an_argument_plays_over_stdin_too(transcripts: list[Path]):
    path = next(p for p in transcripts if p.name.startswith("01_"))
    assert types(run(FakeCLI.from_transcript(path), INITIALIZE, USER)) == [
        "control_response", "system", "assistant", "result",
    ]  # fmt: skip
