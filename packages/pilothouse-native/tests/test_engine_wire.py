"""The frames of the engine, against those that the CLI is known to say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from native_fixtures import Echo, hosted, kind_of, talk

from pilothouse_testing import ScriptedModel
from pilothouse_testing.script import BrokenSse, Hang, HttpError, StreamError, Text, Thinking, ToolUse

pytestmark = pytest.mark.anyio

U1, U2 = (f"{n}1111111-1111-4111-8111-111111111111" for n in "12")


async def test_partial_messages_come_in_the_order_of_the_cli(scripted_model: ScriptedModel) -> None:
    scripted_model.reply([Thinking("Hm."), Text("One two three.", chunks=2)])
    async with hosted(scripted_model, "--include-partial-messages") as host:
        await host.prompt("Count.", uuid=U1)
        result = await host.result()
        done = await host.next()
    assert host.kinds() == [
        "command_lifecycle/queued",
        "command_lifecycle/started",
        "system/init",
        "system/status",
        "stream_event/message_start",
        "stream_event/content_block_start",
        *["stream_event/content_block_delta"] * 2,
        "assistant",
        "stream_event/content_block_stop",
        "stream_event/content_block_start",
        *["stream_event/content_block_delta"] * 2,
        "assistant",
        "stream_event/content_block_stop",
        "stream_event/message_delta",
        "stream_event/message_stop",
        "result/success",
        "command_lifecycle/completed",
    ]
    assert done is not None
    assert done["command_uuid"] == U1
    assert result["user_message_uuids"] == [U1]
    named = [kind_of(f) for f in host.frames if "user_message_uuids" in f]
    assert named == ["system/init", "system/status", "stream_event/message_start", "assistant", "result/success"]


async def test_a_result_has_the_fields_of_the_cli(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Hello.")
    _, result = await talk(scripted_model, "Hi")
    about = {key: result[key] for key in ("subtype", "is_error", "num_turns", "result", "stop_reason")}
    assert about == {
        "subtype": "success", "is_error": False, "num_turns": 1, "result": "Hello.", "stop_reason": "end_turn",
    }  # fmt: skip
    assert result["terminal_reason"] == "completed"
    assert result["api_error_status"] is None
    tokens = result["usage"]["input_tokens"], result["usage"]["output_tokens"]
    entry = result["modelUsage"]["claude-opus-5-5"]
    assert (entry["inputTokens"], entry["outputTokens"]) == tokens
    assert result["total_cost_usd"] == pytest.approx((tokens[0] * 4 + tokens[1] * 20) / 1_000_000)


async def test_an_unknown_model_has_no_price_and_says_so(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Hello.")
    _, result = await talk(scripted_model, "Hi", "--model=my-own-model")
    assert result["total_cost_usd"] == 0
    assert result["modelUsage"]["my-own-model"]["costBasis"] == "unknown"


async def test_turns_go_one_after_the_other_and_costs_add_up(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("one")
    scripted_model.reply("two")
    async with hosted(scripted_model) as host:
        await host.prompt("a", uuid=U1)
        await host.prompt("b", uuid=U2)
        first, second = await host.result(), await host.result()
    assert (first["result"], second["result"]) == ("one", "two")
    assert second["total_cost_usd"] == pytest.approx(2 * first["total_cost_usd"])
    assert second["usage"] == first["usage"]
    roles = [message["role"] for message in scripted_model.requests[1].messages]
    assert roles == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (400, "unknown", "API Error: 400"),
        (401, "authentication_failed", "Failed to authenticate."),
        (403, "authentication_failed", "Failed to authenticate."),
        (404, "model_not_found", "API Error: 404"),
        (413, "invalid_request", "Request too large"),
        (429, "rate_limit", "API Error: Request rejected (429)"),
        (500, "server_error", "API Error: 500"),
        (529, "server_error", "API Error: 529"),
    ],
)
async def test_failures_of_the_api_are_reported_like_the_cli(
    scripted_model: ScriptedModel, status: int, error: str, text: str
) -> None:
    scripted_model.default = HttpError(status)
    host, result = await talk(scripted_model, "Hi")
    assistant = next(f for f in host.frames if f["type"] == "assistant")
    assert assistant["is_api_error_message"] is True
    assert (assistant["error"], assistant["api_error_status"]) == (error, status)
    assert (result["subtype"], result["is_error"], result["api_error_status"]) == ("success", True, status)
    assert result["result"].startswith(text)


async def test_retries_are_reported_and_bounded(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(HttpError(529))
    scripted_model.reply("There.")
    host, result = await talk(scripted_model, "Hi", CLAUDE_CODE_MAX_RETRIES="1")
    retry = next(f for f in host.frames if kind_of(f) == "system/api_retry")
    about = {key: retry[key] for key in ("attempt", "max_retries", "error_status", "error")}
    assert about == {"attempt": 1, "max_retries": 1, "error_status": 529, "error": "overloaded"}
    assert result["result"] == "There."


async def test_another_model_steps_in(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(HttpError(529))
    scripted_model.reply("There.")
    host, result = await talk(scripted_model, "Hi", "--model=opus", "--fallback-model=sonnet")
    assert result["result"] == "There."
    assert [r.model for r in scripted_model.requests] == ["claude-opus-5-5", "claude-sonnet-5-5"]
    assert "system/model_fallback" in host.kinds()


# Under trio: when the API fails in the middle, the client drops its own generators half-read.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "failure", [StreamError(), BrokenSse("bad_json"), BrokenSse("no_message_stop"), BrokenSse("cut")]
)
async def test_a_stream_that_breaks_off_is_taken_back(scripted_model: ScriptedModel, failure: Any) -> None:
    scripted_model.reply(failure)
    scripted_model.reply("Whole.")
    host, result = await talk(scripted_model, "Hi", "--include-partial-messages")
    assert result["result"] == "Whole."
    abandoned = [f["abandoned_blocks"] for f in host.frames if f.get("abandoned_blocks")]
    assert [left["from_block_index"] for left in abandoned] == [0]
    assert scripted_model.requests[1].stream is False
    output = [f for f in host.frames if f["type"] == "assistant"]
    taken_back = {name for frame in output for name in frame.get("supersedes", ())}
    left = [f["message"]["content"][0]["text"] for f in output if f["uuid"] not in taken_back]
    assert left == ["Whole."]
    assert scripted_model.requests[1].messages == scripted_model.requests[0].messages


@pytest.mark.parametrize("failure", [BrokenSse("empty"), BrokenSse("html"), BrokenSse("no_response")])
async def test_no_reply_at_all_is_an_error(scripted_model: ScriptedModel, failure: Any) -> None:
    scripted_model.default = failure
    _, result = await talk(scripted_model, "Hi")
    assert result["is_error"] is True
    assert result["api_error"] == "connection_failed"


async def test_a_call_with_broken_json_is_not_run(scripted_model: ScriptedModel) -> None:
    echo = Echo()
    scripted_model.reply([ToolUse("Echo", '{"text": "half')])
    scripted_model.reply("Never mind.")
    _, result = await talk(scripted_model, "Hi", "--allowedTools=Echo", tools={"Echo": echo})
    assert (echo.seen, result["result"]) == ([], "Never mind.")


async def test_an_interrupt_keeps_what_had_come(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Hang("w0 w1 w2 "))
    scripted_model.reply("After.")
    async with hosted(scripted_model, "--include-partial-messages") as host:
        await host.prompt("Go", uuid=U1)
        await host.until(lambda f: kind_of(f) == "stream_event/content_block_delta")
        answer = await host.ask("interrupt")
        assert answer["response"] == {"still_queued": []}
        result = await host.result()
        after = [f for f in host.frames if f["type"] in {"assistant", "user"}]
        assert after[0]["aborted"] is True
        assert after[0]["message"]["content"][0]["text"].startswith("w0")
        assert after[1]["message"]["content"][0]["text"] == "[Request interrupted by user]"
        assert (result["subtype"], result["terminal_reason"]) == ("error_during_execution", "aborted_streaming")
        assert result["num_turns"] == 2
        assert (await host.next() or {})["state"] == "cancelled"
        await host.prompt("And now?")
        assert (await host.result())["result"] == "After."
    texts = json.dumps(scripted_model.requests[1].messages)
    assert "w0" in texts
    assert "[Request interrupted by user]" in texts


async def test_an_idle_interrupt_changes_nothing(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Here.")
    async with hosted(scripted_model) as host:
        assert (await host.ask("interrupt"))["response"] == {"still_queued": []}
        await host.prompt("Hi")
        assert (await host.result())["result"] == "Here."


async def test_queued_prompts_can_be_cancelled(scripted_model: ScriptedModel) -> None:
    scripted_model.default = Hang()
    async with hosted(scripted_model) as host:
        await host.prompt("one", uuid=U1)
        await host.prompt("two", uuid=U2)
        await host.until(lambda f: kind_of(f) == "system/init")
        while (await host.ask("interrupt"))["response"]["still_queued"] != [U2]:
            pass
        answer = await host.ask("interrupt", cancel_queued=True)
        assert answer["response"]["still_queued"] == []
        await host.transport.end_input()
        await host.rest()
    states = [(f["command_uuid"], f["state"]) for f in host.frames if f["type"] == "command_lifecycle"]
    assert (U2, "completed") not in states
    assert (U1, "cancelled") in states


async def test_the_last_result_is_the_exit_code(scripted_model: ScriptedModel) -> None:
    scripted_model.reply(HttpError(400))
    async with hosted(scripted_model) as host:
        await host.prompt("Hi")
        await host.result()
        await host.transport.end_input()
        await host.rest()
        assert (await host.transport.exit_info()).exit_code == 1


@pytest.mark.parametrize("line", [b"{this is not json\n", b'{"type": "user"}\n', b'{"type":"user","message":{}}\n'])
async def test_a_line_that_cannot_be_understood_ends_it(scripted_model: ScriptedModel, line: bytes) -> None:
    async with hosted(scripted_model) as host:
        await host.transport.send(line)
        await host.rest()
        ending = await host.transport.exit_info()
    assert ending.exit_code == 1
    assert ending.stderr


async def test_what_is_not_known_is_passed_over(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Hello.")
    async with hosted(scripted_model) as host:
        await host.transport.send(b'\n[1]\n"x"\n{"type": "strange"}\n{"type": "control_response"}\n')
        await host.send({"type": "control_response", "response": {"subtype": "success", "request_id": "nobody"}})
        await host.prompt("Hi")
        assert (await host.result())["result"] == "Hello."


async def test_a_result_names_its_prompt_and_no_single_request(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Hello.")
    async with hosted(scripted_model) as host:
        await host.prompt("Hi", uuid=U1)
        result = await host.result()
    assert result["user_message_uuids"] == [U1]
    assert "request_id" not in result
    assert any("request_id" in frame for frame in host.frames if frame["type"] == "assistant")


async def test_an_unknown_request_is_refused_and_never_left_open(scripted_model: ScriptedModel) -> None:
    async with hosted(scripted_model) as host:
        answer = await host.ask("set_color", color="blue")
        assert (answer["subtype"], answer["error_code"]) == ("error", "unsupported_request")
        assert (await host.ask("set_permission_mode", mode="bogus"))["error_code"] == "invalid_mode"
        assert (await host.ask("set_permission_mode", mode="bypassPermissions"))["error_code"] == "bypass_not_launched"
        assert "error" in await host.ask("mcp_reconnect", serverName="nope")
        assert "error" in await host.ask("read_file", path="not-there")


async def test_requests_that_change_the_session(scripted_model: ScriptedModel) -> None:
    scripted_model.reply("Hello.")
    async with hosted(scripted_model, "--max-thinking-tokens=0") as host:
        assert (await host.ask("set_model", model="haiku"))["response"] == {"model": "claude-haiku-5-5"}
        assert (await host.ask("set_permission_mode", mode="manual"))["response"] == {"mode": "default"}
        await host.ask("set_max_thinking_tokens", max_thinking_tokens=2048)
        await host.ask("apply_flag_settings", settings={"effortLevel": "low"})
        await host.prompt("Hi")
        await host.result()
        cost = (await host.ask("get_session_cost"))["response"]["text"]
        usage = (await host.ask("get_context_usage"))["response"]
    body = scripted_model.requests[0].body
    assert (body["model"], body["output_config"]) == ("claude-haiku-5-5", {"effort": "low"})
    assert body["thinking"] == {"type": "adaptive"}
    assert cost.startswith("Estimated cost: $0.0")
    assert usage["totalTokens"] > 0


async def test_end_session_ends_it(scripted_model: ScriptedModel) -> None:
    scripted_model.default = Hang()
    async with hosted(scripted_model) as host:
        await host.prompt("Hi")
        await host.until(lambda f: kind_of(f) == "system/init")
        await host.ask("end_session")
        await host.rest()
        assert (await host.transport.exit_info()).exit_code == 0


ODD: tuple[Any, ...] = ({}, [], "x", 5, True, {"a": {"b": [None]}}, [[1]])
REQUESTS = {
    "apply_flag_settings": "settings",
    "cancel_async_message": "message_uuid",
    "initialize": "hooks systemPrompt appendSystemPrompt sdkMcpServers sdkMcpServerConfigs mcpServers jsonSchema title",
    "mcp_message": "message server_name",
    "mcp_reconnect": "serverName",
    "mcp_set_servers": "servers",
    "mcp_toggle": "serverName enabled",
    "read_file": "path max_bytes",
    "rename_session": "title",
    "set_max_thinking_tokens": "max_thinking_tokens",
    "set_model": "model",
    "set_permission_mode": "mode",
    "totally_unknown": "x",
}


async def test_odd_requests_are_answered_and_do_no_harm(scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Still here."
    async with hosted(scripted_model) as host:
        for subtype, keys in REQUESTS.items():
            for key in keys.split():
                for value in ODD:
                    answer = await host.ask(subtype, **{key: value})
                    assert answer["subtype"] in {"success", "error"}
                    assert answer["subtype"] == "success" or answer["error"]
        await host.send({"type": "control_request"}, {"type": "control_request", "request_id": 7, "request": [1]})
        await host.ask("initialize")
        await host.ask("mcp_set_servers", servers={})
        await host.ask("set_model", model=None)
        await host.prompt("Are you there?")
        while (frame := await host.next()) is not None and frame["type"] != "result":
            pass  # servers of odd names are asked, and never answer
    assert frame is not None
    assert frame["result"] == "Still here."


@pytest.mark.parametrize("content", [[], [1], [["x"]], {}, None, 5])
async def test_a_prompt_of_an_odd_shape_ends_it(scripted_model: ScriptedModel, content: Any) -> None:
    async with hosted(scripted_model) as host:
        await host.prompt(content)
        await host.rest()
        assert (await host.transport.exit_info()).exit_code == 1
