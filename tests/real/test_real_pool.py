"""The real CLI, started ahead."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import pilothouse as ph
from pilothouse.testing import ScriptedModel
from pilothouse.testing.conformance import AgentSuite

pytestmark = [pytest.mark.real_cli, pytest.mark.anyio]


async def until_ready(pool: ph.Pool, count: int) -> None:
    with anyio.fail_after(60):
        while pool.idle < count:
            await anyio.sleep(0.01)


@pytest.mark.requirement("E33")
async def test_queries_and_sessions_on_children_that_were_there(real_cli: str, scripted_model: ScriptedModel) -> None:
    scripted_model.default = "Hello"
    settings: dict[str, Any] = {"cli": real_cli, "env": scripted_model.env(), "cwd": scripted_model.home}
    async with ph.Pool(min_idle=0) as pool:
        agent = ph.Agent(transport=pool, **settings)
        await agent.prewarm()
        query = agent.query("go")
        result = await query
        assert (result.text, result.outcome) == ("Hello", "success")
        await agent.prewarm(sessions=True)
        assert pool.idle == 2, "the first one was replaced"
        async with agent.session() as session:
            name = session.id
            assert (await session.query("one")).session_id == name
            assert (await session.query("two")).session_id == name
        async with agent.session(resume=name) as session:
            await session.query("three")
        output = str(scripted_model.requests[-1].body["messages"])
        assert {"one", "two"} <= set(output.replace("'", " ").split()), "it is on disk under the id of the child"
    assert pool.idle == 0


class TestAgentOnPool(AgentSuite):
    """Everything a program can do, on children that a pool has made."""

    @pytest.fixture(autouse=True)
    def _cli(self, real_cli: str) -> None:
        self._path = real_cli

    def settings(self, model: ScriptedModel) -> dict[str, Any]:
        return {"cli": self._path, "env": model.env(), "cwd": model.home, "transport": ph.Pool()}
