"""The real CLI against the scripted model: what the model says is what the CLI does."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilothouse.testing import (
    BrokenSse,
    Gate,
    HttpError,
    Pause,
    Reply,
    ScriptedModel,
    Steps,
    StreamError,
    Text,
    Thinking,
    Times,
    ToolUse,
)

pytestmark = pytest.mark.real_cli

# The shortest way through the CLI: no tools, no settings.
PLAIN = ("--tools", "", "--setting-sources=", "--strict-mcp-config")


@dataclass
class Run:
    """What one run of the CLI gave."""

    exit_code: int
    stderr: str
    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        return next(f for f in self.frames if f["type"] == "result")

    def of(self, kind: str, subtype: str | None = None) -> list[dict[str, Any]]:
        return [f for f in self.frames if f["type"] == kind and subtype in (None, f.get("subtype"))]

    def blocks(self, kind: str) -> list[dict[str, Any]]:
        messages = [*self.of("assistant"), *self.of("user")]
        return [b for m in messages for b in m["message"]["content"] if b["type"] == kind]


class Cli:
    def __init__(self, path: str, model: ScriptedModel) -> None:
        self.path = path
        self.model = model

    def __call__(
        self,
        *args: str,
        prompt: str = "go",
        frames: list[dict[str, Any]] | None = None,
        max_retries: int = 1,
        **env: str,
    ) -> Run:
        flags = ["-p", "--output-format=stream-json", "--verbose", *args]
        tail = ["--input-format=stream-json"] if frames else ["--", prompt]
        done = subprocess.run(
            [self.path, *flags, *tail],
            input="".join(json.dumps(frame) + "\n" for frame in frames or ()),
            env=self.model.env(max_retries=max_retries, **env),
            cwd=self.model.home,
            capture_output=True,
            timeout=60,
            text=True,
        )
        return Run(done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()])


@pytest.fixture
def cli(real_cli: str, scripted_model: ScriptedModel) -> Cli:
    return Cli(real_cli, scripted_model)


@pytest.mark.requirement("R38", "E82")
def test_a_text_is_answered(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.on("capital of France", reply="Paris.")
    run = cli(prompt="What is the capital of France?")
    assert run.exit_code == 0, run.stderr
    assert run.frames[0]["type"] == "system"
    assert run.frames[0]["subtype"] == "init"
    assert run.blocks("text") == [{"type": "text", "text": "Paris."}]
    assert (run.result["result"], run.result["is_error"]) == ("Paris.", False)
    assert run.result["usage"]["output_tokens"] == 2
    [request] = scripted_model.requests
    assert request.last_user_text == "What is the capital of France?"
    assert "Bash" in request.tools
    assert request.session_id == run.result["session_id"]
    assert scripted_model.side_requests == ()
    scripted_model.assert_done()


def test_a_text_is_streamed_in_its_pieces(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.reply(Text("one two three", chunks=["one ", "two ", "three"]))
    run = cli(*PLAIN, "--include-partial-messages")
    deltas = [f["event"]["delta"]["text"] for f in run.of("stream_event") if "text" in f["event"].get("delta", {})]
    assert deltas == ["one ", "two ", "three"]
    # The whole message comes before the end of its block.
    kinds = [f["event"]["type"] if f["type"] == "stream_event" else f["type"] for f in run.frames]
    assert kinds.index("assistant") < kinds.index("content_block_stop")


def test_thinking_arrives_with_its_signature(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.reply([Thinking("Let me see.", signature="sig-1"), "Done."])
    run = cli(*PLAIN)
    [thought] = run.blocks("thinking")
    assert (thought["thinking"], thought["signature"]) == ("Let me see.", "sig-1")
    assert run.result["result"] == "Done."


def test_two_tools_really_run_one_after_the_other(cli: Cli, scripted_model: ScriptedModel):
    path = scripted_model.home / "out.txt"
    scripted_model.on(
        "go",
        Steps(
            [
                "Writing.",
                ToolUse("Bash", {"command": f"echo from-bash > {path}; echo written", "description": "Write"}),
            ],
            ToolUse("Read", {"file_path": str(path)}),
            lambda request: f"The file says: {request.tool_text}",
        ),
    )
    run = cli("--allowedTools=Bash,Read")
    assert run.exit_code == 0, run.stderr
    assert path.read_text() == "from-bash\n"
    assert [r.newest_text for r in scripted_model.requests][0:2] == ["go", "written"]
    assert "from-bash" in run.result["result"]
    assert run.result["num_turns"] == 3
    scripted_model.assert_done()


def test_parallel_tools_come_back_together(cli: Cli, scripted_model: ScriptedModel):
    calls = [ToolUse("Bash", {"command": f"echo {word}", "description": "Say"}) for word in ("one", "two")]
    scripted_model.on("go", Steps(calls, "Both ran."))
    run = cli("--allowedTools=Bash")
    assert len(run.blocks("tool_use")) == 2
    results = scripted_model.requests[1].tool_results
    # Parallel tools finish in any order; their ids say which result is whose.
    asked = {block["id"]: block["input"]["command"] for block in run.blocks("tool_use")}
    assert {asked[r.tool_use_id]: r.text for r in results} == {"echo one": "one", "echo two": "two"}
    assert run.result["result"] == "Both ran."


def test_a_missing_permission_comes_back_as_an_error(cli: Cli, scripted_model: ScriptedModel, tmp_path: Path):
    write = ToolUse("Write", {"file_path": str(tmp_path / "elsewhere"), "content": ""})
    scripted_model.on("go", Steps(write, "As you like."))
    run = cli("--permission-mode=default")
    assert scripted_model.requests[1].tool_results[0].is_error
    assert run.result["permission_denials"][0]["tool_name"] == "Write"


def test_a_function_sees_the_conversation(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.default = lambda request: f"{len(request.messages)} messages, last: {request.last_user_text}"
    users = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("first", "second")]
    run = cli(*PLAIN, frames=users)
    texts = [b["text"] for b in run.blocks("text")]
    assert texts[0].endswith("last: first")
    assert texts[-1].endswith("second")


@pytest.mark.parametrize(("status", "retried"), [(400, 0), (403, 0), (413, 0), (401, 1), (429, 1), (500, 1), (529, 1)])
def test_http_errors_reach_the_result(cli: Cli, scripted_model: ScriptedModel, status: int, retried: int):
    scripted_model.on(reply=HttpError(status))
    run = cli(*PLAIN)
    assert run.exit_code == 1
    result = run.result
    assert (result["subtype"], result["is_error"], result["api_error_status"]) == ("success", True, status)
    retries = run.of("system", "api_retry")
    assert [r["error_status"] for r in retries] == [status] * retried


def test_an_unknown_model_is_refused(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.on(lambda request: request.model == "no-such-model", HttpError(404))
    run = cli(*PLAIN, "--model=no-such-model")
    assert run.result["api_error_status"] == 404
    assert run.of("assistant")[0]["error"] == "model_not_found"


def test_overload_passes_after_retries(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.on("go", Steps(Times(2, HttpError(529)), "Hello"))
    run = cli(*PLAIN, max_retries=2)
    assert run.exit_code == 0
    assert [r["attempt"] for r in run.of("system", "api_retry")] == [1, 2]
    assert run.result["result"] == "Hello"


def test_a_script_that_ran_out_shows_in_the_result(cli: Cli, scripted_model: ScriptedModel):
    run = cli(*PLAIN)
    assert run.result["is_error"]
    assert "the scripted model has no reply left" in run.result["result"]
    assert len(scripted_model.errors) == 1


@pytest.mark.parametrize(
    "answer",
    [
        StreamError(Text("whole answer", chunks=4)),
        BrokenSse("bad_json", Text("whole answer", chunks=4)),
        BrokenSse("no_stop", Text("whole answer", chunks=4)),
        BrokenSse("empty", "whole answer"),
        BrokenSse("cut", Text("whole answer", chunks=4)),
    ],
    ids=lambda answer: getattr(answer, "kind", "overloaded"),
)
def test_a_broken_stream_is_answered_without_streaming(cli: Cli, scripted_model: ScriptedModel, answer: Any):
    scripted_model.on(reply=answer)
    run = cli(*PLAIN, "--include-partial-messages")
    assert run.exit_code == 0, run.stderr
    assert run.result["result"] == "whole answer"
    assert [r.stream for r in scripted_model.requests][-1] is False
    assert scripted_model.requests[0].stream


def test_a_stream_without_its_end_is_asked_to_go_on(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.on(reply=BrokenSse("no_message_stop", "some of it"))
    run = cli(*PLAIN)
    assert run.exit_code == 1
    assert "Connection lost mid-response" in run.result["result"]
    assert [len(r.messages) for r in scripted_model.requests] == [2, 4, 6, 8]


def test_an_overload_in_the_middle_fails_without_the_fallback(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.on(reply=StreamError(Text("some of it", chunks=5)))
    run = cli(*PLAIN, CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK="1")
    assert run.exit_code == 1
    assert run.result["is_error"]
    assert "Overloaded" in run.result["result"]


@pytest.mark.parametrize("kind", ["html", "no_response"])
def test_no_api_at_all(cli: Cli, scripted_model: ScriptedModel, kind: Any):
    scripted_model.on(reply=BrokenSse(kind))
    run = cli(*PLAIN)
    assert run.exit_code == 1
    assert run.result["is_error"]
    assert run.result["api_error_status"] is None


def test_a_slow_stream_arrives_whole(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.reply(Reply(Text("slow but sure", chunks=4), delay=0.2, chunk_delay=0.1))
    run = cli(*PLAIN)
    assert run.result["result"] == "slow but sure"
    assert run.result["duration_api_ms"] >= 400


def test_an_interrupt_in_the_middle_of_a_stream(cli: Cli, scripted_model: ScriptedModel):
    gate = Gate()
    scripted_model.reply(["Half of it. ", Pause(gate), "The other half."])
    process = subprocess.Popen(
        [cli.path, "-p", "--output-format=stream-json", "--verbose", "--input-format=stream-json", *PLAIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=scripted_model.env(),
        cwd=scripted_model.home,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write('{"type": "user", "message": {"role": "user", "content": "go"}}\n')
    process.stdin.flush()
    gate.wait_reached(30)
    interrupt = {"type": "control_request", "request_id": "r1", "request": {"subtype": "interrupt"}}
    out, _ = process.communicate(json.dumps(interrupt) + "\n", timeout=60)
    frames = [json.loads(line) for line in out.splitlines()]
    result = next(f for f in frames if f["type"] == "result")
    assert result["subtype"] == "error_during_execution"
    assert result["terminal_reason"] == "aborted_streaming"
    assert not gate.is_open


def test_side_requests_of_the_cli_use_nothing_up(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.reply("main")
    title = {"subtype": "generate_session_title", "description": "mend the login page", "persist": True}
    run = cli(
        frames=[
            {"type": "control_request", "request_id": "r1", "request": title},
            {"type": "control_request", "request_id": "r2", "request": {"subtype": "get_context_usage"}},
            {"type": "user", "message": {"role": "user", "content": "go"}},
            {"type": "user", "message": {"role": "user", "content": "/compact"}},
        ],
    )
    sides = {r.side for r in scripted_model.side_requests}
    assert {"title", "count_tokens", "compact"} <= sides
    assert "Scripted session" in json.dumps(run.frames)
    assert len(run.of("system", "compact_boundary")) == 1
    assert [r.last_user_text for r in scripted_model.requests] == ["go"]
    scripted_model.assert_done()


def test_output_limits_and_refusals_can_be_scripted(cli: Cli, scripted_model: ScriptedModel):
    scripted_model.default = Reply("I will not.", stop_reason="refusal")
    run = cli(*PLAIN)
    assert run.result["is_error"]
    assert run.result["stop_reason"] == "refusal"
