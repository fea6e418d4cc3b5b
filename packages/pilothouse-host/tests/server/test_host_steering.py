"""Words for a turn that runs in a session of the host, over REST: who has them, and what the session says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_host import LIMIT, TOKEN, MakeHost, Program, Served

from pilothouse_host import host
from pilothouse_testing import FakeCLI, ScriptedModel, Steps, ToolUse, frames

WORDS = "STEER: only the unit tests"
TOKENS = {"ann": "the-token-of-ann-0123", "bob": "the-token-of-bob-0123"}
OPTIONS = {"allowed_tools": ["Bash"]}


@pytest.fixture
def served(serve_host: MakeHost, real_cli: Path, scripted_model: ScriptedModel) -> Served:
    environ = scripted_model.env(max_retries=0)
    given: dict[str, Any] = {"roots": (str(scripted_model.home),), "environ": environ, "tokens": TOKENS}
    return serve_host(cli=str(real_cli), heartbeat=60.0, **given)  # a stream that says nothing ends the test


def work(model: ScriptedModel, command: str = "until [ -e ready ]; do sleep 0.02; done; sleep 0.5") -> None:
    model.on("go", reply=Steps([ToolUse("Bash", {"command": f"cd {model.home}; {command}"})], "done"))
    model.default = "another turn"


def wait(events: Iterator[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The next message with these fields."""
    found = (event["data"] for event in events)
    return next(data for data in found if all(data.get(name) == value for name, value in wanted.items()))


def begin(served: Served, token: str = TOKENS["ann"]) -> str:
    """A session whose tool runs."""
    body = {"options": OPTIONS, "prompt": "go"}
    _, made = served.request("POST", "/v1/sessions", body, token=token)
    with served.events(made["id"], token=token) as events:
        wait(events, type="assistant")
    return f"/v1/sessions/{made['id']}"


def steer(served: Served, path: str, token: str = TOKENS["ann"], **body: Any) -> dict[str, Any]:
    status, answer = served.request("POST", f"{path}/steer", {"prompt": WORDS, **body}, token=token)
    assert status == 202, answer
    return answer


def described(served: Served, path: str, token: str = TOKENS["ann"]) -> dict[str, Any]:
    return served.request("GET", path, token=token)[1]


