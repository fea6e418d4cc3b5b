"""The real CLI against the scripted model, where `tests/real` does not look: side requests, scripts that run out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse_testing import BrokenSse, ScriptedModel

pytestmark = pytest.mark.real_cli

Frames = list[dict[str, Any]]
# The shortest way through the CLI: no tools, no settings.
PLAIN = ("--tools", "", "--setting-sources=", "--strict-mcp-config")


@pytest.fixture
def run(real_cli: str, scripted_model: ScriptedModel) -> Callable[..., Frames]:
    """Runs the CLI with these arguments and lines of input; gives what it writes."""

    def run(*arguments: str, lines: Frames) -> Frames:
        done = subprocess.run(
            [real_cli, "-p", "--output-format=stream-json", "--verbose", "--input-format=stream-json", *arguments],
            input="".join(json.dumps(line) + "\n" for line in lines),
            env=scripted_model.env(max_retries=1),
            cwd=scripted_model.home,
            capture_output=True,
            timeout=60,
            text=True,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def prompt(text: str) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}}


def result_of(written: Frames) -> dict[str, Any]:
    return next(frame for frame in written if frame["type"] == "result")


def test_a_script_that_ran_out_shows_in_the_result(run: Callable[..., Frames], scripted_model: ScriptedModel) -> None:
    result = result_of(run(*PLAIN, lines=[prompt("go")]))
    assert result["is_error"]
    assert "the scripted model has no reply left" in result["result"]
    assert len(scripted_model.errors) == 1


def test_a_stream_without_its_end_is_asked_to_go_on(run: Callable[..., Frames], scripted_model: ScriptedModel) -> None:
    scripted_model.on(reply=BrokenSse("no_message_stop", "some of it"))
    assert "Connection lost mid-response" in result_of(run(*PLAIN, lines=[prompt("go")]))["result"]
    assert [len(request.messages) for request in scripted_model.requests] == [2, 4, 6, 8]


def test_side_requests_of_the_cli_use_nothing_up(run: Callable[..., Frames], scripted_model: ScriptedModel) -> None:
    scripted_model.reply("main")
    title = {"subtype": "generate_session_title", "description": "mend the login page", "persist": True}
    written = run(
        lines=[
            {"type": "control_request", "request_id": "r1", "request": title},
            {"type": "control_request", "request_id": "r2", "request": {"subtype": "get_context_usage"}},
            prompt("go"),
            prompt("/compact"),
        ]
    )
    assert {"title", "count_tokens", "compact"} <= {request.side for request in scripted_model.side_requests}
    assert "Scripted session" in json.dumps(written)
    assert [frame.get("subtype") for frame in written].count("compact_boundary") == 1
    assert [request.last_user_text for request in scripted_model.requests] == ["go"]
    scripted_model.assert_done()
