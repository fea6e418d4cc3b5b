"""Transcripts, usage and policy over REST: what the token of the host sees, and what it does not."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from served_host import TOKEN, MakeHost, finish

import pilothouse as ph
from pilothouse_access.owners import OPERATOR
from pilothouse_fleet import Fleet
from pilothouse_host import ClientLimits
from pilothouse_host.reports import handle_suggestion
from pilothouse_testing import FakeCLI, ScriptedModel
from pilothouse_transcripts import project_key

ELSEWHERE = "11111111-2222-4333-8444-555555555555"


@pytest.mark.real_cli
def test_transcripts_and_usage_of_the_real_cli(
    serve_host: MakeHost, real_cli: str, scripted_model: ScriptedModel, tmp_path: Path
) -> None:
    environ = scripted_model.env(max_retries=0)
    ann = "ann-token-0123456789"
    served = serve_host(cli=real_cli, environ=environ, tokens={"ann": ann})
    scripted_model.reply("the mast is green")
    _, made = served.request("POST", "/v1/sessions", {"prompt": "which color?", "options": {"tools": []}})
    name = finish(served, made["id"])["conversation"]
    projects = Path(environ.get("CLAUDE_CONFIG_DIR") or Path(environ["HOME"]) / ".claude") / "projects"
    [kept] = projects.glob(f"*/{name}.jsonl")
    outside = json.dumps(str(tmp_path))[1:-1]
    copied = kept.read_text().replace(name, ELSEWHERE).replace(str(tmp_path / "work"), outside)
    (projects / "-elsewhere").mkdir()
    (projects / "-elsewhere" / f"{ELSEWHERE}.jsonl").write_text(copied)

    def get(path: str, **headers: Any) -> Any:
        return served.request("GET", path, **headers)

    assert [each["session_id"] for each in get("/v1/transcripts")[1]["transcripts"]] == [name]
    assert get("/v1/transcripts?offset=1")[1]["transcripts"] == []
    [hit] = get("/v1/transcripts?q=GREEN")[1]["hits"]
    assert (hit["session_id"], hit["match"]) == (name, "green")
    answer = get(f"/v1/transcripts/{name}")[1]
    assert [message["type"] for message in answer["messages"]] == ["user", "assistant"]
    assert "the mast is green" in json.dumps(answer["messages"])
    usage = get("/v1/usage?since=2020-01-01")[1]
    assert name in [each["session_id"] for each in usage["sessions"]]
    assert list(usage["models"])
    assert get("/v1/usage?until=2020-01-01")[1]["sessions"] == []
    spent = get(f"/v1/usage/{name}")[1]["breakdown"]
    assert [(row["name"], row["replies"]) for row in spent["agents"]] == [("main", 1)]
    assert spent["cost_usd"] == usage["total"]["cost_usd"]
    outsiders = (f"/v1/transcripts/{ELSEWHERE}", "/v1/transcripts/..%2f..%2fetc", "/v1/transcripts/none")
    for path in (*outsiders, f"/v1/usage/{ELSEWHERE}", "/v1/usage/none"):
        assert get(path)[0] == 404 or "%2f" in path
    owned = ("/v1/transcripts", f"/v1/transcripts/{name}", "/v1/usage", f"/v1/usage/{name}", "/v1/transcripts?q=green")
    for path in owned:
        assert get(path, token=ann)[0] == 403
    for path in (
        "/v1/transcripts?limit=0", "/v1/transcripts?limit=x", "/v1/transcripts?limit=9999",
        "/v1/transcripts?offset=-1", f"/v1/transcripts?offset={10**26}", f"/v1/transcripts/{name}?offset={10**26}",
        f"/v1/transcripts?offset={'9' * 5000}", f"/v1/fleet?after={10**26}", "/v1/usage?since=x",
    ):  # fmt: skip
        assert get(path)[0] == 400
    words = {"type": "queued_command", "commandMode": "prompt", "prompt": "now the deck"}  # to a running turn
    row = {"type": "attachment", "uuid": ELSEWHERE, "parentUuid": answer["messages"][-1]["uuid"], "attachment": words}
    with kept.open("a") as file:
        file.write(json.dumps(row) + "\n")
    message = get(f"/v1/transcripts/{name}")[1]["messages"][-1]
    assert (message["type"], message["message"]["content"]) == ("user", "now the deck")
    status, shown = get(f"/v1/policy?session={made['id']}")
    assert status == 200
    assert shown["policy"]["answered_by"] == "asks"
    assert (shown["mcp_servers"], shown["mcp_problem"]) == ([], None)
    assert shown["isolation"]["key_source"]
    assert get(f"/v1/policy?session={made['id']}", token=ann)[0] == 404


def write_calls(home: Path, cwd: Path, session: str, command: str) -> None:
    """Write a conversation with a command that ran."""
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": command}}
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": "x", "is_error": False}
    bodies = {
        "user": {"role": "user", "content": "go"},
        "assistant": {"id": "m1", "role": "assistant", "model": "m", "content": [call]},
        "result": {"role": "user", "content": [answer]},
    }
    parent, rows = None, list[str]()
    for name, body in bodies.items():
        row = {"uuid": f"{session}{name}", "parentUuid": parent, "type": body["role"], "message": body}
        rows.append(json.dumps({**row, "sessionId": session, "cwd": str(cwd), "timestamp": "2026-11-03T12:00:00Z"}))
        parent = row["uuid"]
    place = home / ".claude" / "projects" / project_key(cwd) / f"{session}.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("\n".join(rows) + "\n")


@pytest.mark.anyio
async def test_a_cancelled_suggestion_reads_no_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    started, released = threading.Event(), threading.Event()

    def read_slowly(path: Path) -> list[Any]:
        read.append(path)
        started.set()
        released.wait(20)
        return []

    infos = [SimpleNamespace(cwd=str(tmp_path), path=str(tmp_path / f"{number}.jsonl")) for number in range(3)]
    monkeypatch.setattr("pilothouse_host.reports.list_sessions", lambda **_: infos)
    monkeypatch.setattr("pilothouse_host.reports.get_file_messages", read_slowly)
    monkeypatch.setattr("pilothouse_host.reports.find_access", lambda _: SimpleNamespace(owner=OPERATOR))
    host: Any = SimpleNamespace(policy=SimpleNamespace(roots=(str(tmp_path),)), config_directory=None)
    request: Any = SimpleNamespace(query_params={})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle_suggestion, host, request)
        assert await anyio.to_thread.run_sync(started.wait, 20)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()  # the request has taken note of it
        released.set()
    assert read == [tmp_path / "0.jsonl"]


def test_a_suggestion_is_for_the_project_and_the_operator(serve_host: MakeHost, tmp_path: Path) -> None:
    ann, home = "ann-token-0123456789", tmp_path / "home"
    with FakeCLI().text("Hello") as fake:
        served = serve_host(cli=fake.path, environ={"HOME": str(home), "PATH": "/usr/bin:/bin"}, tokens={"ann": ann})
        root = Path(served.host.policy.roots[0])
        (root / "shop").mkdir()
        write_calls(home, root / "shop", ELSEWHERE, "npm test")
        write_calls(home, root, ELSEWHERE.replace("1", "2"), "make sk-ant-api03-abcdefghijklmnopqrstuvwxyz")
        write_calls(home, tmp_path, ELSEWHERE.replace("1", "3"), "make elsewhere")

        def get(query: str = "", token: str = TOKEN) -> tuple[int, Any]:
            return served.request("GET", f"/v1/policy/suggestion{query}", token=token)

        status, found = get()
        assert (status, found["suggestion"]["root"], found["suggestion"]["calls"]) == (200, str(root), 2)
        assert found["settings"]["permissions"]["allow"] == ["Bash(npm test)"]
        assert "sk-ant-api03-abc" not in json.dumps(found)
        given = {"prompt": "x", "options": {"cwd": str(root / "shop")}}
        made = served.request("POST", "/v1/sessions", given)[1]["id"]
        found = get(f"?session={made}")[1]
        assert (found["suggestion"]["root"], found["suggestion"]["sessions"]) == (str(root / "shop"), 1)
        assert get(token=ann)[0] == 403
        assert get("?session=none")[0] == 404


def test_the_policy_names_the_limits(serve_host: MakeHost) -> None:
    served = serve_host(cli="/nowhere", clients=ClientLimits(permission_mode="default", programs=False))
    shown = served.request("GET", "/v1/policy")[1]
    assert "Edit" in [row["tool"] for row in shown["policy"]["rows"] if row["outcome"] == "asks"]
    assert shown["roots"] == list(served.host.policy.roots)
    limits = shown["limits"]
    assert limits == {"permission_mode": "default", "programs": False, "mcp_servers": True, "settings": True}


async def write_fleet(path: Path, cli: str) -> None:
    async with Fleet(ph.Agent(cli=cli), journal=path) as fleet:
        await fleet.gather(["one", "two"], key=str)
    async with Fleet(concurrency=0, journal=path) as fleet:
        await fleet.enqueue(["three" * 1000], key=lambda prompt: "three")


def test_fleets_are_shown_with_their_runs(serve_host: MakeHost, tmp_path: Path) -> None:
    journal, ann = tmp_path / "runs.db", "ann-token-0123456789"
    with FakeCLI().text("Hello") as fake:
        anyio.run(write_fleet, journal, fake.path)
        served = serve_host(cli=fake.path, fleets=(str(journal), str(tmp_path / "none.db")), tokens={"ann": ann})

        def get(query: str, token: str = TOKEN) -> tuple[int, Any]:
            return served.request("GET", f"/v1/fleet{query}", token=token)

        known, missing = get("")[1]["fleets"]
        assert (known["journal"], known["runs"], known["error"]) == (str(journal), None, None)
        assert {name: known["status"][name] for name in ("succeeded", "queued")} == {"succeeded": 2, "queued": 1}
        assert "there is no journal" in missing["error"]
        runs = get(f"?journal={journal}")[1]["fleets"][0]["runs"]
        assert [(run["key"], run["state"], run["text"]) for run in runs[:2]] == [
            ("one", "succeeded", "Hello"),
            ("two", "succeeded", "Hello"),
        ]
        assert len(runs[2]["prompt"]) == 500
        assert [run["key"] for run in get(f"?journal={journal}&state=queued")[1]["fleets"][0]["runs"]] == ["three"]
        assert [run["key"] for run in get(f"?journal={journal}&limit=1&after=1")[1]["fleets"][0]["runs"]] == ["two"]
        for query in ("?journal=/etc/passwd", f"?journal={journal}&state=x", "?limit=0"):
            assert get(query)[0] == 400
        assert get("", ann)[0] == 403
        assert not (tmp_path / "none.db").exists()
