"""The commonest slips, and what is said to them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import pickle
import traceback
from importlib import import_module
from typing import Any

import pytest
from public_names import PUBLIC_MODULES, list_names

import pilothouse as ph
from pilothouse import hints, sync
from pilothouse.messages import from_dict
from pilothouse.options import TABLE
from pilothouse.tracebacks import hide_arguments
from pilothouse_fleet import Fleet
from pilothouse_fleet import sync as blocking
from pilothouse_models import LanguageModel
from pilothouse_testing import frames

pytestmark = pytest.mark.filterwarnings("ignore:query .* was never:RuntimeWarning")

SLIPS = {
    'ph.query("x").text': (AttributeError, r"await the query first, as in \(await query\)\.text; .*pilothouse\.sync"),
    'sync.query("x").text': (AttributeError, r"it belongs to the result, query\.result\(\)\.text"),
    'list(ph.query("x"))': (TypeError, "Query: use `async for`, or `for` on what pilothouse.sync has"),
    'enter(ph.query("x"))': (TypeError, "Query: use `async with`"),
    "enter(ph.session())": (TypeError, "Session: use `async with`, or `with` on what pilothouse.sync has"),
    'wait(sync.query("x"))': (TypeError, r"do not await what pilothouse.sync has: .* query\.result\(\)"),
    "wait(enter_async(sync.session()))": (TypeError, "Session: use `with`"),
    "ph.Agent().run": (AttributeError, r"here it is query\(…\)"),
    'ph.query("x").stream': (AttributeError, r"here it is text_stream\(\), events\(\), or a loop over the query"),
    'sync.query("x").receive_response': (AttributeError, "here it is a loop over the query"),
    'ph.Agent("You are helpful")': (ph.OptionsError, "pass keywords instead, such as system_prompt=…"),
    "ph.QueryResult([]).content": (AttributeError, "here it is text"),
    "ph.QueryResult([]).cost": (AttributeError, "here it is cost_usd"),
    "setattr(ph.Agent(), 'model', 'opus')": (AttributeError, r"immutable; use agent\.with_options\(model=…\)"),
    "ph.HttpServer('https://x')": (TypeError, "HttpServer: extra positional .*, all keywords, are url, headers"),
    "ph.StdioServer(comand='x')": (TypeError, "StdioServer: .* 'comand'; did you mean 'command'?"),
    "ph.session().receive_response": (AttributeError, r"a loop over query\(…\)"),
    "Fleet(max_concurrency=4)": (TypeError, "did you mean 'concurrency'?"),
    "blocking.Fleet(max_concurrency=4)": (TypeError, "did you mean 'concurrency'?"),
    "ph.ClaudeAgentOptions": (AttributeError, "here it is pilothouse.Options"),
    "ph.HookOutput(permission_decison='deny')": (
        TypeError,
        "HookOutput: .* 'permission_decison'; did you mean 'permission_decision'?",
    ),
    "ph.HookOutput(additionalContext='x')": (TypeError, "did you mean 'additional_context'?"),
    "ph.Deny(reason='x')": (TypeError, "Deny: unexpected keyword argument 'reason'; its fields are message, interrupt"),
    "ph.Allow(update_input={})": (TypeError, "did you mean 'updated_input'?"),
    "ph.HookMatcher(hook=[])": (TypeError, "HookMatcher: "),
    "ph.FakeCLI": (AttributeError, "`from pilothouse_testing import FakeCLI`, with: pip install 'pilothouse.testing.'"),
    "ph.ChatPilothouse": (AttributeError, "`from pilothouse_models.langchain import .*pilothouse.langchain.'"),
    "ph.McpServer": (AttributeError, "here it is pilothouse.StdioServer, HttpServer or SseServer"),
    "ph.Retry": (AttributeError, "here it is `from pilothouse.options import RetryPolicy`"),
    "ph.Artifact": (AttributeError, "has no attribute 'Artifact'$|did you mean '[A-Z]"),
    "ph.ClaudeSDKClient": (AttributeError, r"here it is pilothouse.session\(\)"),
    "ph.OpenTelemetry": (AttributeError, "here it is `from pilothouse_otel import OpenTelemetry`"),
    "sync.Pool": (AttributeError, "here it is `from pilothouse_pool import Pool`"),
    "ph.Agent().aclose": (AttributeError, "here it is not needed; what `prewarm` started ends with its Pool"),
    "ph.HookEvent": (AttributeError, "here it is `from pilothouse.hooks import HookEvent`"),
    "sync.StoredSessions": (
        AttributeError,
        "here it is `from pilothouse_transcripts.sync import StoredSessions`, with:",
    ),
    "from pilothouse import HookEvent": (ImportError, "here it is `from pilothouse.hooks import HookEvent`"),
    "ph.HookEvnt": (AttributeError, "did you mean 'HookEvent' of pilothouse.hooks?"),
    'list(ph.query("x").text_stream())': (TypeError, "MessageIterator: use `async for`, or `for` on what"),
    'wait(ph.query("x").text_stream())': (TypeError, "MessageIterator: use `async for`: there is nothing to await"),
    'wait(sync.query("x").text_stream())': (TypeError, "MessageIterator: do not await what pilothouse.sync has"),
    "wait(LanguageModel().stream('Hi'))": (TypeError, r"use `async for`, or await its result\(\)"),
    "ph.benchmark_of_nothing": (AttributeError, "has no attribute 'benchmark_of_nothing'$"),
    "ph.client.nothing": (AttributeError, "has no attribute 'nothing'$"),
    "ph.MemoryTransprt": (AttributeError, "did you mean 'MemoryTransport' of pilothouse.transports?"),
    "ph.Sesion": (AttributeError, "did you mean 'Session'?"),
    "sync.ClaudeAgentOptions": (AttributeError, "here it is pilothouse.Options"),
    "from pilothouse import ClaudeAgentOptions": (ImportError, "here it is pilothouse.Options"),
    "from pilothouse import Fleet": (
        ImportError,
        r"`from pilothouse_fleet import Fleet`, with: pip .*\[fleet\]",
    ),
    "from pilothouse import testing": (ImportError, r"`pilothouse_testing`, with: pip install 'pilothouse\[testing\]'"),
    "from pilothouse.sync import Fleet": (ImportError, "`from pilothouse_fleet.sync import Fleet`, with: pip"),
    "from pilothouse import no_such_name": (ImportError, "cannot import name 'no_such_name' from 'pilothouse'"),
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
def test_a_mistake_is_reported_with_advice(code: str) -> None:
    kind, text = SLIPS[code]
    names = {
        "ph": ph,
        "sync": sync,
        "enter": enter,
        "enter_async": enter_async,
        "wait": wait,
        "Fleet": Fleet,
        "LanguageModel": LanguageModel,
        "blocking": blocking,
    }
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


def test_a_type_error_from_inside_of_a_call_is_left_alone() -> None:
    def inner(value: int) -> int:
        return value

    @hide_arguments
    def ask(*, item: int) -> int:
        return inner(itm=item)  # pyright: ignore[reportCallIssue]

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'itm'$"):
        ask(item=1)
    with pytest.raises(TypeError, match="did you mean 'item'"):
        ask(itm=1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("name", [*hints.MOVED, *hints.MOVED_MODULES])
def test_a_name_of_another_package_has_its_place_and_what_to_install(name: str) -> None:
    home = (hints.MOVED | hints.MOVED_MODULES)[name]
    extra = hints.EXTRAS.get(home) or hints.EXTRAS[home.partition(".")[0]]
    with pytest.raises(AttributeError, match=rf"here it is `.*{home}.*: pip install 'pilothouse\[{extra}\]'"):
        getattr(ph, name)


@pytest.mark.parametrize("owner", [ph.Agent(), sync.Agent(), ph.Options()], ids=["agent", "blocking", "options"])
def test_a_method_that_became_a_function_of_a_package(owner: Any) -> None:
    named = "options" if isinstance(owner, ph.Options) else "agent"
    with pytest.raises(AttributeError) as caught:
        getattr(owner, "effective_policy")()  # noqa: B009 - type checkers know that it is gone
    assert str(caught.value).endswith(
        f"here it is pilothouse_policy.effective_policy({named}), with: pip install 'pilothouse[policy]'"
    )


def test_hints_name_what_is_there() -> None:
    for named in hints.ROOT_NAMES.values():
        first = named.split()[0].rstrip(",;").partition("(")[0]
        if first.startswith("pilothouse."):
            assert eval(first, {"pilothouse": ph}) is not None, first
    for home in PUBLIC_MODULES:
        assert [name for name in list_names(home) if not hasattr(import_module(home), name)] == []
    for name, home in (*hints.MOVED.items(), *hints.SYNC_MOVED.items()):
        assert hasattr(import_module(home), name), name
    for (_, name), call in hints.MOVED_METHODS.items():
        home, _, function = call.partition("(")[0].rpartition(".")
        assert name == function
        assert hasattr(import_module(home), function)
    for name, meant in hints.ARGUMENTS.items():
        assert meant in inspect.signature(Fleet).parameters, name


def test_dir_has_public_names_only() -> None:
    for module in (ph, sync):
        names = {name for name in dir(module) if not name.startswith("__")}
        assert names == set(ph.__all__) - {"__version__"}


def test_a_query_shows_its_state_in_one_line() -> None:
    for query, hint in ((ph.query("x"), "`await` it"), (sync.query("x"), "call `.result()`")):
        assert repr(query).startswith(f"<Query {query.id}: new, not sent yet: {hint}, ")
        assert "\n" not in repr(query)


@pytest.mark.parametrize(
    "function",
    [
        *(ph.query, ph.session, ph.configure, ph.Agent, ph.Agent.query, ph.Agent().query, ph.Options, ph.Session.query),
        *(sync.query, sync.session, sync.Agent.query, sync.configure),
    ],
)
def test_signatures_have_the_options(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert {name for name in TABLE if name not in parameters} == set()
    assert parameters["max_turns"].annotation == "int | None"
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    needed = {name: "x" for name in ("self", "prompt") if name in parameters}
    inspect.signature(function).bind(*needed.values(), model="opus")


def test_help_explains_what_everybody_calls_first() -> None:
    for function in (ph.query, ph.session, sync.query, sync.session):
        text = inspect.getdoc(function) or ""
        assert all(part in text for part in ("::", "Args:", "Returns:", "Raises:")), text


def test_a_notebook_shows_the_answer() -> None:
    output = ph.QueryResult([])
    assert "<em>error, turns: 0</em>" in output._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_notebook_does_not_run_what_the_model_says() -> None:
    output = ph.QueryResult([from_dict(frames.assistant("<img src=x onerror=alert(1)>"))])
    shown = output._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "&lt;img src=x" in shown
    assert "<img" not in shown


@pytest.mark.parametrize("module", ["pilothouse", *PUBLIC_MODULES])
def test_help_reads_every_signature(module: str) -> None:
    for name in list_names(module):
        value = getattr(import_module(module), name)
        if inspect.isclass(value) or inspect.isroutine(value):
            with contextlib.suppress(ValueError):  # it has none
                inspect.signature(value)
