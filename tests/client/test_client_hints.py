"""The commonest slips, and what is said to them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import traceback
from typing import Any

import pytest

import pilothouse as ph
from pilothouse import hints, sync
from pilothouse.testing import FakeCLI, frames

SLIPS = {
    'ph.query("x").text': (AttributeError, r"await the query first, as in \(await query\)\.text; .*pilothouse\.sync"),
    'ph.query("x").is_success': (AttributeError, r"\(await query\)\.is_success"),
    'sync.query("x").text': (AttributeError, r"it belongs to the result, query\.result\(\)\.text"),
    'list(ph.query("x"))': (TypeError, "Query: use `async for`, or `for` on what pilothouse.sync has"),
    'enter(ph.query("x"))': (TypeError, "Query: use `async with`"),
    "enter(ph.session())": (TypeError, "Session: use `async with`, or `with` on what pilothouse.sync has"),
    "enter(ph.Fleet())": (TypeError, "Fleet: use `async with`"),
    'wait(sync.query("x"))': (TypeError, r"do not await what pilothouse.sync has: .* query\.result\(\)"),
    "wait(enter_async(sync.session()))": (TypeError, "Session: use `with`"),
    'aiter(sync.query("x"))': (TypeError, "Query: use `for`"),
    "ph.Agent().run": (AttributeError, r"here it is query\(…\)"),
    'sync.Agent().run_sync("x")': (AttributeError, r"here it is query\(…\)"),
    "ph.session().receive_response": (AttributeError, r"a loop over query\(…\)"),
    "ph.Fleet(max_concurrency=4)": (TypeError, "did you mean 'concurrency'?"),
    "sync.Fleet(max_concurrency=4)": (TypeError, "did you mean 'concurrency'?"),
    "ph.Fleet(journl=4)": (TypeError, "did you mean 'journal'?"),
    'ph.Fleet().map(["x"], kye="id")': (TypeError, "did you mean 'key'?"),
    "ph.ClaudeAgentOptions": (AttributeError, "here it is pilothouse.Options"),
    "ph.ClaudeSDKClient": (AttributeError, r"here it is pilothouse.session\(\)"),
    "ph.OpenTelemetry": (AttributeError, "here it is pilothouse.integrations.otel.OpenTelemetry"),
    "ph.Sesion": (AttributeError, "did you mean 'Session'?"),
    "sync.ClaudeAgentOptions": (AttributeError, "here it is pilothouse.Options"),
    "from pilothouse import ClaudeAgentOptions": (ImportError, "here it is pilothouse.Options"),
    "from pilothouse.sync import ClaudeSDKClient": (ImportError, r"here it is pilothouse.session\(\)"),
}


def enter(owner: Any) -> None:
    with owner:
        pass


async def enter_async(owner: Any) -> None:
    async with owner:
        pass


def wait(awaitable: Any) -> None:
    async def main() -> None:
        await awaitable

    asyncio.run(main())


@pytest.mark.parametrize("code", SLIPS)
def test_a_slip_is_told_with_what_to_do(code: str) -> None:
    kind, text = SLIPS[code]
    names = {"ph": ph, "sync": sync, "enter": enter, "enter_async": enter_async, "wait": wait}
    with pytest.raises(kind, match=text) as caught:
        exec(code, names)
    shown = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in shown


def test_names_that_are_looked_for_are_missing_as_ever() -> None:
    assert not hasattr(ph, "ClaudeAgentOptions")
    assert getattr(ph, "nonsense", 3) == 3
    assert not hasattr(ph.query("x"), "text")
    agent = ph.Agent(model="opus")
    assert pickle.loads(pickle.dumps(agent)).options == copy.copy(agent).options
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'prompt'"):
        ph.query()  # pyright: ignore[reportCallIssue]


def test_a_type_error_of_the_users_own_code_is_left_alone() -> None:
    def inner(value: int) -> int:
        return value

    def pick(item: str) -> str:
        return inner(itm=item)  # pyright: ignore[reportCallIssue]

    async def main() -> None:
        async with ph.Fleet() as fleet:
            async for _ in fleet.map(["x"], prompt=pick):
                pass

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'itm'$"):
        asyncio.run(main())


def test_hints_name_what_is_there() -> None:
    result = ph.QueryResult([])
    assert {name for name in hints.RESULT_NAMES if name not in dir(result)} == set()
    for named in hints.ROOT_NAMES.values():
        first = named.split()[0].rstrip(",;").partition("(")[0]
        if first.startswith("pilothouse."):
            scope: dict[str, Any] = {}
            exec(
                "import pilothouse.testing, pilothouse.hooks, pilothouse.sync, pilothouse.integrations.otel as _", scope
            )
            assert eval(first, {"pilothouse": ph}) is not None, first
    for name, meant in hints.ARGUMENTS.items():
        assert meant in inspect.signature(ph.Fleet).parameters, name


def test_dir_has_public_names_only() -> None:
    for module in (ph, sync):
        names = {name for name in dir(module) if not name.startswith("__")}
        assert names == set(ph.__all__) - {"__version__"}


@pytest.mark.anyio
async def test_a_query_shows_its_state() -> None:
    with FakeCLI() as fake:
        fake.expect("user").emit(frames.init(session_id="abc"), frames.result("done", session_id="abc")).forever()
        query = ph.query("x", cli=fake.path)
        assert repr(query) == f"<Query {query.id}: new>"
        async with query:
            await anext(aiter(query))
            assert repr(query) == f"<Query {query.id}: active, session_id='abc'>"
        assert repr(query) == f"<Query {query.id}: completed, session_id='abc'>"
    assert repr(sync.query("x")).endswith(": new>")
