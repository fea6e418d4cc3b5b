"""`pilothouse acp`, judged by the official client of the protocol, and side by side with claude-agent-acp."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from editor import COMMAND, make_environment
from npm_packages import find_node
from official_clients import install, run_client
from served_agents import ServedCli

from pilothouse_testing import Gate, HttpError, Pause, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.real_cli, pytest.mark.matrix]

QUESTION = {
    "question": "Which?",
    "header": "Color",
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
    "multiSelect": False,
}
ASK = ToolUse("AskUserQuestion", {"questions": [QUESTION]})
AGENT = ToolUse("Agent", {"description": "Look", "prompt": "look around", "subagent_type": "general-purpose"})
FORMS = {"elicitation": {"form": {}}}
CREATE = ToolUse("TaskCreate", {"subject": "Paint", "description": "d", "activeForm": "Painting"})
MCP_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    tool = {"name": "pick", "description": "Pick", "inputSchema": {"type": "object", "properties": {}}}
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": "picked"}]},
    }
    if asked.get("id") is not None:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked["method"], {})}
        print(json.dumps(answer), flush=True)
"""


def results(request: RecordedRequest) -> Text:
    return Text(" | ".join(result.text for result in request.tool_results))


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


def judge(
    served: ServedCli,
    *steps: Sequence[Any],
    command: Sequence[str] = COMMAND,
    permission: str = "allow_once",
    **plan: Any,
) -> dict[str, Any]:
    """Open a session, take the steps, and return what the official client has seen."""
    # Tasks are a feature that the CLI offers to some models only.
    env = make_environment(served, CLAUDE_CODE_EXECUTABLE=served.cli, CLAUDE_CODE_ENABLE_TODO_TOOLS="1")
    opened = ["session/new", {"cwd": str(served.cwd), "mcpServers": []}]
    given = {"command": list(command), "env": env, "permission": permission, "steps": [opened, *steps], **plan}
    seen = run_client("acp_client.mjs", json.dumps(given), folder="npm_acp")
    assert seen["code"] == 0 or command is not COMMAND
    return seen


def their_command() -> list[str]:
    """The command of claude-agent-acp."""
    script = install("npm_acp") / "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
    return [find_node()[0], str(script)]


def prompt(text: str = "hello", **options: Any) -> list[Any]:
    return ["session/prompt", {"sessionId": "$session", "prompt": [{"type": "text", "text": text}]}, options]


