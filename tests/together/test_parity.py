"""The blocking twin has every name, method and parameter of `pilothouse`; what differs stands here, with the reason."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, assert_type

import pytest
from public_names import PUBLIC_MODULES, list_names

import pilothouse
import pilothouse_fleet.sync
import pilothouse_models.sync
from pilothouse import sync as ph
from pilothouse.client import Agent as AsyncAgent
from pilothouse.client import ClaudeLogin, McpLogin
from pilothouse.client import Query as AsyncQuery
from pilothouse.client import Session as AsyncSession
from pilothouse.client import controls as async_controls
from pilothouse.client.controls import AccountInfo, McpServerStatus
from pilothouse.client.queries import MessageIterator as AsyncReading
from pilothouse.engine.router import MessageSubscription as AsyncListener
from pilothouse.events import QueryEvent
from pilothouse.plugins import Plugins as AsyncPlugins
from pilothouse.sync import BLOCKING_NAMES, generated
from pilothouse.sync.plugins import Plugins as BlockingPlugins
from pilothouse.sync.wrappers import MessageIterator, MessageSubscription
from pilothouse_fleet import Fleet as AsyncFleet
from pilothouse_fleet import Runs as AsyncRuns
from pilothouse_fleet.sync import Runs
from pilothouse_models import LanguageModel as AsyncLanguageModel
from pilothouse_testing import FakeCLI
from pilothouse_transcripts import stores
from pilothouse_transcripts import sync as sync_stores
from pilothouse_transcripts.stores import StoredSessions as AsyncStoredSessions

# Public classes and functions that wait and have no blocking twin, in all packages.
SHARED = {
    name: reason
    for reason, names in {
        "driven by a fleet, on the event loop of that": "AgentRunner Runner WorkspaceRunner",
        "long work of a program for it alone, which runs it with anyio.run": "CacheDoctor compare replay",
        "settled and waited for in tasks and in threads": "Ask",
        "made by a query or a session; a blocking one makes a blocking one": "ClaudeLogin McpLogin Steering",
        "a loop over its stream blocks a thread": "AskView Asks",
        "asked by a fleet, on the event loop of that": (
            "Artifacts CopiedDirectory GitWorktree SqliteJournal Workspace"
        ),
        "driven by the event loop of a query, never by its user": (
            "CliTransport CommandTransport InProcessTransport MemoryTransport NativeTransport RecordingTransport "
            "ReplayTransport Transport TransportFactory TransportWrapper WebSocketTransport"
        ),
        "opened from any thread; a scripted model waits at it": "Gate",
        "the server itself; `pilothouse serve` runs it": "Host",
        "a plain context manager too": "LocalModel Pool ScriptedModel",
        "the other side of a MemoryTransport, for tests": "MemoryPeer",
        "for the cells of a notebook, which await": "watch",
        "waited for on the event loop of a query; StoredSessions is for its user": (
            "MemoryStore ObjectStore PostgresStore RedisStore ScopedStore SessionStore SqliteStore StoreBackend"
        ),
        "called on the event loop of a query, never by its user": "Middleware",
        "served to the CLI on the event loop of a query": "Prompt Resource",
        "entered and asked by its fleet, on the event loop of that": "RayRunner",
        "served to the CLI on the event loop of a query; calling it calls the plain function": "Tool",
        "`pilothouse serve` is the blocking form": "serve",
        "a thin client of a web service; blocking programs run it with anyio.run": (
            "HostClient HostedAsk HostedLogin HostedMcp HostedSession HostedSteering"
        ),
        "driven by a host of your own, on the event loop of that": "make_mcp_dispatcher",
    }.items()
    for name in names.split()
}

# The protocols of asynchronous classes, and the plain ones.
PROTOCOLS = {f"__a{name}__": f"__{name}__" for name in ("enter", "exit", "iter", "next")}

# Other members of the asynchronous classes: what they are called here, None if they are not here, and why.
RENAMED: dict[tuple[str, str], tuple[str | None, str]] = {
    ("MessageSubscription", "aclose"): ("close", "as with Query"),
    ("Query", "__await__"): (None, "plain code cannot await; result() is the same"),
    ("Query", "aclose"): ("close", "what a plain object that can be closed calls it; contextlib.closing needs it"),
    ("MessageIterator", "__del__"): (None, "dropping this drops the asynchronous reading, which has it"),
    ("MessageIterator", "aclose"): ("close", "as with Query"),
    ("MessageIterator", "fill"): (None, "between the two readings"),
    ("MessageIterator", "finish"): (None, "between the two readings"),
    ("MessageIterator", "read"): (None, "between the two readings"),
    ("MessageIterator", "unread"): (None, "between the two readings"),
    ("Runs", "__del__"): (None, "dropping this drops the asynchronous runs, which have it"),
    ("Session", "__del__"): (None, "dropping this drops the asynchronous session, which has it"),
    ("Session", "aclose"): (None, "the same as close(), for contextlib.aclosing"),
}

# Members that only the blocking classes have.
ONLY_HERE = {
    ("Agent", "wrap"): "from an agent of pilothouse to its twin",
    ("Agent", "async_agent"): "and back",
    ("MessageSubscription", "__del__"): "it may be dropped in any thread, and must be given up on the loop",
}

# Parameters that only the asynchronous functions have.
ONLY_THERE = {
    ("LanguageModel", "abort"): "it is an event of a loop; a stream is closed from any thread",
}

NAMES: list[str] = vars(ph)["__all__"]
GROUPS = ("InfoControls", "McpControls", "SettingsControls", "TaskControls")
CLASSES: dict[str, tuple[type, type]] = {
    "Agent": (AsyncAgent, ph.Agent),
    "Fleet": (AsyncFleet, pilothouse_fleet.sync.Fleet),
    "LanguageModel": (AsyncLanguageModel, pilothouse_models.sync.LanguageModel),
    "MessageSubscription": (AsyncListener, MessageSubscription),
    "Query": (AsyncQuery, ph.Query),
    "MessageIterator": (AsyncReading, MessageIterator),
    "Runs": (AsyncRuns, Runs),
    "Session": (AsyncSession, ph.Session),
    "Plugins": (AsyncPlugins, BlockingPlugins),
    "StoredSessions": (AsyncStoredSessions, sync_stores.StoredSessions),
    "ClaudeLogin": (ClaudeLogin, generated.ClaudeLogin),
    "McpLogin": (McpLogin, generated.McpLogin),
    **{name: (getattr(async_controls, name), getattr(generated, name)) for name in GROUPS},
}
FUNCTIONS = {
    **{name: (getattr(pilothouse, name), getattr(ph, name)) for name in sorted(set(BLOCKING_NAMES) - set(CLASSES))},
    "durable_query": (pilothouse_fleet.durable_query, pilothouse_fleet.sync.durable_query),
    "import_session_to_store": (stores.import_session_to_store, sync_stores.import_session_to_store),
}
BLOCKING_IN_PACKAGES = {
    "Fleet", "LanguageModel", "Plugins", "Runs", "StoredSessions", "Stream", "durable_query", "import_session_to_store",
}  # fmt: skip


def members(cls: type) -> dict[str, Any]:
    """What a class and its bases in pilothouse define, and a user may touch."""
    protocol = ("__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__del__", "__repr__")
    return {
        name: value
        for owner in reversed(cls.__mro__)
        if owner.__module__.startswith("pilothouse")
        for name, value in vars(owner).items()
        if (not name.startswith("_") or name in (*protocol, "__enter__", "__exit__", "__iter__", "__next__"))
        and not getattr(value, "is_hint", False)
    }


def shape(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    """Parameters with kind, default and annotation."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return [(p.name, p.kind, p.default, p.annotation) for p in parameters]