def outcome_of(served: Served, path: str, given: dict[str, Any]) -> str:
    """What the events of the session say of the words."""
    with served.events(path.rpartition("/")[2], given["events_from"], token=TOKENS["ann"]) as events:
        return wait(events, subtype="steering", steering=given["steering"])["outcome"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(served: Served, path: str) -> dict[str, Any]:
    """The session, once nothing waits in it."""
    deadline = time.monotonic() + LIMIT
    while (session := described(served, path))["waiting"] or session["steering"]:
        assert time.monotonic() < deadline, session
        time.sleep(0.02)
    return session


@pytest.mark.real_cli
def test_the_turn_that_runs_has_the_words_and_every_viewer_is_told(
    served: Served, scripted_model: ScriptedModel
) -> None:
    work(scripted_model)
    path = begin(served)
    given = steer(served, path, prompt=[{"type": "text", "text": WORDS}])
    assert given["outcome"] is None
    assert described(served, path)["steering"] == [{"id": given["steering"], "title": WORDS}]
    (scripted_model.home / "ready").touch()
    with served.events(path.rpartition("/")[2], given["events_from"], token=TOKENS["ann"]) as events:
        assert wait(events, uuid=given["steering"])["type"] == "user"
        told = wait(events, subtype="steering")
    assert told == {
        "type": "system",
        "subtype": "steering",
        "steering": given["steering"],
        "outcome": "taken",
        "title": WORDS,
    }
    assert finish(served, path)["last_result"]["text"] == "done"
    has_words = [WORDS in str(request.messages) for request in scripted_model.requests]
    assert has_words == [False, True]


@pytest.mark.real_cli
def test_words_without_a_turn_are_a_prompt_or_come_back(served: Served, scripted_model: ScriptedModel) -> None:
    work(scripted_model, "true")
    path = begin(served)
    finish(served, path)
    assert steer(served, path, if_late="return") | {"events_from": 0} == {
        "session": path.rpartition("/")[2],
        "steering": None,
        "outcome": "returned",
        "events_from": 0,
    }
    given = steer(served, path)
    assert given["outcome"] == outcome_of(served, path, given) == "query"
    with served.events(path.rpartition("/")[2], given["events_from"], token=TOKENS["ann"]) as events:
        assert wait(events, uuid=given["steering"])["message"]["content"] == WORDS
    assert finish(served, path)["last_result"]["text"] == "another turn"


def test_words_do_not_wait_for_a_prompt_that_was_not_sent_yet(serve_host: MakeHost) -> None:
    with FakeCLI().text("done").exit() as fake:
        served = serve_host(cli=fake.path)
        _, made = served.request("POST", "/v1/sessions", {"prompt": "go"})
        path = f"/v1/sessions/{made['id']}"
        until(lambda: fake.calls[0].exit_code is not None)
        fake.on_control("initialize", silent=True)  # from here on, a child starts, and gets no further
        served.request("POST", f"{path}/prompt", {"prompt": "more"})
        until(lambda: len(fake.calls) == 2)
        assert steer(served, path, token=TOKEN, if_late="return")["outcome"] == "returned"
        given = steer(served, path, token=TOKEN)
        assert given["outcome"] == "query"
        assert [each["id"] for each in described(served, path, token=TOKEN)["queued"]] == [given["steering"]]


@pytest.mark.real_cli
def test_words_for_now_end_the_turn(served: Served, scripted_model: ScriptedModel) -> None:
    work(scripted_model)
    path = begin(served)
    assert outcome_of(served, path, steer(served, path, when="now")) == "next_turn"
    assert finish(served, path)["last_result"]["is_success"]


@pytest.mark.real_cli
def test_after_an_interrupt_the_session_goes_on_with_the_words(served: Served, scripted_model: ScriptedModel) -> None:
    work(scripted_model, "tail -f /dev/null")
    path = begin(served)
    given = steer(served, path)
    assert served.request("POST", f"{path}/interrupt", token=TOKENS["ann"])[0] == 204
    assert outcome_of(served, path, given) == "next_turn"
    finish(served, path)
    assert WORDS in str(scripted_model.requests[-1].messages)


def test_words_have_the_limits_of_prompts(serve_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCLI().turn(frames.init(), frames.assistant("on it")).hang() as fake:
        served = serve_host(cli=fake.path, tokens=TOKENS, max_prompts=3)
        path = begin(served)

        def refused(token: str = TOKENS["ann"], **body: Any) -> tuple[int, str]:
            status, answer = served.request("POST", f"{path}/steer", {"prompt": WORDS, **body}, token=token)
            return status, answer["error"]["code"]

        assert refused(TOKENS["bob"]) == (404, "unknown_session")
        assert refused(when="soon") == (400, "bad_request")
        assert refused(if_late="drop") == (400, "bad_request")
        assert refused(prompt="") == (400, "bad_request")
        assert refused(prompt=[{"text": "no type"}]) == (400, "bad_request")
        assert described(served, path)["steering"] == []
        with monkeypatch.context() as patch:
            patch.setattr(host, "MAX_WAITING_BYTES", 10_000)
            steer(served, path, prompt="x" * 6000)
            assert refused(prompt="y" * 6000) == (429, "limit")
        steer(served, path)
        assert refused() == (429, "limit")  # a prompt and words twice
        assert served.request("POST", f"{path}/prompt", {"prompt": "x"}, token=TOKENS["ann"])[0] == 429
        served.request("POST", f"{path}/interrupt", token=TOKENS["ann"])


def test_a_client_over_the_wire_steers_its_own_session(serve_host: MakeHost) -> None:
    with FakeCLI() as fake:
        served = serve_host(cli=fake.path)
        with served.dial() as client:
            client.start()
            status, answer = served.request("POST", f"/v1/sessions/{client.session}/steer", {"prompt": WORDS})
            assert (status, answer["error"]["code"]) == (409, "busy")


def test_words_that_a_killed_host_had_are_told(tmp_path: Path) -> None:
    with FakeCLI().turn(frames.init(), frames.assistant("on it")).hang() as fake:
        program = Program(tmp_path, fake.path)
        with program as served:
            _, made = served.request("POST", "/v1/sessions", {"prompt": "go"})
            with served.events(made["id"]) as events:
                wait(events, type="assistant")
            given = served.request("POST", f"/v1/sessions/{made['id']}/steer", {"prompt": WORDS})[1]
            program.kill()
        with Program(tmp_path, fake.path) as served:
            assert WORDS in served.request("GET", f"/v1/sessions/{made['id']}")[1]["error"]
        with Program(tmp_path, fake.path) as served, served.events(made["id"], given["events_from"]) as events:
            assert WORDS in wait(events, subtype="query_failed", prompt=given["steering"])["error"]
