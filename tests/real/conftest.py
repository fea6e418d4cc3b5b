"""The real CLI, asked through `pilothouse.query`, against a scripted model on loopback; and the drift check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import anyio
import msgspec
import pytest
from bridge_models import Bridge
from cli_versions import UNKNOWN_PROPERTY, describe_unknown
from process_checks import find_processes

import pilothouse as ph
from pilothouse.messages import Message, UnknownMessage
from pilothouse.messages.base import UnknownPart
from pilothouse.options import TABLE
from pilothouse.provision.pinned_files import PINNED_VERSION
from pilothouse.transports.discovery import parse_version
from pilothouse_testing import ScriptedModel


@pytest.fixture
def anyio_backend() -> str:
    """Half a second a run: asyncio here, and trio where a test asks for both."""
    return "asyncio"


class Claude:
    """Asks the real CLI. Every message of every answer is checked for parts that pilothouse does not know."""

    def __init__(self, path: str, model: ScriptedModel) -> None:
        self.path = path
        self.model = model
        self.home = model.home
        self.cwd = model.home / "project"
        self.cwd.mkdir()
        self.queries: list[ph.Query] = []

    @property
    def settings(self) -> dict[str, Any]:
        """The options that keep a child inside of the test."""
        return {"cli": self.path, "cwd": self.cwd, "env": self.model.env(max_retries=0), "inherit_env": False}

    def agent(self, **settings: Any) -> ph.Agent:
        return ph.Agent(**{**self.settings, **settings})

    def session(self, **settings: Any) -> ph.Session:
        return ph.session(**{**self.settings, **settings})

    def ask(
        self,
        prompt: Any = "go",
        *,
        max_retries: int = 0,
        env: Mapping[str, str | None] | None = None,
        on_message: Callable[[Message], object] | None = None,
        output_type: Any = None,
        **settings: Any,
    ) -> ph.Query:
        skip_if_older(self.path, settings)
        settings = {"cwd": self.cwd, "cli": self.path, **settings}
        child_env = {**self.model.env(max_retries=max_retries), **(env or {})}
        query = ph.query(
            prompt, env=child_env, inherit_env=False, on_message=on_message, output_type=output_type, **settings
        )
        self.queries.append(query)
        return query

    def processes(self) -> list[int]:
        """Pids of everything that runs with the home of this test."""
        return find_processes(f"HOME={self.home}")

    async def gone(self) -> None:
        """Wait, bounded, until nothing is left of the CLI and of what its tools started."""
        with anyio.fail_after(20):
            while self.processes():
                await anyio.sleep(0.02)

    def find_unknown_parts(self) -> list[Any]:
        messages = [message for query in self.queries for message in query._received.kept]
        return [part for message in messages for part in unknown_parts(message)]

    @property
    def version(self) -> tuple[int, ...]:
        return read_version(self.path)

    @property
    def is_pinned(self) -> bool:
        return self.version == parse_version(PINNED_VERSION)


@cache
def read_version(path: str) -> tuple[int, ...]:
    """The version of this CLI; that of the managed copy is known, and `make canary` passes others."""
    env = {"PATH": os.defpath, "HOME": "/nowhere", "DISABLE_AUTOUPDATER": "1"}
    ran = subprocess.run([path, "--version"], env=env, capture_output=True, text=True, timeout=30, check=True)
    return parse_version(ran.stdout) or ()


def skip_if_older(path: str, settings: Mapping[str, Any]) -> None:
    """Skip the test if one of its options needs a newer CLI than this one."""
    needed = max((parse_version(TABLE[name].min_cli_version) or () for name in settings if name in TABLE), default=())
    if needed and read_version(path) < needed:
        pytest.skip(f"needs Claude Code {'.'.join(map(str, needed))}")


def unknown_parts(value: Any) -> Iterator[Any]:
    """Unknown messages, blocks, events and deltas, at any depth."""
    if isinstance(value, UnknownPart | UnknownMessage):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from unknown_parts(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from unknown_parts(item)


@pytest.fixture
def claude(
    real_cli: str, scripted_model: ScriptedModel, record_property: Callable[[str, object], None]
) -> Iterator[Claude]:
    if sys.platform != "linux":
        pytest.skip("finds the processes of a test in /proc")
    claude = Claude(real_cli, scripted_model)
    yield claude
    unknown = claude.find_unknown_parts()
    for part in unknown:
        record_property(UNKNOWN_PROPERTY, describe_unknown(part))
    assert not unknown, f"this CLI says what pilothouse does not know: {unknown}"
    assert not claude.processes()


@pytest.fixture
def model(scripted_model: ScriptedModel) -> ScriptedModel:
    """What the CLI asks."""
    return scripted_model


@pytest.fixture(params=["mcp", "deferred", "xml"])
def bridge(request: pytest.FixtureRequest) -> Bridge:
    return Bridge(request.param)


@pytest.fixture
def ask(claude: Claude, bridge: Bridge) -> Callable[..., ph.Query]:
    def make(*tools: Any, prompt: Any = "go", **settings: Any) -> ph.Query:
        return claude.ask(prompt, custom_tools=list(tools), tool_bridge=bridge.name, **settings)

    return make