def is_asynchronous(cls: type) -> bool:
    return any(
        inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") or name in {"__aenter__", "__aiter__", "__await__"}
    )


@pytest.mark.requirement("R34", "E18")
def test_every_public_name_is_here() -> None:
    assert sorted(pilothouse.__all__) == list(pilothouse.__all__) == NAMES
    assert set(BLOCKING_NAMES) <= set(NAMES)
    assert set(dir(ph)) >= set(NAMES)
    for name in NAMES:
        here, there = getattr(ph, name), getattr(pilothouse, name)
        assert (here is not there) == (name in BLOCKING_NAMES), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ph.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


def test_every_coroutine_has_a_blocking_counterpart() -> None:
    public = {name: getattr(pilothouse, name) for name in pilothouse.__all__}
    for home in PUBLIC_MODULES:
        public |= {name: getattr(import_module(home), name) for name in list_names(home)}
    waiting = {name for name, value in public.items() if isinstance(value, type) and is_asynchronous(value)}
    waiting |= {name for name, value in public.items() if inspect.iscoroutinefunction(value)}
    assert waiting - {*BLOCKING_NAMES, *BLOCKING_IN_PACKAGES} == set(SHARED)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_members(name: str) -> None:
    there, here = (members(cls) for cls in CLASSES[name])
    expected: set[str] = {member for owner, member in ONLY_HERE if owner == name}
    for member, value in there.items():
        counterpart, _ = RENAMED.get((name, member), (PROTOCOLS.get(member, member), ""))
        if counterpart is None:
            continue
        expected.add(counterpart)
        assert counterpart in here, f"{name}.{member} has no twin"
        assert isinstance(value, property) == isinstance(here[counterpart], property), member
        if inspect.isroutine(value):
            asked = [each for each in shape(value) if (name, each[0]) not in ONLY_THERE]
            assert asked == shape(here[counterpart]), member
            assert not inspect.iscoroutinefunction(here[counterpart])
    assert set(here) == expected
    assert {member for owner, member in RENAMED if owner == name} <= set(there), "the ledger has members that are gone"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_same_parameters(name: str) -> None:
    there, here = FUNCTIONS[name]
    assert shape(here) == shape(there)
    assert not inspect.iscoroutinefunction(here)


