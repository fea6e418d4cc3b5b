"""The routes, judged by the official clients of their protocols, on the real CLI."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest
from newest_clients import find_place, install_packages, wants_newest
from official_clients import run_client
from served_agents import ServedCli, served
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pilothouse.provision.artifacts import cache_root
from pilothouse_doors.ui import agui_route, vercel_route
from pilothouse_testing import Gate, HttpError, Pause, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse

pytestmark = [pytest.mark.real_cli, pytest.mark.matrix]

VALIDATOR = "ag-ui-validate==0.4.0"
QUESTION = {
    "question": "Which?",
    "header": "Color",
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
    "multiSelect": False,
}
TODO = {"content": "Paint", "status": "in_progress", "activeForm": "Painting"}


def results(request: RecordedRequest) -> Text:
    return Text(" | ".join(result.text for result in request.tool_results))


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": "d"})


def script(name: str, model: ScriptedModel, folder: Path, prompt: str = "hello") -> None:
    """Write what the model does in one of the conversations."""
    (folder / "f").write_text("content")
    read = ToolUse("Read", {"file_path": str(folder / "f")})
    agent = ToolUse("Agent", {"description": "Look", "prompt": "look around", "subagent_type": "general-purpose"})
    steps: dict[str, tuple[Any, ...]] = {
        "text": ("Hi there.",),
        "thinking": ([Thinking("hm"), Text("Hi.")],),
        "parallel": ([read, read, Text("x")], results),
        "approve": ([Text("I do."), bash("echo ahoy > a")], results),
        "several": ([bash("echo 1 > a"), bash("echo 2 > b")], results),
        "deny": ([bash("echo ahoy > denied")], results),
        "question": ([ToolUse("AskUserQuestion", {"questions": [QUESTION]})], results),
        "front-end": ([ToolUse("mcp__tools__pick", {"n": 2})], results),
        "todos": ([ToolUse("TodoWrite", {"todos": [TODO]})], "planned"),
        "sub-agent": ([agent, read], results),
        "error": (HttpError(400, "bad"),),
    }
    if name == "sub-agent":
        model.default = "I was told."  # the end of a sub-agent in the background wakes the model
    model.on("look around", reply=Steps([read, bash("echo 3 > c")], "seen"))
    model.on(prompt, reply=steps[name][0] if name == "error" else Steps(*steps[name]))


CONVERSATIONS = [
    "text", "thinking", "parallel", "approve", "several", "error", "deny", "question", "front-end", "todos",
    "sub-agent",
]  # fmt: skip


@pytest.fixture(scope="module")
def validator() -> Path:
    """A directory with the validator; it brings nothing else."""
    if wants_newest():
        install_packages(find_place("validator"), [VALIDATOR])
        return find_place("validator")
    place = cache_root() / "judges" / VALIDATOR.replace("==", "-")
    if not place.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(place), VALIDATOR], check=True, timeout=300)
    return place


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_agui(name: str, served_cli: ServedCli, scripted_model: ScriptedModel, validator: Path, tmp_path: Path) -> None:
    script(name, scripted_model, served_cli.cwd)
    with served(agui_route("/agui", served_cli.agent())) as url:
        seen = run_client("agui_client.mjs", f"{url}/agui", "denied")
    assert seen["warnings"] == []
    if name == "error":
        assert "400" in seen["errors"][0]
        return
    assert seen["errors"] == []
    kinds = {event["type"] for event in seen["events"]}
    expected: dict[str, set[str]] = {
        "thinking": {"REASONING_MESSAGE_CONTENT"},
        "sub-agent": {"SUBAGENT_STARTED", "SUBAGENT_FINISHED"},
        "todos": {"STATE_SNAPSHOT"},
    }
    assert kinds >= expected.get(name, {"TEXT_MESSAGE_CONTENT", "RUN_FINISHED"})
    assert not (served_cli.cwd / "denied").exists()
    assert {path.name for path in served_cli.cwd.iterdir()} - {"f"} == (
        {"approve": {"a"}, "several": {"a", "b"}, "sub-agent": {"c"}}.get(name, set())
    )
    assert seen["messages"][-1]["role"] == "assistant"
    if name == "front-end":  # the result that the client has is not sent again
        tools = [message for message in seen["messages"] if message["role"] == "tool"]
        assert [message["content"] for message in tools] == ["picked 2"]
    if name == "question":
        assert "Red" in scripted_model.requests[-1].tool_results[-1].text
    if name == "sub-agent":
        [started] = [event for event in seen["events"] if event["type"] == "SUBAGENT_STARTED"]
        calls = [event for event in seen["events"] if event["type"] == "TOOL_CALL_START"]
        assert started["name"] == "general-purpose"
        assert started["subagentRunId"] in [call.get("subagentRunId") for call in calls]
    if name == "todos":
        assert seen["state"] == {"todos": [TODO]}
    validate(validator, [seen["events"]], tmp_path)


def validate(validator: Path, runs: list[list[dict[str, Any]]], folder: Path) -> None:
    """Give recorded runs of one thread to the validator, which must find nothing."""
    recorded = folder / "run.jsonl"
    recorded.write_text("".join(json.dumps(event) + "\n" for run in runs for event in run))
    checked = subprocess.run(
        [sys.executable, "-m", "ag_ui_validate.cli", "--json", "--max-warnings", "0", str(recorded)],
        env={"PYTHONPATH": str(validator)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert json.loads(checked.stdout)["diagnostics"] == []


def answer(last: dict[str, Any], allow: bool) -> dict[str, Any]:
    """What the next run sends after the last event of a run; empty if nothing waits."""
    resume: list[dict[str, Any]] = []
    for each in last.get("outcome", {}).get("interrupts", []):
        payload = {"answers": {"Which?": "Red"}} if each["reason"] == "input_required" else {"approved": allow}
        resume.append({"interruptId": each["id"], "status": "resolved", "payload": payload})
    calls = last.get("outcome", {}).get("pendingToolCallIds", [])
    sent = [{"id": f"r-{call}", "role": "tool", "toolCallId": call, "content": "picked 2"} for call in calls]
    return {name: value for name, value in (("resume", resume), ("results", sent)) if value}


def test_runs_of_one_thread_on_two_workers_are_valid(
    served_cli: ServedCli, scripted_model: ScriptedModel, validator: Path, tmp_path: Path
) -> None:
    """Every conversation twice in one thread, each pass on a worker of its own; each time a client leaves, too."""
    runs: list[list[dict[str, Any]]] = []
    history: list[dict[str, Any]] = []
    tools = [{"name": "pick", "description": "Pick", "parameters": {"type": "object", "properties": {}}}]
    gates = Gate(), Gate()
    for worker in range(2):
        scripted_model.on(f"leave {worker}", reply=(Text("begun"), Pause(gates[worker]), Text("late")))
        for name in CONVERSATIONS:
            script(name, scripted_model, served_cli.cwd, f"do {name} {worker}")

    def make_body(text: str) -> dict[str, Any]:
        history.append({"id": str(uuid.uuid4()), "role": "user", "content": text})
        return {"messages": history}

    def run(client: httpx2.Client, url: str, body: dict[str, Any]) -> dict[str, Any]:
        history.extend(body.pop("results", []))
        whole = {"threadId": "judge", "runId": str(uuid.uuid4()), "tools": tools, **body, "messages": history}
        response = client.post(f"{url}/agui", json=whole)
        runs.append([json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")])
        calls = [
            {"id": event["toolCallId"], "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for event in runs[-1]
            if event["type"] == "TOOL_CALL_START"
        ]
        history.append({"id": str(uuid.uuid4()), "role": "assistant", "content": "x", "toolCalls": calls})
        return runs[-1][-1]

    for worker in range(2):
        with served(agui_route("/agui", served_cli.agent())) as url, httpx2.Client(timeout=60) as client:
            for name in sorted(CONVERSATIONS, key=lambda name: name == "sub-agent"):  # it works on after its run
                last = run(client, url, make_body(f"do {name} {worker}"))
                while body := answer(last, allow=name != "deny"):
                    last = run(client, url, body)
                assert last["type"] == ("RUN_ERROR" if name == "error" else "RUN_FINISHED")
                if name == "error":
                    body = {"threadId": "judge", "runId": "left", "tools": tools, **make_body(f"leave {worker}")}
                    with client.stream("POST", f"{url}/agui", json=body) as response:
                        next(line for line in response.iter_lines() if "begun" in line)
                    gates[worker].open()
        served_cli.wait_gone()
    assert len(runs) >= 30
    assert sum(event["type"] == "STATE_SNAPSHOT" for run in runs for event in run) >= 2
    validate(validator, runs, tmp_path)


@pytest.mark.parametrize("version", ["6", "7"])
@pytest.mark.parametrize("name", [each for each in CONVERSATIONS if each != "front-end"])
def test_vercel(name: str, version: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    script(name, scripted_model, served_cli.cwd)
    with served(vercel_route("/chat", served_cli.agent())) as url:
        seen = run_client("vercel_client.mjs", version, f"{url}/chat", "denied")
    if name == "error":
        assert "400" in seen["errors"][0]
        return
    assert seen["errors"] == []
    assert len(seen["messages"]) == 2
    parts = seen["messages"][-1]["parts"]
    states = [part["state"] for part in parts if part["type"] == "dynamic-tool"]
    expected = {"approve": ["output-available"], "several": ["output-available"] * 2, "deny": ["output-error"]}
    assert states == expected.get(name, states)
    assert not {"approval-requested", "input-available"} & set(states)
    assert parts[-1]["type"] == "text"
    assert {path.name for path in served_cli.cwd.iterdir()} - {"f"} == (
        {"approve": {"a"}, "several": {"a", "b"}, "sub-agent": {"c"}}.get(name, set())
    )
    kinds = {part["type"] for part in parts}
    assert kinds >= {"thinking": {"reasoning"}, "todos": {"data-todos"}, "question": {"data-ask"}}.get(name, set())


@pytest.mark.parametrize("version", ["6", "7"])
def test_vercel_regenerates_edits_and_reloads(
    version: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    for number in range(4):
        scripted_model.reply(f"answer {number}")
    with served(vercel_route("/chat", served_cli.agent())) as url:
        seen = run_client("vercel_history.mjs", version, f"{url}/chat")
    prompts = [
        [
            block["text"]
            for message in request.body["messages"]
            for block in message["content"]
            if message["role"] == "user" and not block["text"].startswith("<system-reminder>")
        ]
        for request in scripted_model.requests
    ]
    assert prompts == [["alpha"], ["alpha"], ["beta"], ["beta"]]
    assert [[part["text"] for part in message["parts"] if part["type"] == "text"] for message in seen["shown"]] == [
        ["beta"], ["answer 3"],
    ]  # fmt: skip
    assert seen["again"] == seen["past"] == ["user", "assistant"]


@pytest.mark.parametrize("version", ["6", "7"])
def test_vercel_reads_an_answer_again(version: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    gate = Gate()
    scripted_model.reply((Text("one "), Pause(gate), Text("two")))

    async def open_gate(_request: Request) -> Response:
        gate.open()
        return Response()

    route = vercel_route("/chat", served_cli.agent(), resumable=True)
    with served(route, Route("/gate", open_gate)) as url:
        seen = run_client("vercel_resume.mjs", version, f"{url}/chat", f"{url}/gate")
    assert "".join(part["text"] for part in seen["message"]["parts"] if part["type"] == "text") == "one two"
    assert seen["after"] is None


@pytest.mark.parametrize("kind", ["agui", "6", "7"])
def test_words_for_a_run(kind: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    """The clients have no verb for them, and a second message gets 409; a request of the page gives them."""
    scripted_model.on("hello", reply=Steps([bash("sleep 2; echo slept")], "done"))
    route = agui_route if kind == "agui" else vercel_route
    with served(route("/ui", served_cli.agent(allowed_tools=["Bash"]))) as url:
        seen = run_client("steer_client.mjs", kind, f"{url}/ui")
    assert seen["outcome"] == "taken"
    assert ["WORDS" in json.dumps(request.body["messages"]) for request in scripted_model.requests] == [False, True]
    [refused] = seen["second"]
    assert "is answering another request" in refused or "409" in refused
    assert "done" in json.dumps(seen["messages"][-1])
