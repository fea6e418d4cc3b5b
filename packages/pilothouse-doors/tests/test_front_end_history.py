"""What front ends take back and read again: regenerated answers, edited messages, and the past of a thread."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast

import anyio
import httpx2
import pytest
from served_agents import ServedCli, post, served

import pilothouse as ph
from pilothouse_doors.ui import agui_route, vercel_route
from pilothouse_doors.ui.history import CONTEXT_END, CONTEXT_START, PastTurn, clean_content
from pilothouse_doors.ui.threads import Turn
from pilothouse_testing import HttpError, RecordedRequest, ScriptedModel, Steps, Text, Thinking, ToolUse
from pilothouse_transcripts.stores import MemoryStore

pytestmark = [pytest.mark.anyio, pytest.mark.real_cli]
TOUCH = ToolUse("Bash", {"command": "touch a", "description": "d"})
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # uvicorn's


class Page:
    """A page with a thread: it shows messages, and sends them to one of the routes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._ids = itertools.count()

    def make_message(self, text: str, role: str = "user") -> dict[str, Any]:
        content = {"content": text} if self.path == "/agui" else {"parts": [{"type": "text", "text": text}]}
        return {"id": f"m{next(self._ids)}", "role": role, **content}

    async def send(self, url: str, text: str = "", **headers: str) -> None:
        """Send what is shown, and a new message with this text."""
        self.messages += [self.make_message(text)] if text else []
        body = {"id": "t", "threadId": "t", "runId": f"r{next(self._ids)}", "messages": self.messages}
        self.events = await post(f"{url}{self.path}", body, **headers)
        self.messages.append(self.make_message("(the answer)", "assistant"))

    async def read(self, url: str, **headers: str) -> Any:
        async with httpx2.AsyncClient() as client:
            found = (await client.get(f"{url}{self.path}/t", headers=headers)).json()
        return found["messages"] if self.path == "/agui" else found


def route(page: Page, agent: Any, **settings: Any) -> Any:
    return (agui_route if page.path == "/agui" else vercel_route)(page.path, agent, **settings)


def list_texts(request: RecordedRequest) -> list[str]:
    """The texts that the model was sent, without what the CLI has added."""
    found: list[str] = []
    for message in request.body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [block["text"] for block in blocks if block["type"] == "text" and message["role"] != "system"]
    return [text for text in found if not text.startswith("<system-reminder>")]


paths = pytest.mark.parametrize("path", ["/agui", "/chat"])


@paths
@pytest.mark.parametrize("restarts", [False, True])
async def test_the_model_sees_what_the_page_shows(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel, *, restarts: bool
) -> None:
    """After a restart the thread is known only from its transcript."""
    for number in range(6):
        scripted_model.reply(f"answer {number}")
    page = Page(path)
    with ExitStack() as stack:

        @contextmanager
        def serve() -> Generator[str]:
            with served(route(page, served_cli.agent())) as url:
                yield url
            served_cli.wait_gone()

        only = "" if restarts else stack.enter_context(serve())

        async def send(text: str = "") -> list[str]:
            with serve() if restarts else nullcontext(only) as url:
                await page.send(url, text)
            return list_texts(scripted_model.requests[-1])

        assert await send("alpha") == ["alpha"]
        del page.messages[-1]  # regenerate the only answer
        assert await send() == ["alpha"]
        assert await send("beta") == ["alpha", "answer 1", "beta"]
        del page.messages[-1]  # regenerate the last answer
        assert await send() == ["alpha", "answer 1", "beta"]
        del page.messages[-2:]  # edit the last message, as a front end does that gives it a new id
        assert await send("gamma") == ["alpha", "answer 1", "gamma"]
        page.messages = [{**page.make_message("delta"), "id": "m0"}]  # edit the first one, which keeps its id
        assert await send() == ["delta"]