def test_counterparts_differ_in_result_and_docstring() -> None:
    for counterpart, original in ((ph.Agent.query, AsyncAgent.query), (ph.Session.query, AsyncSession.query)):
        assert inspect.signature(counterpart).return_annotation == "Query[Any]"
        assert counterpart.__doc__ != original.__doc__
        assert counterpart.__module__.startswith("pilothouse.sync.")
    assert next(iter(inspect.signature(ph.Agent().query).parameters)) == "prompt"
    with pytest.raises(TypeError, match="prompt"):
        ph.Agent().query()  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="positional"):
        ph.Agent().query("go", ph.Options(), print)  # pyright: ignore[reportCallIssue]


def test_importing_it_loads_no_module_of_it_before_use() -> None:
    code = "import sys, json; from pilothouse import sync; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    assert {name for name in loaded if name.startswith("pilothouse.sync")} == {"pilothouse.sync"}


def test_types(fake: FakeCLI) -> None:
    fake.text("Hello").forever()
    agent = ph.Agent(model="opus", cli=fake.path)
    assert_type(agent, ph.Agent)
    query = assert_type(agent.query("go", max_turns=3), ph.Query)
    assert_type(query.result(), pilothouse.QueryResult)
    for message in agent.query("go"):
        assert_type(message, pilothouse.Message)
    for text in agent.query("go").text_stream():
        assert_type(text, str)
    for event in agent.query("go").events():
        assert_type(event, QueryEvent)
    with agent.query("go") as entered:
        assert_type(entered, ph.Query)
    assert_type(ph.configure(), ph.Agent)
    with agent.session() as session:
        assert_type(session, ph.Session)
        assert_type(session.query("go"), ph.Query).result()
        assert_type(session.fork(), ph.Session)
        assert_type(session.set_model(None), str | None)
        assert_type(session.control("interrupt", a=1), Mapping[str, Any])
        assert_type(session.interrupt(cancel_queued=False).still_queued, list[str])
        assert_type(session.info.account(), AccountInfo)
        with session.messages() as listener:
            session.query("go").start()
            assert_type(next(listener), pilothouse.Message)
        status: Callable[[], list[McpServerStatus]] = session.mcp.status
        with pytest.raises(ph.ControlError):
            status()
    assert_type(ph.session(model="opus"), ph.Session)
    assert issubclass(ph.CLINotFoundError, ph.PilothouseError)