def pick(seen: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [update for update in seen["updates"] if update["sessionUpdate"] == kind]


def text(seen: dict[str, Any], kind: str = "agent_message_chunk") -> str:
    return "".join(update["content"]["text"] for update in pick(seen, kind))


def states(seen: dict[str, Any]) -> dict[str, str]:
    """The last state of each call."""
    found: dict[str, str] = {}
    for update in [*pick(seen, "tool_call"), *pick(seen, "tool_call_update")]:
        if "status" in update:
            found[update["toolCallId"]] = update["status"]
    return found


def test_text_and_thinking(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply([Thinking("hm"), Text("Hi.")])
    seen = judge(served_cli, prompt())
    assert seen["responses"][-1]["stopReason"] == "end_turn"
    assert (text(seen), text(seen, "agent_thought_chunk")) == ("Hi.", "hm")
    hello, opened, _ = seen["responses"]
    assert hello["agentCapabilities"]["sessionCapabilities"].keys() == {
        "list", "fork", "resume", "close", "delete", "additionalDirectories",
    }  # fmt: skip
    assert [option["id"] for option in opened["configOptions"]] == ["mode", "model", "effort"]
    assert opened["modes"]["currentModeId"] == "default"


def test_parallel_tools(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    (served_cli.cwd / "f").write_text("content")
    read = ToolUse("Read", {"file_path": str(served_cli.cwd / "f")})
    scripted_model.reply(Steps([read, bash("echo 1 > a"), bash("echo 2 > b")], results))
    seen = judge(served_cli, prompt())
    assert list(states(seen).values()) == ["completed"] * 3
    assert len(pick(seen, "tool_call")) == 3
    assert len(seen["asks"]) == 2
    assert {"a", "b", "f"} == {path.name for path in served_cli.cwd.iterdir()}


@pytest.mark.parametrize("permission", ["reject_once", "none of these"])
def test_deny(permission: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("touch a")], results))
    seen = judge(served_cli, prompt(), permission=permission)
    assert list(states(seen).values()) == ["failed"]
    assert not (served_cli.cwd / "a").exists()
    assert seen["responses"][-1]["stopReason"] == "end_turn"


def test_always(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    for name in ("a", "b"):
        file = str(served_cli.cwd / name)
        scripted_model.reply(Steps([ToolUse("Write", {"file_path": file, "content": name})], results))
    seen = judge(served_cli, prompt(), prompt(), permission="allow_always")
    assert len(seen["asks"]) == 1
    assert seen["asks"][0]["toolCall"]["content"][0] == {
        "type": "diff", "path": str(served_cli.cwd / "a"), "newText": "a",
    }  # fmt: skip
    assert {"a", "b"} == {path.name for path in served_cli.cwd.iterdir()}
    # To allow edits for good is a mode of Claude Code.
    assert [update["currentModeId"] for update in pick(seen, "current_mode_update")] == ["acceptEdits"]


@pytest.mark.parametrize("form", [None, {"question_0": "Red"}])
def test_question(form: Any, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ASK], results))
    seen = judge(served_cli, prompt(), capabilities=FORMS if form else {}, form=form)
    [ask] = seen["asks"]
    assert ("requestedSchema" in ask) is bool(form)
    assert '"Which?"="Red"' in text(seen)


