"""The conformance helper of another SDK, over every store of this package: its users' programs can take ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from claude_agent_sdk.testing import run_session_store_conformance

from pilothouse_transcripts.stores import MemoryStore


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make_memory() -> Callable[..., MemoryStore]:
    return lambda name: MemoryStore()


@pytest.mark.anyio
@pytest.mark.requirement("E85")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis", "s3", "directory"])
async def test_every_store_keeps_the_contracts_of_the_other_sdk(request: pytest.FixtureRequest, kind: str) -> None:
    make, made = request.getfixturevalue(f"make_{kind}"), list[Any]()

    def make_fresh() -> Any:
        made.append(make(str(len(made))))
        return made[-1]

    async with AsyncExitStack() as stack:
        stack.push_async_callback(lambda: _close(made))
        await run_session_store_conformance(make_fresh)


async def _close(stores: list[Any]) -> None:
    for store in stores:
        await store.aclose()
