"""The seam: what a watcher is told, when, and that it can do no harm."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from recording_instrumentation import Notebook, caller, inside

import pilothouse as ph
from pilothouse.hooks import Hooks
from pilothouse.instrumentation import Instrumentation, Observer
from pilothouse_testing import FakeCLI, frames, mock_transport

pytestmark = pytest.mark.anyio

TOOL = "toolu_1"


@pytest.fixture
def book() -> Notebook:
    return Notebook()


async def test_a_query_is_observed_from_start_to_end(book: Notebook) -> None:
    caller.set("me")
    transport = mock_transport("Hello")
    answer = await ph.query("Hi", transport=transport, instrumentation=book, model="opus", agent="reviewer")
    notes = book.only
    assert notes.log == ["system", "assistant", "result", "end"]
    assert (notes.start.prompt, notes.start.model, notes.start.agent) == ("Hi", "opus", "reviewer")
    assert not notes.start.in_session
    assert notes.caller == "me"
    assert notes.end.result.text == answer.text == "Hello"
    assert (notes.end.result.cost_usd, notes.end.error, notes.end.interrupted) == (answer.cost_usd, None, False)


async def test_times_are_those_of_the_child_and_not_of_the_reader(book: Notebook) -> None:
    """The whole answer is told although nobody has read any of it."""
    async with ph.query("Hi", transport=mock_transport("Hello"), instrumentation=book) as query:
        with anyio.fail_after(10):
            while not book.only.ends:
                await anyio.lowlevel.checkpoint()
        assert book.only.log == ["system", "assistant", "result", "end"]
        assert [m.type async for m in query] == ["system", "assistant", "result"]


async def test_every_layer_may_give_one_and_the_nearest_wins(book: Notebook) -> None:
    other = Notebook()
    ph.configure(instrumentation=book)
    agent = ph.Agent()
    await agent.query("one", transport=mock_transport("x"))
    await agent.query("two", transport=mock_transport("x"), instrumentation=[other, book])
    await agent.query("three", transport=mock_transport("x"), instrumentation=None)
    assert [notes.start.prompt for notes in book.queries] == ["one", "two"]
    assert [notes.start.prompt for notes in other.queries] == ["two"]


@pytest.mark.parametrize("wrong", [object(), "otel", [None], 3])
async def test_what_watches_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ph.OptionsError, match="an Instrumentation, or a list of them"):
        ph.query("Hi", instrumentation=wrong)


async def test_the_protocol_is_what_it_says(book: Notebook) -> None:
    assert isinstance(book, Instrumentation)
    assert not isinstance(object(), Instrumentation)
    plain = Observer()
    assert plain.environ() == {}


async def test_observers_get_no_key(book: Notebook) -> None:
    await ph.query(
        "Hi",
        transport=mock_transport("Hello"),
        instrumentation=book,
        api_key="sk-ant-planted-0123456789",
        env={"MY_TOKEN": "planted-token-0123456789"},
        base_url="https://user:planted-password@gateway.example/v1",
        extra_args={"header": "planted-token-0123456789"},
        mcp_servers={"a": ph.StdioServer(command="x", args=["--token", "planted-argument-0123456789"])},
        settings={"apiKeyHelper": "planted-helper-0123456789"},
    )
    start = book.only.start
    reported = repr((start.settings, start.base_url))
    assert "planted" not in reported
    assert start.settings["model" if "model" in start.settings else "base_url"]
    for secret in ("token", "argument", "helper"):
        assert start.redact(f"a planted-{secret}-0123456789 b") == "a [redacted] b"


async def test_errors_and_interrupts_are_ends(book: Notebook) -> None:
    failed = [frames.init(), frames.result("API Error", is_error=True, api_error_status=529)]
    await ph.query("Hi", transport=mock_transport(failed), instrumentation=book)
    with FakeCLI().expect("user").emit(frames.init()).exit(3) as fake, pytest.raises(ph.CLIExitedError) as raised:
        await ph.query("Hi", cli=fake.path, instrumentation=book)
    with pytest.raises(ph.CLINotFoundError):
        await ph.query("Hi", cli="/nowhere/claude", instrumentation=book)
    api, died, absent = (notes.end for notes in book.queries)
    assert isinstance(api.error, ph.OverloadedError)
    assert api.result is not None
    assert (died.error, died.result) == (raised.value, None)
    assert isinstance(absent.error, ph.CLINotFoundError)


async def test_an_interrupted_query(book: Notebook) -> None:
    fake = FakeCLI().expect("user").emit(frames.init(), frames.assistant("part"))
    stopped: dict[str, Any] = {"subtype": "error_during_execution", "terminal_reason": "aborted_streaming"}
    fake.expect("control_request", "interrupt").reply({}).emit(frames.result(None, is_error=True, **stopped))
    with fake, anyio.fail_after(20):
        query = ph.query("Hi", cli=fake.path, instrumentation=book)
        async for message in query:
            if message.type == "assistant":
                await query.interrupt()
    end = book.only.end
    assert end.interrupted
    assert isinstance(end.error, ph.Interrupted)


async def test_a_query_that_was_stopped_at_its_budget(book: Notebook) -> None:
    fake = FakeCLI().expect("user").emit(frames.init(), frames.assistant("part"))
    stopped: dict[str, Any] = {"subtype": "error_during_execution", "terminal_reason": "aborted_streaming"}
    fake.expect("control_request", "interrupt").reply({}).emit(frames.result(None, is_error=True, **stopped))
    with fake, anyio.fail_after(20):
        answer = await ph.query("Hi", cli=fake.path, instrumentation=book, max_budget_tokens=5)
    end = book.only.end
    assert isinstance(end.error, ph.BudgetError)
    assert end.error is answer.error
    assert not end.interrupted


async def test_a_query_that_is_left_early_ends_too(book: Notebook) -> None:
    with FakeCLI().expect("user").emit(frames.init()).hang() as fake, anyio.fail_after(30):
        async with ph.query("Hi", cli=fake.path, instrumentation=book) as query:
            async for _ in query:
                break
    assert isinstance(book.only.end.error, ph.SessionClosedError)


async def test_a_query_that_cannot_be_started_ends_too(book: Notebook) -> None:
    def none_today() -> Any:
        raise RuntimeError("no transport today")

    with pytest.raises(RuntimeError):
        await ph.query("Hi", transport=none_today, instrumentation=book)
    assert isinstance(book.only.end.error, RuntimeError)


async def test_retries_are_observed(book: Notebook) -> None:
    lines = [frames.init(), frames.api_retry(), frames.assistant("late"), frames.result("late")]
    await ph.query("Hi", transport=mock_transport(lines), instrumentation=book)
    assert book.only.log == ["system", "system", "retry 1", "assistant", "result", "end"]


async def test_the_child_gets_variables_but_those_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "from outside")
    book = Notebook({"ADDED": "yes", "INHERITED": None, "OWN": "theirs"})
    with FakeCLI().text("Hello") as fake:
        await ph.query("Hi", cli=fake.path, instrumentation=book, env={"OWN": "mine"})
        [call] = fake.calls
    assert (call.env["ADDED"], call.env["OWN"]) == ("yes", "mine")
    assert "INHERITED" not in call.env


# What this process answers.


async def test_hooks_permissions_and_custom_tools_are_observed(book: Notebook) -> None:
    def check(event: Any) -> None: ...

    def fail(event: Any) -> None:
        raise RuntimeError("hook")

    async def ask(request: Any) -> bool:
        return request.tool_name != "Write"

    @ph.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def play(child: Any) -> None:
        child.expect("user")
        hook = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {}, "session_id": "s", "cwd": "/"}
        for number in (0, 1):
            child.ask("hook_callback", callback_id=f"hook_{number}", input=hook, tool_use_id="toolu_1")
        for name in ("Bash", "Write"):
            child.ask("can_use_tool", tool_name=name, input={}, tool_use_id="toolu_1", permission_suggestions=[])
        for name in ("add", "none"):
            body = {"method": "tools/call", "jsonrpc": "2.0", "id": 7}
            params = {"name": name, "arguments": {"a": 1, "b": 2}, "_meta": {"claudecode/toolUseId": "toolu_1"}}
            child.ask("mcp_message", server_name="tools", message={**body, "params": params})
        child.emit({"type": "result", "subtype": "success", "is_error": False, "result": "ok", "num_turns": 1})

    hooks: Hooks = {"PreToolUse": [ph.HookMatcher("Bash", [check, fail])]}
    with FakeCLI.from_function(play) as fake, anyio.fail_after(20):
        await ph.query("Hi", cli=fake.path, instrumentation=book, hooks=hooks, can_use_tool=ask, custom_tools=[add])
    notes = book.only
    reported = [(call.kind, call.name, call.tool_use_id, end.outcome) for call, end in notes.calls]
    assert reported[2:] == [
        ("permission", "Bash", TOOL, "allow"),
        ("permission", "Write", TOOL, "deny"),
        ("tool", "mcp__tools__add", TOOL, "ok"),
        ("tool", "mcp__tools__none", TOOL, "error"),
    ]
    assert [entry[:3] for entry in reported[:2]] == [("hook", "PreToolUse", TOOL)] * 2


async def test_all_that_runs_for_a_query_runs_in_its_context(book: Notebook) -> None:
    seen: list[str] = []

    def transport() -> Any:
        seen.append(inside.get())  # made before anything runs
        return mock_transport("Hello")

    class Watched(Notebook):
        def query_started(self, start: Any) -> Any:
            notes = super().query_started(start)
            notes.on_message = lambda message: seen.append(inside.get())  # pyright: ignore[reportAttributeAccessIssue]
            return notes

    await ph.query("Hi", transport=transport, instrumentation=Watched())
    assert seen == ["nothing", "Hi", "Hi", "Hi"]
    assert inside.get() == "nothing"


# Sessions.


async def test_the_queries_of_a_session(book: Notebook) -> None:
    caller.set("me")
    with FakeCLI().text("one").text("two") as fake:
        session = ph.session(cli=fake.path, instrumentation=book)
        caller.set("somebody else")
        async with session:
            await session.query("first")
            await session.query("second")
        [call] = fake.calls
    first, second = book.queries
    assert (first.start.prompt, second.start.prompt) == ("first", "second")
    assert first.start.in_session
    assert first.start.session_id == session.options.session_id or session.id
    assert [m.type for m in second.messages if m.type != "stream_event"] == ["system", "assistant", "result"]
    assert second.end.result.text == "two"
    assert call.env["OF_SESSION"] == "me"


async def test_the_observer_of_the_next_query_gets_the_restart(book: Notebook) -> None:
    with FakeCLI().text("one").expect("user").kill() as fake, anyio.fail_after(30):
        async with ph.session(cli=fake.path, instrumentation=book) as session:
            await session.query("first")
            with pytest.raises(ph.CLIExitedError):
                await session.query("second")
            await session.query("third")
    first, second, third = book.queries
    assert "restart" not in first.log + second.log
    assert third.log[0] == "restart"
    assert isinstance(second.end.error, ph.CLIExitedError)


# The blocking twin, and the price.
