"""The same conversation with the real CLI and with the engine: the same frames, in the same order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest
from native_fixtures import ARGV, LIMIT, Host, hosted, kind_of

from pilothouse.options import Invocation
from pilothouse.transports import CliTransport
from pilothouse_testing import HttpError, ScriptedModel, Steps, Text, ToolUse

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]

UUID = "11111111-1111-4111-8111-111111111111"
ASKED = ("--permission-prompt-tool=stdio",)
SCHEMA = '--json-schema={"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'

OF_RESULTS = """
begun_message_ids fast_mode_disabled_reason fast_mode_state first_content_frame_ms first_request_cache_read_input_tokens
first_request_input_tokens queued_turn_count request_sent_wall_ms safety_stops subagent_stats time_to_request_ms
ttft_stream_ms
"""
OF_INIT = """
analytics_disabled fast_mode_disabled_reason fast_mode_state memory_paths messaging_socket_path per_turn_effort_active
product_feedback_disabled served_by_anthropic terminal_slash_commands ultrathink_available ultrathink_typed_raises
view_mode
"""
LEFT_OUT = {
    "result": frozenset(OF_RESULTS.split()),
    "stream_event": frozenset({"owed_rows", "thinking_display"}),
    "system": frozenset(OF_INIT.split()),
}
"""Fields of the CLI that the engine does not say, by type of frame: what they tell of does not exist here."""


class Case(NamedTuple):
    """A conversation: what the model says, the flags, and how the host answers."""

    replies: Callable[[], Sequence[Any]]
    flags: tuple[str, ...] = ()
    answer: Mapping[str, Any] | None = None


def call(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


CASES = {
    "text": Case(lambda: ["Hello there."], ("--include-partial-messages",)),
    "tool": Case(lambda: [Steps([Text("Run."), call("echo hi")], "Done.")], ("--allowedTools=Bash",)),
    "failing tool": Case(lambda: [Steps([call("exit 3")], "Done.")], ("--allowedTools=Bash",)),
    "denied": Case(lambda: [Steps([call("touch x")], "Done.")], ASKED, {"behavior": "deny", "message": "no"}),
    "allowed": Case(lambda: [Steps([call("touch x")], "Done.")], ASKED, {"behavior": "allow"}),
    "nobody to ask": Case(lambda: [Steps([call("touch x")], "Done.")]),
    "bad request": Case(lambda: [HttpError(400)]),
    "max turns": Case(lambda: [[call("echo a")]], ("--max-turns=1", "--allowedTools=Bash")),
    "structured": Case(lambda: [Steps(*([ToolUse("StructuredOutput", {"a": a})] for a in ("x", 1)))], (SCHEMA,)),
}


@asynccontextmanager
async def real(cli: str, model: ScriptedModel, *flags: str) -> AsyncGenerator[Host]:
    """The real CLI, and its host."""
    project = model.home / "project"
    project.mkdir(exist_ok=True)
    transport = CliTransport()
    with anyio.fail_after(2 * LIMIT):
        await transport.start(Invocation(cli=cli, argv=(*ARGV, *flags), env=model.env(max_retries=0), cwd=str(project)))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(transport.serve)
                yield Host(transport)
                group.cancel_scope.cancel()
        finally:
            await transport.close()


async def converse(host: Host, model: ScriptedModel, case: Case) -> list[dict[str, Any]]:
    for reply in case.replies():
        model.reply(reply)
    await host.ask("initialize")
    await host.prompt("go", uuid=UUID)
    while (frame := await host.next()) is not None and frame["type"] != "result":
        if frame["type"] == "control_request":
            assert case.answer is not None
            await host.answer(frame, case.answer)
    return [frame for frame in host.frames if frame["type"] != "control_response"]


def meaning(frame: Mapping[str, Any]) -> Any:
    """What of a frame has to be the same, word for word."""
    match frame["type"]:
        case "assistant":
            return [block.get("text") or block.get("name") for block in frame["message"]["content"]]
        case "user":
            return [block["type"] for block in frame["message"]["content"]]
        case "result":
            names = ("subtype", "is_error", "num_turns", "stop_reason", "terminal_reason", "api_error_status")
            reported = {name: frame.get(name) for name in names}
            kept = ("input_tokens", "output_tokens")
            tokens = {name: frame["usage"][name] for name in kept}
            return reported | tokens | {"denied": [denial["tool_input"] for denial in frame["permission_denials"]]}
        case _:
            return None


@pytest.mark.sample(2)
@pytest.mark.requirement("E83")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", CASES)
async def test_the_engine_sends_what_the_cli_sends(scripted_model: ScriptedModel, real_cli: str, name: str) -> None:
    case = CASES[name]
    async with real(real_cli, scripted_model, *case.flags) as host:
        theirs = await converse(host, scripted_model, case)
    (scripted_model.home / "project" / "x").unlink(missing_ok=True)
    async with hosted(scripted_model, *case.flags) as host:
        ours = await converse(host, scripted_model, case)
    assert [kind_of(frame) for frame in ours] == [kind_of(frame) for frame in theirs]
    for mine, frame in zip(ours, theirs, strict=True):
        missing = set(frame) - set(mine)
        assert missing <= LEFT_OUT.get(frame["type"], frozenset()), kind_of(frame)
        if not mine.get("is_api_error_message"):
            assert meaning(mine) == meaning(frame)
