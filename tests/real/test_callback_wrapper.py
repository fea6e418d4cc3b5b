"""`callback_wrapper` on the real CLI: around hooks, permissions and tools, and what its failure does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import pilothouse as ph
from pilothouse import sync
from pilothouse_testing import ScriptedModel, Steps, ToolUse

pytestmark = pytest.mark.real_cli
request_id: ContextVar[str] = ContextVar("request_id", default="none")


def number(place: str) -> str:
    """Say which request this is."""
    return f"request {request_id.get()} in {place}"


def work(model: ScriptedModel) -> None:
    calls = [ToolUse("mcp__tools__number", {"place": "Rome"}), ToolUse("Bash", {"command": "touch made"})]
    model.on("go", reply=Steps([calls[0]], [calls[1]], "done"))


def check(model: ScriptedModel, called: list[tuple[str, str]]) -> None:
    assert "request 42 in Rome" in str(model.requests[1].body["messages"])
    around_call = [("hook", "PreToolUse"), ("option", "can_use_tool")]
    assert called == [*around_call, ("tool", "number"), *around_call]


@pytest.mark.anyio
async def test_what_the_cli_asks_runs_inside(claude: Any) -> None:
    work(claude.model)
    called: list[tuple[str, str]] = []

    @asynccontextmanager
    async def around(kind: str, name: str) -> AsyncGenerator[None]:
        called.append((kind, name))
        token = request_id.set("42")
        yield
        request_id.reset(token)

    def may(request: ph.PermissionRequest) -> bool:
        return request_id.get() == "42"

    hooks = {"PreToolUse": lambda event: None}
    result = await claude.ask(custom_tools=[number], can_use_tool=may, hooks=hooks, callback_wrapper=around)
    assert result.text == "done"
    check(claude.model, called)
    assert (claude.cwd / "made").exists()


def test_blocking_callbacks_run_inside(claude: Any) -> None:
    work(claude.model)
    called: list[tuple[str, str]] = []

    @contextmanager
    def around(kind: str, name: str) -> Generator[None]:
        called.append((kind, name))
        token = request_id.set("42")
        yield
        request_id.reset(token)

    settings: Any = {
        "cwd": claude.cwd,
        "cli": claude.path,
        "inherit_env": False,
        "env": claude.model.env(max_retries=0),
    }
    settings |= {"custom_tools": [number], "can_use_tool": lambda request: request_id.get() == "42"}
    settings |= {"hooks": {"PreToolUse": lambda event: None}, "callback_wrapper": around}
    assert sync.query("go", **settings).result().text == "done"
    check(claude.model, called)


@pytest.mark.anyio
async def test_a_gate_stays_closed_if_the_wrapper_fails(claude: Any) -> None:
    work(claude.model)

    def around(kind: str, name: str) -> Any:
        raise OSError("no database")

    hooks = {"PreToolUse": lambda event: None}
    await claude.ask(custom_tools=[number], allowed_tools=["Bash"], hooks=hooks, callback_wrapper=around)
    assert not (claude.cwd / "made").exists()
    assert "in Rome" not in str(claude.model.requests[-1].body["messages"])
