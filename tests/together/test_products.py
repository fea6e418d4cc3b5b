"""What options of the core need of other packages: found by entry points, and only when an option needs it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import pilothouse as ph
from pilothouse.client import Middleware
from pilothouse.client.custom_tools import ToolBridge
from pilothouse.messages import ResultMessage
from pilothouse.products import EXTRAS, load_product
from pilothouse_testing import FakeCLI
from pilothouse_transcripts.stores import MemoryStore

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Whatever was found before or is found here, others search again."""
    load_product.cache_clear()
    yield
    load_product.cache_clear()


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def allow(request: object) -> ph.Allow:
    return ph.Allow()


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("tool_bridge", {"custom_tools": [add], "tool_bridge": "xml"}),
        ("tool_bridge", {"custom_tools": [add], "tool_bridge": "deferred"}),
        ("session_store", {"session_store": MemoryStore()}),
    ],
)
async def test_a_missing_package_is_named_before_anything_starts(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch, option: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    with pytest.raises(ph.OptionsError, match=f"option '{option}': .* run: pip install .*pilothouse") as caught:
        await ph.query("go", cli=fake.path, **settings)
    assert caught.value.option == option
    assert fake.calls == []


async def test_nothing_is_searched_for_defaults(fake: FakeCLI, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise AssertionError("nothing needs a search")

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    fake.text("Hello").forever()
    await ph.query("go", cli=fake.path, custom_tools=[add])
    await ph.query("go", cli=fake.path, tool_bridge="xml", can_use_tool=allow)  # without a tool
    async with ph.session(cli=fake.path, custom_tools=[add]) as session:
        assert (await session.query("go")).text == "Hello"


def test_every_group_has_entry_points_that_load() -> None:
    for group in EXTRAS:
        found = importlib.metadata.entry_points(group=group)
        assert found
        assert all(callable(each.load()) for each in found)


class LoudBridge(ToolBridge):
    """Adds a system prompt, and counts the results of a query."""

    made: LoudBridge
    results = 0

    def __init__(self, options: ph.Options) -> None:
        self.prompt = f"You have {len(options.custom_tools or ())} tool."
        self.bound: tuple[Any, ...] = ()
        LoudBridge.made = self

    def make_options(self, options: ph.Options) -> Mapping[str, Any]:
        return {"append_system_prompt": self.prompt}

    def bind_handlers(self, hook: Any, permission: Any, session: Any) -> None:
        self.bound = (hook, permission, session)

    def make_middlewares(self) -> tuple[Middleware, Middleware]:
        bridge = self

        class Count(Middleware):
            async def after_result(self, result: ResultMessage) -> None:
                bridge.results += 1

        return Middleware(), Count()


async def test_an_installed_bridge_has_options_handlers_and_middlewares(
    fake: FakeCLI, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("xml", f"{__name__}:LoudBridge", "pilothouse.tool_bridges")
    monkeypatch.setattr(EntryPoint, "load", lambda _: LoudBridge)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (point,))
    fake.text("one").text("two")
    async with ph.session(cli=fake.path, custom_tools=[add], tool_bridge="xml", can_use_tool=allow) as session:
        assert [(await session.query(word)).text for word in ("a", "b")] == ["one", "two"]
    bridge = LoudBridge.made
    assert bridge.results == 2
    assert f"--append-system-prompt={bridge.prompt}" in fake.calls[0].argv
    hook, permission, owner = bridge.bound
    assert (hook, callable(permission), owner.id) == (None, True, session.id)
