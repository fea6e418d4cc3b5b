"""Which thread does what: many threads, running event loops, context variables, callbacks, prompts."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import trio
from process_checks import eventually
from sync_fixtures import ended, in_threads, running

from pilothouse import sync as ph
from pilothouse_testing import FakeCLI, frames

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

who: ContextVar[str] = ContextVar("who", default="nobody")


# many threads


def test_threads_share_one_loop_over_a_query(fake: FakeCLI) -> None:
    fake.expect("user").repeat(5000, frames.assistant("x")).emit(frames.result("done"))
    reading = iter(ph.query("go", cli=fake.path))
    seen: list[ph.Message] = []
    in_threads(*(lambda: seen.extend(reading) for _ in range(4)))
    assert len(seen) == 5001
    assert len({id(message) for message in seen}) == 5001


def test_threads_may_all_wait_for_one_result(fake: FakeCLI) -> None:
    fake.expect("user").emit(*(frames.assistant(str(n)) for n in range(50))).emit(frames.result("done"))
    seen: list[str] = []
    query = ph.query("go", cli=fake.path, on_message=lambda m: seen.append(m.type))
    results: list[ph.QueryResult] = []
    in_threads(*(lambda: results.append(query.result()) for _ in range(4)))
    assert len({id(result) for result in results}) == 1
    assert len(seen) == 51


def test_another_thread_closes(hanging: FakeCLI) -> None:
    query = ph.query("go", cli=hanging.path)

    def close() -> None:
        eventually(lambda: query.session_id)
        query.close()
        assert ended(hanging)

    def read() -> None:
        with pytest.raises(ph.SessionClosedError, match="closed"):
            query.result()

    in_threads(read, close)


# running event loops


def ask(fake: FakeCLI) -> str:
    seen: list[str] = []
    with ph.query("go", cli=fake.path) as query:
        for message in query:
            seen.append(message.type)
    assert seen == ["system", "assistant", "result"]
    return ph.query("go", cli=fake.path).result().text


RUNNERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "asyncio": lambda main: asyncio.run(main()),
    "trio": trio.run,
    "anyio on asyncio": lambda main: anyio.run(main, backend="asyncio"),
    "anyio on trio": lambda main: anyio.run(main, backend="trio"),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_inside_a_running_loop_as_in_a_notebook(fake: FakeCLI, runner: str) -> None:
    fake.text("Hello").forever()

    async def cell() -> str:
        return ask(fake)

    assert RUNNERS[runner](cell) == "Hello"


def test_beside_async_queries_of_another_loop(fake: FakeCLI) -> None:
    import pilothouse

    fake.text("Hello").forever()

    async def main() -> list[str]:
        async def here() -> str:
            return (await pilothouse.query("go", cli=fake.path)).text

        return list(await asyncio.gather(*(asyncio.to_thread(ask, fake) for _ in range(3)), *(here() for _ in "ab")))

    assert asyncio.run(main()) == ["Hello"] * 5


# context variables


def test_callbacks_see_the_context_of_the_call(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    seen: list[str] = []

    async def show(message: ph.Message) -> None:
        seen.append(f"async {who.get()}")

    def work(name: str) -> None:
        who.set(name)
        ph.query("go", cli=fake.path, on_message=lambda m: seen.append(f"sync {who.get()}")).result()
        ph.query("go", cli=fake.path, on_message=show).result()

    in_threads(*(lambda name=name: work(name) for name in ("ann", "bob")))
    kinds = [f"{kind} {name}" for kind in ("sync", "async") for name in ("ann", "bob")]
    assert {kind: seen.count(kind) for kind in kinds} == dict.fromkeys(kinds, 3)


def test_prompts_and_standard_error_see_the_context_of_the_call(fake: FakeCLI) -> None:
    fake.stderr("a line\n").text("Hello")
    seen: list[tuple[str, str, str]] = []

    def note(what: str) -> None:
        seen.append((what, who.get(), threading.current_thread().name))

    def prompts() -> Iterator[str]:
        note("prompt")
        yield "go"

    def work() -> None:
        who.set("ann")
        ph.query(prompts(), cli=fake.path, stderr=note).result()

    in_threads(work)
    assert sorted(seen) == [("a line", "ann", "pilothouse-sync"), ("prompt", "ann", "AnyIO worker thread")]


def test_a_callback_may_set_context_variables(fake: FakeCLI) -> None:
    fake.text("Hello")
    ph.query("go", cli=fake.path, on_message=lambda m: who.set(m.type)).result()
    assert who.get() == "result"
    who.set("nobody")


# misuse


def test_a_blocking_call_on_the_loop_is_refused(fake: FakeCLI) -> None:
    fake.text("Hello").forever()

    async def show(message: ph.Message) -> None:
        ph.query("go", cli=fake.path).result()

    errors = ph.query("go", cli=fake.path, on_message=show).result().callback_errors
    assert len(errors) == 3
    assert isinstance(errors[0], ph.UsageError)
    assert "event loop of pilothouse.sync" in str(errors[0])


def test_a_callback_in_the_callers_thread_may_ask(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    answers: list[str] = []

    def show(message: ph.Message) -> None:
        answers.append(ph.query("go", cli=fake.path).result().text)

    assert not ph.query("go", cli=fake.path, on_message=show).result().callback_errors
    assert answers == ["Hello"] * 3


def test_an_exit_on_the_loop_ends_no_other_query(
    hanging: FakeCLI, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = iter(ph.query("go", cli=hanging.path))
    next(other)

    async def leave(message: ph.Message) -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)  # not in the callback, which would only fail

    with FakeCLI() as fake, caplog.at_level(logging.ERROR):
        fake.expect("user").stderr("a line\n").emit(frames.init(), frames.assistant("Hello"), frames.result("Hello"))
        query = ph.query("go", cli=fake.path, on_message=leave, stderr=sys.exit)
        assert query.result().text == "Hello"
        assert "tried to stop the loop" in caplog.text
        assert "the stderr callback raised" in caplog.text
        eventually(lambda: not running(fake))
    assert next(other).type == "assistant"
    other.close()


# prompts


def test_slow_prompts_hold_up_no_other_query() -> None:
    given: queue.Queue[str] = queue.Queue()

    def prompts() -> Iterator[str]:
        yield given.get()  # waits as long as a person may

    with FakeCLI().text("Hello").forever() as fake:
        slow = [ph.query(prompts(), cli=fake.path).start() for _ in range(45)]  # anyio has 40 threads for everybody
        assert ph.query(iter(["quick"]), cli=fake.path).result().text == "Hello"
        for _ in slow:
            given.put("go")
        assert [query.result().text for query in slow] == ["Hello"] * 45


def test_prompts_of_every_form(fake: FakeCLI) -> None:
    fake.text("Hello").forever()

    class Again:
        def __iter__(self) -> Iterator[str]:
            return iter(["c"])

    async def prompts() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield "d"

    forms: list[Any] = ["a", ["b"], Again(), prompts(), (text for text in "e")]
    for form in forms:
        assert ph.query(form, cli=fake.path).result().text == "Hello"
    blocks = [{"type": "text", "text": "b"}]
    assert [call.prompts for call in fake.calls] == [["a"], [blocks], ["c"], ["d"], ["e"]]
    for wrong in (7, b"bytes", {"type": "user"}, None):
        with pytest.raises(ph.UsageError):
            ph.query(wrong, cli=fake.path)  # pyright: ignore[reportArgumentType]


def test_what_a_prompt_iterable_raises_is_raised(fake: FakeCLI) -> None:
    fake.text("Hello").forever()

    def prompts() -> Iterator[str]:
        yield "one"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        ph.query(prompts(), cli=fake.path).result()
    assert not running(fake)


def test_no_thread_for_the_loop_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from pilothouse.sync.portal import Portal

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ph.SessionClosedError, match="can't start new thread"):
        Portal()
