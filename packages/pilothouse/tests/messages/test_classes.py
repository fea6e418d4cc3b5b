"""The classes as users see them: patterns, views, equality, repr, exports."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from pilothouse import messages

EXPORTED = {name: getattr(messages, name) for name in dir(messages) if name != "Any"}
"""With those that are loaded on demand."""
RESULT: dict[str, Any] = {
    "duration_ms": 156,
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "duration_api_ms": 27,
    "num_turns": 2,
    "result": "done",
    "session_id": "s",
    "total_cost_usd": 0.5,
    "stop_reason": "end_turn",
    "terminal_reason": "completed",
    "usage": {"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5},
    "modelUsage": {"opus": {"inputTokens": 10, "outputTokens": 3, "cacheReadInputTokens": 4, "costUSD": 0.5}},
    "permission_denials": [{"tool_name": "Bash", "tool_use_id": "t", "tool_input": {"command": "rm"}}],
    "origin": {"kind": "peer", "from": "other"},
    "deferred_tool_use": {"id": "d", "name": "add", "input": {"a": 1}},
    "user_message_uuids": ["u1", "u2"],
}
ASSISTANT: dict[str, Any] = {
    "type": "assistant",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "opus",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "Hello "},
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            {"type": "text", "text": "world"},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    },
    "parent_tool_use_id": "p",
    "session_id": "s",
    "uuid": "u",
}


@pytest.mark.requirement("L32", "L36", "L37", "L38", "G37")
def test_assistant_views() -> None:
    message = messages.from_dict(ASSISTANT)
    assert isinstance(message, messages.AssistantMessage)
    assert [type(block).__name__ for block in message.content] == [
        "ThinkingBlock",
        "TextBlock",
        "ToolUseBlock",
        "TextBlock",
    ]
    assert message.content[0] == messages.ThinkingBlock("hm", "c2ln")
    assert (message.text, message.thinking) == ("Hello world", "hm")
    assert message.tool_uses == [messages.ToolUseBlock("t1", "Bash", {"command": "ls"})]
    assert (message.model, message.message_id, message.stop_reason) == ("opus", "msg_1", "tool_use")
    assert message.usage is not None
    assert message.usage.total_tokens == 3
    assert (message.type, message.session_id, message.uuid, message.parent_tool_use_id) == ("assistant", "s", "u", "p")
    assert (message.error, message.aborted, message.is_api_error_message) == (None, False, False)


@pytest.mark.requirement("L33", "L39", "G37")
def test_user_views() -> None:
    message = messages.from_dict(
        {
            "type": "user",
            "message": {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "no such file", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "ok"}]},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
                ],
            },
            "isReplay": True,
            "isSynthetic": True,
            "tool_use_result": {"stdout": "x"},
            "origin": {"kind": "human"},
        }
    )
    assert isinstance(message, messages.UserMessage)
    failed, good = message.tool_results
    assert (failed.is_error, failed.text) == (True, "no such file")
    assert (good.is_error, good.text) == (None, "ok")
    assert isinstance(message.content[2], messages.ImageBlock)
    assert (message.is_replay, message.is_synthetic, message.tool_use_result) == (True, True, {"stdout": "x"})
    assert message.origin == messages.Origin("human")


@pytest.mark.requirement("L34", "E14")
def test_result_views() -> None:
    message = messages.from_dict(RESULT)
    assert isinstance(message, messages.ResultMessage)
    assert (message.total_cost_usd, message.num_turns, message.duration_ms, message.session_id) == (0.5, 2, 156, "s")
    assert message.usage.total_input_tokens == 19
    assert message.model_usage["opus"].cache_read_input_tokens == 4
    assert message.model_usage["opus"].cost_usd == 0.5
    assert message.permission_denials[0].tool_input == {"command": "rm"}
    assert message.origin == messages.Origin("peer", sender="other")
    assert message.deferred_tool_use == messages.DeferredToolUse("d", "add", {"a": 1})
    assert message.user_message_uuids == ("u1", "u2")
    assert (message.structured_output, message.errors, message.api_error_status) == (None, [], None)


@pytest.mark.requirement("L31")
def test_patterns_read_well() -> None:
    def describe(message: messages.Message) -> str:
        match message:
            case messages.InitMessage(model=str(model), tools=tools):
                return f"init {model} {len(tools)}"
            case messages.AssistantMessage(content=[messages.ThinkingBlock(thought), *_]):
                return f"thinks {thought}"
            case messages.AssistantMessage(content=[messages.TextBlock(text=text), *_]):
                return f"says {text}"
            case messages.ResultMessage(is_error=False, result=str(result)):
                return f"result {result}"
            case messages.SystemMessage(subtype=subtype):
                return f"system {subtype}"
            case messages.UnknownMessage(type=kind):
                return f"unknown {kind}"
            case _:
                return "other"

    lines: list[dict[str, Any]] = [
        {"type": "system", "subtype": "init", "model": "opus", "tools": ["Bash"], "session_id": "s"},
        ASSISTANT,
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "hi"}]}},
        RESULT,
        {"type": "system", "subtype": "weather"},
        {"type": "hologram"},
        {"type": "prompt_suggestion", "suggestion": "x"},
    ]
    assert [describe(messages.from_dict(line)) for line in lines] == [
        "init opus 1", "thinks hm", "says hi", "result done", "system weather", "unknown hologram", "other",
    ]  # fmt: skip


@pytest.mark.parametrize("subtype", sorted(messages.SYSTEM_SUBTYPES))
def test_every_subtype_has_its_class(subtype: str) -> None:
    line = json.dumps({"type": "system", "subtype": subtype, "session_id": "s", "new_field": 1}).encode()
    message = messages.decode(line)
    assert type(message) is messages.SYSTEM_SUBTYPES[subtype]
    assert isinstance(message, messages.SystemMessage)
    assert (message.type, message.subtype, message.session_id) == ("system", subtype, "s")
    assert message.raw["new_field"] == 1
    assert json.loads(messages.encode(message.replace()))["subtype"] == subtype
    odd = messages.decode(json.dumps({"subtype": subtype, "type": "system", "session_id": ["odd"]}).encode())
    assert type(odd) is type(message)


def test_documented_subtypes_are_all_there() -> None:
    documented = """
        api_retry background_tasks_changed commands_changed compact_boundary control_request_progress
        elicitation_complete files_persisted hook_progress hook_response hook_started informational init
        local_command_output memory_recall mirror_error model_fallback model_refusal_fallback
        model_refusal_no_fallback notification permission_denied plugin_install session_state_changed
        session_title_changed session_writes_lost status task_notification task_progress task_started task_updated
        thinking_tokens ui_invalidate worker_shutting_down
    """
    assert set(documented.split()) <= set(messages.SYSTEM_SUBTYPES)


def test_subtypes_with_structure() -> None:
    compact = messages.from_dict(
        {"type": "system", "subtype": "compact_boundary", "compact_metadata": {"trigger": "auto", "pre_tokens": 9}}
    )
    assert isinstance(compact, messages.CompactBoundaryMessage)
    assert (compact.compact_metadata.trigger, compact.compact_metadata.pre_tokens) == ("auto", 9)
    updated = messages.from_dict({"type": "system", "subtype": "task_updated", "patch": {"status": "killed"}})
    assert isinstance(updated, messages.TaskUpdatedMessage)
    assert updated.status == "killed"
    limit = messages.from_dict(
        {
            "type": "rate_limit_event",
            "rate_limit_info": {"status": "rejected", "resetsAt": 1795291985, "errorCode": "x"},
        }
    )
    assert isinstance(limit, messages.RateLimitEvent)
    assert (limit.rate_limit_info.resets_at, limit.rate_limit_info.error_code) == (1795291985, "x")


@pytest.mark.parametrize(
    ("block", "cls"),
    [
        ({"type": "redacted_thinking", "data": "x"}, messages.RedactedThinkingBlock),
        ({"type": "server_tool_use", "id": "i", "name": "web_search", "input": {}}, messages.ServerToolUseBlock),
        ({"type": "web_search_tool_result", "tool_use_id": "i", "content": []}, messages.ServerToolResultBlock),
        ({"type": "code_execution_tool_result", "tool_use_id": "i", "content": {}}, messages.ServerToolResultBlock),
        ({"type": "mcp_tool_use", "id": "i", "name": "n", "server_name": "s", "input": {}}, messages.McpToolUseBlock),
        ({"type": "mcp_tool_result", "tool_use_id": "i", "content": "x"}, messages.McpToolResultBlock),
        ({"type": "document", "source": {"type": "text", "data": "x"}}, messages.DocumentBlock),
        ({"type": "search_result", "source": "s", "title": "t", "content": []}, messages.SearchResultBlock),
        ({"type": "container_upload", "file_id": "f"}, messages.ContainerUploadBlock),
        ({"type": "tool_reference", "tool_name": "n"}, messages.ToolReferenceBlock),
    ],
)
def test_other_blocks(block: dict[str, Any], cls: type) -> None:
    message = messages.decode(json.dumps({"type": "assistant", "message": {"content": [block]}}).encode())
    assert isinstance(message, messages.AssistantMessage)
    assert isinstance(message.content[0], cls)
    assert message.content[0].type == block["type"]


@pytest.mark.requirement("G36")
@pytest.mark.parametrize(
    ("event", "cls"),
    [
        ({"type": "message_start", "message": {"id": "m", "content": []}}, messages.MessageStart),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, messages.ContentBlockStart),
        ({"type": "content_block_stop", "index": 1}, messages.ContentBlockStop),
        ({"type": "message_delta", "delta": {"stop_reason": "x"}, "usage": {}}, messages.MessageDelta),
        ({"type": "message_stop"}, messages.MessageStop),
        ({"type": "ping"}, messages.ApiPing),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, messages.ApiErrorEvent),
    ],
)  # fmt: skip
def test_events(event: dict[str, Any], cls: type) -> None:
    message = messages.from_dict({"type": "stream_event", "event": event, "api_message_id": "m"})
    assert isinstance(message, messages.StreamEvent)
    assert type(message.event) is cls
    assert message.event.type == event["type"]
    assert (message.text_delta, message.thinking_delta) == (None, None)


def test_deltas() -> None:
    def delta_of(delta: dict[str, Any]) -> messages.StreamEvent:
        event = {"type": "content_block_delta", "index": 0, "delta": delta}
        message = messages.from_dict({"type": "stream_event", "event": event})
        assert isinstance(message, messages.StreamEvent)
        return message

    assert delta_of({"type": "text_delta", "text": "a"}).text_delta == "a"
    assert delta_of({"type": "text_delta", "text": ""}).text_delta == ""
    assert delta_of({"type": "thinking_delta", "thinking": "b"}).thinking_delta == "b"
    for delta, expected in (
        ({"type": "input_json_delta", "partial_json": "{"}, messages.WireInputJsonDelta("{")),
        ({"type": "signature_delta", "signature": "s"}, messages.WireSignatureDelta("s")),
        ({"type": "citations_delta", "citation": {"type": "c"}}, messages.WireCitationsDelta({"type": "c"})),
    ):
        message = delta_of(delta)
        assert isinstance(message.event, messages.ContentBlockDelta)
        assert message.event.delta == expected
        assert message.text_delta is None


def test_equality_is_of_the_meaning() -> None:
    first = messages.decode(b'{"type":"prompt_suggestion","suggestion":"a","uuid":"u"}')
    assert first == messages.decode(b'{ "uuid": "u", "suggestion": "a", "type": "prompt_suggestion" }')
    assert first != messages.decode(b'{"type":"prompt_suggestion","suggestion":"b","uuid":"u"}')
    assert first != messages.decode(b'{"type":"tool_use_summary","summary":"a","uuid":"u"}')
    assert first != {"type": "prompt_suggestion"}
    assert messages.UnknownBlock("a", 1) != messages.UnknownApiEvent("a", 1)
    assert messages.UnknownBlock("a", {"b": 1}) == messages.UnknownBlock("a", {"b": 1})


def test_messages_are_immutable_and_replace_drops_the_line() -> None:
    message = messages.decode(b'{"type":"prompt_suggestion","suggestion":"a","later":1}')
    with pytest.raises(AttributeError):
        message.session_id = "x"  # pyright: ignore[reportAttributeAccessIssue]
    changed = message.replace(session_id="x")
    assert (changed.session_id, message.session_id) == ("x", None)
    assert json.loads(messages.encode(changed)) == {"type": "prompt_suggestion", "suggestion": "a", "session_id": "x"}


def test_built_by_hand_messages_are_complete_on_the_wire() -> None:
    call = messages.ToolUseBlock("t", "ping")
    written = json.loads(messages.encode(messages.AssistantMessage.of("hi", call, model="m", session_id="s", uuid="u")))
    assert written["message"]["role"] == "assistant"
    assert written["message"]["content"][1] == {"type": "tool_use", "id": "t", "name": "ping", "input": {}}
    assert written["parent_tool_use_id"] is None
    assert json.loads(messages.encode(messages.UserMessage.of("hi"))) == {
        "type": "user",
        "message": {"role": "user", "content": "hi"},
        "parent_tool_use_id": None,
        "session_id": None,
    }
    result = json.loads(messages.encode(messages.ResultMessage(result="ok", session_id="s")))
    assert {"subtype", "is_error", "num_turns", "duration_ms", "usage", "total_cost_usd", "modelUsage"} <= set(result)
    assert messages.from_dict(result) == messages.ResultMessage(result="ok", session_id="s")


def test_repr_is_short_and_readable() -> None:
    block = messages.TextBlock("Hello")
    assert repr(messages.AssistantMessage.of(block, model="m")) == (
        "AssistantMessage(content=[TextBlock(text='Hello')], model='m')"
    )
    assert repr(messages.decode(b'{"type":"prompt_suggestion","suggestion":"a","uuid":"u"}')) == (
        "PromptSuggestionMessage(suggestion='a')"
    )
    huge = messages.AssistantMessage.of(*["x" * 100_000] * 50)
    assert len(repr(huge)) < 500
    assert "50 in all" in repr(huge)
    assert repr(messages.UnknownBlock("dream", {"a": 1})) == "UnknownBlock('dream', {'a': 1})"
    assert len(repr(messages.ToolUseBlock("t", "n", {str(n): "y" * 1000 for n in range(100)}))) < 200


def test_exports_are_documented() -> None:
    for name, value in EXPORTED.items():
        if inspect.isclass(value) and not name.startswith("_"):
            assert value.__doc__, name
            assert value.__module__.startswith("pilothouse.messages."), name
            if issubclass(value, messages.Message) and value is not messages.Message:
                assert (
                    ("Wire type" in value.__doc__) or ("ubtype `" in value.__doc__) or value is messages.UnknownMessage
                )
    public = {cls.__name__ for cls in (*messages.MESSAGE_TYPES.values(), *messages.SYSTEM_SUBTYPES.values())}
    assert public <= set(EXPORTED)


def test_structs_are_untracked_and_frozen() -> None:
    """They hold JSON only, so no cycle can form; the collector need not walk a million of them."""
    for value in EXPORTED.values():
        if inspect.isclass(value) and issubclass(value, msgspec.Struct):
            assert value.__struct_config__.frozen, value
            assert value.__struct_config__.gc is False, value


NO_DESCRIPTORS = """
import os, resource
from pilothouse import messages
line = b'{"type":"system","subtype":"thinking_tokens","estimated_tokens":5}'
plain = messages.decode(b'{"type":"system","subtype":"of tomorrow"}') if LOADED else None
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
first = messages.decode(line)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
print(type(first).__name__, first.raw["estimated_tokens"], type(messages.decode(line)).__name__)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize(("loaded", "first"), [(True, "ThinkingTokensMessage"), (False, "SystemMessage")])
def test_a_rare_subtype_is_read_without_descriptors_too(loaded: bool, first: str) -> None:
    """Its classes are loaded when they are first needed; where they cannot be, the stream goes on without them."""
    code = NO_DESCRIPTORS.replace("LOADED", str(loaded))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [first, "5", "ThinkingTokensMessage"]


def test_the_cache_hit_rate_is_a_part_of_all_input() -> None:
    usage = messages.ModelUsage(input_tokens=1, cache_creation_input_tokens=2, cache_read_input_tokens=9)
    assert (usage.total_input_tokens, usage.cache_hit_rate) == (12, 0.75)
    assert messages.ModelUsage().cache_hit_rate == 0