def test_sub_agent(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.on("look around", reply=Steps([bash("echo 3 > c")], "seen"))
    scripted_model.default = "I was told."  # the end of a sub-agent in the background wakes the model
    scripted_model.on("hello", reply=Steps([AGENT], "done"))
    seen = judge(served_cli, prompt())
    agent, inner = pick(seen, "tool_call")
    assert inner["_meta"]["pilothouse"]["agent"] == agent["toolCallId"]
    assert (served_cli.cwd / "c").exists()
    assert "done" in text(seen)
    assert "seen" not in text(seen)


def test_plan(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    leave = ToolUse("ExitPlanMode", {"plan": "1. Paint"})
    scripted_model.reply(
        Steps([CREATE], [ToolUse("TaskUpdate", {"taskId": "1", "status": "completed"})], [leave], "ok")
    )
    mode = ["session/set_mode", {"sessionId": "$session", "modeId": "plan"}]
    seen = judge(served_cli, mode, prompt(), permission="allow_always")
    assert [update["entries"][0]["status"] for update in pick(seen, "plan")] == ["pending", "completed"]
    [ask] = seen["asks"]
    assert [option["kind"] for option in ask["options"]] == ["allow_always", "allow_once", "reject_once"]
    assert [update["currentModeId"] for update in pick(seen, "current_mode_update")] == ["plan", "acceptEdits"]


def test_error(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(HttpError(400, "bad"))
    scripted_model.reply("better")
    seen = judge(served_cli, prompt(), prompt())
    failed, done = seen["responses"][-2:]
    assert failed["error"]["code"] == -32603
    assert "400" in failed["error"]["message"]
    assert done["stopReason"] == "end_turn"
    assert text(seen) == "better"


def test_cancel(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply([Text("begun"), Pause(gate)])
    scripted_model.reply("again")
    seen = judge(served_cli, prompt(cancelOn="agent_message_chunk"), prompt())
    gate.open()
    assert [response["stopReason"] for response in seen["responses"][-2:]] == ["cancelled", "end_turn"]
    assert text(seen).endswith("again")


def test_load_list_fork_resume(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply([Text("ahoy"), bash("echo hi")])
    scripted_model.reply("one")
    scripted_model.reply("two")
    cwd = str(served_cli.cwd)
    same = {"sessionId": "$session", "cwd": cwd, "mcpServers": []}
    close = ["session/close", {"sessionId": "$session"}]
    seen = judge(
        served_cli, prompt("hello"), close, ["session/load", same], ["session/list", {"cwd": cwd}],
        close, ["session/resume", same], ["session/fork", same], prompt("more"),
    )  # fmt: skip
    assert not [response for response in seen["responses"] if "error" in response]
    replayed = [update["sessionUpdate"] for update in seen["updates"] if update["step"] == 3]
    assert replayed[:4] == ["user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update"]
    assert [each["title"] for each in seen["responses"][5]["sessions"]] == ["hello"]
    # A resumed session shows nothing of its history.
    assert {update["sessionUpdate"] for update in seen["updates"] if update["step"] == 6} <= {
        "available_commands_update"
    }
    opened, forked = seen["responses"][1]["sessionId"], seen["responses"][8]["sessionId"]
    assert opened != forked
    assert "ahoy" in str(scripted_model.requests[-1].messages)


def test_a_call_is_shown_while_its_input_is_written(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    write = ToolUse("Write", {"file_path": str(served_cli.cwd / "f"), "content": "a" * 4000})
    scripted_model.reply(Steps([Text("I write."), write], "done"))
    scripted_model.reply([Text("begun"), Pause(gate)])
    seen = judge(served_cli, prompt(), prompt(cancelOn="agent_message_chunk"))
    gate.open()
    begun, titled, whole, *_ = [
        update for update in seen["updates"] if update["sessionUpdate"] in ("tool_call", "tool_call_update")
    ]
    assert (begun["sessionUpdate"], begun["status"], begun["title"], begun["rawInput"]) == (
        "tool_call", "pending", "Write", {},
    )  # fmt: skip
    assert (titled["sessionUpdate"], titled["title"]) == ("tool_call_update", "Write f")
    assert titled["locations"] == [{"path": str(served_cli.cwd / "f")}]
    assert whole["rawInput"]["content"] == "a" * 4000
    assert whole["content"][0]["type"] == "diff"
    assert list(states(seen).values()) == ["completed"]


def test_usage_comes_during_a_turn_and_with_its_end(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([bash("echo 1")], [bash("echo 2")], "done"))
    scripted_model.reply(Steps([bash("echo 3")], [bash("echo 4")], "done"))
    seen = judge(served_cli, prompt(), prompt())
    for response in seen["responses"][-2:]:
        usage = response["usage"]
        assert usage["totalTokens"] == sum(count for name, count in usage.items() if name != "totalTokens") > 0
    second = [update["sessionUpdate"] for update in seen["updates"] if update["step"] == 2]
    assert second.index("usage_update") < len(second) - 1 - second[::-1].index("tool_call_update")


def test_delete(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply("ahoy")
    listing = ["session/list", {"cwd": str(served_cli.cwd)}]
    delete = ["session/delete", {"sessionId": "$session"}]
    unknown = ["session/delete", {"sessionId": "no-such-session"}]
    seen = judge(served_cli, prompt(), listing, delete, listing, delete, unknown, prompt())
    assert seen["responses"][0]["agentCapabilities"]["sessionCapabilities"]["delete"] == {}
    assert [len(seen["responses"][at]["sessions"]) for at in (3, 5)] == [1, 0]
    assert [seen["responses"][at] for at in (4, 6, 7)] == [{}, {}, {}]
    assert seen["responses"][8]["error"]["code"] == -32002


def test_what_went_wrong_stays_in_the_history(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply([Text("begun"), Pause(gate)])
    scripted_model.reply(HttpError(400, "bad"))
    same = {"sessionId": "$session", "cwd": str(served_cli.cwd), "mcpServers": []}
    close = ["session/close", {"sessionId": "$session"}]
    seen = judge(served_cli, prompt(cancelOn="agent_message_chunk"), prompt("more"), close, ["session/load", same])
    gate.open()
    loaded = [update for update in seen["updates"] if update["step"] == 4 and "content" in update]
    texts = [update["content"]["text"] for update in loaded]
    assert "[Request interrupted by user]" in texts
    assert "400" in texts[-1]


def test_options(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "ok"

    def change(name: str, value: str) -> list[Any]:
        return ["session/set_config_option", {"sessionId": "$session", "configId": name, "value": value}]

    seen = judge(served_cli, change("model", "sonnet"), change("effort", "low"), change("mode", "plan"), prompt())
    chosen = {option["id"]: option["currentValue"] for option in seen["responses"][4]["configOptions"]}
    assert chosen == {"mode": "plan", "model": "sonnet", "effort": "low"}
    assert "sonnet" in scripted_model.requests[-1].body["model"]


def test_servers_of_the_client(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply(Steps([ToolUse("mcp__mine__pick", {})], results))
    server = {"name": "mine", "command": sys.executable, "args": ["-c", MCP_SERVER], "env": []}
    seen = judge(served_cli, ["session/new", {"cwd": str(served_cli.cwd), "mcpServers": [server]}], prompt())
    assert text(seen) == "picked"
    assert list(states(seen).values()) == ["completed"]


def test_every_kind_of_update_of_claude_agent_acp(served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    file = str(served_cli.cwd / "f")
    steps = (
        [Thinking("hm"), Text("I do."), CREATE],
        [ToolUse("Write", {"file_path": file, "content": "a"})],
        [bash("echo hi"), ASK],
        "done",
    )
    same = {"sessionId": "$session", "cwd": str(served_cli.cwd), "mcpServers": []}
    mode = ["session/set_mode", {"sessionId": "$session", "modeId": "default"}]
    model = ["session/set_config_option", {"sessionId": "$session", "configId": "model", "value": "haiku"}]
    found: list[dict[str, set[str]]] = []
    for command in (their_command(), COMMAND):
        scripted_model.reply(Steps(*steps))
        seen = judge(
            served_cli, mode, prompt(), model, ["session/load", same],
            command=command, capabilities=FORMS, form={"question_0": "Red"},
        )  # fmt: skip
        assert seen["responses"][3] == {**seen["responses"][3], "stopReason": "end_turn"}
        kinds = {update["sessionUpdate"] for update in seen["updates"]}
        content = {each["type"] for update in pick(seen, "tool_call_update") for each in update.get("content") or ()}
        tools = {each["kind"] for each in pick(seen, "tool_call")}
        found.append({"updates": kinds, "content": content, "tools": tools})
    assert len(found[0]["updates"]) >= 8
    for name, values in found[0].items():
        assert found[1][name] >= values, name


@pytest.mark.parametrize("agent", ["pilothouse", "claude-agent-acp"])
def test_words_for_the_turn_that_runs(agent: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.on("hello", reply=Steps([bash("sleep 2; touch a")], "done"))
    scripted_model.default = "another turn"
    command = COMMAND if agent == "pilothouse" else their_command()
    words = [{"type": "text", "text": "STEER: only the docs"}]
    asked = {"sessionId": "$session", "prompt": words, "_meta": {"steering": {"idleBehavior": "promptRequired"}}}
    seen = judge(
        served_cli, prompt(steerOn="tool_call_update", words=words), ["_session/steering", asked], command=command
    )
    hello, _, answered, idle = seen["responses"]
    assert hello["_meta"]["steering"] == {"supported": True}
    assert seen["steered"] == [{"outcome": "injected"}]
    assert answered["stopReason"] == "end_turn"
    assert idle == {"outcome": "promptRequired", "reason": "noRunningTurn"}
    given = ["STEER" in json.dumps(request.body["messages"]) for request in scripted_model.requests]
    assert (given[0], given[-1]) == (False, True)
    if agent == "pilothouse":
        assert given == [False, True]  # with the result of the tool, which went on to its end
        assert text(seen) == "done"
        assert (served_cli.cwd / "a").exists()