@paths
async def test_a_page_that_sends_only_its_last_message_goes_on(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply("answer 0")
    scripted_model.reply("answer 1")
    page = Page(path)
    with served(route(page, served_cli.agent())) as url:
        await page.send(url, "alpha")
        page.messages = []
        await page.send(url, "beta")
        assert list_texts(scripted_model.requests[-1]) == ["alpha", "answer 0", "beta"]


@paths
async def test_a_message_is_edited_while_its_answer_waits_for_a_decision(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.on("alpha", reply=Steps([Text("I do."), TOUCH], "done"))
    scripted_model.on("beta", reply="better")
    page = Page(path)
    with served(route(page, served_cli.agent(tools=["Bash"]))) as url:
        await page.send(url, "alpha")
        page.messages = []
        page.messages = [{**page.make_message("beta"), "id": "m0"}]
        await page.send(url)
        assert list_texts(scripted_model.requests[-1]) == ["beta"]
        assert not (served_cli.cwd / "a").exists()
        history = await page.read(url)
    assert [message["role"] for message in history] == ["user", "assistant"]


@paths
async def test_an_answer_that_a_background_task_has_continued_is_regenerated(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.on("look around", reply="seen")
    scripted_model.default = "I was told."  # the end of a sub-agent in the background wakes the model
    agent = ToolUse("Agent", {"description": "Look", "prompt": "look around", "subagent_type": "general-purpose"})
    scripted_model.on("alpha", reply=Steps([agent], "launched"))
    scripted_model.on("beta", reply="better")
    page = Page(path)
    with served(route(page, served_cli.agent(tools=["Agent"]))) as url:
        await page.send(url, "alpha")
        assert "I was told." in str(page.events)
        page.messages = [{**page.make_message("beta"), "id": "m0"}]
        await page.send(url)
        assert list_texts(scripted_model.requests[-1]) == ["beta"]
        assert [message["role"] for message in await page.read(url)] == ["user", "assistant"]


async def test_the_way_back_behind_a_compaction_ends_with_the_process(
    served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.default = "an answer"
    page = Page("/chat")
    agent = served_cli.agent(verbatim_prompts=False)
    with served(route(page, agent)) as url:
        for text in ("alpha", "beta", "/compact", "gamma"):
            await page.send(url, text)
        page.messages = page.messages[:2]
        await page.send(url, "delta")
        assert list_texts(scripted_model.requests[-1]) == ["alpha", "an answer", "delta"]
        await page.send(url, "/compact")
        await page.send(url, "epsilon")
    served_cli.wait_gone()
    with served(route(page, agent)) as url:
        assert "alpha" in str(await page.read(url))
        async with httpx2.AsyncClient(timeout=60) as client:
            refused = await client.post(f"{url}/chat", json={"id": "t", "messages": page.messages[:1]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        await page.send(url, "zeta")


@paths
async def test_a_thread_is_read_again_after_a_restart_and_goes_on_with_these_ids(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply(Steps([Thinking("hm"), Text("I do."), TOUCH], "done"))
    scripted_model.reply("answer 1")
    scripted_model.reply("answer 2")
    page = Page(path)
    agent = served_cli.agent(tools=["Bash"], allowed_tools=["Bash"])
    with served(route(page, agent)) as url:
        assert await page.read(url) == []
        await page.send(url, "alpha")
        await page.send(url, "beta")
        before = await page.read(url)
    served_cli.wait_gone()
    with served(route(page, agent)) as url:
        found = await page.read(url)
        assert found == before
        if path == "/agui":
            call = found[2]["toolCalls"][0]
            assert [(each["role"], each.get("content")) for each in found] == [
                ("user", "alpha"), ("reasoning", "hm"), ("assistant", "I do."),
                ("tool", found[3]["content"]), ("assistant", "done"), ("user", "beta"), ("assistant", "answer 1"),
            ]  # fmt: skip
            assert (call["function"]["name"], found[3]["toolCallId"]) == ("Bash", call["id"])
        else:
            assert [each["role"] for each in found] == ["user", "assistant"] * 2
            assert [(part["type"], part.get("text")) for part in found[1]["parts"]] == [
                ("step-start", None), ("reasoning", "hm"), ("text", "I do."), ("dynamic-tool", None), ("text", "done"),
            ]  # fmt: skip
            assert found[1]["parts"][3]["state"] == "output-available"
        page.messages = found[:-1]  # regenerate the last answer
        await page.send(url)
        assert list_texts(scripted_model.requests[-1])[-1] == "beta"
        assert "answer 1" not in list_texts(scripted_model.requests[-1])
        assert "done" in list_texts(scripted_model.requests[-1])
        assert len(await page.read(url)) == len(found)


@paths
async def test_a_page_that_is_reloaded_finds_what_waits_for_a_decision(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply(Steps([Text("I do."), TOUCH], "done"))
    page = Page(path)
    with served(route(page, served_cli.agent(tools=["Bash"]))) as url:
        await page.send(url, "alpha")
        async with httpx2.AsyncClient() as client:
            found = (await client.get(f"{url}{path}/t")).json()
        if path == "/agui":
            [interrupt] = found["interrupts"]
            resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
            body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": found["messages"], "resume": resume}
        else:
            part = found[-1]["parts"][-2]
            assert (part["toolName"], part["state"]) == ("Bash", "approval-requested")
            part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True}}
            body = {"id": "t", "messages": found}
        await post(f"{url}{path}", body)
        assert (served_cli.cwd / "a").exists()
        assert "done" in str(await page.read(url))


@paths
async def test_only_its_owner_reads_a_thread(path: str, served_cli: ServedCli, scripted_model: ScriptedModel) -> None:
    scripted_model.reply("secret")
    page = Page(path)

    def get_owner(request: Any) -> str:
        return request.headers.get("x-user", "ann")

    with served(route(page, served_cli.agent(), get_owner=get_owner)) as url:
        await page.send(url, "alpha")
        assert "secret" in str(await page.read(url))
        assert await page.read(url, **{"x-user": "eve"}) == []
        async with httpx2.AsyncClient() as client:
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"x-user": ""}):
                refused = await client.get(f"{url}{path}/t", headers=headers)
                assert (refused.status_code, "secret" in refused.text) == (403, False)
        await page.send(url, "beta", **{"x-user": "eve"})  # the page says "(the answer)" for what the model said
        assert "secret" not in str(scripted_model.requests[-1].messages)


async def test_a_thread_is_read_from_the_store_of_the_agent(
    served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply("answer 0")
    scripted_model.reply("answer 1")
    page = Page("/agui")
    agent = served_cli.agent(session_store=MemoryStore())
    for _ in range(2):
        with served(route(page, agent)) as url:
            if page.messages:
                del page.messages[-1]
                await page.send(url)
            else:
                await page.send(url, "alpha")
        served_cli.wait_gone()
    assert list_texts(scripted_model.requests[-1]) == ["alpha"]
    with served(route(page, agent)) as url:
        assert [each["content"] for each in await page.read(url)] == ["alpha", "answer 1"]


@paths
async def test_an_error_of_the_api_and_a_picture_are_in_the_history(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel
) -> None:
    scripted_model.reply(HttpError(400, "bad"))
    page = Page(path)
    with served(route(page, served_cli.agent())) as url:
        message = page.make_message("look")
        if path == "/agui":
            source = {"type": "data", "value": PIXEL, "mimeType": "image/png"}
            message["content"] = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
        else:
            message["parts"].append({"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PIXEL}"})
        page.messages.append(message)
        await page.send(url)
    served_cli.wait_gone()
    with served(route(page, served_cli.agent())) as url:
        asked, answered = await page.read(url)
    key = "content" if path == "/agui" else "parts"
    assert asked[key] == message[key]
    assert "400" in str(answered)


async def test_what_is_not_there(served_cli: ServedCli) -> None:
    routes = agui_route("/agui", served_cli.agent()), vercel_route("/chat", served_cli.agent())
    with served(*routes) as url:
        async with httpx2.AsyncClient() as client:
            for method, path, status in (
                ("GET", "/agui", 405),
                ("GET", "/chat", 405),
                ("POST", "/agui/t", 404),
                ("POST", "/chat/t", 404),
                ("DELETE", "/chat/t", 405),
                ("GET", "/chats/t", 404),
                ("GET", "/aguis", 404),
            ):
                assert (await client.request(method, f"{url}{path}")).status_code == status, (method, path)


def test_what_the_front_end_says_about_itself_is_no_part_of_the_message() -> None:
    about = {"type": "text", "text": f"{CONTEXT_START}page: start{CONTEXT_END}"}
    asked = {"type": "text", "text": "hello"}
    assert clean_content([about, asked]) == [asked]


@pytest.fixture
def until_steered(served_cli: ServedCli, monkeypatch: pytest.MonkeyPatch) -> str:
    """A command that ends once a turn was given words, and the CLI had the time to read them."""
    steer, ready = ph.Query.steer, served_cli.cwd / "ready"

    async def steer_and_tell(query: ph.Query[Any], *words: Any, **how: Any) -> Any:
        steering = await steer(query, *words, **how)
        ready.touch()
        return steering

    monkeypatch.setattr(ph.Query, "steer", steer_and_tell)
    return f"until [ -e {ready} ]; do sleep 0.02; done; sleep 0.5"


@paths
async def test_words_for_the_run_that_works(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel, until_steered: str
) -> None:
    call = ToolUse("Bash", {"command": f"{until_steered}; echo slept", "description": "d"})
    scripted_model.on("alpha", reply=Steps([call], "first"))
    scripted_model.on("beta", reply="second")
    page = Page(path)
    agent = served_cli.agent(allowed_tools=["Bash"])
    owners = {"get_owner": lambda request: request.headers.get("x-user", "ann")}
    with served(route(page, agent, **owners)) as url:

        async def steer(text: Any = "WORDS for the run", **headers: str) -> Any:
            async with httpx2.AsyncClient(timeout=60) as client:
                response = await client.post(f"{url}{path}/t/steer", json={"text": text}, headers=headers)
            return response.json().get("outcome") or response.status_code

        assert await steer() == "returned"  # nothing runs
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(page.send, url, "alpha")
            while not scripted_model.requests:
                await anyio.sleep(0.05)
            assert await steer(**{"x-user": "bob"}) == "returned"  # another owner has another thread
            assert await steer() == "taken"
        assert await steer() == "returned"
        assert await steer("") == 400
        given = ["WORDS" in str(request.body["messages"]) for request in scripted_model.requests]
        assert given == [False, True]
        del page.messages[-1]  # regenerate it
        await page.send(url)
        assert "WORDS" not in str(scripted_model.requests[-1].body["messages"])
        await page.send(url, "beta")
        assert list_texts(scripted_model.requests[-1])[0].strip() == "alpha"


async def test_words_do_not_wait_for_a_run_that_has_not_begun() -> None:
    query = ph.query("waits")
    turn = Turn(query, cast("Any", None), PastTurn("id", []))
    assert await turn.steer("words") == ("returned", "")
    await query.aclose()


@paths
async def test_words_are_in_the_history_that_another_process_reads(
    path: str, served_cli: ServedCli, scripted_model: ScriptedModel, until_steered: str
) -> None:
    call = ToolUse("Bash", {"command": f"{until_steered}; echo slept", "description": "d"})
    scripted_model.on("alpha", reply=Steps([call], "first"))
    page = Page(path)
    agent = served_cli.agent(allowed_tools=["Bash"])
    with served(route(page, agent)) as url:
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=60) as client:
            tasks.start_soon(page.send, url, "alpha")
            while not scripted_model.requests:
                await anyio.sleep(0.05)
            steered = await client.post(f"{url}{path}/t/steer", json={"text": "WORDS for the run"})
            assert steered.json()["outcome"] == "taken"
    with served(route(page, agent)) as url:
        shown = str(await page.read(url))
        assert 0 < shown.index("alpha") < shown.index("slept") < shown.index("WORDS for the run") < shown.index("first")
        del page.messages[-1]  # regenerate it
        await page.send(url)
        assert "WORDS" not in str(scripted_model.requests[-1].body["messages"])
        assert list_texts(scripted_model.requests[-1])[0].strip() == "alpha"
